"""Batches of messages: `encode` makes a batch, `Batch.parse` reads a batch, `peek` reads only its header.

The format, and the code that writes it, is in `batch_format`; this module reads it. A batch is immutable: `take` and
`slice` copy a selection into a new one. Malformed bytes raise InvalidRequest and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from operator import sub
from typing import Any, Final, Literal, NamedTuple

import google_crc32c
import zstandard

from sandq.model.batch_format import (
    BODY_HEAD,
    CODEC_NONE,
    CRC_FROM,
    ENTRY,
    FLAG_RELATIVE,
    HEADER_BYTES,
    MAGIC,
    MAX_MESSAGES,
    TIMES,
    TYPE_BYTES,
    TYPE_INT64,
    TYPE_OF,
    VERSION,
    Cells,
    Column,
    Encoded,
    Header,
    assemble,
    check_times,
    encode,
    encode_columns,
    name_of,
    pack_ints,
    peek,
)
from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.headers import headers_pack, headers_unpack
from sandq.model.limits import DEFAULT

__all__ = [
    "FLAG_RELATIVE",
    "HEADER_BYTES",
    "MAX_MESSAGES",
    "TYPE_BYTES",
    "TYPE_INT64",
    "Batch",
    "Cells",
    "Column",
    "Header",
    "encode",
    "headers_pack",
    "headers_unpack",
    "peek",
    "plain_single",
]


class _Stored(NamedTuple):
    """A column as it is stored in the body of a batch."""

    type: int
    validity: memoryview | None
    offsets: memoryview  # empty for int64
    data: memoryview
    bounds: list[int]  # the same offsets as Python ints; empty for int64


_SINGLE_HEAD = struct.Struct("<BBHIIIQQ II HBBI i")
_SINGLE = struct.Struct(f"<4sI{_SINGLE_HEAD.size}sI")
"""Bytes of a batch of one value, up to the value: magic, crc, a head, and the length of the value.

The head depends only on this length. The length is the second offset of the VALUE column."""
_PADDING: Final = bytes(7)
_SINGLE_HEADS: Final = 1024
"""Maximum number of cached heads. Each length of the value has its own head."""


def plain_single(raw: bytes) -> int | None:
    """Return the size of the value if this is a valid batch of one message with a value and nothing else; None
    otherwise.

    For this most frequent kind of batch, this function makes the checks of `Batch.parse` in a fifth of the time. If the
    result is None, call `parse`.
    """
    if len(raw) < _SINGLE.size:
        return None
    magic, crc, head, length = _SINGLE.unpack_from(raw)
    padding = -length & 7
    if len(raw) != _SINGLE.size + length + padding or head != _single_head(length) or magic != MAGIC:
        return None
    if padding and raw[-padding:] != _PADDING[:padding]:
        return None
    return length if google_crc32c.value(raw[CRC_FROM:]) == crc else None


@lru_cache(_SINGLE_HEADS)
def _single_head(length: int) -> bytes:
    """Return the bytes between the crc and the second offset, in a batch of one message with a value of this length."""
    padded = _padded(length)
    size = _SINGLE.size + padded
    header = (VERSION, CODEC_NONE, 0, 1, size, size - HEADER_BYTES, 0, 0)
    return _SINGLE_HEAD.pack(*header, 1, 0, Column.VALUE, TYPE_BYTES, 0, 8 + padded, 0)


def _body(raw: bytes, max_bytes: int) -> memoryview:
    """Return the body of a batch, decompressed. Raise TooLarge if it has more than `max_bytes`, or InvalidRequest."""
    codec, plain_size = raw[9], int.from_bytes(raw[20:24], "little")
    if codec == CODEC_NONE:
        return memoryview(raw)[HEADER_BYTES:]
    if plain_size > max_bytes:
        raise TooLarge(f"batch: {plain_size} bytes when decompressed, {max_bytes} are allowed", limit=max_bytes)
    packed = raw[HEADER_BYTES:]
    decompressor = zstandard.ZstdDecompressor()
    try:
        # zstd allocates the size that the frame claims, so compare this size with that of the header before
        # decompressing.
        if zstandard.get_frame_parameters(packed).content_size != plain_size:
            raise InvalidRequest("batch: the compressed body claims another size than the header")
        body = decompressor.decompress(packed, max_output_size=plain_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidRequest(f"batch: the body does not decompress: {error}") from None
    if len(body) != plain_size:
        raise InvalidRequest("batch: the decompressed body has another size than the header says")
    return memoryview(body)


def _padded(size: int) -> int:
    """Return a size in bytes rounded up to a multiple of 8."""
    return size + 7 & ~7


def _cut(buffers: memoryview, start: int, size: int, column: int) -> memoryview:
    """Return `size` bytes from `start`. These bytes and their zero padding must be within the buffers."""
    stop = start + size
    if start + _padded(size) > len(buffers) or any(buffers[stop : start + _padded(size)]):
        raise InvalidRequest(f"batch: the buffers of {name_of(column)} do not fit its length")
    return buffers[start:stop]


def _ints(buffer: memoryview, code: Literal["i", "q"]) -> list[int]:
    """Return the little-endian integers in a buffer."""
    return list(struct.unpack(f"<{len(buffer) // struct.calcsize(code)}{code}", buffer))


def _nulls(validity: memoryview, count: int, column: int) -> list[int]:
    """Return the positions of the nulls."""
    number = int.from_bytes(validity, "little")
    if number >> count:
        raise InvalidRequest(f"batch: {name_of(column)} has validity bits beyond its last message")
    bits = f"{number:0{count}b}"[::-1]
    found, at = [], bits.find("0")
    while at >= 0:
        found.append(at)
        at = bits.find("0", at + 1)
    return found


def _parse_column(column: int, kind: int, nullable: int, buffers: memoryview, count: int) -> _Stored:
    """Return a column, checked. `buffers`: its validity, offsets and data; `count`: number of cells. Raise
    InvalidRequest."""
    at = 0
    validity = None
    if nullable:
        validity = _cut(buffers, 0, (count + 7) // 8, column)
        at = _padded(len(validity))
    if kind == TYPE_INT64:
        data = _cut(buffers, at, 8 * count, column)
        stored = _Stored(kind, validity, data[:0], data, [])
    else:
        offsets = _cut(buffers, at, 4 * (count + 1), column)
        at += _padded(len(offsets))
        bounds = _ints(offsets, "i")
        # This is the fastest check: sorting a sorted list compares each pair of neighbours once, in C.
        if bounds[0] != 0 or bounds != sorted(bounds):
            raise InvalidRequest(f"batch: the offsets of {name_of(column)} fall, or do not begin at 0")
        data = _cut(buffers, at, bounds[-1], column)
        stored = _Stored(kind, validity, offsets, data, bounds)
    if at + _padded(len(data)) != len(buffers):
        raise InvalidRequest(f"batch: the buffers of {name_of(column)} do not fit its length")
    if validity is not None:
        nulls = _nulls(validity, count, column)
        held = list(map(sub, stored.bounds[1:], stored.bounds)) if stored.bounds else _ints(data, "q")
        if any(held[position] for position in nulls):
            raise InvalidRequest(f"batch: a null of {name_of(column)} is not empty")
    return stored


def _parse_columns(body: memoryview, count: int) -> dict[int, _Stored]:
    """Return the columns of a body by number, checked. Raise InvalidRequest."""
    if len(body) < BODY_HEAD.size:
        raise InvalidRequest("batch: the body is too short for its directory")
    columns, reserved = BODY_HEAD.unpack_from(body)
    at = BODY_HEAD.size + columns * ENTRY.size
    if reserved or at > len(body):
        raise InvalidRequest("batch: the column directory does not fit the body")
    parsed: dict[int, _Stored] = {}
    last = 0
    for column, kind, nullable, length in ENTRY.iter_unpack(body[BODY_HEAD.size : at]):
        if column <= last or nullable > 1 or kind not in (TYPE_BYTES, TYPE_INT64):
            raise InvalidRequest(f"batch: directory entry {column} (type {kind}) is wrong or out of order")
        if TYPE_OF.get(column, kind) != kind:
            raise InvalidRequest(f"batch: {name_of(column)} has the wrong type {kind}")
        if at + length > len(body):
            raise InvalidRequest(f"batch: {name_of(column)} runs past the end of the body")
        parsed[column] = _parse_column(column, kind, nullable, body[at : at + length], count)
        last = column
        at += length
    if at != len(body) or Column.VALUE not in parsed:
        raise InvalidRequest("batch: bytes after the last column, or no VALUE column")
    return parsed


def _cells(stored: _Stored, count: int) -> list[Any]:
    """Return a column's cells: bytes or int, None for null."""
    cells: list[Any] = []
    if stored.type == TYPE_INT64:
        cells += _ints(stored.data, "q")
    else:
        data = bytes(stored.data)
        cells += [data[start:stop] for start, stop in pairwise(stored.bounds)]
    if stored.validity is not None:
        for position in _nulls(stored.validity, count, 0):
            cells[position] = None
    return cells


def _slice_bytes(column: int, stored: _Stored, start: int, stop: int) -> Encoded:
    """Return a part of a column of bytes without nulls."""
    first, last = stored.bounds[start], stored.bounds[stop]
    offsets = pack_ints("i", [bound - first for bound in stored.bounds[start : stop + 1]])
    return Encoded(column, TYPE_BYTES, False, [offsets, bytes(stored.data[first:last])])


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """An immutable view of one batch. `raw` is the parsed input; cells are decoded on demand."""

    raw: bytes
    count: int
    flags: int
    min_deliver_ms: int
    max_deliver_ms: int
    _columns: dict[int, _Stored] = field(compare=False)

    @classmethod
    def parse(cls, data: bytes | memoryview, *, max_bytes: int = DEFAULT.batch_bytes) -> Batch:
        """Return the batch that consists of exactly these bytes. All lengths, the crc and the times in the header are
        checked.

        `max_bytes` bounds the size of a compressed body once decompressed. Raise InvalidRequest (TooLarge), and nothing
        else, for any bytes.
        """
        header = peek(data)
        raw = data if type(data) is bytes else bytes(data)
        if google_crc32c.value(raw[CRC_FROM:]) != int.from_bytes(raw[4:8], "little"):
            raise InvalidRequest("batch: the crc does not match, bytes were changed on their way")
        columns = _parse_columns(_body(raw, max_bytes), header.count)
        times = (0, 0)
        for column in TIMES & columns.keys():
            found = check_times(column, _ints(columns[column].data, "q"))
            if column == Column.DELIVER_MS:
                times = found
        if times != header[2:4]:
            raise InvalidRequest(f"batch: delivery times are {times} ms, the header says {header[2:4]}")
        return cls(raw, header.count, header.flags, *times, columns)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<Batch of {self.count} messages, {len(self.raw)} bytes>"

    @property
    def relative(self) -> bool:
        """True if DELIVER_MS holds delays, which count from the time that the leader assigns."""
        return bool(self.flags & FLAG_RELATIVE)

    @property
    def columns(self) -> tuple[int, ...]:
        """Ids of the columns that the batch has, in ascending order."""
        return tuple(self._columns)

    def values(self) -> list[bytes | None]:
        """Return the VALUE column."""
        return _cells(self._columns[Column.VALUE], self.count)

    def bytes_column(self, column: int) -> list[bytes | None] | None:
        """Return the cells of a bytes column; None if it is absent (or holds numbers)."""
        stored = self._columns.get(column)
        return None if stored is None or stored.type != TYPE_BYTES else _cells(stored, self.count)

    def int_column(self, column: int) -> list[int | None] | None:
        """Return the cells of an int64 column; None if it is absent (or holds bytes)."""
        stored = self._columns.get(column)
        return None if stored is None or stored.type != TYPE_INT64 else _cells(stored, self.count)

    def cells_at(self, position: int) -> dict[int, bytes | int]:
        """Return the cells of one message by column, without its nulls."""
        found: dict[int, bytes | int] = {}
        for column, stored in self._columns.items():
            validity = stored.validity
            if validity is not None and not validity[position >> 3] >> (position & 7) & 1:
                continue
            if stored.type == TYPE_INT64:
                found[column] = int.from_bytes(stored.data[8 * position : 8 * position + 8], "little", signed=True)
            else:
                found[column] = bytes(stored.data[stored.bounds[position] : stored.bounds[position + 1]])
        return found

    def buffers(self, column: int) -> tuple[memoryview | None, memoryview, memoryview]:
        """Return (validity or None, int32 offsets, data) without copies; int64 has no offsets. Raise KeyError if
        absent."""
        stored = self._columns[column]
        return stored.validity, stored.offsets, stored.data

    def take(self, positions: Sequence[int]) -> bytes:
        """Return a new batch (not compressed) of the messages at these positions, in this order. Its times are computed
        again."""
        if not positions or min(positions) < 0 or max(positions) >= self.count:
            raise InvalidRequest(f"batch: positions must be some of 0..{self.count - 1}")
        typed = []
        for column, stored in self._columns.items():
            cells = _cells(stored, self.count)
            typed.append((column, stored.type, [cells[position] for position in positions]))
        return assemble(encode_columns(typed), len(positions), self.flags)

    def slice(self, start: int, stop: int) -> bytes:
        """Return the same as `take(range(start, stop))`, faster. A slice of all messages is the batch itself,
        unchanged."""
        if not 0 <= start < stop <= self.count:
            raise InvalidRequest(f"batch: slice {start}:{stop} is empty or outside of 0:{self.count}")
        if stop - start == self.count:
            return self.raw
        encoded: list[Encoded] = []
        for column, stored in self._columns.items():
            if stored.validity is None and stored.type == TYPE_BYTES:
                encoded.append(_slice_bytes(column, stored, start, stop))
            else:
                encoded += encode_columns([(column, stored.type, _cells(stored, self.count)[start:stop])])
        return assemble(encoded, stop - start, self.flags)
