"""Batches of writes to keys: what a compacted topic takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.model.errors import InvalidRequest

_FOREIGN = (Column.DELIVER_MS, Column.PRIORITY, Column.TENANT, Column.UNIQUE_KEY)


class Writes(NamedTuple):
    """A batch that a compacted topic takes, by column."""

    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    headers: Sequence[bytes | None] | None
    ttls_ms: Sequence[int | None] | None

    @classmethod
    def of(cls, batch: Batch) -> Writes:
        """Raises InvalidRequest."""
        columns = batch.columns
        foreign = [column.name.lower() for column in _FOREIGN if column in columns]
        if foreign:
            raise InvalidRequest(
                f"a message of a compacted topic has no {foreign[0]}: it is a write, and is done at once"
            )
        keys = batch.bytes_column(Column.KEY)
        if keys is None or not all(keys):
            raise InvalidRequest("every message of a compacted topic has a key, of one byte at least")
        expected = batch.bytes_column(Column.EXPECTED_VERSION) or ()
        if any(version and len(version) != offsets.OFFSET_BYTES for version in expected):
            raise InvalidRequest(
                f"a version has {offsets.OFFSET_BYTES} bytes; none at all mean that there is no value yet"
            )
        return cls(
            keys,  # type: ignore[arg-type]  # none of them is None
            batch.values(),
            batch.bytes_column(Column.HEADERS),
            batch.int_column(Column.TTL_MS),
        )
