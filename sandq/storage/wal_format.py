"""The byte format of the write-ahead log. PERSISTED: a change of meaning requires a new version.

A segment is one file, `<directory>/<number, ten digits>.wal`. Numbers increase by one; files are created full of zeros.
All integers are little-endian; records begin at multiples of 8. (docs/storage-format.md has examples.)

Segment header, 64 bytes::

     0  8  magic "SANDQWAL"
     8  4  version (1)
    12  4  crc32c of bytes 0..12 and 16..64
    16  8  segment number
    24  8  previous end: offset of the end of the records in the previous segment (0 if there was none)
    32  8  opening end: offset of the end of this segment's opening batch
    40  8  batch number of the opening batch
    48  8  size of the file
    56  8  zeros

Record, 48 bytes + payload + 4, then zeros up to the next multiple of 8::

     0  4  magic, the bytes "WREC"
     4  4  header crc: crc32c of (segment number u64, the record's own offset in the file u64, bytes 8..48);
           so a record is valid only where it was written, not as a copy inside a payload or another segment
     8  4  payload length
    12  1  kind
    13  3  zeros
    16  4  group
    20  4  batch start: offset / 8, in this file, of the first record of the batch that this record belongs to
    24  8  batch number
    32  8  index
    40  8  term
    48  n  payload
     .  4  payload crc: crc32c of the payload

A **batch** is one commit batch in the log: consecutive records in one segment, written in order and synced once. The
next batch begins only after that sync. Batch numbers increase and are never reused.

| kind | index | term | payload |
|---|---|---|---|
| 1 ENTRY | of the entry | of the entry | the command; deletes the group's entries above this index |
| 2 COPY | of the entry | of the entry | the command again; deletes nothing |
| 3 TRUNCATE | first index deleted; 0: the log starts over, with base and members | 0 | empty |
| 4 HARD_STATE | 0 | current term | msgpack: the member we voted for, string or nil |
| 5 BASE | first index kept; all below are deleted | its term | msgpack `[[voters], [learners]]` |
| 6 SEAL | 0 | 0 | empty; group 0: the writer stopped cleanly |

A BASE below the current base deletes every entry: the log starts over at the new base. A group that is new to the
writer starts with TRUNCATE 0 and HARD_STATE (0, nil), which void the records of an earlier group with the same number.

A segment begins at offset 64 with its **opening batch**: HARD_STATE and BASE of every group known to the writer, or a
SEAL if it knows none. The opening batch is never empty. So an intact record of a batch that begins at a different
offset proves that the header and the opening batch had been synced.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from google_crc32c import extend, value

Record = tuple[int, int, int, int, bytes]
"""(kind, group, index, term, payload)"""


class Kind(IntEnum):
    """The kinds of records. PERSISTED."""

    ENTRY = 1
    COPY = 2
    TRUNCATE = 3
    HARD_STATE = 4
    BASE = 5
    SEAL = 6


VERSION = 1
SEGMENT_MAGIC = b"SANDQWAL"
RECORD_MAGIC = b"WREC"
SEGMENT_HEADER_BYTES = 64
RECORD_HEADER_BYTES = 48
PART_BYTES = 256 << 10
"""A batch of more than this size, in bytes, is written in several parts. A payload of at least this size is a separate
part."""
RECORD_BYTES_AT_MOST = RECORD_HEADER_BYTES + 4 + 7
"""Maximum overhead of a record, in addition to its payload."""

_SEGMENT_HEADER = struct.Struct("<8sII5Q8x")
_PLACED = struct.Struct("<QQIB3xIIQQQ")
"""The input of the header crc: segment number and offset, which are not stored, then bytes 8..48 of the record."""
_PLACE = struct.Struct("<QQ")
_STORED = struct.Struct("<4sIIB3xIIQQQ")
_LEAD = struct.Struct("<4sI")
_TAILS = [struct.Struct(f"<I{pad}x") for pad in range(8)]
_NAME = re.compile(r"(\d{10})\.wal")
_ZERO_MAGIC = bytes(4)


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:010}.wal"


def segment_number(name: str) -> int | None:
    """Return the number of the segment with this file name. None if no segment has such a name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


class SegmentHeader(NamedTuple):
    """The header of a segment; offsets in bytes."""

    number: int
    previous_end: int
    opening_end: int
    batch_number: int
    size: int

    def encode(self) -> bytes:
        without = _SEGMENT_HEADER.pack(SEGMENT_MAGIC, VERSION, 0, *self)
        return _SEGMENT_HEADER.pack(SEGMENT_MAGIC, VERSION, _segment_crc(without), *self)


def _segment_crc(header: bytes) -> int:
    return int(value(header[:12] + header[16:]))


def decode_segment_header(data: bytes, number: int) -> SegmentHeader | str:
    """Return the header at the start of a segment's bytes, or the reason why it is invalid."""
    header = data[:SEGMENT_HEADER_BYTES]
    if len(header) < SEGMENT_HEADER_BYTES:
        return "the file is shorter than a segment header"
    magic, version, crc, *fields = _SEGMENT_HEADER.unpack(header)
    if magic != SEGMENT_MAGIC:
        return "no segment magic"
    if _segment_crc(header) != crc:
        return "the segment header's checksum does not match"
    if version != VERSION:
        return f"format version {version} is not known here"
    found = SegmentHeader(*fields)
    if found.number != number:
        return f"the header says segment {found.number}"
    return found


def encode_batch(segment: int, offset: int, batch_number: int, records: Sequence[Record]) -> bytes:
    """Return the bytes of one batch that begins at `offset` (a multiple of 8) of a segment."""
    return b"".join(encode_parts(segment, offset, batch_number, records))


def encode_parts(segment: int, offset: int, batch_number: int, records: Sequence[Record]) -> Iterator[bytes]:
    """Yield the bytes of a batch in parts: large payloads are not copied, and a large batch is not built at once."""
    pieces: list[bytes] = []
    append = pieces.append
    size = 0
    placed, lead, crc32c, magic, tails = _PLACED.pack, _LEAD.pack, value, RECORD_MAGIC, _TAILS
    start = offset >> 3
    at = offset
    for kind, group, index, term, payload in records:
        length = len(payload)
        header = placed(segment, at, length, kind, group, start, batch_number, index, term)
        append(lead(magic, crc32c(header)))
        append(header[16:])
        if length >= PART_BYTES:
            yield b"".join(pieces)
            yield payload
            pieces.clear()
            size = 0
        else:
            append(payload)
            size += RECORD_HEADER_BYTES + length
        append(tails[(4 - length) & 7].pack(crc32c(payload)))
        at += (length + 59) & ~7
        if size >= PART_BYTES:
            yield b"".join(pieces)
            pieces.clear()
            size = 0
    if pieces:
        yield b"".join(pieces)


class Reader:
    """Iterates over the records of a segment, and stops at the first bytes that are not a valid next record.

    Afterwards, `end` is the offset where the iteration stopped. `why` is the reason. None if only zeros follow, or if
    the file ends there. `last_batch` and `batch_start` (an offset in bytes) describe the last batch found. To begin at
    a different record, set `end`, `last_batch` and `batch_start` first.
    """

    def __init__(self, data: bytes, header: SegmentHeader) -> None:
        self.data = data
        self.segment = header.number
        self.end = SEGMENT_HEADER_BYTES
        self.why: str | None = None
        self.last_batch = header.batch_number - 1
        self.batch_start = SEGMENT_HEADER_BYTES

    def __iter__(self) -> Iterator[Record]:
        data, size, segment = self.data, len(self.data), self.segment
        at, last_batch, start = self.end, self.last_batch, self.batch_start >> 3
        unpack, place, crc32c, more = _STORED.unpack_from, _PLACE.pack, value, extend
        while at + RECORD_HEADER_BYTES <= size:
            magic, crc, length, kind, group, pass_at, batch_number, index, term = unpack(data, at)
            first = at + RECORD_HEADER_BYTES
            if magic != RECORD_MAGIC:
                self.why = None if magic == _ZERO_MAGIC else "no record magic"
                return
            if more(crc32c(place(segment, at)), data[at + 8 : first]) != crc:
                self.why = "a record header's checksum does not match"
                return
            if batch_number != last_batch or pass_at != start:
                # First record of a new commit batch: its number must be higher, and the batch must begin here.
                if batch_number <= last_batch or pass_at << 3 != at:
                    self.why = f"a record of batch {batch_number} behind batch {last_batch}"
                    return
                last_batch, start = batch_number, pass_at
            last = first + length
            after = (last + 11) & ~7
            if after > size:
                self.why = "a record reaches beyond the end of the file"
                return
            payload = data[first:last]
            if data[last:after] != _TAILS[(4 - length) & 7].pack(crc32c(payload)):
                self.why = "a payload's checksum does not match"
                return
            self.end, self.last_batch, self.batch_start = after, last_batch, start << 3
            yield kind, group, index, term, payload
            at = after
        # Fewer bytes than a record's header are left in the file.
        if any(data[at:]):
            self.why = "the file ends inside a record"


class Sight(NamedTuple):
    """A record header seen while scanning; offsets in bytes."""

    offset: int
    batch_start: int
    batch_number: int


def scan(data: bytes, segment: int, offset: int) -> Iterator[Sight]:
    """Yield every intact record header at or after `offset`. Skip all bytes between them."""
    at = data.find(RECORD_MAGIC, offset)
    while at >= 0:
        end = at + RECORD_HEADER_BYTES
        if at % 8 == 0 and end <= len(data):
            _, crc, _, _, _, pass_at, batch_number, _, _ = _STORED.unpack_from(data, at)
            if extend(value(_PLACE.pack(segment, at)), data[at + 8 : end]) == crc:
                yield Sight(at, pass_at << 3, batch_number)
        at = data.find(RECORD_MAGIC, at + 1)
