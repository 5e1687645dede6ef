"""A consumer group within one partition: its cursor, its leases, what waits for another attempt, its dead.

Every message at or below the cursor is in exactly one of these: a live lease, a waiting entry, blocked by its key
(`key_order.py`), dead, or acked (in none of them). That is why nothing is stored for an acked message.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition import rows
from sandq.partition.groups.key_order import KeyOrder
from sandq.partition.groups.leases import Lease, Waiting
from sandq.partition.log.look_aheads import LookAheads
from sandq.partition.log.reader import LogReader, single_row_entry
from sandq.partition.metrics import PartitionMetrics
from sandq.partition.rows import Range
from sandq.partition.stale_heaps import is_overgrown
from sandq.partition.view import View

SEEKING: Final = "a seek is under way"
"""Why a group gets nothing at present; until that is over nobody can tell what there is for it."""


class Group:
    """State of one group; `GroupTable` writes its row, and the tables of leases and of what waits fill it."""

    def __init__(self, group_id: int, name: str, cursor: bytes, look_aheads: LookAheads) -> None:
        self.group_id = group_id
        self.name = name
        self.reader = LogReader(cursor, look_aheads=look_aheads)
        self.leases: dict[int, Lease] = {}
        self.waiting: dict[int, Waiting] = {}
        """By seq; `_queue` orders it by time."""
        self._queue: list[tuple[int, int]] = []
        """Heap of (due_ms, seq); entries no longer in `waiting` are skipped when met."""
        self._expiries: list[tuple[int, int]] = []
        """Heap of (expires_ms, seq), likewise; also those that have another `expires_ms` by now."""
        self.order = KeyOrder()
        self.metrics = PartitionMetrics()
        self.waiting_ranges = 0
        """Ranges of all that waits."""
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
    def load(cls, key: bytes, row: bytes, look_aheads: LookAheads) -> Group:
        name, cursor, dead, touched_ms, settings, taken = rows.unpack(row)
        group = cls(int.from_bytes(key[1:], "big"), name, cursor, look_aheads)
        group.dead.update(dict(dead))
        group.touched_ms, group.settings, group.reader.taken = touched_ms, settings, tuple(taken)
        return group

    def setting(self, name: str, topic: Mapping[str, Any]) -> Any:
        """A setting of the topic, unless the group overrides it."""
        return self.settings[name] if name in self.settings else topic[name]

    # -- what waits -----------------------------------------------------------------------------------------------

    def add_waiting(self, entry: Waiting) -> None:
        """Keep an entry until its messages are leased again, or expire."""
        self._add_waiting(entry)
        self.forget_holders()

    def part_waiting(self, entry: Waiting, offset: bytes, apart: Waiting | None) -> None:
        """Take one message out of a waiting entry, and keep it in one of its own (None: nowhere). Which entry holds
        what is not looked up anew then, for a producer may do so with many."""
        at, behind = entry.find(offset)
        base, length = entry.ranges[at]
        parts = [Range(base, behind)] if behind else []
        if behind + 1 < length:
            parts.append(Range(offsets.shift(offset, 1), length - behind - 1))
        entry.ranges = entry.ranges[:at] + parts + entry.ranges[at + 1 :]
        self.waiting_ranges += len(parts) - 1
        self.metrics.count_parted(entry, offset)
        if not entry.ranges:
            del self.waiting[entry.seq]
        if self._holders is not None:
            first = bisect_left(self._holders, base, key=_base)
            while self._holders[first][2] is not entry:
                first += 1  # a lease may name what it gave back
            self._holders[first : first + 1] = [(part, count, entry) for part, count in parts]
        if apart is not None:
            self._add_waiting(apart)
            if self._holders is not None:
                insort(self._holders, (offset, 1, apart), key=_base)

    def _add_waiting(self, entry: Waiting) -> None:
        self.waiting[entry.seq] = entry
        self.waiting_ranges += len(entry.ranges)
        self.metrics.count_waiting(entry)
        if is_overgrown(len(self._queue), len(self.waiting)):
            self._queue = [(one.due_ms, one.seq) for one in self.waiting.values()]
            heapq.heapify(self._queue)
        else:
            heapq.heappush(self._queue, (entry.due_ms, entry.seq))
        self.watch_expiry(entry)

    def watch_expiry(self, entry: Waiting) -> None:
        """Note when a waiting entry expires, after that has changed."""
        if entry.expires_ms is None:
            return
        if is_overgrown(len(self._expiries), len(self.waiting)):
            living = self.waiting.values()
            self._expiries = [(one.expires_ms, one.seq) for one in living if one.expires_ms is not None]
            heapq.heapify(self._expiries)
        else:
            heapq.heappush(self._expiries, (entry.expires_ms, entry.seq))

    def next_to_expire(self) -> Waiting | None:
        """The waiting entry that expires first."""
        while self._expiries:
            expires_ms, seq = self._expiries[0]
            entry = self.waiting.get(seq)
            if entry is not None and entry.expires_ms == expires_ms:
                return entry
            heapq.heappop(self._expiries)
        return None

    def next_waiting(self) -> Waiting | None:
        """The waiting entry whose next attempt comes first."""
        while self._queue:
            entry = self.waiting.get(self._queue[0][1])
            if entry is not None:
                return entry
            heapq.heappop(self._queue)
        return None

    # -- what stops it --------------------------------------------------------------------------------------------

    def pause_reason(self) -> str | None:
        """Why nothing new is leased; None when it is."""
        if self.seeking:
            return SEEKING
        if self.waiting_ranges > FIXED.max_gaps:
            return (
                f"{self.waiting_ranges} ranges wait for another attempt (limit {FIXED.max_gaps}): nothing new is leased"
            )
        return None

    def stall_reason(self) -> str | None:
        """Why nothing new is taken from the log; None when it is."""
        if len(self.order.blocked) >= FIXED.key_window:
            return (
                f"{len(self.order.blocked)} messages wait for earlier ones of their keys (limit {FIXED.key_window}): "
                f"nothing new is leased"
            )
        return self.pause_reason()

    # -- messages -------------------------------------------------------------------------------------------------

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

    def forget_holders(self) -> None:
        """Look for holders anew, for there is another lease or waiting entry, or one has other messages."""
        self._holders = None

    # -- the order of its keys ------------------------------------------------------------------------------------

    def load_key_order(self, view: View) -> None:
        """Find out which keys are busy with what is leased or waits, and load which messages they block."""
        for lease in self.leases.values():
            self.start_keys(lease.select(lease.live), lease.kept, view)
        for entry in self.waiting.values():
            self.start_keys(entry.ranges, entry.kept, view)
        for key, value in rows.all_of_group(view, rows.BLOCKED, self.group_id):
            self.order.load(key[5:], *rows.unpack(value))

    def start_keys(self, ranges: list[Range], kept: bool, view: View) -> None:
        """Make the keys of messages busy. `kept`: they are in rows of the group's own."""
        for base, length in ranges:
            # In the log a message with a key has a row and so a range of its own; not among what was redriven.
            for offset in offsets.run(base, length if kept else 1):
                if (key := self._ordering_key(offset, kept, view)) is not None:
                    self.order.start(offset, key)

    def _ordering_key(self, offset: bytes, kept: bool, view: View) -> int | None:
        """The ordering hash of a message of its own row, if it has a key."""
        if kept:
            row = view.get(rows.of_group(rows.KEPT, self.group_id, offset))
            return None if row is None else rows.order_of(rows.unpack(row)[2])
        entry = single_row_entry(view, offset)
        return None if entry.extra is None else entry.extra.order

    # -- what it is done with -------------------------------------------------------------------------------------

    def first_unacked(self) -> bytes | None:
        """The lowest offset at or below the cursor that keeps the log: leased, waiting or blocked, and not in a row
        of its own (as dead ones are)."""
        firsts: Iterable[bytes | None] = (
            *(lease.first_live() for lease in self.leases.values() if not lease.kept),
            *(min(entry.ranges).base for entry in self.waiting.values() if not entry.kept),
            self.order.lowest_logged(),
        )
        return min((first for first in firsts if first is not None), default=None)

    def done_below(self) -> bytes:
        """Everything below this offset is acked or dead in this group."""
        first = self.first_unacked()
        return first if first is not None else _next(self.cursor)


def _base(holding: tuple[bytes, int, Lease | Waiting]) -> bytes:
    return holding[0]


def _next(offset: bytes) -> bytes:
    number = int.from_bytes(offset, "big") + 1
    return number.to_bytes(16, "big") if number < 1 << 128 else offset
