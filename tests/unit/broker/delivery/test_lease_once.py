"""A LEASE that finds nothing says so only when that is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.delivery.lease_once import LeaseOnce
from sandq.model.errors import Unavailable
from sandq.partition.groups.group import RESETTING, SEEKING
from sandq.protocol.requests import Lease

NOW_MS = 1_800_000_000_000


class Led:
    """A partition that this node leads, with nothing for the group."""

    closed = False
    host = SimpleNamespace(ready=True, check_ready=lambda: None)

    def __init__(self, partition: int, paused: str | None) -> None:
        self.partition = partition
        self.groups = {"g": SimpleNamespace(next_ms=None, paused=paused)}

    def watch(self, group: str, watcher: Any) -> None:
        pass

    def unwatch(self, group: str, watcher: Any) -> None:
        pass

    def touch(self, group: str) -> int:
        return NOW_MS + 1000


def lease_once(*partitions: Any) -> LeaseOnce:
    clock: Any = SimpleNamespace(now_ms=lambda: NOW_MS)
    timers: Any = SimpleNamespace(at=lambda at_ms, call: None)
    request = Lease("t", "g", "consumer", 10, 0, None, "earliest", False)
    return LeaseOnce(request, partitions, 30_000, clock, timers, 0, lambda: False)


async def test_nothing_is_there() -> None:
    assert await lease_once(Led(0, None), Led(1, None)).run() == []


async def test_nothing_is_known_while_the_group_is_put_elsewhere() -> None:
    with pytest.raises(Unavailable, match="group 'g', partition 1, 3: a seek is under way; ask again"):
        await lease_once(Led(0, None), Led(3, SEEKING), Led(1, SEEKING)).run()


async def test_nothing_is_known_while_a_clock_is_set_back() -> None:
    with pytest.raises(Unavailable, match="group 'g', partition 3: the partition's clock is being set back; ask again"):
        await lease_once(Led(0, None), Led(3, RESETTING)).run()
