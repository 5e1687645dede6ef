"""A snapshot's way from one node to another, over a connection of its own. Frames: docs/protocol.md, "Between nodes".

    sender                        receiver
    OFFER (Meta)            ->
                            <-    RESUME (key | nil), or REFUSE (held, reason) and the end
    CHUNK, at most WINDOW   ->
    that are not answered   <-    ACK each; the last one: DONE, once it is installed, or FAILED (reason)

The receiver keeps what it has when the connection ends. The next offer of the same snapshot goes on behind it, another
one begins anew. Rows are read, checked and written by whoever is behind `read_chunk` and `Sink`, in threads of theirs:
here only bytes are handed on, a chunk at a time.
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
"""Chunks on their way that are not answered yet."""
SENDING_AT_ONCE = 2
"""Snapshots that a node sends at a time."""
SILENCE_S = 60.0
"""So long the other side may take for its next frame, or to take one: opening, a throttled chunk, installing."""
BURST_S = 0.05
"""So much of a throttle's rate may go at once after a pause."""
KEY_BYTES = 64 << 10
"""A key to go on behind, at most."""
REASON_CHARS = 1024
"""A reason, at most: longer ones are cut."""


class _Field(NamedTuple):
    kinds: tuple[type, ...]
    longest: int = 0
    """Of bytes and text."""


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
"""Of a frame that carries no rows, at most: an offer is the first one, and 64 connections may send half of one."""
CHUNK_FRAME_BYTES = CHUNK_BYTES_AT_MOST + SMALL_FRAME_BYTES
_NAMES = dict(zip(_FIELDS, ("OFFER", "RESUME", "REFUSE", "CHUNK", "ACK", "DONE", "FAILED"), strict=True))


class ObjectStream(Protocol):
    """A connection that carries msgpack's values. Both raise when it has ended."""

    async def send(self, obj: Any) -> None: ...

    async def receive(self, limit: int) -> Any:
        """The next value; FrameTooLarge when it takes more than `limit` bytes, before they are read."""
        ...


class Sink(Protocol):
    """Where a snapshot is put: a store that nothing points to yet. It outlives connections."""

    @property
    def position(self) -> bytes | None:
        """Key of the last row it has; None: it has none."""
        ...

    async def add(self, data: bytes) -> bool:
        """Put a chunk there (`Importer.add`). Whether it was the last. Raises SandqError, and has written nothing."""
        ...

    async def finish(self, meta: Meta) -> None:
        """Install: when it returns, the store is pointed to, durably. Raises SandqError. Called once."""
        ...


class Verdict(Enum):
    INSTALLED = "installed"
    HELD = "held"
    """The receiver has this state, or a later one."""
    REFUSED = "refused"
    """Not now; nothing was sent."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """How an offer ended, on both sides. `reason`: in words, of what is not INSTALLED."""

    verdict: Verdict
    reason: str = ""


class Throttle:
    """Bytes per second that all users share, first come, first served. On trio's clock."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_until = -math.inf
        """What was taken so far is paid for at this time."""

    async def take(self, size: int, times: int = 1) -> None:
        """Wait until `size` more bytes may go, at so many times the rate. They may be more than a burst: then the next
        ones wait for them."""
        now = trio.current_time()
        begin = max(self._paid_until, now - BURST_S)
        self._paid_until = begin + size / (self._bytes_per_s * times)
        await trio.sleep(max(0.0, begin - now))


class Outlet:
    """What all outgoing snapshots of a node share. A slot is to be held from before a snapshot's read view is taken
    until it is closed."""

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
    """Offer a snapshot and send what the other side lacks of it, at so many times the throttle's rate.
    `read_chunk(after)`: `Exporter.chunk`, in a thread.

    Raises ProtocolError, TimedOut, what the stream raises when it ends, and what `read_chunk` raises; then the same
    snapshot may be offered again, and goes on where it was."""
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
        expected = DONE if last and unanswered == 1 else ACK
        kind, fields = await talk.receive(expected, FAILED)
        if kind == FAILED:
            return Answer(Verdict.FAILED, fields[0])
        if kind == DONE:
            return Answer(Verdict.INSTALLED)
        unanswered -= 1


async def receive_snapshot(stream: ObjectStream, accept: Callable[[Meta], Awaitable[Sink | None]]) -> Answer:
    """Take what is offered on a stream. `accept`: where it is put; None: the state is here already. It raises
    SandqError: not now.

    Raises ProtocolError, TimedOut, and what the stream raises when it ends. Whatever else keeps a snapshot from being
    taken is answered, to both sides."""
    talk = _Talk(stream)
    _, (offer,) = await talk.receive(OFFER)
    try:
        meta = Meta.decode(offer)
        sink = await accept(meta)
    except SandqError as error:
        return await talk.refuse(Answer(Verdict.REFUSED, error.message))
    if sink is None:
        return await talk.refuse(Answer(Verdict.HELD, "this state, or a later one, is there already"))
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
    """Frames over a stream: checked, and not waited for for ever."""

    def __init__(self, stream: ObjectStream) -> None:
        self._stream = stream

    async def send(self, kind: int, *fields: Any) -> None:
        await _in_time(self._stream.send((kind, *fields)), f"to take {_NAMES[kind]}")

    async def refuse(self, answer: Answer) -> Answer:
        await self.send(REFUSE, answer.verdict is Verdict.HELD, answer.reason[:REASON_CHARS])
        return answer

    async def receive(self, *kinds: int) -> tuple[int, Sequence[Any]]:
        """The next frame, which must be one of these: its kind and fields."""
        wanted = " or ".join(_NAMES[kind] for kind in kinds)
        limit = CHUNK_FRAME_BYTES if CHUNK in kinds else SMALL_FRAME_BYTES
        frame = await _in_time(self._stream.receive(limit), f"to send {wanted}")
        kind = frame[0] if isinstance(frame, (list, tuple)) and frame else None
        if type(kind) is not int or kind not in kinds:
            got = _NAMES.get(kind, "an unknown frame") if type(kind) is int else "no frame"
            raise ProtocolError(f"a snapshot's connection: {wanted} is expected, and {got} came")
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
    with trio.move_on_after(SILENCE_S):
        return await step
    raise TimedOut(f"a snapshot's connection: the other side took more than {SILENCE_S:.0f} s {what}")
