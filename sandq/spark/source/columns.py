"""Converts pieces of a partition's log into Arrow record batches with the columns of the source.

Keys and values are used without a copy, because a batch stores them in Arrow's format. Merging several batches copies
them once, in C. Offsets, ids and times are computed for all messages of a piece together. Only headers need Python code
for each message, and only if the query includes them.

Spark checks the types of the first record batch only, and misreads later batches with different types. So all types are
defined once, in `schema`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from sandq.model import offsets as offset_model
from sandq.model.batch import Batch, Column
from sandq.model.batch_format import TYPE_INT64, TYPE_OF, pack_ints
from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.headers import headers_or_none
from sandq.model.offset_texts import CHARS, texts_of_column, texts_of_run, times_of_column
from sandq.model.piece import Piece
from sandq.spark.source.options import PLAIN, Extra

BATCH_ROWS: Final = 10_000
"""A record batch is returned once it has at least this many rows. It may have more, because pieces are not split."""
BATCH_BYTES: Final = 16 << 20
"""A record batch is returned once its pieces have at least this many bytes, so that Arrow's 32-bit offsets suffice."""
TIMES: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
HEADERS_RAW: Final = "headers"
_BYTES: Final = offset_model.OFFSET_BYTES
_SLICES: Final = 16
"""Maximum number of live spans of a piece that are sliced; for more of them, Arrow's `take` is faster."""

Span = tuple[int, int]
"""(First position, stop) of consecutive live messages."""


def schema(extra: Extra = PLAIN) -> Any:
    """Return the columns (pyarrow.Schema): those of Spark's Kafka connector, then those of sandq."""
    headers = [("headers", HEADERS)] if extra.headers else []
    raw = [("raw_headers", pa.binary()), ("ttl_ms", pa.int64())] if extra.raw else []
    rank = [("priority", pa.int32()), ("tenant", pa.string())] if extra.rank else []
    found = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.string()),
            ("timestamp", TIMES),
            *headers,
            ("deliver_at", TIMES),
            ("message_id", pa.string()),
            *raw,
            *rank,
        ]
    )
    return pa.schema([field for field in found if extra.has(field.name)])


class Rows:
    """Collects rows until there are enough for a record batch; can be used again after `take`."""

    def __init__(self, topic: str, partition: int, extra: Extra = PLAIN) -> None:
        self._topic = topic
        self._partition = partition
        self._schema = schema(extra)
        self._extra = extra
        self._has_texts = extra.has("offset") or extra.has("message_id")
        self._begin()

    def _begin(self) -> None:
        self.count = 0
        self._bytes = 0
        self._keys: list[Any] = []  # Arrow arrays, which keep the batches alive whose memory they use
        self._values: list[Any] = []
        self._texts: list[bytes] = []
        self._ids: list[bytes] = []
        self._has_ids = False
        self._created: list[bytes] = []
        self._deliver_at: list[bytes] = []
        self._headers: list[bytes | None] = []
        self._raw_headers: list[Any] = []
        self._ttls: list[Any] = []
        self._priorities: list[Any] = []
        self._tenants: list[Any] = []

    @property
    def is_full(self) -> bool:
        return self.count >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, piece: Piece) -> None:
        """Add the live messages of a piece. Raises ProtocolError if its parts do not fit together."""
        batch = _parsed(piece)
        spans = _spans(piece.live, batch.count)
        if not spans:
            return
        whole = spans == [(0, batch.count)]
        count = sum(stop - first for first, stop in spans)
        self._values += _parts(_array(batch, Column.VALUE), spans, whole)
        self._keys += _column(batch, Column.KEY, spans, whole, count)
        self._add_offsets(piece, spans, whole)
        self._created.append(_times(piece.created_ms, spans, whole))
        if self._extra.raw:
            self._raw_headers += _column(batch, Column.HEADERS, spans, whole, count)
            self._ttls += _column(batch, Column.TTL_MS, spans, whole, count)
        if self._extra.rank:
            self._priorities += _cast(_column(batch, Column.PRIORITY, spans, whole, count), pa.int32(), "priority")
            self._tenants += _cast(_column(batch, Column.TENANT, spans, whole, count), pa.string(), "tenant")
        if self._extra.headers:
            cells = batch.bytes_column(Column.HEADERS) or [None] * batch.count
            self._headers += cells if whole else [cell for first, stop in spans for cell in cells[first:stop]]
        self.count += count
        self._bytes += _size(batch)

    def _add_offsets(self, piece: Piece, spans: Sequence[Span], whole: bool) -> None:
        """Add the offsets, ids and delivery times of a piece."""
        if len(piece.offsets) == _BYTES:
            count = sum(stop - first for first, stop in spans)
            self._deliver_at.append(offset_model.deliver_ms(piece.offsets).to_bytes(8, "little") * count)
        else:
            column = _chosen(piece.offsets, _BYTES, spans, whole)
            self._deliver_at.append(times_of_column(column))
        if not self._has_texts:
            return
        if len(piece.offsets) == _BYTES:
            stop = max(stop for _, stop in spans)
            texts = _chosen(texts_of_run(piece.offsets, stop), CHARS, spans, whole)
        else:
            texts = texts_of_column(column)
        self._texts.append(texts)
        if piece.ids is None:
            self._ids.append(texts)
        else:
            self._has_ids = True
            self._ids.append(texts_of_column(_chosen(piece.ids, _BYTES, spans, whole)))

    def take(self) -> Any:
        """Return the collected rows as a pyarrow.RecordBatch, and begin a new one."""
        offsets = _texts_array(self._texts, self.count) if self._has_texts else None
        makers: dict[str, Callable[[], Any]] = {
            "key": lambda: _joined(self._keys),
            "value": lambda: _joined(self._values),
            "topic": lambda: pa.repeat(self._topic, self.count),
            "partition": lambda: pa.repeat(pa.scalar(self._partition, pa.int32()), self.count),
            "offset": lambda: offsets,
            "timestamp": lambda: _times_array(self._created, self.count),
            "headers": lambda: headers_array(self._headers),
            "deliver_at": lambda: _times_array(self._deliver_at, self.count),
            "message_id": lambda: _texts_array(self._ids, self.count) if self._has_ids else offsets,
            "raw_headers": lambda: _joined(self._raw_headers),
            "ttl_ms": lambda: _joined(self._ttls),
            "priority": lambda: _joined(self._priorities),
            "tenant": lambda: _joined(self._tenants),
        }
        columns = [makers[name]() for name in self._schema.names]
        self._begin()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


# ------------------------------------------------------------------------------------------------ one piece


def _parsed(piece: Piece) -> Batch:
    try:
        batch = Batch.parse(piece.batch)
    except InvalidRequest as error:
        raise ProtocolError(f"piece: {error.message}") from None
    columns = (
        ("offsets", piece.offsets if len(piece.offsets) != _BYTES else None, _BYTES),
        ("ids", piece.ids, _BYTES),
        ("created_ms", piece.created_ms if isinstance(piece.created_ms, bytes) else None, 8),
    )
    for name, column, size in columns:
        if column is not None and len(column) != batch.count * size:
            raise ProtocolError(f"piece: {name} has {len(column)} bytes for {batch.count} messages")
    return batch


def _spans(live: Sequence[Sequence[int]] | None, count: int) -> list[Span]:
    if live is None:
        return [(0, count)]
    spans = [(first, first + length) for first, length in live]
    if any(not 0 <= first < stop <= count for first, stop in spans):
        raise ProtocolError(f"piece: live names positions that are not among its {count}")
    return spans


def _column(batch: Batch, column: int, spans: Sequence[Span], whole: bool, count: int) -> list[Any]:
    """Return the live cells of a column; nulls if the batch does not have the column."""
    if column in batch.columns:
        return _parts(_array(batch, column), spans, whole)
    return [pa.nulls(count, _arrow_type(column))]


def _cast(arrays: Sequence[Any], kind: Any, name: str) -> list[Any]:
    """Convert arrays of a column to the type in `schema`. Raises ProtocolError if a cell does not fit."""
    try:
        return [array.cast(kind) for array in arrays]
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"piece: {name}: {error}") from None


def _array(batch: Batch, column: int) -> Any:
    """Return a column as an Arrow array that uses the batch's memory."""
    validity, offsets, data = batch.buffers(column)
    bits = None if validity is None else pa.py_buffer(validity)
    buffers = [pa.py_buffer(data)] if TYPE_OF[column] == TYPE_INT64 else [pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(_arrow_type(column), batch.count, [bits, *buffers])


def _arrow_type(column: int) -> Any:
    return pa.int64() if TYPE_OF[column] == TYPE_INT64 else pa.binary()


def _parts(array: Any, spans: Sequence[Span], whole: bool) -> list[Any]:
    if whole:
        return [array]
    if len(spans) <= _SLICES:
        return [array.slice(first, stop - first) for first, stop in spans]
    return [array.take(pa.array([row for first, stop in spans for row in range(first, stop)], pa.int32()))]


def _chosen(column: bytes, size: int, spans: Sequence[Span], whole: bool) -> bytes:
    return column if whole else b"".join([column[first * size : stop * size] for first, stop in spans])


def _times(times: int | bytes, spans: Sequence[Span], whole: bool) -> bytes:
    """Return the times of all live messages: int64, little-endian."""
    if isinstance(times, int):
        return times.to_bytes(8, "little", signed=True) * sum(stop - first for first, stop in spans)
    return _chosen(times, 8, spans, whole)


def _size(batch: Batch) -> int:
    return sum(len(batch.buffers(column)[2]) for column in batch.columns)


# ------------------------------------------------------------------------------------------------ Arrow's arrays


def _joined(arrays: Sequence[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)  # would also copy a single array


def _texts_array(texts: Sequence[bytes], count: int) -> Any:
    bounds = _bounds(BATCH_ROWS) if count <= BATCH_ROWS else _bounds(count)
    return pa.Array.from_buffers(pa.string(), count, [None, bounds, pa.py_buffer(b"".join(texts))])


@lru_cache(maxsize=4)
def _bounds(count: int) -> Any:
    """Return Arrow's offsets buffer for `count` texts of CHARS characters each."""
    return pa.py_buffer(pack_ints("i", range(0, (count + 1) * CHARS, CHARS)))


def _times_array(times: Sequence[bytes], count: int) -> Any:
    milliseconds = pa.timestamp("ms", tz="UTC")
    return pa.Array.from_buffers(milliseconds, count, [None, pa.py_buffer(b"".join(times))]).cast(TIMES)


def headers_array(cells: Sequence[bytes | None]) -> Any:
    """Return the column `headers`; None becomes a null."""
    known: dict[bytes, list[tuple[str, bytes | None]]] = {}  # many messages have equal headers: parse them once
    keys: list[str] = []
    values: list[bytes | None] = []
    bounds: list[int | None] = []
    for cell in cells:
        if cell is None:
            bounds.append(None)
            continue
        bounds.append(len(keys))
        if cell not in known:
            known[cell] = _pairs(cell)
        for key, value in known[cell]:
            keys.append(key)
            values.append(value)
    bounds.append(len(keys))
    fields = list(HEADERS.value_type)
    items = pa.StructArray.from_arrays([pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=fields)
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), items, type=HEADERS)


def _pairs(cell: bytes) -> list[tuple[str, bytes | None]]:
    """Return names and values; if no broker would accept the headers today, the bytes under the name HEADERS_RAW."""
    headers = headers_or_none(cell)
    return [(HEADERS_RAW, cell)] if headers is None else [(key, header_bytes(value)) for key, value in headers.items()]


def header_bytes(value: object) -> bytes | None:
    """Return a header's value for Spark: bytes unchanged, text as UTF-8, other values as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, default=_base64).encode()


def _base64(data: bytes) -> dict[str, str]:
    """Return the JSON form of bytes inside a map or an array."""
    return {"base64": base64.b64encode(data).decode()}
