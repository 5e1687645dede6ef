"""The batch: the only format of messages, on the wire, in the WAL, in LevelDB and in Spark.

PERSISTED: never change it without raising VERSION. All numbers are little-endian; every buffer begins at a multiple
of 8.

    batch   = header body
    header  = 40 bytes
       0  magic               4 bytes  "SQB\\xb1"
       4  crc32c              u32      of all bytes from 8 to the end, as stored (compressed, if codec is 1)
       8  version             u8       1
       9  codec               u8       0 none, 1 zstd (of the whole body)
      10  flags               u16      bit 0: DELIVER_MS holds delays, not instants; the others are 0
      12  count               u32      messages, 1 to 65,536
      16  size                u32      bytes of the batch, header included
      20  uncompressed size   u32      bytes of the body when not compressed
      24  min deliver_ms      u64      least of DELIVER_MS, a null counting as 0; 0 without the column
      32  max deliver_ms      u64      greatest, likewise
    body    = columns u32, 0 u32, entry * columns, buffers * columns
    entry   = id u16, type u8 (1 bytes, 2 int64), nullable u8 (0, 1), length u32 of its buffers; ids rise
    buffers = [validity] (offsets data | numbers)      each padded with zeroes to a multiple of 8
       validity   one bit per message, least significant first, 1 = not null; only when nullable
       offsets    int32 * (count + 1): message i is data[offsets[i]:offsets[i + 1]]; first 0, never falling
       numbers    int64 * count

A null has no bytes, or the number 0. VALUE is required (a null value deletes the key in a compacted
topic). `take` and `slice` also copy columns that this version does not know, by their type. Offsets, data and validity
have the layout of Arrow's arrays: `pyarrow.py_buffer` wraps them without a copy.

The broker's data about the messages (offsets, attempt, ...) is in an envelope outside, so that a batch never changes
under its crc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import google_crc32c
import zstandard

from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.limits import DEFAULT

MAGIC = b"SQB\xb1"
VERSION = 1
CODEC_NONE = 0
CODEC_ZSTD = 1
FLAG_RELATIVE = 1
MAX_MESSAGES = 65_536
DELIVER_MS_MAX = 2**48 - 1

TYPE_BYTES = 1
TYPE_INT64 = 2

HEADER_BYTES = 40
_HEADER = struct.Struct("<4sIBBHIIIQQ")
BODY_HEAD = struct.Struct("<II")
ENTRY = struct.Struct("<HBBI")
CRC_FROM = 8
_ZSTD_LEVEL = 1
_PADDING = [bytes(-n % 8) for n in range(8)]


class Column(IntEnum):
    """Column ids. PERSISTED: never change an id."""

    VALUE = 1
    KEY = 2
    HEADERS = 3
    DELIVER_MS = 4
    TTL_MS = 5
    PRIORITY = 6
    TENANT = 7
    UNIQUE_KEY = 8
    EXPECTED_VERSION = 9
    ORDERING_HASH = 10
    KEY_DIGEST = 11
    MAX_ATTEMPTS = 12
    BACKOFF = 13
    COST = 14


TYPE_OF: dict[int, int] = {
    Column.VALUE: TYPE_BYTES,
    Column.KEY: TYPE_BYTES,
    Column.HEADERS: TYPE_BYTES,
    Column.DELIVER_MS: TYPE_INT64,
    Column.TTL_MS: TYPE_INT64,
    Column.PRIORITY: TYPE_INT64,
    Column.TENANT: TYPE_BYTES,
    Column.UNIQUE_KEY: TYPE_BYTES,
    Column.EXPECTED_VERSION: TYPE_BYTES,
    Column.ORDERING_HASH: TYPE_INT64,
    Column.KEY_DIGEST: TYPE_BYTES,
    Column.MAX_ATTEMPTS: TYPE_INT64,
    Column.BACKOFF: TYPE_BYTES,
    Column.COST: TYPE_INT64,
}
# Columns whose numbers are times: 0 to 2**48 - 1.
TIMES = frozenset((Column.DELIVER_MS, Column.TTL_MS))

Cells = Sequence[bytes | None] | Sequence[int | None]


class Header(NamedTuple):
    """The header of a batch, which `peek` reads without the body."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed
    flags: int
    min_deliver_ms: int
    max_deliver_ms: int
    size: int

    @property
    def relative(self) -> bool:
        """True if the delivery times are delays."""
        return bool(self.flags & FLAG_RELATIVE)


class Encoded(NamedTuple):
    """A column that is ready to be written: its buffers without padding. A column of times also has its lowest and
    highest time."""

    column: int
    type: int
    nullable: bool
    buffers: list[bytes]
    times: tuple[int, int] = (0, 0)


def name_of(column: int) -> str:
    """Return the column's name, for messages to users."""
    return Column(column).name if column in TYPE_OF else f"column {column}"


def peek(data: bytes | memoryview) -> Header:
    """Return the header, without decoding the body. Only the header is checked, not the crc and the body."""
    if len(data) < HEADER_BYTES:
        raise InvalidRequest(f"batch: {len(data)} bytes are less than a header")
    magic, _, version, codec, flags, count, size, plain_size, least, greatest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InvalidRequest("batch: wrong magic, these bytes are no batch")
    if version != VERSION:
        raise InvalidRequest(f"batch: version {version} is unknown here; {VERSION} is the newest")
    if size != len(data):
        raise InvalidRequest(f"batch: the header says {size} bytes, there are {len(data)}")
    if not 1 <= count <= MAX_MESSAGES:
        raise InvalidRequest(f"batch: {count} messages; 1 to {MAX_MESSAGES} are allowed")
    wrong_size = codec == CODEC_NONE and plain_size != size - HEADER_BYTES
    if flags & ~FLAG_RELATIVE or codec > CODEC_ZSTD or wrong_size:
        raise InvalidRequest("batch: flags, codec and sizes do not fit together")
    if not least <= greatest <= DELIVER_MS_MAX:
        raise InvalidRequest(f"batch: delivery times {least}..{greatest} are not within 0..{DELIVER_MS_MAX} ms")
    return Header(count, flags, least, greatest, size)


def count_of(raw: bytes) -> int:
    """Return the number of messages in a batch that was checked before."""
    return int.from_bytes(raw[12:16], "little")


def plain_bytes_of(raw: bytes) -> int:
    """Return the size of the decompressed body in bytes, as the header says."""
    return int.from_bytes(raw[20:24], "little")


def stored_bytes_of(raw: bytes) -> int:
    """Return the size of the decompressed batch in bytes, as the header says."""
    return max(len(raw), HEADER_BYTES + plain_bytes_of(raw)) if len(raw) >= HEADER_BYTES else len(raw)


def pack_ints(code: Literal["i", "q"], numbers: Sequence[int]) -> bytes:
    """Return the numbers as little-endian int32 or int64. Raise struct.error if a number does not fit. Measured to be
    faster than `array`."""
    return struct.pack(f"<{len(numbers)}{code}", *numbers)


def _validity(cells: Sequence[object]) -> bytes:
    """Return the validity bitmap of cells: one bit per cell, 0 for null."""
    # Parse a binary literal: this takes linear time, and a tenth of the time of setting single bits.
    bits = "".join(["0" if cell is None else "1" for cell in reversed(cells)])
    return int(bits, 2).to_bytes((len(cells) + 7) // 8, "little")


def _encode_bytes(column: int, cells: Sequence[Any]) -> Encoded:
    """Encode a column of bytes. Raise InvalidRequest or TooLarge."""
    validity: list[bytes] = []
    try:
        data = b"".join(cells)
    except TypeError:  # a cell is null, or has a wrong type: columns without nulls do not come here
        if None in cells:
            validity = [_validity(cells)]
            cells = [b"" if cell is None else cell for cell in cells]
        try:
            data = b"".join(cells)
        except TypeError as error:
            raise InvalidRequest(f"batch: {name_of(column)} must hold bytes: {error}") from None
    try:
        offsets = pack_ints("i", list(accumulate(map(len, cells), initial=0)))
    except struct.error:
        raise TooLarge(f"batch: {name_of(column)} holds {len(data)} bytes, more than 32-bit offsets reach") from None
    if int.from_bytes(offsets[-4:], "little") != len(data):
        raise InvalidRequest(f"batch: {name_of(column)} must hold bytes, not views of wider items")
    return Encoded(column, TYPE_BYTES, bool(validity), [*validity, offsets, data])


def _encode_ints(column: int, cells: Sequence[Any]) -> Encoded:
    """Encode a column of 64-bit integers. Raise InvalidRequest."""
    validity: list[bytes] = []
    if None in cells:
        validity = [_validity(cells)]
        cells = [0 if cell is None else cell for cell in cells]
    try:
        numbers = pack_ints("q", cells)
    except struct.error as error:
        raise InvalidRequest(f"batch: {name_of(column)} must hold 64-bit integers: {error}") from None
    times = check_times(column, cells) if column in TIMES else (0, 0)
    return Encoded(column, TYPE_INT64, bool(validity), [*validity, numbers], times)


def check_times(column: int, numbers: Sequence[int]) -> tuple[int, int]:
    """Return (least, greatest) of a column of times. Raise InvalidRequest if a time does not fit 48 bits."""
    least, greatest = min(numbers), max(numbers)
    if least < 0 or greatest > DELIVER_MS_MAX:
        wrong = least if least < 0 else greatest
        raise InvalidRequest(f"batch: {name_of(column)} {wrong} is not within 0..{DELIVER_MS_MAX} ms")
    return least, greatest


def _type_of(column: int, cells: Cells) -> int:
    """Return the type of a column: the fixed one, or, for an unknown column, the type of its cells."""
    known = TYPE_OF.get(column)
    if known is not None:
        return known
    if not 0 < column < 2**16:
        raise InvalidRequest(f"batch: {column} is not a column id")
    return TYPE_INT64 if any(isinstance(cell, int) for cell in cells) else TYPE_BYTES


def encode(columns: Mapping[int, Cells], *, relative: bool = False, compress: bool = False) -> bytes:
    """Return a batch of columns of the same length, 1 to 65,536 cells: bytes or an int (depending on the column) or
    None.

    VALUE is required. Any other column that holds only None is left out. `relative`: DELIVER_MS holds delays.
    `compress`: zstd, unless that would not make it smaller. Raise InvalidRequest (TooLarge) if cells do not fit.
    """
    values = columns.get(Column.VALUE)
    if values is None:
        raise InvalidRequest("batch: the VALUE column is required")
    count = len(values)
    if count > MAX_MESSAGES:
        raise TooLarge(f"batch: {count} messages; {MAX_MESSAGES} are allowed", limit=MAX_MESSAGES, count=count)
    if count == 0:
        raise InvalidRequest("batch: no messages")
    for column, cells in columns.items():
        if isinstance(cells, (str, bytes, bytearray)):
            raise InvalidRequest(f"batch: {name_of(column)} must be a sequence of cells, not one of them")
        if len(cells) != count:
            raise InvalidRequest(f"batch: {name_of(column)} has {len(cells)} cells, VALUE has {count}")
    typed = ((column, _type_of(column, columns[column]), columns[column]) for column in sorted(columns))
    return assemble(encode_columns(typed), count, FLAG_RELATIVE if relative else 0, compress=compress)


def encode_columns(typed: Iterable[tuple[int, int, Sequence[Any]]]) -> list[Encoded]:
    """Encode columns given as (id, type, cells) with rising ids. An optional column that holds only None is left
    out."""
    encoded: list[Encoded] = []
    for column, kind, cells in typed:
        if column == Column.VALUE or cells.count(None) < len(cells):
            encoded.append((_encode_bytes if kind == TYPE_BYTES else _encode_ints)(column, cells))
    return encoded


def assemble(encoded: Sequence[Encoded], count: int, flags: int, *, compress: bool = False) -> bytes:
    """Return the batch of these columns (rising ids, VALUE among them)."""
    least = greatest = 0
    body: list[bytes] = [BODY_HEAD.pack(len(encoded), 0)]
    buffers: list[bytes] = []
    size = BODY_HEAD.size + ENTRY.size * len(encoded)
    for column, kind, nullable, parts, times in encoded:
        if column == Column.DELIVER_MS:
            least, greatest = times
        length = 0
        for part in parts:
            buffers.append(part)
            length += len(part)
            if length & 7:
                buffers.append(_PADDING[length & 7])
                length += -length & 7
        size += length
        if size + HEADER_BYTES >= 2**32:
            raise TooLarge(f"batch: {size} bytes do not fit a 32-bit size")
        body.append(ENTRY.pack(column, kind, nullable, length))
    body += buffers
    codec = CODEC_NONE
    stored = size
    # Readers refuse a batch that is larger than this after decompression, because it may be a decompression bomb.
    if compress and size <= DEFAULT.batch_bytes:
        packed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(b"".join(body))
        if len(packed) < size:
            codec, stored, body = CODEC_ZSTD, len(packed), [packed]
    head = _HEADER.pack(MAGIC, 0, VERSION, codec, flags, count, HEADER_BYTES + stored, size, least, greatest)
    crc: int = google_crc32c.value(head[CRC_FROM:])
    for part in body:
        crc = google_crc32c.extend(crc, part)
    return b"".join((MAGIC, crc.to_bytes(4, "little"), head[CRC_FROM:], *body))
