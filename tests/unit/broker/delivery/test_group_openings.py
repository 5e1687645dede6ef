"""A group that many ask for at once is made once in each partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from sandq.broker.delivery.subscribe import GROUPS_AT_ONCE, PARTITIONS_AT_ONCE, GroupOpenings
from sandq.model.errors import Conflict, SandqError
from sandq.partition import commands as c


class Led:
    """A partition of this node."""

    def __init__(self, partition: int, nursery: trio.Nursery) -> None:
        self.partition = partition
        self.host = self
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
            self.status.groups[group] = "it is there"
        done(self.refuses)


async def test_who_comes_meanwhile_waits_for_it(nursery: trio.Nursery) -> None:
    partitions: Any = [Led(number, nursery) for number in range(5)]
    openings = GroupOpenings()
    async with trio.open_nursery() as asking:
        for _ in range(50):
            asking.start_soon(openings.open, "t", partitions, "g", "earliest")
        asking.start_soon(openings.open, "t", partitions, "h", "earliest")
    assert all(sorted(led.asked) == sorted(led.touched) == ["g", "h"] for led in partitions)
    assert openings._locks == {}


async def test_so_many_are_made_at_once(nursery: trio.Nursery) -> None:
    """Whoever asks, and for whichever groups."""
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
    openings = GroupOpenings()
    async with trio.open_nursery() as asking:
        for group in "ghi":
            asking.start_soon(openings.open, "t", partitions, group, "earliest")
    assert all(sorted(led.asked) == ["g", "h", "i"] for led in partitions)
    assert PARTITIONS_AT_ONCE <= most <= GROUPS_AT_ONCE * PARTITIONS_AT_ONCE


async def test_who_gives_up_leaves_it_to_the_next(nursery: trio.Nursery) -> None:
    partitions: Any = [Led(0, nursery)]
    openings = GroupOpenings()
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


async def test_each_is_told_why_not(nursery: trio.Nursery) -> None:
    partitions: Any = [Led(0, nursery)]
    partitions[0].refuses = Conflict("no more")
    openings = GroupOpenings()
    for _ in range(2):
        with pytest.raises(Conflict):
            await openings.open("t", partitions, "g", "earliest")
    assert openings._locks == {}
