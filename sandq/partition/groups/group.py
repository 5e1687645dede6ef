"""A consumer group within one partition: its cursor, its leases, what waits for another attempt, its dead.

Every message at or below the cursor is in exactly one of these: a live lease, a waiting entry, blocked by its key
(`key_order.py`), dead, or acked (in none of them). That is why nothing is stored for an acked message.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition import rows
from sandq.partition.groups.key_order import KeyOrder
from sandq.partition.groups.leases import Lease, Waiting
from sandq.partition.log.reader import LogReader
from sandq.partition.metrics import PartitionMetrics


class Group:
    """State of one group; its row is written by `GroupState`."""

    def __init__(self, group_id: int, name: str, cursor: bytes) -> None:
        self.group_id = group_id
        self.name = name
        self.reader = LogReader(cursor)
        self.leases: dict[int, Lease] = {}
        self.waiting: dict[int, Waiting] = {}
        """By seq; `_queue` orders it by time."""
        self._queue: list[tuple[int, int]] = []
        """Heap of (due_ms, seq); entries no longer in `waiting` are skipped when met."""
        self._deaths: list[tuple[int, int]] = []
        """Heap of (expires_ms, seq), likewise; also those that have another `expires_ms` by now."""
        self.order = KeyOrder()
        self.metrics = PartitionMetrics()
        self.gaps = 0
        """Ranges that wait."""
        self.dead: Counter[str] = Counter()
        """By reason."""
        self.touched_ms = 0
        """When a consumer was last known to be there."""
        self.settings: dict[str, Any] = {}
        """What overrides the topic's."""
        self._holders: list[tuple[bytes, int, Lease | Waiting]] | None = None
        """Every range that is leased or waits, in order; made when it is wanted."""
        self.seeking = False
        self.generation = 0
        """Rises when leases are revoked at once, by a seek; of this process alone."""

    @property
    def cursor(self) -> bytes:
        return self.reader.cursor

    def row(self) -> bytes:
        dead = sorted((reason, count) for reason, count in self.dead.items() if count)
        return rows.pack(self.name, self.cursor, dead, self.touched_ms, self.settings, self.reader.taken)

    @classmethod
    def load(cls, key: bytes, row: bytes) -> Group:
        name, cursor, dead, touched_ms, settings, taken = rows.unpack(row)
        group = cls(int.from_bytes(key[1:], "big"), name, cursor)
        group.dead.update(dict(dead))
        group.touched_ms, group.settings, group.reader.taken = touched_ms, settings, tuple(taken)
        return group

    def queue(self, entry: Waiting) -> None:
        self.waiting[entry.seq] = entry
        self.gaps += len(entry.ranges)
        self.metrics.see_waiting(entry)
        heapq.heappush(self._queue, (entry.due_ms, entry.seq))
        self.watch(entry)
        self.changed()

    def watch(self, entry: Waiting) -> None:
        """The `expires_ms` of a waiting entry is new."""
        if entry.expires_ms is not None:
            heapq.heappush(self._deaths, (entry.expires_ms, entry.seq))

    def first_death(self) -> Waiting | None:
        """What dies next of what waits."""
        while self._deaths:
            expires_ms, seq = self._deaths[0]
            entry = self.waiting.get(seq)
            if entry is not None and entry.expires_ms == expires_ms:
                return entry
            heapq.heappop(self._deaths)
        return None

    def first_waiting(self) -> Waiting | None:
        """What comes back next."""
        while self._queue:
            entry = self.waiting.get(self._queue[0][1])
            if entry is not None:
                return entry
            heapq.heappop(self._queue)
        return None

    def paused(self) -> str | None:
        """Why nothing new is leased, if so."""
        if self.seeking:
            return "a seek is under way"
        if self.gaps > FIXED.max_gaps:
            return f"{self.gaps} ranges wait for another attempt (limit {FIXED.max_gaps}): nothing new is leased"
        return None

    def stalled(self) -> str | None:
        """Why nothing new is taken from the log, if so."""
        if len(self.order.blocked) >= FIXED.key_window:
            return (
                f"{len(self.order.blocked)} messages wait for earlier ones of their keys (limit {FIXED.key_window}): "
                f"nothing new is leased"
            )
        return self.paused()

    def is_pending(self, offset: bytes) -> bool:
        """No attempt of this message was made."""
        return offset > self.cursor or offset in self.order.blocked

    def holder_of(self, offset: bytes) -> Lease | Waiting | None:
        """The live lease that holds this message, or what it waits in."""
        if self._holders is None:
            holders: list[Lease | Waiting] = [*self.leases.values(), *self.waiting.values()]
            found = [(base, length, holder) for holder in holders for base, length in holder.ranges]
            self._holders = sorted(found, key=lambda one: one[0])
        at = bisect_right(self._holders, offset, key=lambda one: one[0]) - 1
        while at >= 0:
            base, length, holder = self._holders[at]
            behind = offsets.distance(base, offset)
            if behind is None:
                return None  # of another time or entry, as all before it
            # A lease names also what it gave back, which another one may hold by now.
            if behind < length and (isinstance(holder, Waiting) or holder.holds(offset)):
                return holder
            at -= 1
        return None

    def changed(self) -> None:
        """There is a lease or a waiting entry more, or less, or one that has other messages."""
        self._holders = None

    def first_unacked(self) -> bytes | None:
        """The lowest offset at or below the cursor that keeps the log: leased, waiting or blocked, and not in a row
        of its own (as dead ones are)."""
        firsts: Iterable[bytes | None] = (
            *(lease.first_live() for lease in self.leases.values() if not lease.kept),
            *(min(entry.ranges).base for entry in self.waiting.values() if not entry.kept),
            self.order.first(),
        )
        return min((first for first in firsts if first is not None), default=None)

    def done_below(self) -> bytes:
        """Everything below this offset is acked or dead in this group."""
        first = self.first_unacked()
        return first if first is not None else _next(self.cursor)


def _next(offset: bytes) -> bytes:
    number = int.from_bytes(offset, "big") + 1
    return number.to_bytes(16, "big") if number < 1 << 128 else offset
