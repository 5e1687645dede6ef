"""Metrics of a partition and its groups. They are updated at each change, so that reading them is cheap.

The metrics are local to this process and not stored. Replicated decisions use only one of them: the number of leased
messages of a group, which is computed from its leases.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from sandq.partition.base.stale_heaps import is_overgrown
from sandq.partition.records.leases import Lease, Waiting


class Counted(NamedTuple):
    """Numbers of messages since the partition was loaded, unless stated otherwise."""

    stored: int = 0
    stored_bytes: int = 0
    """Bytes of the batches that producers sent."""
    cancelled: int = 0
    moved: int = 0
    leases: int = 0
    """Number of granted leases."""
    acked: int = 0
    nacked: int = 0
    lease_expired: int = 0
    released: int = 0
    """Messages returned by consumers that left."""
    dead_nacked: int = 0
    dead_lease_expired: int = 0
    dead_expired: int = 0
    dead_rejected: int = 0
    snoozed: int = 0
    """Messages returned without counting the attempt. They are not in `nacked`."""
    updated: int = 0
    """Messages whose value or headers were changed."""
    forwarded: int = 0
    """Messages sent to other partitions and stored there: dead letters, and messages sent by acks."""
    undeliverable: int = 0
    """Messages that other partitions have rejected for good."""
    superseded: int = 0
    """Retries in compacted topics that a group skipped, because their key has a later write."""


class Totals:
    """A mutable `Counted`."""

    __slots__ = Counted._fields

    def __init__(self, counted: Counted = Counted()) -> None:  # noqa: B008  # a tuple, which is immutable
        self.set(counted)

    def set(self, counted: Counted) -> None:
        """Set all numbers to those of `counted`."""
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
        """Return all numbers as of now."""
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
    """Numbers of leased and waiting messages of one group."""

    def __init__(self) -> None:
        self.leased = 0
        self.waiting = 0
        """Number of waiting messages, including messages that are due."""
        self.ripe = 0
        self._entries = 0
        """Number of waiting entries."""
        self._unripe: list[tuple[int, int, Waiting]] = []
        """Heap of (due_ms, number that makes the item unique, entry). Outdated items are skipped at the top."""
        self._number = 0

    def count_lease(self, lease: Lease) -> None:
        """Update the numbers for a new lease, or for a lease with fewer live messages than before."""
        live = lease.live.bit_count()
        self.leased += live - lease.counted
        lease.counted = live

    def count_waiting(self, entry: Waiting) -> None:
        """Update the numbers for a new waiting entry, or for an entry with fewer messages than before. An entry without
        messages is gone."""
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
        """Lower bound of the time at which the next waiting messages become ready, in ms. None if there are none."""
        return self._unripe[0][0] if self._unripe else None

    def ripen(self, now_ms: int) -> None:
        """Count the waiting messages that are due by `now_ms` as ready."""
        while self._unripe and self._unripe[0][0] <= now_ms:
            entry = heapq.heappop(self._unripe)[2]
            if entry.counted:
                entry.ripe = True
                self.ripe += entry.counted
