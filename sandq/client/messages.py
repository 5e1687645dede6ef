"""What a consumer gets, one by one, and what it says about it."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio

from sandq.client.pieces import LogMessage
from sandq.model.errors import InvalidRequest, SandqError
from sandq.model.limits import FIXED
from sandq.model.times import Duration, duration_ms

if TYPE_CHECKING:
    from sandq.client.chunks import Chunk


class Message(LogMessage["Chunk"]):
    """One delivered message, held under a lease until it is acked or nacked, or the lease ends.

    `ack`, `nack` and `extend` take effect without being awaited: they are queued and leave within about a
    millisecond, many in one frame. Awaiting what they return waits for the broker's answer and raises
    LeaseLost when the lease was not held any more. A failure that nobody awaits is logged as a warning
    ("sandq.client").
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        return self._piece.lease.desk.topic

    @property
    def partition(self) -> int:
        return self._piece.lease.desk.partition

    @property
    def attempt(self) -> int:
        """1 for the first delivery to this group."""
        return self._piece.lease.attempt

    @property
    def lease_token(self) -> str:
        """The lease, as HTTP and sandctl name it: group number, partition, token."""
        return self._piece.lease.text

    def ack(self) -> Settlement:
        """Done with it: this group gets it no more. Acking twice is once."""
        self._piece.lease.desk.ack(self._piece, self._position)
        return Settlement(self._piece, self._position)

    def nack(self, *, delay: Duration | None = None, error: str | BaseException | None = None) -> Settlement:
        """Not done: it comes back after `delay` (None: the topic's back-off), or is dead at the last attempt."""
        delay_ms = None if delay is None else duration_ms(delay)
        text = None if error is None else error_text(error)
        self._piece.lease.desk.nack(self._piece, self._position, delay_ms, text)
        return Settlement(self._piece, self._position)

    def extend(self, lease: Duration) -> Extension:
        """Hold it until `lease` from now. The lease may cover other messages: they are extended with it."""
        lease_ms = duration_ms(lease)
        if not lease_ms:
            raise InvalidRequest("extend: a lease cannot be extended by nothing")
        return self._piece.lease.desk.extend(self._piece.lease, lease_ms)

    def __repr__(self) -> str:
        return (
            f"<Message {self.offset} topic={self.topic!r} partition={self.partition} "
            f"attempt={self.attempt} bytes={len(self.value)}>"
        )


class Settlement:
    """What `ack` and `nack` return: nothing to do, or `await` it to know that the broker did it."""

    __slots__ = ("_chunk", "_position")

    def __init__(self, chunk: Chunk, position: int) -> None:
        self._chunk = chunk
        self._position = position

    def __await__(self) -> Generator[Any, Any, None]:
        return self._chunk.lease.desk.confirmed(self._chunk, self._position).__await__()


class Extension:
    """What `extend` returns: `await` it for the new deadline, epoch milliseconds, or LeaseLost."""

    __slots__ = ("_event", "awaited", "deadline_ms", "error", "lease_ms")

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self.deadline_ms: int | None = None
        self.error: SandqError | None = None
        self.awaited = False
        self._event: anyio.Event | None = None

    def finish(self, deadline_ms: int | None, error: SandqError | None) -> None:
        self.deadline_ms, self.error = deadline_ms, error
        if self._event is not None:
            self._event.set()

    def __await__(self) -> Generator[Any, Any, int]:
        return self._wait().__await__()

    async def _wait(self) -> int:
        self.awaited = True
        if self.deadline_ms is None and self.error is None:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        if self.error is not None:
            raise self.error
        assert self.deadline_ms is not None
        return self.deadline_ms


def error_text(error: str | BaseException) -> str:
    """The error of a nack."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return text[: FIXED.error_chars]


def lease_ms_of(lease: Duration | None) -> int | None:
    """The lease of a subscription; None is the topic's."""
    if lease is None:
        return None
    lease_ms = duration_ms(lease)
    if not lease_ms:
        raise InvalidRequest(f"lease: {timedelta(0)} is too short")
    return lease_ms
