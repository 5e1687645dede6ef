"""Rows of a timer partition. PERSISTED: tags, field orders and struct layouts never change their meaning.

Keys (relative to the store), one tag byte first; integers big-endian so that keys sort in numeric order::

    "a" token u64                      progress of a lease: acked and left bitmaps, when and how it ended
    "d" group u32, offset 16           dead message of a group
    "g" group u32                      group
    "l" token u64                      lease
    "m" offset 16                      log row: a whole batch, or one delayed message
    "p" offset 16                      payload of a delayed message above `INLINE_BYTES`, kept apart
    "s"                                state of the partition
    "w" group u32, due_ms u48, seq u64 messages that wait for their next attempt

Log rows open with `<B 3x I q`: kind u8, three zero bytes, count u32, created_ms i64 (16 bytes, so that the
batch behind keeps its 8-byte alignment). Kind 1: then the batch as the producer sent it. Kind 2: then msgpack
`[id | nil, {column id: value}]`, or, with the payload apart, `[id | nil, nil, payload bytes]`.
All other values are msgpack arrays. Ranges are packed as base offset 16 + count u32, one behind the other.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgpack

from sandq.model import offsets
from sandq.model.errors import Corruption

from .view import Row, View

LOG, PAYLOAD, GROUP, LEASE, PROGRESS, WAITING, DEAD = b"m", b"p", b"g", b"l", b"a", b"w", b"d"
STATE_KEY = b"s"
KIND_BATCH, KIND_MESSAGE = 1, 2
INLINE_BYTES = 4096
LOG_HEADER = struct.Struct("<B3xIq")
RANGE_BYTES = 20
TRIM_BYTES = 64 << 20
_ALL = 1 << 40

Fields = dict[int, Any]
"""Column id -> value of one message (the delivery time left out: the offset carries it)."""


class Range(NamedTuple):
    """`length` messages at consecutive places from `base` on."""

    base: bytes
    length: int


class LogEntry(NamedTuple):
    """What leasing needs of a log row (or of what is left of one): its first offset, messages, bytes."""

    first: bytes
    length: int
    size: int


def log_key(offset: bytes) -> bytes:
    return LOG + offset


def token_key(tag: bytes, token: int) -> bytes:
    return tag + token.to_bytes(8, "big")


def group_key(group_id: int) -> bytes:
    return GROUP + group_id.to_bytes(4, "big")


def waiting_key(group_id: int, due_ms: int, seq: int) -> bytes:
    return WAITING + group_id.to_bytes(4, "big") + due_ms.to_bytes(6, "big") + seq.to_bytes(8, "big")


def dead_key(group_id: int, offset: bytes) -> bytes:
    return DEAD + group_id.to_bytes(4, "big") + offset


def after(key: bytes) -> bytes:
    """The smallest key above `key`."""
    return key + b"\x00"


def tag_bounds(tag: bytes) -> tuple[bytes, bytes]:
    return tag, bytes([tag[0] + 1])


def entry_start(offset: bytes) -> bytes:
    """The lowest log key that a row holding `offset` can have: a row never spans Raft entries or delivery times."""
    return LOG + offset[:12] + bytes(4)


def all_rows(view: View, tag: bytes) -> list[Row]:
    start, stop = tag_bounds(tag)
    return view.scan(start, stop, limit=_ALL, max_bytes=_ALL)


def pack(*fields: object) -> bytes:
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def unpack(value: bytes) -> list[Any]:
    fields: list[Any] = msgpack.unpackb(value, raw=False, strict_map_key=False)
    return fields


def batch_row(count: int, created_ms: int, batch: bytes) -> bytes:
    return LOG_HEADER.pack(KIND_BATCH, count, created_ms) + batch


def message_rows(offset: bytes, created_ms: int, fields: Fields, original_id: bytes | None) -> list[Row]:
    """The log row of one delayed message, and behind it its payload row when it is too large to be moved about."""
    header = LOG_HEADER.pack(KIND_MESSAGE, 1, created_ms)
    inline = pack(original_id, fields)
    if len(inline) <= INLINE_BYTES:
        return [(LOG + offset, header + inline)]
    payload = pack(fields)
    return [
        (LOG + offset, header + pack(original_id, None, len(payload))),
        (PAYLOAD + (original_id or offset), payload),
    ]


def log_entry(key: bytes, value: bytes) -> LogEntry:
    kind, count, _ = LOG_HEADER.unpack_from(value)
    if kind == KIND_MESSAGE and len(value) < 64:
        # Apart: the row is short and names the payload's size, which is what byte limits go by.
        fields = unpack(value[LOG_HEADER.size :])
        if len(fields) == 3:
            return LogEntry(key[1:], 1, fields[2])
    return LogEntry(key[1:], count, len(value))


def pack_ranges(ranges: list[Range]) -> bytes:
    return b"".join([base + length.to_bytes(4, "big") for base, length in ranges])


def unpack_ranges(data: bytes) -> list[Range]:
    if len(data) % RANGE_BYTES:
        raise Corruption(f"a row holds {len(data)} bytes of ranges, not a multiple of {RANGE_BYTES}")
    return [
        Range(data[at : at + 16], int.from_bytes(data[at + 16 : at + 20], "big"))
        for at in range(0, len(data), RANGE_BYTES)
    ]


def last_of(entry: LogEntry) -> bytes:
    return offsets.shift(entry.first, entry.length - 1) if entry.length > 1 else entry.first
