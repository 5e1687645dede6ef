"""Requests about the keys of a compacted topic, and the client's side of the replies. Keys are written by PRODUCE.

A value in a reply is `<B 3x I q 16s` (flags: 1 with headers; bytes of the headers; expires_ms, 0 for never; version),
followed by headers and value. KV_GET returns the value of at least the first key. The client requests the rest again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, NamedTuple, Self

import msgpack

from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.piece import Piece
from sandq.protocol.fields import OFFSET_BYTES, Field, Shape
from sandq.protocol.frames import Frame, Type
from sandq.protocol.replies_messages import parse_pieces
from sandq.protocol.request import Bounds, Offset, Partition, Request

KEYS_MOST: Final = 10_000
"""Maximum number of keys in one request."""
ANSWER_BYTES: Final = 8 << 20
"""A reply ends with the value that brings it to this size, in bytes."""
WATCHED_MOST: Final = 65_536
"""Maximum number of changes in one reply."""
WAIT_MS_MOST: Final = 30_000
"""Maximum time to wait for a change, in ms."""

VALUE_HEADER: Final = struct.Struct("<B3xIq16s")
FLAG_HEADERS: Final = 1

AnswerBytes = Annotated[int, Bounds(1, ANSWER_BYTES)]

_GOT = Shape("KV_GET reply", Field("stale_ms", int), Field("values", list), exact=False, error=ProtocolError)
_SCANNED = Shape(
    "KV_SCAN reply",
    Field("stale_ms", int),
    Field("rows", list),
    Field("next", bytes, optional=True),
    exact=False,
    error=ProtocolError,
)
_WATCHED = Shape("KV_WATCH reply", Field("through", bytes), Field("mark", bytes), exact=False, error=ProtocolError)


class KvGet(Request, type=Type.KV_GET):
    """Return the values of keys. `stale`: accept the state of the receiving node, even if it does not lead the
    partition."""

    topic: str
    partition: Partition
    stale: bool
    keys: Sequence[bytes]

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        request = cls.checked(frame)
        if not 0 < len(request.keys) <= KEYS_MOST or not all(type(key) is bytes for key in request.keys):
            raise InvalidRequest(f"KV_GET: 1 to {KEYS_MOST} keys are asked for, as bytes")
        return request


class KvScan(Request, type=Type.KV_SCAN):
    """Return the keys from `start` up to, but excluding, `stop` (None: to the last) and their values, in order."""

    topic: str
    partition: Partition
    stale: bool
    start: bytes
    stop: bytes | None
    limit: Annotated[int, Bounds(1, KEYS_MOST)]
    max_bytes: AnswerBytes


class KvWatch(Request, type=Type.KV_WATCH):
    """Return changes after the version `after`, of the keys from `start` up to, but excluding, `stop`. Waits up to
    `wait_ms` for the first change.

    `after` None: from now on; the reply comes immediately. `mark`: mark of the previous reply. `every`: also include
    changes that a later write of the same key has replaced.
    """

    topic: str
    partition: Partition
    after: Offset | None
    mark: Offset | None
    every: bool
    start: bytes
    stop: bytes | None
    max_messages: Annotated[int, Bounds(1, WATCHED_MOST)]
    max_bytes: AnswerBytes
    wait_ms: Annotated[int, Bounds(0, WAIT_MS_MOST)]


class KeyValue(NamedTuple):
    """A value in a reply. `headers`: packed; `expires_ms`: 0 for never."""

    version: bytes
    value: bytes
    headers: bytes | None
    expires_ms: int

    @classmethod
    def parse(cls, row: bytes) -> KeyValue:
        if type(row) is not bytes or len(row) < VALUE_HEADER.size:
            raise ProtocolError(f"a value of {VALUE_HEADER.size} bytes at least is expected, got {str(row)[:100]}")
        flags, length, expires_ms, version = VALUE_HEADER.unpack_from(row)
        start = VALUE_HEADER.size + length
        if start > len(row):
            raise ProtocolError(f"a value of {len(row)} bytes with headers of {length}")
        headers = row[VALUE_HEADER.size : start] if flags & FLAG_HEADERS else None
        return cls(version, row[start:], headers, expires_ms)


class KvValues(NamedTuple):
    """The reply to a KV_GET: the values of the first keys."""

    stale_ms: int
    values: list[KeyValue | None]

    @classmethod
    def parse(cls, frame: Frame, asked: int) -> KvValues:
        _GOT.check(frame)
        rows = frame[3]
        if not 0 < len(rows) <= asked:
            raise ProtocolError(f"KV_GET reply: {len(rows)} values for {asked} keys")
        return cls(frame[2], [None if row is None else KeyValue.parse(row) for row in rows])


class KvPage(NamedTuple):
    """The reply to a KV_SCAN. `next`: key at which to continue. None: no more keys."""

    stale_ms: int
    rows: list[tuple[bytes, KeyValue]]
    next: bytes | None

    @classmethod
    def parse(cls, frame: Frame) -> KvPage:
        _SCANNED.check(frame)
        cells = frame[3]
        keys = cells[::2]
        if len(cells) % 2 or not all(type(key) is bytes for key in keys):
            raise ProtocolError("KV_SCAN reply: keys and values are expected in turn")
        return cls(frame[2], list(zip(keys, map(KeyValue.parse, cells[1::2]), strict=True)), frame[4])


def pack_rows(rows: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return keys and values in the form of a reply to KV_SCAN: alternating."""
    packer = msgpack.Packer(autoreset=False)
    for key, value in rows:
        packer.pack(key)
        packer.pack(value)
    packed: bytes = packer.bytes()
    return packed


class KvChanges(NamedTuple):
    """The reply to a KV_WATCH. `through`: version up to which all changes were examined."""

    through: bytes
    mark: bytes
    pieces: list[Piece]

    @classmethod
    def parse(cls, frame: Frame) -> KvChanges:
        _WATCHED.check(frame)
        for place in (1, 2):
            if len(frame[place + 1]) != OFFSET_BYTES:
                raise ProtocolError(f"KV_WATCH reply, field {place}: {OFFSET_BYTES} bytes are expected")
        return cls(frame[2], frame[3], parse_pieces(frame, 4))
