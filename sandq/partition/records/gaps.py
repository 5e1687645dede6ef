"""Gaps: messages above a group's cursor that the group had passed before a clock reset. They are not delivered again.

A clock reset moves cursors back, and moves messages to their requested delivery times. Some of these messages had been
leased too early, so they are gaps in the messages that the group has yet to lease. A row holds packed ranges. Gaps at
or below the cursor have no effect. A seek deletes all gaps. The gaps are also deleted once the cursor is above all of
them.
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
        """Bases of all ranges, sorted."""
        self._lengths: dict[bytes, int] = {}
        """Length by base, for ranges of more than one message."""
        self._last = offsets.FIRST
        """Upper bound of all gaps."""

    def __bool__(self) -> bool:
        """Return whether there are any gaps."""
        return bool(self._bases)

    def __contains__(self, offset: bytes) -> bool:
        """Return whether a message is in a gap."""
        if not self._bases or offset > self._last:
            return False
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return False
        behind = offsets.distance(base := self._bases[at], offset)
        return behind is not None and behind < self._lengths.get(base, 1)

    def load(self, view: View) -> None:
        """Load the gaps from their rows."""
        for _, value in rows.all_of_group(view, rows.GAPS, self._group_id):
            self._note(rows.unpack_ranges(rows.unpack(value)[0]))

    def add(self, step: Step, ranges: list[Range]) -> None:
        """Add messages that the group has passed. The first of them must be in no gap yet."""
        key = rows.of_group(rows.GAPS, self._group_id, ranges[0].base)
        step.view.put(key, rows.pack(rows.pack_ranges(ranges)))
        self._note(ranges)

    def _note(self, ranges: list[Range]) -> None:
        """Add gaps to those in memory."""
        for base, length in ranges:
            self._bases.append(base)
            if length > 1:
                self._lengths[base] = length
            self._last = max(self._last, offsets.shift(base, length - 1))
        self._bases.sort()  # nearly sorted already, so the time is proportional to the number of new bases

    def clear_passed(self, step: Step, cursor: bytes) -> None:
        """Delete all gaps if the cursor is above them."""
        if self._bases and self._last <= cursor:
            self.clear(step)

    def clear(self, step: Step) -> None:
        """Delete all gaps, so that the group leases all messages above its cursor."""
        view = step.view
        if self._bases:
            for key, _ in rows.all_of_group(view, rows.GAPS, self._group_id):
                view.delete(key)
            self._bases, self._lengths, self._last = [], {}, offsets.FIRST
