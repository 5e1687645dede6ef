"""What a partition has deleted or overwritten in its store, and still takes up space there, or is in the way of scans.

Of this process alone, and no part of the state: another one begins to count anew.
"""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition.base import rows

Span = tuple[bytes, bytes]
"""Keys start <= key < stop, relative to the store."""


class Garbage:
    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.rows = 0
        """Log rows that were deleted."""
        self.bytes = 0
        """Of these, and of values of keys that others came after; roughly."""
        self._span = (offsets.LAST, offsets.FIRST)
        self._tags: set[bytes] = set()

    def deleted(self, key: bytes, size: int) -> None:
        """A log row was deleted."""
        self.rows += 1
        self.bytes += size
        first, last = self._span
        self._span = (min(first, key[1:]), max(last, key[1:]))

    def deleted_all(self, first: bytes, last: bytes, count: int, size: int) -> None:
        """So many log rows from `first` to `last` were deleted."""
        self.deleted(first, size)
        self.deleted(last, 0)
        self.rows += count - 2

    def overwritten(self, tag: bytes, size: int) -> None:
        """A row with this tag was deleted, or another one put in its place."""
        self.bytes += size
        self._tags.add(tag)

    def take(self) -> list[Span]:
        """Where it is; and begin anew. Whoever reads there walks over deleted rows until the store is compacted."""
        first, last = self._span
        spans = [(rows.log_key(first), rows.after(rows.log_key(last)))] if self.rows else []
        spans += [rows.tag_bounds(tag) for tag in sorted(self._tags)]
        self._begin()
        return spans
