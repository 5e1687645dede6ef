"""Encodes results (Arrow tables) as MySQL's columns and rows: text for queries, binary for prepared statements.

Whole columns are encoded one after the other, and then joined into rows. So the type of a column is examined once, and
not for each cell.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sandq.sql.wire.packets import BINARY, UTF8MB4, Type, column, lenenc

ROWS_AT_ONCE: Final = 1000
"""Maximum number of rows that are encoded before the task yields."""
BYTES_AT_ONCE: Final = 4 << 20
"""Maximum bytes of rows that are encoded before the task yields."""
_NULL: Final = b"\xfb"
_LENGTHS: Final = [bytes((length,)) for length in range(251)]


class WireColumn(NamedTuple):
    """A column of a result: its name, and its type on the wire."""

    name: str
    type: Type
    charset: int
    length: int
    decimals: int

    def definition(self) -> bytes:
        """Return the payload of the column's definition."""
        return column(self.name, self.type, self.charset, self.length, self.decimals)


def columns_of(schema: Any) -> list[WireColumn]:
    """Return the columns of a result."""
    return [_column(field.name, field.type) for field in schema]


def _column(name: str, kind: Any) -> WireColumn:
    """Return the column of MySQL for a column of Arrow."""
    if pa.types.is_boolean(kind) or kind == pa.int8():
        return WireColumn(name, Type.TINY, BINARY, 4, 0)
    if kind in (pa.int16(), pa.int32(), pa.uint8(), pa.uint16()):
        return WireColumn(name, Type.LONG, BINARY, 11, 0)
    if kind in (pa.int64(), pa.uint32()):
        return WireColumn(name, Type.LONGLONG, BINARY, 20, 0)
    if pa.types.is_decimal(kind):
        return WireColumn(name, Type.NEWDECIMAL, BINARY, kind.precision + 2, kind.scale)
    if kind == pa.uint64():
        return WireColumn(name, Type.NEWDECIMAL, BINARY, 20, 0)
    if pa.types.is_floating(kind):
        return WireColumn(name, Type.DOUBLE, BINARY, 22, 31)
    if pa.types.is_timestamp(kind):
        decimals = {"s": 0, "ms": 3}.get(kind.unit, 6)
        return WireColumn(name, Type.DATETIME, BINARY, 19 + (decimals and decimals + 1), decimals)
    if pa.types.is_date(kind):
        return WireColumn(name, Type.DATE, BINARY, 10, 0)
    if pa.types.is_time(kind):
        return WireColumn(name, Type.TIME, BINARY, 10, 0)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return WireColumn(name, Type.BLOB, BINARY, 2**32 - 1, 0)
    if pa.types.is_null(kind):
        return WireColumn(name, Type.NULL, BINARY, 0, 0)
    return WireColumn(name, Type.VAR_STRING, UTF8MB4, 65535 * 4, 0)


def shortened(table: Any) -> Any:
    """Return the table with each column of times in milliseconds, if that loses no digits, else in microseconds."""
    for index, field in enumerate(table.schema):
        if not pa.types.is_timestamp(field.type) or field.type.unit == "ms":
            continue
        try:
            times = table.column(index).cast(pa.timestamp("ms"))
        except pa.ArrowInvalid:
            times = table.column(index).cast(pa.timestamp("us"), safe=False)
        table = table.set_column(index, field.name, times)
    return table


def text_rows(table: Any) -> Iterator[list[bytes]]:
    """Return the payloads of rows in the text format, in batches."""
    for batch in _batches(table):
        yield [b"".join(cells) for cells in zip(*[_texts(array) for array in batch.columns], strict=True)]


def binary_rows(table: Any) -> Iterator[list[bytes]]:
    """Return the payloads of rows in the binary format of prepared statements, in batches."""
    kinds = columns_of(table.schema)
    for batch in _batches(table):
        cells = [_binary(array, one.type) for array, one in zip(batch.columns, kinds, strict=True)]
        heads = _null_maps(batch)
        yield [head + b"".join(row) for head, row in zip(heads, zip(*cells, strict=True), strict=True)]


def _batches(table: Any) -> Iterator[Any]:
    """Yield the rows of a table in pieces of limited size."""
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        if batch.num_rows:
            yield from _pieces(batch)


def _pieces(batch: Any) -> Iterator[Any]:
    """Split a batch into parts of at most BYTES_AT_ONCE.

    Encoding a part needs additional memory of about twice its size.
    """
    if batch.num_rows == 1 or batch.nbytes <= BYTES_AT_ONCE:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _pieces(batch.slice(0, middle))
    yield from _pieces(batch.slice(middle))


def _texts(array: Any) -> list[bytes]:
    """Encode cells as length-encoded texts. If most cells repeat others, encode each different value only once."""
    count = len(array)
    if array.null_count == count:
        return [_NULL] * count
    if count >= _MIN_ROWS_FOR_REPEATS and (pa.types.is_string(array.type) or pa.types.is_timestamp(array.type)):
        known = array.dictionary_encode()
        if len(known.dictionary) * 4 <= count:
            cells = [*_encoded(known.dictionary), _NULL]
            return [cells[index] for index in pc.fill_null(known.indices, len(cells) - 1).to_pylist()]
    return _encoded(array)


_MIN_ROWS_FOR_REPEATS: Final = 100
"""Minimum number of rows for which the search for repeated cells is worth its cost."""


def _encoded(array: Any) -> list[bytes]:
    """Encode cells as length-encoded texts."""
    return [
        _NULL if cell is None else (_LENGTHS[len(cell)] if len(cell) < 251 else lenenc(len(cell))) + cell
        for cell in _as_bytes(array)
    ]


def _as_bytes(array: Any) -> list[bytes | None]:
    """Return each cell as bytes, as the text format shows it; None for NULL."""
    kind = array.type
    if pa.types.is_null(kind):
        return [None] * len(array)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_floating(kind):
        return [None if cell is None else repr(cell).removesuffix(".0").encode() for cell in array.to_pylist()]
    elif pa.types.is_nested(kind) or pa.types.is_interval(kind) or pa.types.is_duration(kind):
        return [None if cell is None else str(cell).encode() for cell in array.to_pylist()]
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.string()).cast(pa.binary())
    found: list[bytes | None] = array.to_pylist()
    return found


def _null_maps(batch: Any) -> list[bytes]:
    """Return the head of each binary row: a zero byte, then a bitmap of nulls whose first two bits are unused."""
    size = (len(batch.columns) + 9) // 8
    if not any(array.null_count for array in batch.columns):
        return [bytes(1 + size)] * batch.num_rows
    numbers = [0] * batch.num_rows
    for place, array in enumerate(batch.columns):
        if array.null_count:
            for row, is_null in enumerate(pc.is_null(array).to_pylist()):
                if is_null:
                    numbers[row] |= 1 << (place + 2)
    return [b"\0" + number.to_bytes(size, "little") for number in numbers]


def _binary(array: Any, kind: Type) -> list[bytes]:
    """Encode cells in the binary format. A NULL has no bytes: it is in the row's bitmap (`_null_maps`)."""
    pack = _PACKERS.get(kind)
    if pack is None:
        return [b"" if cell == _NULL else cell for cell in _texts(array)]
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    return [b"" if cell is None else pack(cell) for cell in array.to_pylist()]


def _date(value: Any) -> bytes:
    """Return a date in the binary format."""
    packed: bytes = struct.pack("<BHBB", 4, value.year, value.month, value.day)
    return packed


def _datetime(value: Any) -> bytes:
    """Return a time stamp in the binary format, with microseconds if there are any."""
    head: bytes = struct.pack("<HBBBBB", value.year, value.month, value.day, value.hour, value.minute, value.second)
    if value.microsecond:
        micros: bytes = value.microsecond.to_bytes(4, "little")
        return b"\x0b" + head + micros
    return b"\x07" + head


def _time(value: Any) -> bytes:
    """Return a time of day in the binary format, with microseconds if there are any."""
    micros = value.microsecond.to_bytes(4, "little") if value.microsecond else b""
    head: bytes = struct.pack("<BBIBBB", 8 + len(micros), 0, 0, value.hour, value.minute, value.second)
    found: bytes = head + micros
    return found


_PACKERS: Final[dict[Type, Callable[[Any], bytes]]] = {
    Type.TINY: struct.Struct("<b").pack,
    Type.LONG: struct.Struct("<i").pack,
    Type.LONGLONG: struct.Struct("<q").pack,
    Type.DOUBLE: struct.Struct("<d").pack,
    Type.DATE: _date,
    Type.DATETIME: _datetime,
    Type.TIME: _time,
}


def framed(payloads: list[bytes], sequence: int) -> tuple[bytes, int]:
    """Return the payloads as packets, and the sequence number of the next packet."""
    if any(len(payload) >= 0xFFFFFF for payload in payloads):
        return _framed_in_parts(payloads, sequence)
    heads = [
        (len(payload) | (sequence + place & 0xFF) << 24).to_bytes(4, "little") for place, payload in enumerate(payloads)
    ]
    parts = [part for pair in zip(heads, payloads, strict=True) for part in pair]
    return b"".join(parts), sequence + len(payloads) & 0xFF


def _framed_in_parts(payloads: list[bytes], sequence: int) -> tuple[bytes, int]:
    """Return payloads as packets. A payload ends with its first packet of less than 0xFFFFFF bytes."""
    found = bytearray()
    for payload in payloads:
        # "+ 1": after full packets only, an empty packet marks the end.
        for start in range(0, len(payload) + 1, 0xFFFFFF):
            part = payload[start : start + 0xFFFFFF]
            found += (len(part) | sequence << 24).to_bytes(4, "little") + part
            sequence = sequence + 1 & 0xFF
    return bytes(found), sequence
