"""Converts pages of a partition's log into Arrow columns: only those of the table `messages` that a query needs.

Columns share the memory of values and keys instead of copying it. Offsets, ids and times are computed for all messages
of a piece together.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sandq.model import offsets as offset_model
from sandq.model.batch import Batch, Column
from sandq.model.batch_format import TYPE_INT64, TYPE_OF, pack_ints
from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.headers import headers_or_none
from sandq.model.offset_texts import CHARS, texts_of_column, texts_of_run, times_of_column
from sandq.model.piece import Piece
from sandq.model.retries import written_rules
from sandq.sql.schema import Kind

_BYTES: Final = offset_model.OFFSET_BYTES
TIMES: Final = Kind.TIME.value.arrow

Span = tuple[int, int]


class MovedMessages(Exception):
    """A query needs the number of moves, but a page contains moved messages, and no number of moves."""


_OF_BATCH: Final = {
    "value": Column.VALUE,
    "key_bytes": Column.KEY,
    "unique_key": Column.UNIQUE_KEY,
    "headers": Column.HEADERS,
    "priority": Column.PRIORITY,
    "tenant": Column.TENANT,
    "ttl_ms": Column.TTL_MS,
    "max_attempts": Column.MAX_ATTEMPTS,
    "backoff": Column.BACKOFF,
    "cost": Column.COST,
}
COLUMNS: Final = frozenset(
    {*_OF_BATCH, "topic", "partition", "id", "offset", "deliver_at", "created_at", "key", "text", "size"}
)
"""Columns that every page has. Pages of pending messages that were never moved have all columns."""


def columns_of(piece: Piece, topic: str, partition: int, names: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Return the named columns of a piece, and its number of messages.

    Raises ProtocolError if the parts of the piece do not fit together.
    """
    try:
        batch = Batch.parse(piece.batch)
    except InvalidRequest as error:
        raise ProtocolError(f"piece: {error.message}") from None
    spans = _spans(piece, batch.count)
    whole = spans == [(0, batch.count)]
    count = sum(stop - first for first, stop in spans)
    _check(piece, batch.count)
    made = _Maker(piece, batch, spans, whole, count, not {"value", "text"}.isdisjoint(names))
    found: dict[str, Any] = {}
    for name in names:
        if name == "topic":
            found[name] = pa.repeat(topic, count)
        elif name == "partition":
            found[name] = pa.repeat(pa.scalar(partition, pa.int32()), count)
        else:
            found[name] = getattr(made, f"_{name}")()
    return found, count


class _Maker:
    """Makes the columns of a piece one by one. The method `_NAME` makes the column NAME of the table `messages`.

    `spans`: positions of the messages that exist, as half-open ranges. `whole`: all messages exist. `keeps_values`: the
    query needs the values, so the columns may share the memory of the batch.
    """

    def __init__(
        self, piece: Piece, batch: Batch, spans: list[Span], whole: bool, count: int, keeps_values: bool
    ) -> None:
        self._piece = piece
        self._batch = batch
        self._spans = spans
        self._whole = whole
        self._count = count
        self._keeps_values = keeps_values

    def _cells(self, column: int) -> Any:
        """Return a column of the batch; nulls if the batch does not have it."""
        is_int = TYPE_OF[column] == TYPE_INT64
        kind = pa.int64() if is_int else pa.binary()
        if column not in self._batch.columns:
            return pa.nulls(self._count, kind)
        validity, offsets, data = self._batch.buffers(column)
        bits = None if validity is None else pa.py_buffer(validity)
        parts: list[Any]
        if not self._keeps_values:  # Copy: otherwise a few bytes would keep the whole batch in memory.
            parts = [bytes(data)] if is_int else [bytes(offsets), bytes(data)]
        else:
            parts = [data] if is_int else [offsets, data]
        buffers = [pa.py_buffer(part) for part in parts]
        array = pa.Array.from_buffers(kind, self._batch.count, [bits, *buffers])
        if self._whole:
            return array
        chosen = [array.slice(first, stop - first) for first, stop in self._spans]
        return pa.concat_arrays(chosen) if chosen else array.slice(0, 0)

    def _value(self) -> Any:
        return self._cells(Column.VALUE)

    def _text(self) -> Any:
        return texts(self._cells(Column.VALUE))

    def _size(self) -> Any:
        return pc.fill_null(pc.binary_length(self._cells(Column.VALUE)), 0).cast(pa.int64())

    def _key(self) -> Any:
        return texts(self._cells(Column.KEY))

    def _key_bytes(self) -> Any:
        return self._cells(Column.KEY)

    def _unique_key(self) -> Any:
        return texts(self._cells(Column.UNIQUE_KEY))

    def _tenant(self) -> Any:
        return texts(self._cells(Column.TENANT))

    def _priority(self) -> Any:
        return pc.fill_null(self._cells(Column.PRIORITY), 0).cast(pa.int32())

    def _ttl_ms(self) -> Any:
        return self._cells(Column.TTL_MS)

    def _max_attempts(self) -> Any:
        return self._cells(Column.MAX_ATTEMPTS).cast(pa.int32())

    def _backoff(self) -> Any:
        return backoff_array(self._cells(Column.BACKOFF))

    def _cost(self) -> Any:
        return pc.fill_null(self._cells(Column.COST), 1).cast(pa.int32())

    def _headers(self) -> Any:
        return headers_array(self._cells(Column.HEADERS))

    def _offset(self) -> Any:
        return self._texts_of(self._piece.offsets)

    def _id(self) -> Any:
        return self._texts_of(self._piece.offsets if self._piece.ids is None else self._piece.ids)

    def _texts_of(self, column: bytes) -> Any:
        """Return offsets as text. `column`: one offset per message, or only the first of consecutive offsets."""
        is_run = len(column) == _BYTES and self._batch.count != 1
        if is_run:
            count = max((stop for _, stop in self._spans), default=0)
            data = self._chosen(texts_of_run(column, count), CHARS)
        else:
            data = texts_of_column(self._chosen(column, _BYTES))
        return _texts(data, self._count)

    def _state(self) -> Any:
        return pa.repeat("delayed", self._count)

    def _due_at(self) -> Any:
        """Return the first delivery times: the times in the ids. Messages without ids were never moved."""
        if self._piece.ids is None:
            return self._deliver_at()
        return times(times_of_column(self._chosen(self._piece.ids, _BYTES)), self._count)

    def _moves(self) -> Any:
        self._check_not_moved()
        return pa.repeat(pa.scalar(0, pa.int32()), self._count)

    def _moved_at(self) -> Any:
        self._check_not_moved()
        return pa.nulls(self._count, TIMES)

    def _check_not_moved(self) -> None:
        """Raise MovedMessages if messages may have been moved: pieces do not contain when."""
        if self._piece.ids is not None:
            raise MovedMessages

    def _deliver_at(self) -> Any:
        """Return the delivery times: the times in the offsets. Consecutive offsets have the same time."""
        offsets = self._piece.offsets
        if len(offsets) == _BYTES:
            return times(offset_model.deliver_ms(offsets).to_bytes(8, "little") * self._count, self._count)
        return times(times_of_column(self._chosen(offsets, _BYTES)), self._count)

    def _created_at(self) -> Any:
        """Return the times of creation. `created_ms` is one time for all messages, or a column."""
        created = self._piece.created_ms
        if isinstance(created, int):
            return times(created.to_bytes(8, "little", signed=True) * self._count, self._count)
        return times(self._chosen(created, 8), self._count)

    def _chosen(self, column: bytes, size: int) -> bytes:
        """Return the entries of a column, of `size` bytes each, for the messages that exist."""
        return column if self._whole else b"".join([column[first * size : stop * size] for first, stop in self._spans])


def _spans(piece: Piece, count: int) -> list[Span]:
    """Return the positions of the messages of a piece that exist, as half-open ranges."""
    if piece.live is None:
        return [(0, count)]
    spans = [(first, first + length) for first, length in piece.live]
    if any(not 0 <= first < stop <= count for first, stop in spans):
        raise ProtocolError(f"piece: live names positions that are not among its {count}")
    return spans


def _check(piece: Piece, count: int) -> None:
    """Raise ProtocolError if a column of the piece does not have one entry per message."""
    for what, column, size in (
        ("offsets", piece.offsets if len(piece.offsets) != _BYTES else None, _BYTES),
        ("ids", piece.ids, _BYTES),
        ("created_ms", piece.created_ms if isinstance(piece.created_ms, bytes) else None, 8),
    ):
        if column is not None and len(column) != count * size:
            raise ProtocolError(f"piece: {what} has {len(column)} bytes for {count} messages")


def times(milliseconds: bytes, count: int) -> Any:
    """Convert little-endian int64 times to timestamps."""
    array = pa.Array.from_buffers(pa.timestamp("ms"), count, [None, pa.py_buffer(milliseconds)])
    return array.cast(TIMES)


def texts_array(offsets: bytes, count: int) -> Any:
    """Return the texts of offsets of 16 bytes each. Raises ProtocolError if their number is wrong."""
    if len(offsets) != count * _BYTES:
        raise ProtocolError(f"offsets: {len(offsets)} bytes for {count} messages")
    return _texts(texts_of_column(offsets), count)


def _texts(data: bytes, count: int) -> Any:
    """Return a column of offsets as text, from their joined texts."""
    bounds = pa.py_buffer(pack_ints("i", range(0, (count + 1) * CHARS, CHARS)))
    return pa.Array.from_buffers(pa.string(), count, [None, bounds, pa.py_buffer(data)])


def headers_array(cells: Any) -> Any:
    """Convert packed headers to JSON."""
    if cells.null_count == len(cells):
        return pa.repeat("{}", len(cells))
    encoded = cells.dictionary_encode()  # many messages have equal headers: convert them once
    named = pa.array([headers_text(cell) for cell in encoded.dictionary.to_pylist()], pa.string())
    return pc.fill_null(named.take(encoded.indices), "{}")


def backoff_array(cells: Any) -> Any:
    """Convert columns BACKOFF to JSON, with the keys of the setting of topics."""
    encoded = cells.dictionary_encode()  # many messages have equal back-offs: convert them once
    shown = [json.dumps(written_rules(None, cell, None)["backoff"]) for cell in encoded.dictionary.to_pylist()]
    return pa.array(shown, pa.string()).take(encoded.indices)


def texts(cells: Any) -> Any:
    """Convert bytes to text; null where they are not UTF-8."""
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text_of(cell) for cell in cells.to_pylist()], pa.string())


def text_of(cell: bytes | None) -> str | None:
    """Convert a cell to text; None if it is not UTF-8."""
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return None


def headers_text(cell: bytes | None) -> str:
    """Return packed headers as a JSON object. Headers that a broker would refuse today become a JSON string in
    base64."""
    headers = headers_or_none(cell or None)
    return json.dumps(base64.b64encode(cell or b"").decode()) if headers is None else json_text(headers)


def json_text(value: Any) -> str:
    """Encode a value as JSON, with bytes as {"base64": ...}."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, default=str)


def is_json(text: str | None) -> bool:
    """Return whether a text is JSON."""
    if text is None:
        return False
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> Any:
    """Raise ValueError: a constant such as NaN is not JSON."""
    raise ValueError(f"{constant} is not JSON")


def _plain(value: Any) -> Any:
    """Return a value in which bytes, infinity and NaN are replaced, because JSON does not have them."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
