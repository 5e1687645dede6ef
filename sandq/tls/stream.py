"""Handshakes over sockets, and TLS streams, on trio.

A handshake is read record by record, so that the bytes after it stay in the socket for the code that continues with the
connection. During the handshake, at most one record is in memory, and at most `HANDSHAKE_BYTES` are read from a peer.
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
"""First byte of a TLS handshake. No sandq frame and no HTTP request begins with it."""
HANDSHAKE_BYTES: Final = 128 << 10
"""Maximum size of all records of one side of a handshake, including certificates."""
HANDSHAKE_RECORDS: Final = 64
"""Maximum number of records of one side of a handshake.

A handshake has six records, and more for certificates. Without a limit, a peer that sends records of one byte could
occupy the event loop."""
ALERT_S: Final = 1.0
"""Timeout in s for sending the alert after a failed handshake."""
SEND_BYTES: Final = 262_144
"""Maximum bytes that `send_all` encrypts at once."""


async def speaks_tls(stream: trio.SocketStream) -> bool:
    """Wait for the first byte of the peer, and return whether it begins a TLS handshake. The byte stays in the socket.

    Raise ConnectionLost if the connection ends before. The caller must set a timeout."""
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
    """Do the handshake with a client.

    `handshakes`: the budget of handshakes; None: no budget and no timeout. Raise TlsError if the handshake fails,
    Overloaded if too many handshakes are in progress, ConnectionLost if the connection breaks or the handshake takes
    too long."""
    session = TlsSession(context, is_server=True)
    if handshakes is None:
        await _greet(stream, session, None, source)
        return session
    try:
        with trio.fail_after(HANDSHAKE_S):
            async with handshakes.slot(source) as place:
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
    """Do the handshake with a server, as its client. `host`: name that the server's certificate must have, if the
    context checks it.

    Raise TlsError if the handshake fails, ConnectionLost if the connection breaks. The caller sets a timeout."""
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
            await handshakes.wait_for_step(source, place)
        try:
            _take(session, record, handshakes, source)
        except TlsError:
            with trio.move_on_after(ALERT_S), suppress(ConnectionLost):
                await _send(stream, session.words())  # the alert with the reason
            raise
        await _send(stream, session.words())


def _take(session: TlsSession, record: bytes, handshakes: Handshakes | None, source: str) -> None:
    try:
        session.greet(record)
    finally:
        if handshakes is not None:  # a failed step costs as much as a successful one
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
    """A connection after its handshake. One task may send while another task receives."""

    def __init__(self, stream: trio.SocketStream, session: TlsSession) -> None:
        self.session = session
        self.socket = stream.socket
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._unsent = memoryview(b"")
        """Encrypted bytes that are not sent yet."""
        self._sending = trio.Lock()
        self._received = bytearray()

    def send_now(self, data: Buffer) -> int:
        """Encrypt `data`, and send as much as the socket accepts without waiting.

        Return the number of accepted bytes: all of `data`, or 0 if earlier bytes are not sent yet. If `is_stuck` is
        True afterwards, `flush` sends the rest."""
        if self._unsent or self._sending.locked():
            return 0
        self._unsent = memoryview(self.session.encode((data,)))
        with suppress(OSError):  # the next operation on the connection raises the error again
            self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
        return len(data)

    @property
    def is_stuck(self) -> bool:
        """True if encrypted bytes are not sent yet."""
        return bool(self._unsent)

    async def flush(self) -> None:
        """Send the encrypted bytes that are not sent yet."""
        async with self._sending:
            await self._flush()

    async def _flush(self) -> None:
        while self._unsent:
            piece, self._unsent = self._unsent, memoryview(b"")
            await self._stream.send_all(piece)

    async def send_all(self, data: Buffer) -> None:
        """Encrypt and send all data.

        Raise trio.BrokenResourceError if the connection breaks, trio.ClosedResourceError if it is closed."""
        view = memoryview(data)
        async with self._sending:
            await self._flush()
            for start in range(0, len(view), SEND_BYTES):
                self._unsent = memoryview(self.session.encode((view[start : start + SEND_BYTES],)))
                if not self._unsent:
                    raise trio.BrokenResourceError("TLS has ended")
                await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until `send_all` might not block (see trio)."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return up to `max_bytes` plain bytes. Return b"" at the end of the data.

        Raise trio.BrokenResourceError if the connection or TLS fails, trio.ClosedResourceError if it is closed."""
        while not self._received:
            if self.session.has_ended:
                return b""
            if self.session.is_behind:
                await trio.lowlevel.checkpoint()  # yield to other tasks
                data = b""
            else:
                data = bytes(await self._stream.receive_some(max(max_bytes or 0, 16_640)))
                if not data:
                    return b""  # an end without announcement is acceptable: frames and requests contain their length
            try:
                self._received += self.session.decode(data)
            except TlsError as error:
                raise trio.BrokenResourceError(error.message) from None
            # TLS's own replies are sent with the next data, so that receiving never waits for sending.
        size = len(self._received) if max_bytes is None else max_bytes
        found = bytes(self._received[:size])
        del self._received[:size]
        return found

    async def send_eof(self) -> None:
        """Announce the end of the data to the peer."""
        async with self._sending:
            await self._flush()
            self.session.end()
            if words := self.session.words():
                await self._stream.send_all(words)
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Announce the end, if this is possible without waiting, and close the connection. If cancelled, close it
        forcefully."""
        try:
            self.session.end()
            with suppress(OSError):
                if (words := self.session.words()) and not self._unsent:
                    os.write(self._fd, words)
        finally:
            await self._stream.aclose()
