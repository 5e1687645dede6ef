"""Batches of writes to keys: what a compacted topic takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sandq.model.batch import Batch, Column


class Writes(NamedTuple):
    """A batch that a compacted topic takes, by column."""

    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    headers: Sequence[bytes | None] | None
    ttls_ms: Sequence[int | None] | None

    @classmethod
    def of(cls, batch: Batch) -> Writes:
        """Take a batch apart that `produce_validation.check_writes` lets through."""
        return cls(
            batch.bytes_column(Column.KEY),  # type: ignore[arg-type]  # none of them is None
            batch.values(),
            batch.bytes_column(Column.HEADERS),
            batch.int_column(Column.TTL_MS),
        )
