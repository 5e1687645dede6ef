"""Encodes rows as a batch of the broker. It copies whole Arrow buffers; no Python code runs per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sandq.model.batch_format import FLAG_RELATIVE, TYPE_BYTES, TYPE_INT64, Column, Encoded, assemble

_BYTES: Final = (("value", Column.VALUE), ("key", Column.KEY), ("headers", Column.HEADERS))
_BYTES_BEHIND: Final = (("tenant", Column.TENANT), ("unique_key", Column.UNIQUE_KEY))
"""Columns that come after the numbers, because the ids of a batch's columns must ascend."""


def encode_rows(rows: Sequence[Any], *, relative: bool) -> bytes:
    """Encode record batches (`columns.Columns`) with at least one row as one batch.

    `relative`: the rows have delays; otherwise they have times, or null. The same rows always give the same bytes,
    independent of their division into record batches.
    """
    count = sum(batch.num_rows for batch in rows)
    encoded = [_bytes(column, _joined(rows, name)) for name, column in _BYTES if _has(rows, name)]
    encoded += [
        _numbers(column, _joined(rows, name))
        for name, column in (
            ("delay_ms" if relative else "deliver_at", Column.DELIVER_MS),
            ("ttl_ms", Column.TTL_MS),
            ("priority", Column.PRIORITY),
        )
        if _has(rows, name)
    ]
    encoded += [_bytes(column, _joined(rows, name)) for name, column in _BYTES_BEHIND if _has(rows, name)]
    return assemble(encoded, count, FLAG_RELATIVE if relative else 0)


def _has(rows: Sequence[Any], name: str) -> bool:
    """Return whether a column is encoded. Columns with only nulls are left out, except for values."""
    if name not in rows[0].schema.names:
        return False
    return name == "value" or any(batch.column(name).null_count < batch.num_rows for batch in rows)


def _joined(rows: Sequence[Any], name: str) -> Any:
    # Copy a single array, too: a slice shares the buffers of its origin, but the buffers of a copy begin at row 0.
    return pa.concat_arrays([batch.column(name) for batch in rows])


def _bytes(column: int, array: Any) -> Encoded:
    validity = _validity(array)
    if validity:
        array = pc.fill_null(array, b"")  # Arrow does not define the data of a null
    _, bounds, data = array.buffers()
    ends = bounds.slice(0, 4 * (len(array) + 1)).to_pybytes()
    size = int.from_bytes(ends[-4:], "little")
    return Encoded(
        column, TYPE_BYTES, bool(validity), [*validity, ends, data.slice(0, size).to_pybytes() if data else b""]
    )


def _numbers(column: int, array: Any) -> Encoded:
    validity = _validity(array)
    if validity:
        array = pc.fill_null(array, 0)
    numbers = array.buffers()[1].slice(0, 8 * len(array)).to_pybytes()
    extent = pc.min_max(array).as_py()
    return Encoded(column, TYPE_INT64, bool(validity), [*validity, numbers], (extent["min"], extent["max"]))


def _validity(array: Any) -> list[bytes]:
    """Return the validity bitmap, or nothing if there are no nulls. Bits after the last row are 0."""
    if not array.null_count:
        return []
    count = len(array)
    bits = bytearray(array.buffers()[0].slice(0, (count + 7) // 8).to_pybytes())
    if count % 8:
        bits[-1] &= (1 << count % 8) - 1
    return [bytes(bits)]
