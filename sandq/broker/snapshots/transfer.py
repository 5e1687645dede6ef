"""The transfer of a snapshot between nodes, over a separate connection. Frames: docs/protocol/between-nodes.md.

    sender                        receiver
    OFFER (Meta)            ->
                            <-    RESUME (key | nil), or REFUSE (held, reason) and the end
    CHUNK                   ->
                            <-    ACK; for the last chunk DONE, once the snapshot is installed; or FAILED (reason)

The sender waits while `WINDOW` chunks are not answered yet. When the connection ends, the receiver keeps the received
rows. If the same snapshot is offered again, the transfer continues after these rows. If a different snapshot is
offered, the transfer starts from the beginning. `read_chunk` and `Sink` use threads to read, check and write the rows.
This module only passes bytes on, one chunk at a time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

import trio

from sandq.model.errors import ProtocolError, SandqError, TimedOut
from sandq.storage.snapshot import CHUNK_BYTES_AT_MOST, META_BYTES, Chunk, Meta

T = TypeVar("T")

WINDOW = 8
"""Maximum number of sent chunks that are not answered yet."""
SENDING_AT_ONCE = 2
"""Maximum number of snapshots that a node sends at the same time."""
SILENCE_S = 60.0
"""Time in s within which the other side must send its next frame, or accept a frame.

The time is long, because the other side may first open a store, wait for its throttle, or install the snapshot."""
BURST_S = 0.05
"""Time in s. After a pause, as many bytes as the rate allows in this time may be sent at once."""
KEY_BYTES = 64 << 10
"""Maximum size in bytes of the key in RESUME. The transfer continues after the row with this key."""
REASON_CHARS = 1024
"""Maximum length of a reason, in characters. A longer reason is cut."""


class _Field(NamedTuple):
    kinds: tuple[type, ...]
    longest: int = 0
    """Maximum length of a bytes or text field."""


OFFER, RESUME, REFUSE, CHUNK, ACK, DONE, FAILED = range(1, 8)
_FIELDS: dict[int, tuple[_Field, ...]] = {
    OFFER: (_Field((bytes,), META_BYTES),),
    RESUME: (_Field((bytes, type(None)), KEY_BYTES),),
    REFUSE: (_Field((bool,)), _Field((str,), REASON_CHARS)),
    CHUNK: (_Field((bytes,), CHUNK_BYTES_AT_MOST),),
    ACK: (),
    DONE: (),
    FAILED: (_Field((str,), REASON_CHARS),),
}
SMALL_FRAME_BYTES = 65 << 10
"""Maximum size of a frame without rows, in bytes.

The limit is small, because up to 64 connections (`links.STREAMS_MOST`) may each hold a part of an OFFER in memory."""
CHUNK_FRAME_BYTES = CHUNK_BYTES_AT_MOST + SMALL_FRAME_BYTES
_NAMES = dict(zip(_FIELDS, ("OFFER", "RESUME", "REFUSE", "CHUNK", "ACK", "DONE", "FAILED"), strict=True))


class ObjectStream(Protocol):
    """A connection that carries MessagePack values. Both methods raise an error once the connection has ended."""

    async def send(self, obj: Any) -> None: ...

    async def receive(self, limit: int) -> Any:
        """Return the next value. If the value has more than `limit` bytes, raise FrameTooLarge without reading it."""
        ...


class Sink(Protocol):
    """Destination of a snapshot: a store that no pointer names yet. A sink may be used over several connections."""

    @property
    def position(self) -> bytes | None:
        """Key of the last row that was added; None if no row was added yet."""
        ...

    async def add(self, data: bytes) -> bool:
        """Add a chunk (see `Importer.add`). Return whether the chunk was the last. On SandqError, nothing was
        written."""
        ...

    async def finish(self, meta: Meta) -> None:
        """Install the snapshot. On return, the group's pointer names the store, durably. Called once. Raise
        SandqError."""
        ...


class Verdict(Enum):
    """The outcome of an offer."""

    INSTALLED = "installed"
    HELD = "held"
    """The receiver has this state or a later state already."""
    REFUSED = "refused"
    """The receiver cannot receive the snapshot now. No rows were sent."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """How an offer ended, on both sides. `reason`: explanation of an outcome other than INSTALLED."""

    verdict: Verdict
    reason: str = ""


class Throttle:
    """A rate in bytes per second that all callers of `take` share, first come, first served. Uses trio's clock."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_until = -math.inf
        """Time on trio's clock, in s, until which the bytes taken so far use up the rate."""

    async def take(self, size: int, times: int = 1) -> None:
        """Wait until `size` more bytes may be sent, at `times` times the rate.

        A large size is not split: the call waits no longer than for a small size, but later calls wait longer."""
        now = trio.current_time()
        # After a pause, `_paid_until` is in the past: at most `BURST_S` of the unused time may be used now.
        begin = max(self._paid_until, now - BURST_S)
        self._paid_until = begin + size / (self._bytes_per_s * times)
        await trio.sleep(max(0.0, begin - now))


class Outlet:
    """Resources that all outgoing snapshots of a node share.

    Take a slot before you take the view of the rows. Hold the slot until the view is released.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.throttle = Throttle(bytes_per_s)
        self.slots = trio.Semaphore(SENDING_AT_ONCE)


async def send_snapshot(
    stream: ObjectStream,
    meta: Meta,
    read_chunk: Callable[[bytes | None], Awaitable[Chunk]],
    throttle: Throttle,
    times: int = 1,
) -> Answer:
    """Offer a snapshot, and send the rows that the other side lacks, at `times` times the throttle's rate.

    `read_chunk(after)`: return the chunk of rows after this key (see `Exporter.chunk`). Raise ProtocolError, TimedOut,
    the errors of the stream and the errors of `read_chunk`. After an error, the caller may offer the same snapshot
    again, to continue the transfer."""
    talk = _Talk(stream)
    await talk.send(OFFER, meta.encode())
    kind, fields = await talk.receive(RESUME, REFUSE)
    if kind == REFUSE:
        held, reason = fields
        return Answer(Verdict.HELD if held else Verdict.REFUSED, reason)
    position: bytes | None = fields[0]
    unanswered, last = 0, False
    while True:
        while unanswered < WINDOW and not last:
            chunk = await read_chunk(position)
            await throttle.take(len(chunk.data), times)
            await talk.send(CHUNK, chunk.data)
            position, last = chunk.position, chunk.last
            unanswered += 1
        # The receiver answers each chunk with ACK, and the last chunk with DONE.
        expected = DONE if last and unanswered == 1 else ACK
        kind, fields = await talk.receive(expected, FAILED)
        if kind == FAILED:
            return Answer(Verdict.FAILED, fields[0])
        if kind == DONE:
            return Answer(Verdict.INSTALLED)
        unanswered -= 1


async def receive_snapshot(stream: ObjectStream, accept: Callable[[Meta], Awaitable[Sink | None]]) -> Answer:
    """Receive the snapshot that is offered on a stream.

    `accept(meta)`: return the sink for the snapshot; None if this node has the state already. If the snapshot cannot be
    received now, `accept` raises SandqError. Raise ProtocolError, TimedOut, and the errors of the stream. If another
    error prevents the installation, this function and the sender's `send_snapshot` return the reason."""
    talk = _Talk(stream)
    _, (offer,) = await talk.receive(OFFER)
    try:
        meta = Meta.decode(offer)
        sink = await accept(meta)
    except SandqError as error:
        return await talk.refuse(Answer(Verdict.REFUSED, error.message))
    if sink is None:
        return await talk.refuse(Answer(Verdict.HELD, "this node has this state or a later one already"))
    await talk.send(RESUME, sink.position)
    last = False
    while not last:
        _, (data,) = await talk.receive(CHUNK)
        try:
            last = await sink.add(data)
            if last:
                await sink.finish(meta)
        except SandqError as error:
            await talk.send(FAILED, error.message[:REASON_CHARS])
            return Answer(Verdict.FAILED, error.message)
        await talk.send(DONE if last else ACK)
    return Answer(Verdict.INSTALLED)


class _Talk:
    """Sends and receives frames over a stream, checks received frames, and limits the time of each step."""

    def __init__(self, stream: ObjectStream) -> None:
        self._stream = stream

    async def send(self, kind: int, *fields: Any) -> None:
        """Send a frame. Raise TimedOut if the other side does not accept the frame within `SILENCE_S`."""
        await _in_time(self._stream.send((kind, *fields)), f"to accept {_NAMES[kind]}")

    async def refuse(self, answer: Answer) -> Answer:
        """Refuse the offer for the reason in `answer`, and return `answer`."""
        await self.send(REFUSE, answer.verdict is Verdict.HELD, answer.reason[:REASON_CHARS])
        return answer

    async def receive(self, *kinds: int) -> tuple[int, Sequence[Any]]:
        """Receive the next frame, whose kind must be one of `kinds`. Return the kind and the fields. Raise
        ProtocolError."""
        wanted = " or ".join(_NAMES[kind] for kind in kinds)
        limit = CHUNK_FRAME_BYTES if CHUNK in kinds else SMALL_FRAME_BYTES
        frame = await _in_time(self._stream.receive(limit), f"to send {wanted}")
        kind = frame[0] if isinstance(frame, (list, tuple)) and frame else None
        if type(kind) is not int or kind not in kinds:
            got = _NAMES.get(kind, "an unknown frame") if type(kind) is int else "a malformed frame"
            raise ProtocolError(f"a snapshot's connection: {wanted} is expected, {got} was received")
        fields, shape = frame[1:], _FIELDS[kind]
        if len(fields) != len(shape):
            raise ProtocolError(f"a snapshot's connection: {_NAMES[kind]} with {len(fields)} fields, not {len(shape)}")
        for number, (value, field) in enumerate(zip(fields, shape, strict=True), 1):
            if type(value) not in field.kinds or (isinstance(value, (bytes, str)) and len(value) > field.longest):
                raise ProtocolError(
                    f"a snapshot's connection: {_NAMES[kind]} field {number} is of a wrong type or size"
                )
        return kind, fields


async def _in_time(step: Awaitable[T], what: str) -> T:
    """Await a step. Raise TimedOut after `SILENCE_S`. `what`: description of the step for the error message."""
    with trio.move_on_after(SILENCE_S):
        return await step
    raise TimedOut(f"a snapshot's connection: the other side took more than {SILENCE_S:.0f} s {what}")
