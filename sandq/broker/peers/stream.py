"""Frames between two nodes, on one connection.

    frame    length (u32, big-endian), then the body
    length   size of the body in bytes, from 1 to a limit
    body     one msgpack value; its arrays are decoded as tuples

Memory use depends on the bytes that have arrived, not on the announced length. At most one incomplete frame is kept. If
a frame exceeds the limits, the connection ends, because the start of the next frame cannot be found.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgpack
import trio

from sandq.model.errors import ConnectionLost, FrameTooLarge, ProtocolError
from sandq.tls.stream import TlsStream

FRAME_BYTES: Final = 64 << 20
"""Maximum size of a frame's body, in bytes.

RAFT frames are the largest. A RAFT frame ends with the message that reaches `raft_frames.FRAME_BYTES`, and a message
ends with the entry that reaches `raft.core.MAX_APPEND_BYTES`. This last entry may be large. The size of an entry
depends on the configuration of the node that wrote it (`limits.frame_bytes`, `limits.entry_bytes`). Any later leader
must send the entry to replicas that lack it. If this limit were lower, such a replica could never catch up."""
ARRAY_ITEMS: Final = 1 << 20
MAP_ITEMS: Final = 1 << 16
RECEIVE_BYTES: Final = 64 << 10
RECEIVE_MORE_BYTES: Final = 1 << 20
"""Maximum number of bytes to receive at once while a large frame is incomplete. Otherwise, see `RECEIVE_BYTES`."""
PIECE_BYTES: Final = 256 << 10
"""Size of the pieces in which data is sent, in bytes. The receiver must accept each piece within `silence_s`."""
BULK_SILENCE_S: Final = 90.0
"""Seconds that a connection without PINGs may be silent. This value exceeds the time for which users of such
connections wait for an answer."""
FAREWELL_S: Final = 1.0
"""Maximum time in s to wait until the other side has read the last bytes."""

LENGTH = struct.Struct(">I")
_pack = msgpack.Packer(autoreset=True).pack

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Return the body of a frame that contains `value`. Raise FrameTooLarge if the body exceeds `FRAME_BYTES`."""
    body: bytes = _pack(value)
    if len(body) > FRAME_BYTES:
        raise _too_large(len(body), FRAME_BYTES)
    return body


def decode(body: bytes | memoryview) -> Any:
    """Return the value in a body. Raise ProtocolError if the body is malformed or has too many parts."""
    try:
        return msgpack.unpackb(
            body,
            use_list=False,
            strict_map_key=False,
            max_array_len=ARRAY_ITEMS,
            max_map_len=MAP_ITEMS,
            max_ext_len=0,
        )
    except Exception as error:  # msgpack raises a dozen kinds
        why = str(error)[:200] or type(error).__name__
        raise ProtocolError(f"a frame of {len(body)} bytes cannot be decoded: {why}") from None


class PeerStream:
    """A connection that carries frames. One task may send while a second task receives.

    A task gets ConnectionLost if no byte moves in its direction for `silence_s`, or if the connection has ended. The
    underlying stream may be any trio stream, and may pass the bytes on in pieces of any size.
    """

    def __init__(self, stream: trio.abc.Stream, silence_s: float = BULK_SILENCE_S) -> None:
        self.silence_s = silence_s
        self.is_watched = False
        """True if the owner watches `waits_since` and ends the connection itself. This saves an expensive deadline per
        frame."""
        self.waits_since: float | None = None
        """Time on trio's clock since which this connection waits for bytes, in s; None if it does not wait."""
        self.frame_bytes = 0
        """Size of the body that was received last, in bytes."""
        self._stream = stream
        self._kept = bytearray()

    def secure(self, stream: TlsStream) -> None:
        """Use a TLS stream over the same socket from now on. Call this before this object has received any byte."""
        assert not self._kept
        self._stream = stream

    async def send(self, value: Any) -> None:
        """Send a frame."""
        await self.send_body(encode(value))

    async def receive(self, limit: int = FRAME_BYTES) -> Any:
        """Return the value of the next frame.

        Raise FrameTooLarge if its body has more than `limit` bytes. Raise ConnectionLost or ProtocolError."""
        return await self._next(limit, decode)

    async def send_body(self, body: bytes) -> None:
        """Send a frame with this body."""
        await self.send_bytes(LENGTH.pack(len(body)) + body)

    async def receive_body(self, limit: int) -> bytes:
        """Return the encoded body of the next frame. Raise FrameTooLarge if the body has more than `limit` bytes."""
        return await self._next(limit, bytes)

    async def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without consuming them."""
        while len(self._kept) < size:
            await self._more(0)
        return bytes(self._kept[:size])

    async def peek_frame(self, limit: int) -> None:
        """Wait until the next frame is received completely. If its body has more than `limit` bytes, return at once."""
        (length,) = LENGTH.unpack(await self.peek(LENGTH.size))
        if length <= limit:
            await self.peek(LENGTH.size + length)

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes. The bytes must be complete frames."""
        view = memoryview(data)
        sent = self._send_at_once(view)
        # TLS may have encrypted bytes that the socket has not accepted yet. They count as sent, so flush them.
        if isinstance(self._stream, TlsStream) and self._stream.is_stuck:
            await self._send_in_time(self._stream.flush)
        for start in range(sent, len(view), PIECE_BYTES):
            await self._send_in_time(partial(self._stream.send_all, view[start : start + PIECE_BYTES]))

    async def _send_in_time(self, send: Callable[[], Awaitable[None]]) -> None:
        """Run one step of a send. Raise ConnectionLost if the connection breaks, or if the send takes longer than
        `silence_s`."""
        with trio.move_on_after(self.silence_s) as scope:
            try:
                await send()
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionLost(f"the connection broke: {error}") from None
        if scope.cancelled_caught:
            raise ConnectionLost(f"the peer accepted no data for {self.silence_s:g} s")

    def _send_at_once(self, view: memoryview) -> int:
        """Send as much of the first piece as the socket accepts now. Return the number of bytes.

        Most frames are small and need only this one system call. A send through trio takes ten times as long. Errors
        are ignored, because the next call fails with the same error."""
        if isinstance(self._stream, TlsStream):
            return self._stream.send_now(view[:PIECE_BYTES])
        if not isinstance(self._stream, trio.SocketStream):
            return 0
        try:
            return os.write(self._stream.socket.fileno(), view[:PIECE_BYTES])
        except OSError:
            return 0

    async def farewell(self, data: bytes) -> None:
        """Send the last bytes, and wait until the other side has closed the connection, at most `FAREWELL_S`.

        If this side closed the connection before it has read all received data, the last bytes could be lost."""
        with trio.move_on_after(FAREWELL_S):
            try:
                await self._stream.send_all(data)
                if isinstance(self._stream, trio.abc.HalfCloseableStream):
                    await self._stream.send_eof()
                while await self._stream.receive_some(RECEIVE_BYTES):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def aclose(self) -> None:
        """Close at once. Tasks that wait in `send` or `receive` get ConnectionLost."""
        await trio.aclose_forcefully(self._stream)

    async def _next(self, limit: int, read: Callable[[memoryview], T]) -> T:
        """Receive the next frame, and return the result of `read` for its body."""
        kept = self._kept
        while len(kept) < LENGTH.size:
            await self._more(0)
        (length,) = LENGTH.unpack_from(kept)
        if length > limit:
            raise _too_large(length, limit)
        end = LENGTH.size + length
        while len(kept) < end:
            await self._more(end - len(kept))
        with memoryview(kept) as view, view[LENGTH.size : end] as body:
            value = read(body)
        del kept[:end]
        self.frame_bytes = length
        return value

    async def _more(self, missing: int) -> None:
        """Receive more bytes. `missing`: number of bytes that the frame still lacks; 0 if unknown. Raise
        ConnectionLost."""
        most = max(RECEIVE_BYTES, min(missing, RECEIVE_MORE_BYTES))
        if self.is_watched:
            self.waits_since = trio.current_time()
            await self._take(most)
            self.waits_since = None
            return
        with trio.move_on_after(self.silence_s) as scope:
            await self._take(most)
        if scope.cancelled_caught:
            raise ConnectionLost(self.silent)

    @property
    def silent(self) -> str:
        """Error message for a connection that was silent for too long."""
        return f"nothing was received for {self.silence_s:g} s"

    async def _take(self, most: int) -> None:
        """Receive up to `most` bytes, and append them to `_kept`."""
        try:
            data = await self._stream.receive_some(most)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(f"the connection broke: {error}") from None
        if not data:
            raise ConnectionLost("the peer closed the connection")
        self._kept += data


def _too_large(length: int, limit: int) -> FrameTooLarge:
    return FrameTooLarge(
        f"a frame of {length} bytes between nodes: {limit} is the limit",
        limit="peer_frame_bytes",
        maximum=limit,
        size=length,
    )
