"""Frames between two nodes, on one connection.

    frame = length u32 big-endian | body        length counts the body's bytes: 1 to a limit
    body  = one msgpack value; arrays are tuples here

Memory follows what has arrived, not what a length announces, and one incomplete frame is kept at most. A frame that
the limits forbid ends the connection, for nobody knows where the next one would begin.
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
"""The body of a frame, at most. RAFT frames are the largest: less than `raft_frames.FRAME_BYTES` of messages, then one
with less than `raft.core.MAX_APPEND_BYTES` of entries and one entry more. An entry is as large as a request, or what is
merged, may be by the configuration of whoever wrote it (`limits.frame_bytes`, `limits.entry_bytes`), and is sent again
by nodes of all versions: a lower bound would keep a replica of such a partition from ever catching up."""
ARRAY_ITEMS: Final = 1 << 20
MAP_ITEMS: Final = 1 << 16
RECEIVE_BYTES: Final = 64 << 10
RECEIVE_MORE_BYTES: Final = 1 << 20
"""Asked for at once when so much of a frame is known to be missing."""
PIECE_BYTES: Final = 256 << 10
"""So much must be taken in the time that a connection may be silent; more is sent piece by piece."""
BULK_SILENCE_S: Final = 90.0
"""How long a connection may be silent that nobody pings; who uses one waits less than that for an answer."""
LAST_WORDS_S: Final = 1.0

LENGTH = struct.Struct(">I")
_pack = msgpack.Packer(autoreset=True).pack

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """The body of a frame; FrameTooLarge when it is beyond the limit."""
    body: bytes = _pack(value)
    if len(body) > FRAME_BYTES:
        raise _too_large(len(body), FRAME_BYTES)
    return body


def decode(body: bytes | memoryview) -> Any:
    """The value; ProtocolError when there is none, or one that is made of too many parts."""
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
    """Whoever waits too long (`silence_s` without a byte, in either direction) gets ConnectionLost, as does whoever
    uses a connection that has ended. One task may send while another one receives.

    The stream may be any of trio's, whatever it makes of the bytes (`TlsStream`): frames are cut again.
    """

    def __init__(self, stream: trio.abc.Stream, silence_s: float = BULK_SILENCE_S) -> None:
        self.silence_s = silence_s
        self.is_watched = False
        """Somebody goes by `waits_since`, and ends it when nothing comes for too long: a deadline for each is dear."""
        self.waits_since: float | None = None
        """Since when it is waited for bytes; None: it is not."""
        self.frame_bytes = 0
        """Of the body that was received last."""
        self._stream = stream
        self._kept = bytearray()

    def secure(self, stream: TlsStream) -> None:
        """From now on what is said goes through this one, over the same socket; nothing was received before."""
        assert not self._kept
        self._stream = stream

    async def send(self, value: Any) -> None:
        """Send a frame."""
        await self.send_body(encode(value))

    async def receive(self, limit: int = FRAME_BYTES) -> Any:
        """The value of the next frame. Raises ConnectionLost, FrameTooLarge (its body has more than `limit` bytes),
        ProtocolError."""
        return await self._next(limit, decode)

    async def send_body(self, body: bytes) -> None:
        """Send a frame, given its body."""
        await self.send_bytes(LENGTH.pack(len(body)) + body)

    async def receive_body(self, limit: int) -> bytes:
        """The body of the next frame, undecoded; FrameTooLarge when it has more than `limit` bytes."""
        return await self._next(limit, bytes)

    async def peek(self, size: int) -> bytes:
        """The next `size` bytes, which stay where they are."""
        while len(self._kept) < size:
            await self._more(0)
        return bytes(self._kept[:size])

    async def peek_frame(self, limit: int) -> None:
        """Wait until the next frame is there as a whole, or is seen to have a body of more than `limit` bytes."""
        (length,) = LENGTH.unpack(await self.peek(LENGTH.size))
        if length <= limit:
            await self.peek(LENGTH.size + length)

    async def send_bytes(self, data: bytes) -> None:
        """Send what is a frame, or several, already."""
        view = memoryview(data)
        sent = self._send_at_once(view)
        if isinstance(self._stream, TlsStream) and self._stream.is_stuck:
            await self._send_in_time(self._stream.flush)
        for start in range(sent, len(view), PIECE_BYTES):
            await self._send_in_time(partial(self._stream.send_all, view[start : start + PIECE_BYTES]))

    async def _send_in_time(self, send: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(self.silence_s) as scope:
            try:
                await send()
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionLost(f"the connection broke: {error}") from None
        if scope.cancelled_caught:
            raise ConnectionLost(f"the peer took nothing for {self.silence_s:g} s")

    def _send_at_once(self, view: memoryview) -> int:
        """Send what the socket takes now, of the first piece; how many bytes. Most frames are small, and that is one
        call into the system, where trio's way takes ten times that. What goes wrong is met again by who goes on."""
        if isinstance(self._stream, TlsStream):
            return self._stream.send_now(view[:PIECE_BYTES])
        if not isinstance(self._stream, trio.SocketStream):
            return 0
        try:
            return os.write(self._stream.socket.fileno(), view[:PIECE_BYTES])
        except OSError:
            return 0

    async def farewell(self, data: bytes) -> None:
        """Send the last bytes, and wait a moment for the other side to read them: a connection that is closed with
        something unread loses what is on its way."""
        with trio.move_on_after(LAST_WORDS_S):
            try:
                await self._stream.send_all(data)
                if isinstance(self._stream, trio.abc.HalfCloseableStream):
                    await self._stream.send_eof()
                while await self._stream.receive_some(RECEIVE_BYTES):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def aclose(self) -> None:
        """Close at once; whoever waits in `send` or `receive` gets ConnectionLost."""
        await trio.aclose_forcefully(self._stream)

    async def _next(self, limit: int, read: Callable[[memoryview], T]) -> T:
        """What `read` makes of the next frame's body."""
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
        """Why who waits for too long ends it."""
        return f"nothing was received for {self.silence_s:g} s"

    async def _take(self, most: int) -> None:
        """Receive some bytes."""
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
