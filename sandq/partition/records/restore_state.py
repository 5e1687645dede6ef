"""The progress of restoring a partition from a backup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class RestoreState(NamedTuple):
    """The progress of a restore. Stored in the state row of the partition, with the fields in this order."""

    restore_id: str
    next_chunk: int = 0
    """Number of the next chunk."""
    rows: int = 0
    bytes: int = 0
    is_whole: bool = False
    """Whether all rows are restored and have become the partition's state."""
    targets: tuple[tuple[int, int], ...] = ()
    """(number of a topic in the backup, number of the topic in this cluster)."""

    @classmethod
    def load(cls, fields: Sequence[Any]) -> RestoreState:
        """Read the fields of a row."""
        restore_id, next_chunk, count, size, is_whole, targets = fields
        return cls(restore_id, next_chunk, count, size, is_whole, tuple((old, new) for old, new in targets))

    def shown(self) -> dict[str, Any]:
        """Return the progress as clients see it."""
        return {
            "restore_id": self.restore_id,
            "next_chunk": self.next_chunk,
            "rows": self.rows,
            "bytes": self.bytes,
            "whole": self.is_whole,
        }
