"""Tests of the search for due messages: it yields for any number of groups."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import trio

from sandq.broker.event_loop import SLICE_WORK
from sandq.model.limits import DEFAULT
from sandq.model.names import TIMER
from sandq.server.metrics.metrics import GROUPS_OF_WORK, About, Metrics

PARTITIONS: Final = 500
GROUPS: Final = 1_000


class Looked(trio.abc.Instrument):
    """Return the maximum number of groups that were checked in one round of the loop."""

    def __init__(self) -> None:
        self.all = self.most = self._groups = 0

    def count_groups(self, groups: int) -> None:
        self.all += groups
        self._groups += groups
        self.most = max(self.most, self._groups)

    def before_io_wait(self, timeout: float) -> None:
        self._groups = 0


class Groups:
    """The groups of a partition, none of which has due messages."""

    def __init__(self, looked: Looked) -> None:
        self._looked = looked

    def __len__(self) -> int:
        return GROUPS

    def is_any_due(self, now_ms: int) -> bool:
        self._looked.count_groups(GROUPS)
        return False


async def test_due_messages_are_searched_in_time_slices() -> None:
    looked = Looked()
    led = {}
    for at in range(PARTITIONS):
        status = SimpleNamespace(later=1, now_ms=0, groups=Groups(looked))
        led[at] = SimpleNamespace(raft_group=SimpleNamespace(number=at, status=status))
    broker: Any = SimpleNamespace(
        limits=DEFAULT,
        stats=None,
        clock=SimpleNamespace(now_ms=lambda: 60_000),
        topics=lambda: [SimpleNamespace(led=lambda: led, record=SimpleNamespace(kind=TIMER))],
    )
    nobody: Any = None
    metrics = Metrics(
        broker=broker,
        health=nobody,
        scrubber=nobody,
        digests=nobody,
        clients=nobody,
        about=About("1", "n", "c", Path()),
        discovery=nobody,
    )
    trio.lowlevel.add_instrument(looked)
    try:
        await metrics.refresh()
    finally:
        trio.lowlevel.remove_instrument(looked)
    assert looked.all == PARTITIONS * GROUPS
    assert looked.most <= SLICE_WORK * GROUPS_OF_WORK + GROUPS
