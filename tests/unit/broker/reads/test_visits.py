"""Tests of visits to the apply thread for readers: the requests of one visit, and replies after a cancellation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import outcome
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sandq.broker.memory_budget import Account
from sandq.broker.reads.linearizable_reads import PAGE_WORK, VISIT_WORK, LinearizableReads
from sandq.broker.replication import runner as runner_module
from sandq.broker.replication.applier import Ask
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import Unavailable

SIZE = 1000


class Thread:
    """An apply thread that runs its tasks when the test decides."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []

    def submit(self, task: Ask) -> None:
        self.asked.append(task)

    def visit(self) -> Callable[[], None]:
        """Run the task on the thread, and return the callback that runs on the loop."""
        task = self.asked.pop(0)
        value = task.call()
        return lambda: task.answered(value)


class Capacity:
    """The capacity of a connection, with an account."""

    def __init__(self) -> None:
        self.account = Account(SIZE)
        self.has_capacity = True

    async def wait_for_capacity(self) -> None:
        await self.account.wait_for_capacity()

    def charge_on_apply(self, size: int) -> None:
        self.account.read += size

    def charge(self, size: int) -> None:
        self.account.take(size)

    def release(self, size: int) -> None:
        self.account.give_back(size)


@pytest.fixture
def thread() -> Thread:
    return Thread()


@pytest.fixture
def runner(thread: Thread) -> Runner:
    runner = object.__new__(Runner)
    runner._apply_ended = None
    runner._asking, runner._impatient = set(), set()
    runner._apply = thread  # type: ignore[assignment]
    return runner


class Host:
    number = 7
    replica = object.__new__(PartitionReplica)

    async def read(self) -> None:
        await trio.lowlevel.checkpoint()


HOST: Any = Host()


@pytest.mark.parametrize(("work", "at_once"), [(1, VISIT_WORK), (PAGE_WORK, VISIT_WORK // PAGE_WORK)])
async def test_requests_of_one_visit_are_limited(thread: Thread, runner: Runner, work: int, at_once: int) -> None:
    asked = 0

    def question(replica: PartitionReplica) -> int:
        nonlocal asked
        asked += 1
        return asked

    async with trio.open_nursery() as nursery:
        reads = LinearizableReads(runner, nursery)
        for _ in range(3 * at_once):
            nursery.start_soon(lambda: reads.ask(HOST, question, work=work))
        for number in range(1, 4):
            await wait_all_tasks_blocked()
            answer = thread.visit()
            assert asked == number * at_once
            answer()
    assert not thread.asked


@pytest.mark.parametrize("is_stalled", [False, True])
async def test_late_replies_wake_readers_waiting_for_memory(thread: Thread, runner: Runner, is_stalled: bool) -> None:
    capacity = Capacity()

    async def ask() -> None:
        if is_stalled:
            with pytest.raises(Unavailable):
                await reads.ask(HOST, lambda replica: b"x", 1, capacity, lambda answer: SIZE)
        else:
            await reads.ask(HOST, lambda replica: b"x", 1, capacity, lambda answer: SIZE)

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as rounds:
            reads = LinearizableReads(runner, rounds)
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            answer = thread.visit()
            assert capacity.account.is_full
            if is_stalled:
                runner.give_up_queries("it hangs")
            else:
                rounds.cancel_scope.cancel()
        async with trio.open_nursery() as waiting:
            waiting.start_soon(capacity.wait_for_capacity)
            await wait_all_tasks_blocked()
            answer()
        nursery.cancel_scope.cancel()
    assert capacity.account.bytes == 0


async def test_delivered_replies_are_not_referenced(thread: Thread, runner: Runner) -> None:
    """A waiting request must not hold back the replies of other requests of the same visit."""

    class Page(list[int]): ...

    pages: list[weakref.ref[Page]] = []

    def question(replica: PartitionReplica) -> Page:
        page = Page()
        pages.append(weakref.ref(page))
        return page

    async def ask() -> None:
        await reads.ask(HOST, question, work=VISIT_WORK)

    async with trio.open_nursery() as nursery:
        reads = LinearizableReads(runner, nursery)
        for _ in range(3):
            nursery.start_soon(ask)
        for answered in range(3):
            await wait_all_tasks_blocked()
            assert [page() for page in pages] == [None] * answered
            thread.visit()()


async def test_a_reply_counts_once() -> None:
    late: list[int] = []
    reply: Any = runner_module._Reply(late.append)
    reply.settle(outcome.Value(1))
    reply.settle(outcome.Value(2))
    reply.settle(outcome.Error(KeyError()))
    assert await reply.wait() == 1 and late == [2]
