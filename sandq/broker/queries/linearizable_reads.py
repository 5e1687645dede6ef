"""Ask the state of a group; questions that come together share one ReadIndex and one visit of the thread that owns
the state.

A linearizable answer is at least as late as everything that was acknowledged before the question came, by whomever. A
stale one is what this node knows, whether it leads the group or not, and says how long ago that was certainly all
there was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import outcome
import trio

from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import Overloaded

T = TypeVar("T")
Question = Callable[[PartitionReplica], T]
"""Asked on the apply thread."""

WAITING_MOST = 10_000
"""Requests that questions of one group are for, and that are not answered yet."""


class _Asked(Generic[T]):
    def __init__(self, question: Question[T], requests: int) -> None:
        self.question = question
        self.requests = requests
        self.answered = trio.Event()
        self.answer: outcome.Outcome[T]
        self.stale_ms = 0

    def settle(self, answer: outcome.Outcome[T], stale_ms: int) -> None:
        self.answer, self.stale_ms = answer, stale_ms
        self.answered.set()


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

    async def ask(self, host: RaftGroup, question: Question[T], requests: int = 1) -> T:
        """The linearizable answer, for so many requests. Raises NotLeader, Overloaded, StorageFailed, and what the
        question raises."""
        answer, _ = await self._ask(_Key(host, False), question, requests)
        return answer

    async def ask_stale(self, host: RaftGroup, question: Question[T], requests: int = 1) -> tuple[T, int]:
        """What this node knows, and the age of that (ms). Raises NotLeader while it knows nothing for certain."""
        return await self._ask(_Key(host, True), question, requests)

    async def _ask(self, key: _Key, question: Question[T], requests: int) -> tuple[T, int]:
        waiting = self._waiting[key]
        if waiting >= WAITING_MOST:
            raise Overloaded(f"{waiting} reads wait for the same partition; ask again in a moment")
        self._waiting[key] = waiting + requests
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = []
            self._nursery.start_soon(self._round, key)
        asked = _Asked(question, requests)
        coming.append(asked)
        await asked.answered.wait()
        return asked.answer.unwrap(), asked.stale_ms

    async def _round(self, key: _Key) -> None:
        await trio.lowlevel.checkpoint()  # those who ask in this turn of the loop come along
        asked = self._coming.pop(key)
        began, age_s = trio.current_time(), 0.0
        answers: Sequence[outcome.Outcome[Any]]
        try:
            if key.stale:
                age_s = await key.host.catch_up()
            else:
                await key.host.read()
            answers = await self._runner.ask(lambda: _answers(key.host, asked), patient=False)
        except Exception as error:
            answers = [outcome.Error(error) for _ in asked]
        self._waiting[key] -= sum([one.requests for one in asked])
        if not self._waiting[key]:
            del self._waiting[key]
        stale_ms = math.ceil((age_s + trio.current_time() - began) * 1000) if key.stale else 0
        for one, answer in zip(asked, answers, strict=True):
            one.settle(answer, stale_ms)


def _answers(host: RaftGroup, asked: list[_Asked[Any]]) -> list[outcome.Outcome[Any]]:
    replica = host.replica
    assert isinstance(replica, PartitionReplica)
    return [outcome.capture(one.question, replica) for one in asked]
