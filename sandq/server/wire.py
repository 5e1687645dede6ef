"""What a connection's bytes are on the wire: themselves, or what a transform makes of them. No I/O.

    frames --> SendQueue --head(most)--> buffers --> socket        left(n): so many bytes of these have left
    frames <-- FrameReader <--received(data)-- socket

The read and the send loop of a connection know nothing else of it. A transform (TLS, by `ssl.SSLObject` over memory)
may cut bytes as it likes, hold some back until it has all of a record, and have words of its own: frames do not care,
for they are cut again. The send queue holds plain bytes, and counts them until all of what became of them has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from sandq.server.send_queue import Buffer, SendQueue


class Transform(Protocol):
    """What the bytes of one connection become on the wire, and back. What it raises is a SandqError, and ends the
    connection."""

    @property
    def is_open(self) -> bool:
        """Whether plain bytes may be sent: both sides have said what they say first."""

    @property
    def has_ended(self) -> bool:
        """Whether the other side has said that nothing more comes."""

    @property
    def records(self) -> int:
        """How many parts were decoded, ever: each costs something, whatever it carries."""

    @property
    def is_behind(self) -> bool:
        """Whether more has come than was decoded, because that was much: others are to have their turn."""

    def decode(self, data: bytes) -> bytes:
        """The plain bytes that what came completes; often none. While it is behind, nothing need come for more."""

    def encode(self, plain: Sequence[Buffer]) -> bytes:
        """What is to be sent: words of its own, and behind them what becomes of these bytes. Without bytes its own
        words alone, often none. Never raises: `decode` tells what is wrong with the other side."""

    def end(self) -> None:
        """Nothing is sent any more, but for words that say so."""


RECORD_BITS: Final = 1
"""Two records are a unit of work."""


class PlainWire:
    """Nothing is made of the bytes."""

    is_behind: Final = False
    work: Final = 0

    def __init__(self, queue: SendQueue) -> None:
        self.head = queue.head
        """What is sent next, at most so many bytes: buffers for one gather write."""
        self.is_due = queue.__bool__
        """Whether there is something to send, and it may be sent now."""

    def left(self, sent: int) -> int:
        """So many bytes have left; how many plain ones have."""
        return sent

    def received(self, data: bytes) -> bytes | None:
        """The plain bytes that came with these; None: nothing more comes."""
        return data or None

    def end(self) -> None:
        """Nothing more will be sent."""


class TransformedWire:
    """A transform makes of the bytes what is sent. As `PlainWire`."""

    def __init__(self, queue: SendQueue, transform: Transform) -> None:
        self._queue = queue
        self._transform = transform
        self._encoded = memoryview(b"")
        """What has not left of what was encoded last ..."""
        self._plain = 0
        """... and how many plain bytes it is made of, that are still in the queue."""
        self.work = 0
        """Units of it that `received` took last, beside those of its bytes."""

    @property
    def is_behind(self) -> bool:
        """Whether there is more to be had from `received` without any more bytes, if only that it was all."""
        return self._transform.is_behind or self._transform.has_ended

    def is_due(self) -> bool:
        if not self._encoded:
            self._encoded = memoryview(self._transform.encode(()))
        return bool(self._encoded) or (self._transform.is_open and bool(self._queue))

    def head(self, most: int) -> Sequence[Buffer]:
        if self.is_due() and not self._encoded:
            plain = self._queue.head(most)
            self._plain = sum([len(buffer) for buffer in plain])
            self._encoded = memoryview(self._transform.encode(plain))
        return (self._encoded[:most],)

    def left(self, sent: int) -> int:
        self._encoded = self._encoded[sent:]
        if self._encoded:
            return 0
        plain, self._plain = self._plain, 0
        return plain

    def received(self, data: bytes) -> bytes | None:
        transform = self._transform
        if not data and not self.is_behind:
            return None
        before = transform.records
        plain = transform.decode(data)
        self.work = transform.records - before >> RECORD_BITS
        return None if transform.has_ended and not plain else plain

    def end(self) -> None:
        self._transform.end()


Wire = PlainWire | TransformedWire
