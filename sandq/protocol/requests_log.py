"""Requests about a stretch of a partition's log, and the client's side of the answers.

    FETCH        8 [topic, partition, start bin16, end bin16 | nil, max_messages u32, max_bytes u32, pending bool]
    MEASURE     23 [topic, partition, start bin16, end bin16 | nil, max_messages u32 | nil, pending bool]

Answers; a piece is five fields as in DELIVER: offsets, ids, created_ms, live, batch:

    FETCH       [next bin16 | nil, closed_ms, trimmed bin16, number, piece...]       number: the topic's
    MEASURE     [first bin16 | nil, next bin16 | nil, messages, closed_ms, trimmed bin16, number]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sandq.model.errors import ProtocolError
from sandq.model.piece import Piece
from sandq.protocol.fields import PARTITION_MAX, U32_MAX, U48_MAX, Field, Shape, check_offset
from sandq.protocol.frames import Frame, Type, encode_frame
from sandq.protocol.replies_messages import parse_pieces

_TOPIC: Final = Field("topic", str)
_PARTITION: Final = Field("partition", int, maximum=PARTITION_MAX)
_CLOSED = (Field("closed_ms", int, maximum=U48_MAX), Field("trimmed", bytes), Field("number", int))
_FETCH_REPLY = Shape("FETCH reply", Field("next", bytes, optional=True), *_CLOSED, exact=False, error=ProtocolError)
_MEASURE_REPLY = Shape(
    "MEASURE reply",
    Field("first", bytes, optional=True),
    Field("next", bytes, optional=True),
    Field("messages", int),
    *_CLOSED,
    exact=False,
    error=ProtocolError,
)

_FETCH = Shape(
    "FETCH",
    _TOPIC,
    _PARTITION,
    Field("start", bytes),
    Field("end", bytes, optional=True),
    Field("max_messages", int, minimum=1, maximum=U32_MAX),
    Field("max_bytes", int, minimum=1, maximum=U32_MAX),
    Field("pending", bool),
)


class Fetch(NamedTuple):
    """Read from `start` up to, without, `end` (None: all there is); no lease, nothing changes. `pending`: also what is
    not closed, as it stands at the moment."""

    topic: str
    partition: int
    start: bytes
    end: bytes | None
    max_messages: int
    max_bytes: int
    pending: bool = False

    @classmethod
    def parse(cls, frame: Frame) -> Fetch:
        _FETCH.check(frame)
        check_offset(_FETCH, 3, frame[4])
        check_offset(_FETCH, 4, frame[5])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.FETCH, request_id, *self)


_MEASURE = Shape(
    "MEASURE",
    _TOPIC,
    _PARTITION,
    Field("start", bytes),
    Field("end", bytes, optional=True),
    Field("max_messages", int, minimum=1, maximum=U32_MAX, optional=True),
    Field("pending", bool),
)


class Measure(NamedTuple):
    """How many messages FETCH would give of a stretch, and where the first `max_messages` of them end."""

    topic: str
    partition: int
    start: bytes
    end: bytes | None = None
    max_messages: int | None = None
    pending: bool = False

    @classmethod
    def parse(cls, frame: Frame) -> Measure:
        _MEASURE.check(frame)
        check_offset(_MEASURE, 3, frame[4])
        check_offset(_MEASURE, 4, frame[5])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.MEASURE, request_id, *self)


class FetchReply(NamedTuple):
    """A part of a partition's log. `next`: where to read on, None at the end of what was asked for. `trimmed`: up to
    this offset, with it, the log was trimmed at that moment. `number`: the topic's, which no later topic of its name
    has."""

    next: bytes | None
    closed_ms: int
    trimmed: bytes
    number: int
    pieces: Sequence[Piece]

    @classmethod
    def parse(cls, frame: Frame) -> FetchReply:
        _FETCH_REPLY.check(frame)
        check_offset(_FETCH_REPLY, 1, frame[2])
        check_offset(_FETCH_REPLY, 3, frame[4])
        return cls(frame[2], frame[3], frame[4], frame[5], parse_pieces(frame, 6))


class MeasureReply(NamedTuple):
    """How much there is. `first`: the first message's offset; `next`: behind what was counted, None at the end of what
    was asked for; `messages`: about so many."""

    first: bytes | None
    next: bytes | None
    messages: int
    closed_ms: int
    trimmed: bytes
    number: int

    @classmethod
    def parse(cls, frame: Frame) -> MeasureReply:
        _MEASURE_REPLY.check(frame)
        for place in (1, 2, 5):
            check_offset(_MEASURE_REPLY, place, frame[place + 1])
        return cls._make(frame[2 : 2 + len(cls._fields)])
