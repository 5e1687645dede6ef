"""Numbers of a partition and its groups, kept as things change, so that to tell them costs nothing per message.

They are of this process, and no row holds them. Nothing is decided by them but by how many messages of a group are
leased, which follows from its leases.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from sandq.partition.base.stale_heaps import is_overgrown
from sandq.partition.records.leases import Lease, Waiting


class Counted(NamedTuple):
    """What became of messages, since the partition was loaded. Messages, where nothing else is said."""

    stored: int = 0
    stored_bytes: int = 0
    """Of the batches that producers sent."""
    cancelled: int = 0
    moved: int = 0
    leases: int = 0
    """Leases that were granted."""
    acked: int = 0
    nacked: int = 0
    lease_expired: int = 0
    released: int = 0
    """Given back by consumers that left."""
    dead_nacked: int = 0
    dead_lease_expired: int = 0
    dead_expired: int = 0
    dead_rejected: int = 0
    snoozed: int = 0
    """Given back without counting the attempt: none of `nacked`."""
    updated: int = 0
    """Given another value, or other headers."""
    forwarded: int = 0
    """Sent to other partitions, and stored there: dead letters, and what acks send."""
    undeliverable: int = 0
    """Of those, refused there for good."""
    superseded: int = 0
    """Retried writes of a compacted topic that a group skipped, because a later write of their key exists."""


class Totals:
    """`Counted` in the making."""

    __slots__ = Counted._fields

    def __init__(self, counted: Counted = Counted()) -> None:  # noqa: B008  # a tuple, which nobody changes
        self.set(counted)

    def set(self, counted: Counted) -> None:
        """Forget what was counted since."""
        (
            self.stored,
            self.stored_bytes,
            self.cancelled,
            self.moved,
            self.leases,
            self.acked,
            self.nacked,
            self.lease_expired,
            self.released,
            self.dead_nacked,
            self.dead_lease_expired,
            self.dead_expired,
            self.dead_rejected,
            self.snoozed,
            self.updated,
            self.forwarded,
            self.undeliverable,
            self.superseded,
        ) = counted

    def counted(self) -> Counted:
        return Counted(
            self.stored,
            self.stored_bytes,
            self.cancelled,
            self.moved,
            self.leases,
            self.acked,
            self.nacked,
            self.lease_expired,
            self.released,
            self.dead_nacked,
            self.dead_lease_expired,
            self.dead_expired,
            self.dead_rejected,
            self.snoozed,
            self.updated,
            self.forwarded,
            self.undeliverable,
            self.superseded,
        )


class PartitionMetrics:
    """How many messages of one group are leased and wait."""

    def __init__(self) -> None:
        self.leased = 0
        self.waiting = 0
        """All that wait, those included whose time has come: `ripe`."""
        self.ripe = 0
        self._entries = 0
        """Waiting entries."""
        self._unripe: list[tuple[int, int, Waiting]] = []
        """Heap of (due_ms, a number that makes it unique, entry); entries that are gone are skipped when met."""
        self._number = 0

    def count_lease(self, lease: Lease) -> None:
        """Count a lease that is new, or some of which is not live any more."""
        live = lease.live.bit_count()
        self.leased += live - lease.counted
        lease.counted = live

    def count_waiting(self, entry: Waiting) -> None:
        """Count a waiting entry that is new, or has fewer messages (none: it is gone)."""
        count = entry.ranges.messages
        self.waiting += count - entry.counted
        if entry.ripe:
            self.ripe += count - entry.counted
        if not entry.counted:
            self._entries += 1
            if is_overgrown(len(self._unripe), self._entries):
                self._unripe = [one for one in self._unripe if one[2].counted]
                heapq.heapify(self._unripe)
            self._number += 1
            heapq.heappush(self._unripe, (entry.due_ms, self._number, entry))
        elif not count:
            self._entries -= 1
        entry.counted = count

    @property
    def ripens_ms(self) -> int | None:
        """When more of what waits is ready, at the earliest; None: never."""
        return self._unripe[0][0] if self._unripe else None

    def ripen(self, now_ms: int) -> None:
        """Count what is due by `now_ms` as ready."""
        while self._unripe and self._unripe[0][0] <= now_ms:
            entry = heapq.heappop(self._unripe)[2]
            if entry.counted:
                entry.ripe = True
                self.ripe += entry.counted
