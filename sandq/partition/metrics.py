"""Numbers of a partition and its groups, kept as things change, so that to tell them costs nothing per message.

They are of this process and of no replicated state: nothing is decided by them, and no row holds them.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from sandq.partition.groups.leases import Lease, Waiting
from sandq.partition.stale_heaps import is_overgrown


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
        )


class PartitionMetrics:
    """How many messages of one group are leased and wait, and which of them is the oldest."""

    def __init__(self) -> None:
        self.leased = 0
        self.waiting = 0
        """All that wait, those included whose time has come: `ripe`."""
        self.ripe = 0
        self._holdings = 0
        """Leases and waiting entries."""
        self._unripe: list[tuple[int, int, Waiting]] = []
        """Heap of (due_ms, a number that makes it unique, entry); entries that are gone are skipped when met."""
        self._oldest: list[tuple[bytes, int, Lease | Waiting]] = []
        """Heap of (first message, a number that makes it unique, holding); as it was when it was put there."""
        self._number = 0

    def count_lease(self, lease: Lease) -> None:
        """Count a lease that is new, or some of which is not live any more."""
        live = lease.live.bit_count()
        if live == lease.counted:
            return
        self.leased += live - lease.counted
        if not lease.counted:
            self._holdings += 1
            self._note(lease.first_of(lease.live), lease)
        elif not live:
            self._holdings -= 1
        lease.counted = live

    def count_waiting(self, entry: Waiting) -> None:
        """Count a waiting entry that is new, or has fewer messages (none: it is gone)."""
        count = sum([r.length for r in entry.ranges])
        if count == entry.counted:
            return
        self.waiting += count - entry.counted
        if entry.ripe:
            self.ripe += count - entry.counted
        if not entry.counted:
            self._holdings += 1
            if is_overgrown(len(self._unripe), self._holdings):
                self._unripe = [one for one in self._unripe if one[2].counted]
                heapq.heapify(self._unripe)
            heapq.heappush(self._unripe, (entry.due_ms, self._next(), entry))
        elif not count:
            self._holdings -= 1
        entry.counted = count
        if entry.ranges:
            first = min(entry.ranges).base
            if first != entry.first:
                entry.first = first
                self._note(first, entry)

    def count_parted(self, entry: Waiting, offset: bytes) -> None:
        """Count a waiting entry that has one message fewer."""
        if entry.first == offset or not entry.ranges:
            self.count_waiting(entry)
            return
        entry.counted -= 1
        self.waiting -= 1
        self.ripe -= entry.ripe

    def ripen(self, now_ms: int, waiting: Mapping[int, Waiting]) -> None:
        """Count what is due by `now_ms` as ready."""
        while self._unripe and self._unripe[0][0] <= now_ms:
            entry = waiting.get(heapq.heappop(self._unripe)[2].seq)
            if entry is not None:
                entry.ripe = True
                self.ripe += entry.counted

    def oldest(self) -> bytes | None:
        """The lowest message that is leased or waits."""
        heap = self._oldest
        while heap:
            first, _, holding = heap[0]
            if holding.counted:
                now_first = holding.first_of(holding.live) if isinstance(holding, Lease) else holding.first
                if now_first == first:
                    return first
                if isinstance(holding, Lease):
                    # It goes where it belongs by now; a waiting entry is there already.
                    heapq.heapreplace(heap, (now_first, self._next(), holding))
                    continue
            heapq.heappop(heap)
        return None

    def _note(self, first: bytes, holding: Lease | Waiting) -> None:
        if is_overgrown(len(self._oldest), self._holdings):
            # What ended lies deep in the heap while something old stays on top of it.
            kept: dict[int, Lease | Waiting] = {id(held): held for _, _, held in self._oldest if held.counted}
            self._oldest = [
                (held.first_of(held.live) if isinstance(held, Lease) else held.first, self._next(), held)
                for held in kept.values()
            ]
            heapq.heapify(self._oldest)
        heapq.heappush(self._oldest, (first, self._next(), holding))

    def _next(self) -> int:
        self._number += 1
        return self._number
