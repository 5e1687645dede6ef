"""Pieces of a partition's log as Arrow's record batches, with the columns that Spark's readers are promised.

Keys and values are the batch's own buffers (a batch keeps them as Arrow does); several batches are merged, which copies
them once, in C. What the broker knows of each message (offset, time) is computed for all messages of a piece together.
Only headers cost Python's time message by message, and only when they are asked for.

Spark checks the types of the first record batch only and misreads what comes later in another one, so `schema` is the
one place that says what they are.
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
"""A record batch is given when it has so many rows, or more: a piece is never cut."""
BATCH_BYTES: Final = 16 << 20
"""Or when its pieces have so many bytes: large messages come in smaller batches. Arrow's 32-bit offsets need it."""
TIMES: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
HEADERS_RAW: Final = "headers"
_BYTES: Final = offset_model.OFFSET_BYTES
_SLICES: Final = 16
"""Live spans of a piece that are taken as a slice each; where there are more, taking by position is quicker."""

Span = tuple[int, int]
"""(First position, stop) of messages that are live."""


def schema(extra: Extra = PLAIN) -> Any:
    """The columns (pyarrow.Schema): those of Spark's Kafka connector, then ours."""
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
    """Rows that gather until they are worth a record batch; used again after `take`."""

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
        self._keys: list[Any] = []  # Arrow's arrays, which hold on to the batches that they look into
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
        """The live messages of a piece. ProtocolError when its parts do not fit together."""
        batch = _parsed(piece)
        spans = _spans(piece.live, batch.count)
        if not spans:
            return
        whole = spans == [(0, batch.count)]
        count = sum(stop - first for first, stop in spans)
        self._values += _parts(_array(batch, Column.VALUE), spans, whole)
        self._keys += _column(batch, Column.KEY, spans, whole, count)
        self._add_places(piece, spans, whole)
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

    def _add_places(self, piece: Piece, spans: Sequence[Span], whole: bool) -> None:
        """Offsets, ids and delivery times."""
        if len(piece.offsets) == _BYTES:
            count = sum(stop - first for first, stop in spans)
            self._deliver_at.append(offset_model.deliver_ms(piece.offsets).to_bytes(8, "little") * count)
        else:
            column = _chosen(piece.offsets, _BYTES, spans, whole)
            self._deliver_at.append(times_of_column(column))
        if not self._has_texts:
            return
        if len(piece.offsets) == _BYTES:
            reached = max(stop for _, stop in spans)
            texts = _chosen(texts_of_run(piece.offsets, reached), CHARS, spans, whole)
        else:
            texts = texts_of_column(column)
        self._texts.append(texts)
        if piece.ids is None:
            self._ids.append(texts)
        else:
            self._has_ids = True
            self._ids.append(texts_of_column(_chosen(piece.ids, _BYTES, spans, whole)))

    def take(self) -> Any:
        """What has gathered, as a pyarrow.RecordBatch."""
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
    for what, column, size in columns:
        if column is not None and len(column) != batch.count * size:
            raise ProtocolError(f"piece: {what} has {len(column)} bytes for {batch.count} messages")
    return batch


def _spans(live: Sequence[Sequence[int]] | None, count: int) -> list[Span]:
    if live is None:
        return [(0, count)]
    spans = [(first, first + length) for first, length in live]
    if any(not 0 <= first < stop <= count for first, stop in spans):
        raise ProtocolError(f"piece: live names positions that are not among its {count}")
    return spans


def _column(batch: Batch, column: int, spans: Sequence[Span], whole: bool, count: int) -> list[Any]:
    """The live cells of a column, nulls when it is not there."""
    if column in batch.columns:
        return _parts(_array(batch, column), spans, whole)
    return [pa.nulls(count, _arrow_type(column))]


def _cast(arrays: Sequence[Any], kind: Any, what: str) -> list[Any]:
    """Arrays of a column in the type that Spark is promised. ProtocolError when a cell has no place there."""
    try:
        return [array.cast(kind) for array in arrays]
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"piece: {what}: {error}") from None


def _array(batch: Batch, column: int) -> Any:
    """A column as Arrow's array over the batch's own buffers."""
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
    return [array.take(pa.array([place for first, stop in spans for place in range(first, stop)], pa.int32()))]


def _chosen(column: bytes, size: int, spans: Sequence[Span], whole: bool) -> bytes:
    return column if whole else b"".join([column[first * size : stop * size] for first, stop in spans])


def _times(times: int | bytes, spans: Sequence[Span], whole: bool) -> bytes:
    """int64, little-endian, for every live message."""
    if isinstance(times, int):
        return times.to_bytes(8, "little", signed=True) * sum(stop - first for first, stop in spans)
    return _chosen(times, 8, spans, whole)


def _size(batch: Batch) -> int:
    return sum(len(batch.buffers(column)[2]) for column in batch.columns)


# ------------------------------------------------------------------------------------------------ Arrow's arrays


def _joined(arrays: Sequence[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)  # which copies a single one, too


def _texts_array(texts: Sequence[bytes], count: int) -> Any:
    bounds = _bounds(BATCH_ROWS) if count <= BATCH_ROWS else _bounds(count)
    return pa.Array.from_buffers(pa.string(), count, [None, bounds, pa.py_buffer(b"".join(texts))])


@lru_cache(maxsize=4)
def _bounds(count: int) -> Any:
    """The offsets buffer of texts that are all of one length."""
    return pa.py_buffer(pack_ints("i", range(0, (count + 1) * CHARS, CHARS)))


def _times_array(times: Sequence[bytes], count: int) -> Any:
    milliseconds = pa.timestamp("ms", tz="UTC")
    return pa.Array.from_buffers(milliseconds, count, [None, pa.py_buffer(b"".join(times))]).cast(TIMES)


def headers_array(cells: Sequence[bytes | None]) -> Any:
    """The column `headers`; None has a null."""
    known: dict[bytes, list[tuple[str, bytes | None]]] = {}  # most messages have the headers of another one
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
    """A header's value as Spark sees it: bytes as they are, text as UTF-8, anything else as JSON writes it."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, default=_base64).encode()


def _base64(data: bytes) -> dict[str, str]:
    """Return bytes inside a map or an array as JSON has them."""
    return {"base64": base64.b64encode(data).decode()}
