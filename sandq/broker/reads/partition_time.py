"""Advance the time of a partition for readers.

The time of a partition is that of its last entry, the same on every replica, so it stands still where nothing happens.
What came due since would be shown as delayed, a value that is over as there, and what stands in the log of now could
not be read as closed. An empty entry brings it up to the clock; each reader says what it needs it for.
"""

from __future__ import annotations

from contextlib import suppress

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.replication.fair_queue import BEHIND
from sandq.broker.replication.raft_group import RaftGroup, Stalled
from sandq.model.errors import Overloaded, StorageFailed
from sandq.partition import commands as c

PAUSE_MS = 100
"""For the states and the log of a partition its time is advanced at most this often on one connection."""


class PartitionTime:
    """Advances the time of partitions for the readers of one connection."""

    def __init__(self, clock: GuardedClock) -> None:
        self._clock = clock
        self._advanced_ms: dict[int, int] = {}
        """When the time of a group was last advanced."""

    async def advance_for_states(self, host: RaftGroup) -> None:
        """Let messages that came due show as ready. A group that takes no entries now is read as it is."""
        now_ms = self._clock.now_ms()
        if now_ms - host.status.now_ms >= PAUSE_MS and (host.status.messages or host.status.dead):
            with suppress(Overloaded, StorageFailed, Stalled):
                await self._advance_at_times(host, now_ms)

    async def advance_for_log(self, host: RaftGroup, end_ms: int | None) -> None:
        """Close the log up to now, unless it is closed up to `end_ms`. Raises Overloaded, StorageFailed."""
        now_ms = self._clock.now_ms()
        if (now_ms if end_ms is None else min(now_ms, end_ms)) > host.status.now_ms:
            await self._advance_at_times(host, now_ms)

    async def advance_for_values(self, host: RaftGroup) -> None:
        """Let the values of keys end that are over. A group that takes no entries now is read as it is.

        A value is gone for readers when it is for who swaps it: by the time in the log. By the clock a reader would see
        it gone before a swap of it that is under way, and stands before its end, succeeds.
        """
        status, now_ms = host.status, self._clock.now_ms()
        if status.keys_expire_ms is not None and status.now_ms < now_ms >= status.keys_expire_ms:
            with suppress(Overloaded, StorageFailed, Stalled):
                await _advance(host)

    async def _advance_at_times(self, host: RaftGroup, now_ms: int) -> None:
        # Not between 0 and that: also after this node's clock was ahead, and is right again.
        if not 0 <= now_ms - self._advanced_ms.get(host.number, 0) < PAUSE_MS:
            self._advanced_ms[host.number] = now_ms
            await _advance(host)


async def _advance(host: RaftGroup) -> None:
    await host.call(c.Clock(), BEHIND)
