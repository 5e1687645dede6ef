"""Query the state of a group.

Queries that arrive together form a round. A round needs only one ReadIndex (Raft's check that this node still leads),
and few visits. A visit is one call on the apply thread.

A linearizable answer includes everything that any node acknowledged before the query arrived. A stale answer comes from
the state on this node, which may be a follower. A stale answer has an age: it includes everything that was acknowledged
at least that long ago.

A visit ends with the answer that reaches `VISIT_BYTES` or `VISIT_WORK`. If a client does not accept data, its queries
wait. If too much memory is in use, all queries wait.
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
"""A query, as a function that runs on the apply thread."""
Size = Callable[[T], int]
"""Function that returns the number of bytes to charge for an answer."""

WAITING_MOST = 10_000
"""Maximum number of unanswered requests per group."""
VISIT_BYTES = 8 << 20
"""Bytes of answers after which a visit ends."""
VISIT_WORK: Final = 256
"""Units of work after which a visit ends, because other tasks wait meanwhile. A query for one message costs one
unit."""
PAGE_WORK: Final = 128
"""Units of work of a query for a page of messages."""


class Output(Protocol):
    """The output of one client. It limits the bytes that are read for replies to the client."""

    @property
    def has_capacity(self) -> bool:
        """True if more may be read for the client. Any thread may ask."""

    async def wait_for_capacity(self) -> None:
        """Wait until more may be read."""

    def charge_on_apply(self, size: int) -> None:
        """Charge bytes that were read. Called on the apply thread."""

    def charge(self, size: int) -> None:
        """Charge bytes that were read. Called on the event loop."""

    def release(self, size: int) -> None:
        """Release charged bytes, because the answer was encoded in a frame or dropped."""


class _Boundless:
    """An output without limits, for queries that are not charged to the output of a client."""

    has_capacity = True

    async def wait_for_capacity(self) -> None: ...

    def charge_on_apply(self, size: int) -> None: ...

    def charge(self, size: int) -> None: ...

    def release(self, size: int) -> None: ...


BOUNDLESS: Final[Output] = _Boundless()


class _Query(Generic[T]):
    """One query of a round."""

    def __init__(self, question: Question[T], requests: int, output: Output, size_of: Size[T], work: int) -> None:
        self.work = work
        self.question = question
        self.requests = requests
        self.output = output
        self.size_of = size_of
        self.answered = trio.Event()
        self.answer: outcome.Outcome[T]
        self.size = 0
        """Bytes that are charged to `output` for the answer."""
        self.stale_ms = 0
        """Age of the answer in ms; 0 for a linearizable answer."""
        self.is_given_up = False
        """True once the caller no longer waits."""

    def settle(self, answer: outcome.Outcome[T], stale_ms: int, size: int = 0) -> None:
        """Set the answer. If the caller is gone, release the charged bytes."""
        self.answer, self.stale_ms, self.size = answer, stale_ms, size
        if size and self.is_given_up:
            self.output.release(size)
        self.answered.set()

    async def wait(self) -> tuple[T, int]:
        """Wait for the answer. Return the answer and its age in ms, and release the charged bytes."""
        try:
            await self.answered.wait()
        finally:
            self.is_given_up = True
            if self.size:
                self.output.release(self.size)
        answer = self.answer
        del self.answer  # the answer may be large, and a thread may keep a reference to this object longer
        return answer.unwrap(), self.stale_ms


def no_bytes(answer: Any) -> int:
    """Return 0. Used as `size` for answers that are always small."""
    return 0


class _Key(NamedTuple):
    """A group, and whether its queries allow stale answers. Both kinds of queries have separate rounds."""

    host: RaftGroup
    stale: bool


class LinearizableReads:
    """Runs queries of groups in rounds."""

    def __init__(self, runner: Runner, nursery: trio.Nursery) -> None:
        """`nursery` runs the rounds. The nursery must stay open longer than any query waits."""
        self._nursery = nursery
        self._runner = runner
        self._coming: dict[_Key, list[_Query[Any]]] = {}
        """By group and kind: queries of the round that begins at the end of this iteration of the event loop."""
        self._waiting: Counter[_Key] = Counter()
        """Number of unanswered requests, by group and kind."""

    async def ask(
        self,
        host: RaftGroup,
        question: Question[T],
        requests: int = 1,
        output: Output = BOUNDLESS,
        size: Size[T] = no_bytes,
        work: int = 1,
    ) -> T:
        """Return the linearizable answer to a query.

        `requests`: number of requests that the query answers. `size(answer)`: bytes to charge to `output`. `work`:
        units of work that the query costs (see `VISIT_WORK`). Raise NotLeader, Overloaded, StorageFailed, and the
        errors of the query."""
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
        """Return the answer from the state on this node, and its age in ms. For the arguments, see `ask`.

        If this node has never learned a commit index, raise NotLeader."""
        return await self._ask(_Key(host, True), question, requests, output, size, work)

    async def _ask(
        self, key: _Key, question: Question[T], requests: int, output: Output, size: Size[T], work: int
    ) -> tuple[T, int]:
        """Add a query to the next round of its group, and return the answer and its age in ms."""
        if not output.has_capacity:
            await output.wait_for_capacity()
        waiting = self._waiting[key]
        if waiting >= WAITING_MOST:
            raise Overloaded(f"{waiting} reads wait for the same partition; ask again in a moment")
        self._waiting[key] = waiting + requests
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = []
            self._nursery.start_soon(self._round, key)
        query = _Query(question, requests, output, size, work)
        coming.append(query)
        return await query.wait()

    async def _round(self, key: _Key) -> None:
        """Run one round: wait until the state is recent enough, then answer the queries."""
        await trio.lowlevel.checkpoint()  # later queries of this iteration of the event loop join the round
        queries = self._coming.pop(key)
        began_s, age_s = trio.current_time(), 0.0
        try:
            if key.stale:
                age_s = await key.host.catch_up()
            else:
                await key.host.read()
        except Exception as error:
            self._refuse(key, queries, error)
        else:
            await self._answer(key, queries, began_s - age_s)

    async def _answer(self, key: _Key, queries: list[_Query[Any]], certain_s: float) -> None:
        """Answer all queries. `certain_s`: the state includes everything that was acknowledged before this time."""
        while queries:  # a visit may answer only some of the queries, because of its limits
            try:
                # Do not assign the answers to a variable, which would keep them in memory until the next visit ends.
                self._settle(key, await _Visit(key.host, queries).run_on(self._runner), certain_s)
            except Exception as error:
                self._refuse(key, queries, error)
                return
            self._count(key, [one for one in queries if one.is_given_up and not one.answered.is_set()])
            queries = [one for one in queries if not (one.answered.is_set() or one.is_given_up)]
            by_output: dict[Output, list[_Query[Any]]] = {}
            for one in queries:
                by_output.setdefault(one.output, []).append(one)
            if len(by_output) > 1:
                # Answer the queries of each client separately, so that no client waits for another client.
                for part in by_output.values():
                    self._nursery.start_soon(self._answer_later, key, part, certain_s)
                return
            for output in by_output:
                await output.wait_for_capacity()

    def _settle(self, key: _Key, answers: list[_Answer], certain_s: float) -> None:
        """Pass the answers of a visit to the waiting callers."""
        stale_ms = math.ceil((trio.current_time() - certain_s) * 1000) if key.stale else 0
        for one, answer, size in answers:
            one.settle(answer, stale_ms, size)
        self._count(key, [one for one, _, _ in answers])

    async def _answer_later(self, key: _Key, queries: list[_Query[Any]], certain_s: float) -> None:
        """Answer queries of one client once the client accepts data."""
        await queries[0].output.wait_for_capacity()
        await self._answer(key, queries, certain_s)

    def _refuse(self, key: _Key, queries: list[_Query[Any]], error: Exception) -> None:
        """Pass an error to the callers of these queries."""
        for one in queries:
            one.settle(outcome.Error(error), 0)
        self._count(key, queries)

    def _count(self, key: _Key, answered: list[_Query[Any]]) -> None:
        """Remove answered and abandoned queries from the count of waiting requests."""
        self._waiting[key] -= sum([one.requests for one in answered])
        if not self._waiting[key]:
            del self._waiting[key]


_Answer = tuple[_Query[Any], outcome.Outcome[Any], int]
"""A query, its answer, and the bytes of the answer."""


class _Visit:
    """One visit: a call on the apply thread that answers the first queries whose clients accept data."""

    def __init__(self, host: RaftGroup, queries: list[_Query[Any]]) -> None:
        self._host = host
        self._queries = queries

    async def run_on(self, runner: Runner) -> list[_Answer]:
        """Run the visit on the apply thread. Return the answers."""
        return await runner.ask(self._make, group=self._host.number, patient=False, late=_drop)

    def _make(self) -> list[_Answer]:
        """Answer queries until a limit of the visit is reached. Runs on the apply thread."""
        replica = self._host.replica
        assert isinstance(replica, PartitionReplica)
        answers: list[_Answer] = []
        visited_bytes = work = 0
        for one in self._queries:
            if one.is_given_up or not one.output.has_capacity:
                continue
            answer = outcome.capture(one.question, replica)
            size = one.size_of(answer.value) if isinstance(answer, outcome.Value) else 0
            answers.append((one, answer, size))
            if size:
                one.output.charge_on_apply(size)
                visited_bytes += size
            work += one.work
            if visited_bytes >= VISIT_BYTES or work >= VISIT_WORK:
                break
        return answers


def _drop(answers: list[_Answer]) -> None:
    """Release the charged bytes of answers for which no caller waits any more."""
    for one, _, size in answers:
        if size:
            one.output.release(size)
