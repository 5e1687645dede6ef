"""Ask the state of a group; questions that come together share one ReadIndex and one visit of the thread that owns
the state.

A linearizable answer is at least as late as everything that was acknowledged before the question came, by whomever. A
stale one is what this node knows, whether it leads the group or not, and says how long ago that was certainly all
there was.

A visit ends with the answer that reaches `VISIT_BYTES` or `VISIT_WORK`, and what is asked for a client that takes
nothing, or while there is too much for all clients, waits until there is room.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import outcome
import trio

from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import Overloaded

T = TypeVar("T")
Question = Callable[[PartitionReplica], T]
"""Asked on the apply thread."""
Size = Callable[[T], int]
"""The bytes of an answer."""

WAITING_MOST = 10_000
"""Requests that questions of one group are for, and that are not answered yet."""
VISIT_BYTES = 8 << 20
"""Of the answers of one visit, but for the last."""
VISIT_WORK: Final = 256
"""The questions of one visit, for which others wait: each about one message counts as one ..."""
PAGE_WORK: Final = 128
"""... and each that looks at many as so many."""


class Output(Protocol):
    """Where answers for one client go."""

    @property
    def has_room(self) -> bool:
        """Whether more may be read for it. For any thread."""

    async def until_room(self) -> None:
        """Wait until more may be read."""

    def hold(self, size: int) -> None:
        """So many bytes were read. On the apply thread."""

    def take(self, size: int) -> None:
        """So many bytes were read. On the loop."""

    def let_go(self, size: int) -> None:
        """They are sent, or not needed."""


class _Boundless:
    """Of who asks for this node itself."""

    has_room = True

    async def until_room(self) -> None: ...

    def hold(self, size: int) -> None: ...

    def take(self, size: int) -> None: ...

    def let_go(self, size: int) -> None: ...


BOUNDLESS: Final[Output] = _Boundless()


class _Asked(Generic[T]):
    def __init__(self, question: Question[T], requests: int, output: Output, size_of: Size[T], work: int) -> None:
        self.work = work
        self.question = question
        self.requests = requests
        self.output = output
        self.size_of = size_of
        self.answered = trio.Event()
        self.answer: outcome.Outcome[T]
        self.size = 0
        """Bytes that are held for the answer."""
        self.stale_ms = 0
        self.is_given_up = False

    def settle(self, answer: outcome.Outcome[T], stale_ms: int, size: int = 0) -> None:
        self.answer, self.stale_ms, self.size = answer, stale_ms, size
        if size and self.is_given_up:
            self.output.let_go(size)
        self.answered.set()

    async def wait(self) -> tuple[T, int]:
        """The answer, which is held until then, and its age."""
        try:
            await self.answered.wait()
        finally:
            self.is_given_up = True
            if self.size:
                self.output.let_go(self.size)
        answer = self.answer
        del self.answer  # it may be large, and a thread may know who asked for longer
        return answer.unwrap(), self.stale_ms


def no_bytes(answer: Any) -> int:
    """The size of what is always small."""
    return 0


class _Key(NamedTuple):
    host: RaftGroup
    stale: bool


class LinearizableReads:
    def __init__(self, runner: Runner, nursery: trio.Nursery) -> None:
        """`nursery` outlives every question."""
        self._nursery = nursery
        self._runner = runner
        self._coming: dict[_Key, list[_Asked[Any]]] = {}
        """By group: rounds that are to begin when this turn of the loop is over."""
        self._waiting: Counter[_Key] = Counter()

    async def ask(
        self,
        host: RaftGroup,
        question: Question[T],
        requests: int = 1,
        output: Output = BOUNDLESS,
        size: Size[T] = no_bytes,
        work: int = 1,
    ) -> T:
        """The linearizable answer, for so many requests. `size(answer)`: its bytes, which `room` has for it; `work`: of
        a visit. Raises NotLeader, Overloaded, StorageFailed, and what the question raises."""
        answer, _ = await self._ask(_Key(host, False), question, requests, output, size, work)
        return answer

    async def ask_stale(
        self,
        host: RaftGroup,
        question: Question[T],
        requests: int = 1,
        output: Output = BOUNDLESS,
        size: Size[T] = no_bytes,
        work: int = 1,
    ) -> tuple[T, int]:
        """What this node knows, and the age of that (ms). Raises NotLeader while it knows nothing for certain."""
        return await self._ask(_Key(host, True), question, requests, output, size, work)

    async def _ask(
        self, key: _Key, question: Question[T], requests: int, output: Output, size: Size[T], work: int
    ) -> tuple[T, int]:
        if not output.has_room:
            await output.until_room()
        waiting = self._waiting[key]
        if waiting >= WAITING_MOST:
            raise Overloaded(f"{waiting} reads wait for the same partition; ask again in a moment")
        self._waiting[key] = waiting + requests
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = []
            self._nursery.start_soon(self._round, key)
        asked = _Asked(question, requests, output, size, work)
        coming.append(asked)
        return await asked.wait()

    async def _round(self, key: _Key) -> None:
        await trio.lowlevel.checkpoint()  # those who ask in this turn of the loop come along
        asked = self._coming.pop(key)
        began_s, age_s = trio.current_time(), 0.0
        try:
            if key.stale:
                age_s = await key.host.catch_up()
            else:
                await key.host.read()
        except Exception as error:
            self._refuse(key, asked, error)
        else:
            await self._answer(key, asked, began_s - age_s)

    async def _answer(self, key: _Key, asked: list[_Asked[Any]], certain_s: float) -> None:
        """Answer all of them. `certain_s`: when what they see was certainly all there was."""
        while asked:
            try:
                # No name is given to the answers: they would be kept until the next ones come.
                self._settle(key, await _Visit(key.host, asked).made_by(self._runner), certain_s)
            except Exception as error:
                self._refuse(key, asked, error)
                return
            self._count(key, [one for one in asked if one.is_given_up and not one.answered.is_set()])
            asked = [one for one in asked if not (one.answered.is_set() or one.is_given_up)]
            by_output: dict[Output, list[_Asked[Any]]] = {}
            for one in asked:
                by_output.setdefault(one.output, []).append(one)
            if len(by_output) > 1:
                # None of them waits for the client of another.
                for part in by_output.values():
                    self._nursery.start_soon(self._answer_later, key, part, certain_s)
                return
            for output in by_output:
                await output.until_room()

    def _settle(self, key: _Key, answers: list[_Answer], certain_s: float) -> None:
        stale_ms = math.ceil((trio.current_time() - certain_s) * 1000) if key.stale else 0
        for one, answer, size in answers:
            one.settle(answer, stale_ms, size)
        self._count(key, [one for one, _, _ in answers])

    async def _answer_later(self, key: _Key, asked: list[_Asked[Any]], certain_s: float) -> None:
        await asked[0].output.until_room()
        await self._answer(key, asked, certain_s)

    def _refuse(self, key: _Key, asked: list[_Asked[Any]], error: Exception) -> None:
        for one in asked:
            one.settle(outcome.Error(error), 0)
        self._count(key, asked)

    def _count(self, key: _Key, answered: list[_Asked[Any]]) -> None:
        """These wait no more."""
        self._waiting[key] -= sum([one.requests for one in answered])
        if not self._waiting[key]:
            del self._waiting[key]


_Answer = tuple[_Asked[Any], outcome.Outcome[Any], int]
"""An answer, and its bytes."""


class _Visit:
    """A visit of the apply thread: the answers of the first for whose clients there is room."""

    def __init__(self, host: RaftGroup, asked: list[_Asked[Any]]) -> None:
        self._host = host
        self._asked = asked

    async def made_by(self, runner: Runner) -> list[_Answer]:
        return await runner.ask(self._make, group=self._host.number, patient=False, late=_drop)

    def _make(self) -> list[_Answer]:
        replica = self._host.replica
        assert isinstance(replica, PartitionReplica)
        answers: list[_Answer] = []
        visited_bytes = work = 0
        for one in self._asked:
            if one.is_given_up or not one.output.has_room:
                continue
            answer = outcome.capture(one.question, replica)
            size = one.size_of(answer.value) if isinstance(answer, outcome.Value) else 0
            answers.append((one, answer, size))
            if size:
                one.output.hold(size)
                visited_bytes += size
            work += one.work
            if visited_bytes >= VISIT_BYTES or work >= VISIT_WORK:
                break
        return answers


def _drop(answers: list[_Answer]) -> None:
    """Let go of what was read when nobody waited for it any more."""
    for one, _, size in answers:
        if size:
            one.output.let_go(size)
