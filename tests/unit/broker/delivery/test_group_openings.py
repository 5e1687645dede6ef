"""A group that many callers request at once is created once in each partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sandq.broker.delivery.subscribe import COUNT_S, GROUPS_AT_ONCE, PARTITIONS_AT_ONCE, GroupOpenings
from sandq.model.errors import Conflict, SandqError, TooLarge
from sandq.partition import commands as c


def of_many(most: int = 1000, there: int = 0) -> GroupOpenings:
    """Return the openings of a node that has `there` groups and may have `most` groups."""
    node_log: Any = SimpleNamespace(group_count=lambda: there)
    return GroupOpenings(most, node_log)


class Led:
    """A partition of this node."""

    def __init__(self, partition: int, nursery: trio.Nursery) -> None:
        self.partition = partition
        self.raft_group = self
        self.status = SimpleNamespace(groups={})
        self.asked: list[str] = []
        self.touched: list[str] = []
        self.refuses: SandqError | None = None
        self._nursery = nursery

    def touched_with(self, group: str) -> None:
        self.touched.append(group)

    def submit(self, command: c.OpenGroup, done: Any, *, line: Any) -> None:
        self.asked.append(command.group)
        self._nursery.start_soon(self._open, command.group, done)

    async def _open(self, group: str, done: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.refuses is None:
            self.status.groups[group] = SimpleNamespace(is_paused=False)
        done(self.refuses)


async def test_later_caller_waits_for_the_running_opening(nursery: trio.Nursery) -> None:
    partitions: Any = [Led(number, nursery) for number in range(5)]
    openings = of_many()
    async with trio.open_nursery() as asking:
        for _ in range(50):
            asking.start_soon(openings.open, "t", partitions, "g", "earliest")
        asking.start_soon(openings.open, "t", partitions, "h", "earliest")
    assert all(sorted(led.asked) == sorted(led.touched) == ["g", "h"] for led in partitions)
    assert openings._locks == {}


async def test_simultaneous_openings_are_limited(nursery: trio.Nursery) -> None:
    """The limit holds for all callers and all groups together."""
    under_way, most = 0, 0

    class Slow(Led):
        async def _open(self, group: str, done: Any) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            under_way -= 1
            await super()._open(group, done)

    partitions: Any = [Slow(number, nursery) for number in range(100)]
    openings = of_many()
    async with trio.open_nursery() as asking:
        for group in "ghi":
            asking.start_soon(openings.open, "t", partitions, group, "earliest")
    assert all(sorted(led.asked) == ["g", "h", "i"] for led in partitions)
    assert PARTITIONS_AT_ONCE <= most <= GROUPS_AT_ONCE * PARTITIONS_AT_ONCE


async def test_cancelled_opening_is_done_by_the_next_request(nursery: trio.Nursery) -> None:
    partitions: Any = [Led(0, nursery)]
    openings = of_many()
    opened: list[bool] = []

    async def first() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await openings.open("t", partitions, "g", "earliest")

    async def second() -> None:
        await openings.open("t", partitions, "g", "earliest")
        opened.append("g" in partitions[0].status.groups)

    async with trio.open_nursery() as asking:
        asking.start_soon(first)
        asking.start_soon(second)
    assert opened == [True] and openings._locks == {}


async def test_each_caller_gets_the_error(nursery: trio.Nursery) -> None:
    partitions: Any = [Led(0, nursery)]
    partitions[0].refuses = Conflict("no more")
    openings = of_many()
    for _ in range(2):
        with pytest.raises(Conflict):
            await openings.open("t", partitions, "g", "earliest")
    assert openings._locks == {}


async def test_groups_of_a_node_are_limited(nursery: trio.Nursery) -> None:
    partitions: Any = [Led(number, nursery) for number in range(5)]
    openings = of_many(most=12, there=2)
    await openings.open("t", partitions, "a", "earliest")
    refused = r"this node would have 13 groups, .* 12 are allowed \(limits.groups\): delete some, or raise it"
    with pytest.raises(TooLarge, match=refused):
        await openings.open("t", [Led(9, nursery), *partitions], "b", "earliest")
    assert all(led.asked == ["a"] for led in partitions), "not even in partitions that have room for the group"
    await openings.open("t", partitions, "b", "earliest")
    await openings.open("t", partitions, "b", "earliest")
    with pytest.raises(TooLarge):
        await openings.open("t", partitions[:1], "c", "earliest")


async def test_group_limit_counts_openings_and_ignores_removed_groups(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    may_go_on = trio.Event()

    class Waiting(Led):
        async def _open(self, group: str, done: Any) -> None:
            await may_go_on.wait()
            await super()._open(group, done)

    partitions: Any = [Waiting(number, nursery) for number in range(5)]
    node_log: Any = SimpleNamespace(group_count=lambda: sum(len(led.status.groups) for led in partitions))
    openings = GroupOpenings(10, node_log)
    async with trio.open_nursery() as asking:
        asking.start_soon(openings.open, "t", partitions, "a", "earliest")
        asking.start_soon(openings.open, "t", partitions, "b", "earliest")
        await wait_all_tasks_blocked()
        mock_clock.jump(COUNT_S)
        with pytest.raises(TooLarge):
            await openings.open("t", partitions, "c", "earliest")
        may_go_on.set()
    for led in partitions:
        del led.status.groups["a"]
    mock_clock.jump(COUNT_S)
    await openings.open("t", partitions, "c", "earliest")
    assert all(led.asked[2:] == ["c"] for led in partitions)


async def test_existing_group_opens_on_a_node_above_the_limit(nursery: trio.Nursery) -> None:
    """The limit counts new groups only: an existing one opens even on a node that has more groups than the limit."""
    partitions: Any = [Led(number, nursery) for number in range(5)]
    for led in partitions:
        led.status.groups["g"] = SimpleNamespace(is_paused=False)
    await of_many(most=1, there=5).open("t", partitions, "g", "earliest")
