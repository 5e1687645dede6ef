"""What a group had passed above its cursor, before the partition's clock was set back: it does not come again.

A clock reset puts cursors back and messages at the times they were wanted at, among them some that a group had taken
too early: those are gaps in what the group has yet to take. Row: ranges, packed. Gaps at or below the cursor say
nothing any more; they go with a seek, and once the cursor is above all of them.
"""

from __future__ import annotations

from bisect import bisect_right

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import View


class Gaps:
    def __init__(self, group_id: int) -> None:
        self._group_id = group_id
        self._bases: list[bytes] = []
        """In order."""
        self._lengths: dict[bytes, int] = {}
        """By base, of those that are more than one message."""
        self._last = offsets.FIRST
        """No gap is above it."""

    def __bool__(self) -> bool:
        return bool(self._bases)

    def __contains__(self, offset: bytes) -> bool:
        if not self._bases or offset > self._last:
            return False
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return False
        behind = offsets.distance(base := self._bases[at], offset)
        return behind is not None and behind < self._lengths.get(base, 1)

    def load(self, view: View) -> None:
        """Read them from rows."""
        for _, value in rows.all_of_group(view, rows.GAPS, self._group_id):
            self._note(rows.unpack_ranges(rows.unpack(value)[0]))

    def add(self, step: Step, ranges: list[Range]) -> None:
        """The group has passed these messages; the first of them was never named before."""
        key = rows.of_group(rows.GAPS, self._group_id, ranges[0].base)
        step.view.put(key, rows.pack(rows.pack_ranges(ranges)))
        self._note(ranges)

    def _note(self, ranges: list[Range]) -> None:
        for base, length in ranges:
            self._bases.append(base)
            if length > 1:
                self._lengths[base] = length
            self._last = max(self._last, offsets.shift(base, length - 1))
        self._bases.sort()  # most of them are in order: that takes as long as the new ones are many

    def clear_passed(self, step: Step, cursor: bytes) -> None:
        """Forget them, if the cursor is above all."""
        if self._bases and self._last <= cursor:
            self.clear(step)

    def clear(self, step: Step) -> None:
        """Forget them: what the group has yet to take is without gaps."""
        view = step.view
        if self._bases:
            for key, _ in rows.all_of_group(view, rows.GAPS, self._group_id):
                view.delete(key)
            self._bases, self._lengths, self._last = [], {}, offsets.FIRST
