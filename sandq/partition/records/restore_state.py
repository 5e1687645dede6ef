"""How far the restore of a partition from a backup is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class RestoreState(NamedTuple):
    """How far a restore is. Written with the partition's state, in this order."""

    restore_id: str
    next_chunk: int = 0
    """Number of the chunk that comes next."""
    rows: int = 0
    bytes: int = 0
    is_whole: bool = False
    """All rows are there, and are the partition's state."""
    targets: tuple[tuple[int, int], ...] = ()
    """Number that a topic had when the backup was made, and that which it has here."""

    @classmethod
    def load(cls, fields: Sequence[Any]) -> RestoreState:
        """Read what a row has of it."""
        restore_id, next_chunk, count, size, is_whole, targets = fields
        return cls(restore_id, next_chunk, count, size, is_whole, tuple((old, new) for old, new in targets))

    def shown(self) -> dict[str, Any]:
        """Return what is told of it."""
        return {
            "restore_id": self.restore_id,
            "next_chunk": self.next_chunk,
            "rows": self.rows,
            "bytes": self.bytes,
            "whole": self.is_whole,
        }
