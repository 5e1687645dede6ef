"""Advance the time of a partition for readers.

The time of a partition is the time of its last entry, so that it is the same on every replica. Without new entries, the
time stands still. Then due messages would look delayed, expired values would look valid, and the newest part of the log
would stay open. So an empty entry is appended, which advances the time to the node's clock. Each method below serves
one kind of reader.
"""

from __future__ import annotations

from contextlib import suppress

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.replication.fair_queue import BEHIND
from sandq.broker.replication.raft_group import RaftGroup, Stalled
from sandq.model.errors import Overloaded, StorageFailed
from sandq.partition import commands as c

PAUSE_MS = 100
"""Minimum time in ms between two advances of one partition by `advance_for_states` and `advance_for_log`, per
connection."""


class PartitionTime:
    """Advances the time of partitions for the readers of one connection."""

    def __init__(self, clock: GuardedClock) -> None:
        self._clock = clock
        self._advanced_ms: dict[int, int] = {}
        """By group: time in ms of its last advance."""

    async def advance_for_states(self, host: RaftGroup) -> None:
        """Advance the time of the partition, so that due messages are shown as ready.

        If the partition accepts no entries now, do nothing."""
        now_ms = self._clock.now_ms()
        if now_ms - host.status.now_ms >= PAUSE_MS and (host.status.messages or host.status.dead):
            with suppress(Overloaded, StorageFailed, Stalled):
                await self._advance_at_times(host, now_ms)

    async def advance_for_log(self, host: RaftGroup, end_ms: int | None) -> None:
        """Close the log up to now, so that readers may read it.

        Do nothing if the log is closed up to `end_ms` already, or if this connection advanced it less than `PAUSE_MS`
        ago. Raise Overloaded, StorageFailed."""
        now_ms = self._clock.now_ms()
        if (now_ms if end_ms is None else min(now_ms, end_ms)) > host.status.now_ms:
            await self._advance_at_times(host, now_ms)

    async def advance_for_values(self, host: RaftGroup) -> None:
        """If a value has expired, advance the time of the partition. If the partition accepts no entries now, do
        nothing.

        Readers and compare-and-set must agree on which values are expired. So both use the time in the log. If readers
        used the clock, a reader could see a value as expired, and a pending compare-and-set with an earlier time could
        still succeed."""
        status, now_ms = host.status, self._clock.now_ms()
        if status.keys_expire_ms is not None and status.now_ms < now_ms >= status.keys_expire_ms:
            with suppress(Overloaded, StorageFailed, Stalled):
                await _advance(host)

    async def _advance_at_times(self, host: RaftGroup, now_ms: int) -> None:
        """Advance the time, unless it was advanced less than `PAUSE_MS` ago."""
        # If the clock was ahead at the last advance and was corrected since, `now_ms` is before the last advance.
        if not 0 <= now_ms - self._advanced_ms.get(host.number, 0) < PAUSE_MS:
            self._advanced_ms[host.number] = now_ms
            await _advance(host)


async def _advance(host: RaftGroup) -> None:
    """Append an empty entry with the current time."""
    await host.call(c.Clock(), BEHIND)
