"""Handshakes over sockets, and streams behind them, on trio.

A handshake is read record by record, so that what the other side says behind it stays in the socket: who goes on with
the connection reads it there. Until it is done there is one record in memory, and no more than `HANDSHAKE_BYTES` are
taken of anybody.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from typing import Final

import anyio
import trio

from sandq.model.errors import ConnectionLost
from sandq.tls.budget import HANDSHAKE_S, Handshakes
from sandq.tls.session import HEAD_BYTES, RECORD_BYTES, Buffer, TlsError, TlsSession

FIRST_BYTE: Final = 0x16
"""A record of a handshake; no frame of ours and no request of HTTP begins so."""
HANDSHAKE_BYTES: Final = 128 << 10
"""Of all records of one side, certificates included."""
HANDSHAKE_RECORDS: Final = 64
"""Of one side: there are six and what certificates need, but who cuts them into bytes would keep the loop busy."""
LAST_WORDS_S: Final = 1.0
SEND_BYTES: Final = 262_144


async def speaks_tls(stream: trio.SocketStream) -> bool:
    """Whether the other side begins a handshake; what it says stays where it is. ConnectionLost: it says nothing more.
    It is for the caller to limit how long that may take."""
    try:
        head = await stream.socket.recv(1, socket.MSG_PEEK)
    except (OSError, trio.ClosedResourceError) as error:
        raise ConnectionLost(f"the connection broke: {error}") from None
    if not head:
        raise ConnectionLost("the connection was closed before anything was said")
    return bool(head[0] == FIRST_BYTE)


async def let_in(
    stream: trio.SocketStream, context: ssl.SSLContext, handshakes: Handshakes | None, source: str
) -> TlsSession:
    """Shake hands with who connected. `handshakes`: whom it waits for; None: for nobody. Raises TlsError, Overloaded,
    and ConnectionLost (it took too long, too)."""
    session = TlsSession(context, is_server=True)
    if handshakes is None:
        await _greet(stream, session, None, source)
        return session
    try:
        with trio.fail_after(HANDSHAKE_S):
            async with handshakes.place(source) as place:
                await _greet(stream, session, handshakes, source, place)
    except trio.TooSlowError:
        handshakes.failed += 1
        raise ConnectionLost(f"no TLS handshake within {HANDSHAKE_S:g} s") from None
    except (TlsError, ConnectionLost):
        handshakes.failed += 1
        raise
    handshakes.done += 1
    return session


async def reach(stream: trio.SocketStream, context: ssl.SSLContext, host: str | None = None) -> TlsSession:
    """Shake hands with who was connected to. Raises TlsError, ConnectionLost; it is for the caller to limit how long
    that may take."""
    session = TlsSession(context, is_server=False, host=host)
    session.greet()
    await _send(stream, session.words())
    await _greet(stream, session, None, "")
    return session


async def _greet(
    stream: trio.SocketStream,
    session: TlsSession,
    handshakes: Handshakes | None,
    source: str,
    place: anyio.CancelScope | None = None,
) -> None:
    left_bytes, left = HANDSHAKE_BYTES, HANDSHAKE_RECORDS
    while not session.is_open:
        record = await _record(stream)
        left_bytes -= len(record)
        left -= 1
        if left_bytes < 0 or left < 0:
            raise TlsError(f"a handshake of more than {HANDSHAKE_BYTES} bytes, or {HANDSHAKE_RECORDS} records")
        if handshakes is not None:
            await handshakes.turn(source, place)
        try:
            _take(session, record, handshakes, source)
        except TlsError:
            with trio.move_on_after(LAST_WORDS_S), suppress(ConnectionLost):
                await _send(stream, session.words())  # why not
            raise
        await _send(stream, session.words())


def _take(session: TlsSession, record: bytes, handshakes: Handshakes | None, source: str) -> None:
    try:
        session.greet(record)
    finally:
        if handshakes is not None:  # what fails has cost as much as what does not
            handshakes.spent(source, session.greeting_s)


async def _record(stream: trio.SocketStream) -> bytes:
    head = await _exactly(stream, HEAD_BYTES)
    size = int.from_bytes(head[3:], "big")
    if head[1] != 3 or size > RECORD_BYTES:
        raise TlsError("this is not TLS: what comes is no record")
    return head + await _exactly(stream, size)


async def _exactly(stream: trio.SocketStream, size: int) -> bytes:
    found = b""
    while len(found) < size:
        try:
            piece = await stream.receive_some(size - len(found))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(f"the connection broke: {error}") from None
        if not piece:
            raise ConnectionLost("the connection was closed in the TLS handshake")
        found += piece
    return found


async def _send(stream: trio.SocketStream, data: bytes) -> None:
    if not data:
        return
    try:
        await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise ConnectionLost(f"the connection broke: {error}") from None


class TlsStream(trio.abc.HalfCloseableStream):
    """A connection behind its handshake. One task may send while another one receives."""

    def __init__(self, stream: trio.SocketStream, session: TlsSession) -> None:
        self.session = session
        self.socket = stream.socket
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._unsent = memoryview(b"")
        """Of what was encrypted, what has not left."""
        self._sending = trio.Lock()
        self._received = bytearray()

    def send_now(self, data: Buffer) -> int:
        """Send what the socket takes now, of a piece; how many of its bytes are under way. Then `flush` sends the
        rest of these, if there is one: see `is_stuck`."""
        if self._unsent or self._sending.locked():
            return 0
        self._unsent = memoryview(self.session.encode((data,)))
        with suppress(OSError):  # it is met again by who goes on
            self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
        return len(data)

    @property
    def is_stuck(self) -> bool:
        """Whether something encrypted has not left."""
        return bool(self._unsent)

    async def flush(self) -> None:
        """Send what was encrypted."""
        async with self._sending:
            await self._flush()

    async def _flush(self) -> None:
        while self._unsent:
            piece, self._unsent = self._unsent, memoryview(b"")
            await self._stream.send_all(piece)

    async def send_all(self, data: Buffer) -> None:
        """Raises trio.BrokenResourceError, trio.ClosedResourceError."""
        view = memoryview(data)
        async with self._sending:
            await self._flush()
            for start in range(0, len(view), SEND_BYTES):
                self._unsent = memoryview(self.session.encode((view[start : start + SEND_BYTES],)))
                if not self._unsent:
                    raise trio.BrokenResourceError("TLS has ended")
                await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        """See trio."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Plain bytes; nothing: there are no more. Raises trio.BrokenResourceError, trio.ClosedResourceError."""
        while not self._received:
            if self.session.has_ended:
                return b""
            if self.session.is_behind:
                await trio.lowlevel.checkpoint()  # others may have their turn
                data = b""
            else:
                data = bytes(await self._stream.receive_some(max(max_bytes or 0, 16_640)))
                if not data:
                    return b""  # frames and requests say themselves where they end
            try:
                self._received += self.session.decode(data)
            except TlsError as error:
                raise trio.BrokenResourceError(error.message) from None
            # What TLS itself has to answer goes with what is sent next: nobody who receives waits for who sends.
        size = len(self._received) if max_bytes is None else max_bytes
        found = bytes(self._received[:size])
        del self._received[:size]
        return found

    async def send_eof(self) -> None:
        """Say that nothing more is sent."""
        async with self._sending:
            await self._flush()
            self.session.end()
            if words := self.session.words():
                await self._stream.send_all(words)
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Say that it ends, and close it; forcefully when cancelled."""
        try:
            self.session.end()
            with suppress(OSError):
                if (words := self.session.words()) and not self._unsent:
                    os.write(self._fd, words)
        finally:
            await self._stream.aclose()
