"""Counts rows that were deleted or overwritten, but still take up space in the store or slow down scans.

The counts are local to this process: they are not replicated, and start at zero after a restart.
"""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition.base import rows

Span = tuple[bytes, bytes]
"""A range of keys, start <= key < stop, relative to the store."""


class Garbage:
    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Reset all numbers."""
        self.rows = 0
        """Number of deleted log rows."""
        self.bytes = 0
        """Approximate bytes of deleted log rows and of overwritten values."""
        self._span = (offsets.LAST, offsets.FIRST)
        self._tags: set[bytes] = set()

    def deleted(self, key: bytes, size: int) -> None:
        """Count one deleted log row of `size` bytes."""
        self.rows += 1
        self.bytes += size
        first, last = self._span
        self._span = (min(first, key[1:]), max(last, key[1:]))

    def deleted_all(self, first: bytes, last: bytes, count: int, size: int) -> None:
        """Count `count` deleted log rows from `first` to `last`, with `size` bytes in total."""
        self.deleted(first, size)
        self.deleted(last, 0)
        self.rows += count - 2

    def overwritten(self, tag: bytes, size: int) -> None:
        """Count a row with this tag that was deleted or overwritten. `size`: bytes of its old value."""
        self.bytes += size
        self._tags.add(tag)

    def take(self) -> list[Span]:
        """Return the key ranges that contain garbage, and reset all numbers. Until the store is compacted, scans of
        these ranges step over deleted rows."""
        first, last = self._span
        spans = [(rows.log_key(first), rows.after(rows.log_key(last)))] if self.rows else []
        spans += [rows.tag_bounds(tag) for tag in sorted(self._tags)]
        self._begin()
        return spans
