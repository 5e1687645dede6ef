"""Requests for a range of a partition's log, and the client's side of the replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from sandq.model.errors import ProtocolError
from sandq.model.piece import Piece
from sandq.protocol.fields import U32_MAX, U48_MAX, Field, Shape, check_offset
from sandq.protocol.frames import Frame, Type
from sandq.protocol.replies_messages import parse_pieces
from sandq.protocol.request import Bounds, Offset, Partition, Request

_CLOSED = (Field("closed_ms", int, maximum=U48_MAX), Field("trimmed", bytes), Field("number", int))
_FETCH_REPLY = Shape("FETCH reply", Field("next", bytes, optional=True), *_CLOSED, exact=False, error=ProtocolError)
_MEASURE_REPLY = Shape(
    "MEASURE reply",
    Field("first", bytes, optional=True),
    Field("next", bytes, optional=True),
    Field("messages", int),
    *_CLOSED,
    Field("clock_epoch", int),
    exact=False,
    error=ProtocolError,
)


class Fetch(Request, type=Type.FETCH):
    """Read from `start` up to, but excluding, `end` (None: to the end). Leases and changes nothing. `pending`: include
    messages above the closed part, in their current state."""

    topic: str
    partition: Partition
    start: Offset
    end: Offset | None
    max_messages: Annotated[int, Bounds(1, U32_MAX)]
    max_bytes: Annotated[int, Bounds(1, U32_MAX)]
    pending: bool = False


class Measure(Request, type=Type.MEASURE):
    """Return how many messages FETCH would return for a range, and where the first `max_messages` of them end."""

    topic: str
    partition: Partition
    start: Offset
    end: Offset | None = None
    max_messages: Annotated[int, Bounds(1, U32_MAX)] | None = None
    pending: bool = False


class FetchReply(NamedTuple):
    """A part of a partition's log. `next`: offset at which to continue, None at the end of the requested range.
    `trimmed`: last trimmed offset of the log. `number`: number of the topic; a later topic of the same name has another
    number."""

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
    """Approximate size of a range. `first`: offset of the first message. `next`: offset after the counted messages,
    None at the end of the requested range. `messages`: approximate number of counted messages. `clock_epoch`: number of
    clock resets of the partition."""

    first: bytes | None
    next: bytes | None
    messages: int
    closed_ms: int
    trimmed: bytes
    number: int
    clock_epoch: int

    @classmethod
    def parse(cls, frame: Frame) -> MeasureReply:
        _MEASURE_REPLY.check(frame)
        for place in (1, 2, 5):
            check_offset(_MEASURE_REPLY, place, frame[place + 1])
        return cls(*frame[2 : 2 + len(cls._fields)])
