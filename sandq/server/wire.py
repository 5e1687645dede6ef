"""Convert between the plain bytes of a connection and the bytes on its wire, without I/O.

    frames --> SendQueue --head(most)--> buffers --> socket        left(n): n bytes of the buffers were sent
    frames <-- FrameReader <--received(data)-- socket

The read loop and the send loop of a connection use the wire only through these methods. A transform (TLS, by
`ssl.SSLObject` in memory) may split the bytes at any position, hold bytes back until a record is complete, and send
records of its own. The frame reader does not depend on how bytes are split. The send queue holds plain bytes, and
counts them until all bytes that encode them were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from sandq.server.send_queue import Buffer, SendQueue


class Transform(Protocol):
    """Encodes and decodes the bytes of one connection. Its methods raise only SandqError, which ends the connection."""

    @property
    def is_open(self) -> bool:
        """Whether plain bytes may be sent: the handshake is complete."""

    @property
    def has_ended(self) -> bool:
        """Whether the peer has ended its side of the stream."""

    @property
    def records(self) -> int:
        """Total number of records that were decoded. Each costs some work, whatever its size."""

    @property
    def is_behind(self) -> bool:
        """Whether received bytes are left to decode. `decode` limits the work of one call, so that others can run."""

    def decode(self, data: bytes) -> bytes:
        """Return the plain bytes that `data` completes, often none. While `is_behind`, call it again without data."""

    def encode(self, plain: Sequence[Buffer]) -> bytes:
        """Return the bytes to send: records of the transform's own, followed by the encoded plain bytes.

        Without plain bytes, these are only its own records, often none. Never raises: `decode` reports errors."""

    def end(self) -> None:
        """From now on, send only the records that end the stream."""


RECORD_BITS: Final = 1
"""A unit of work for each two decoded records."""


class PlainWire:
    """A wire without a transform."""

    is_behind: Final = False
    work: Final = 0

    def __init__(self, queue: SendQueue) -> None:
        self.head = queue.head
        """Return the buffers to send next, at most this many bytes, for one gather write."""
        self.is_due = queue.__bool__
        """Return whether there are bytes that may be sent now."""

    def left(self, sent: int) -> int:
        """Record that `sent` bytes were sent. Return how many plain bytes that completes."""
        return sent

    def received(self, data: bytes) -> bytes | None:
        """Return the plain bytes of received data; None if the stream has ended."""
        return data or None

    def end(self) -> None:
        """Send nothing any more."""


class TransformedWire:
    """A wire with a transform. The methods are those of `PlainWire`."""

    def __init__(self, queue: SendQueue, transform: Transform) -> None:
        self._queue = queue
        self._transform = transform
        self._encoded = memoryview(b"")
        """Encoded bytes that are not sent yet."""
        self._plain = 0
        """Number of plain bytes from which `_encoded` was made. These plain bytes are still in the queue."""
        self.work = 0
        """Units of work of the last `received`, in addition to that of its bytes."""

    @property
    def is_behind(self) -> bool:
        """Whether `received` has more to return without new data, even if only the end of the stream."""
        return self._transform.is_behind or self._transform.has_ended

    def is_due(self) -> bool:
        """Return whether there is anything to send."""
        if not self._encoded:
            self._encoded = memoryview(self._transform.encode(()))
        return bool(self._encoded) or (self._transform.is_open and bool(self._queue))

    def head(self, most: int) -> Sequence[Buffer]:
        """Return the next encoded bytes to send, at most `most`."""
        if self.is_due() and not self._encoded:
            plain = self._queue.head(most)
            self._plain = sum([len(buffer) for buffer in plain])
            self._encoded = memoryview(self._transform.encode(plain))
        return (self._encoded[:most],)

    def left(self, sent: int) -> int:
        """Note that `sent` encoded bytes have left. Return the number of plain bytes that are sent completely."""
        self._encoded = self._encoded[sent:]
        if self._encoded:
            return 0  # plain bytes count as sent only when all bytes that encode them have left
        plain, self._plain = self._plain, 0
        return plain

    def received(self, data: bytes) -> bytes | None:
        """Return the plain bytes in received ones; None at the end of the stream. Raise SandqError."""
        transform = self._transform
        if not data and not self.is_behind:
            return None  # the client has closed the socket
        before = transform.records
        plain = transform.decode(data)
        self.work = (transform.records - before) >> RECORD_BITS
        return None if transform.has_ended and not plain else plain

    def end(self) -> None:
        """End the transform. The last bytes to send tell the client that no more bytes follow."""
        self._transform.end()


Wire = PlainWire | TransformedWire
