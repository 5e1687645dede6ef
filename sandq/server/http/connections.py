"""Serve HTTP on asyncio, with uvicorn's HTTP protocol, uvloop and httptools.

Uvicorn reads and writes. This module adds limits that uvicorn lacks: the number of connections, in all and of one
address; the size of a request's head, and the time to receive it; the bytes that are read ahead of the request in
progress; the time in which a client must accept its response; and the time in which all connections end. A request that
two parsers might understand differently is refused.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import partial
from typing import Any, Final

import anyio
import httptools
from anyio.abc import TaskStatus
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from sandq.broker.memory_budget import Account
from sandq.model.config_tls import SUBJECT
from sandq.model.limits import Limits
from sandq.model.logger import get_logger
from sandq.model.sources import source_of
from sandq.server.http.bounds import (
    FULL,
    HEAD_BYTES,
    HEADERS_MOST,
    PLAIN,
    REFUSED_MOST,
    SEND_BYTES,
    SPARE_SLOTS,
    Deadlines,
)
from sandq.server.http.gateway import Node
from sandq.server.http.guards import CERTIFICATE_NAME, IS_ENCRYPTED, IS_SPARE, Observe
from sandq.server.http.serve import HttpSettings, RunningApp, running_app
from sandq.server.http.tls_listener import TlsListener, certificate_of
from sandq.server.slots import OpenConnections
from sandq.tls.names import client_name, read

log = get_logger("sandq.http")

SLICE_BYTES: Final = 4096
"""Bytes that are parsed at a time. Pipelined requests in parsed bytes are queued as requests; bytes that are not parsed
yet are queued as bytes."""
AHEAD_BYTES: Final = 65_536
"""Maximum bytes that are received behind the request in progress. With more, the connection is not read."""
UNSENT_BYTES: Final = 16_384
"""Unsent bytes of a response at which the application must wait before it produces more."""
BACKLOG: Final = 1024
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
"""Scheme and authority of a request target in absolute form, which clients send to proxies."""


class _Refusal(Exception):
    def __init__(self, status: int, why: str) -> None:
        """`why`: the text of the response."""
        super().__init__(why)
        self.status = status


class _Connection(HttpToolsProtocol):
    """A client's connection. The connection has only one timer, which limits in turn the idle time, the time for a
    request's head, and the time for the end."""

    def __init__(self, server: HttpServer, requires_tls: bool = False) -> None:
        """`requires_tls`: the client must use TLS but does not, so the connection only sends this error."""
        self._requires_tls = requires_tls
        super().__init__(server.config, server.state, {}, asyncio.get_running_loop())
        self._server = server
        self._account = server.account
        self._deadlines = server.deadlines
        app = server.app

        async def drained(scope: Scope, receive: Receive, send: Send) -> None:
            """Run the application, and wait after each piece until the client has accepted enough. So a request counts
            as in progress while its response is in memory."""

            async def sent(message: Message) -> None:
                """Send a piece of the response, and wait until the client has accepted enough."""
                await send(message)
                if self.flow.write_paused:
                    await self.flow.drain()

            await app(scope, receive, sent)

        self.app: Any = drained
        self._running: RequestResponseCycle | None = None
        """The request in progress. Uvicorn's `cycle`, in contrast, is the request that was received last."""
        self._ahead = bytearray()
        self._in_head = False
        self._is_new = True
        """Whether the timer for the head of the next request has yet to be started."""
        self._unseen_bytes = 0
        """Bytes that were parsed since the parser last reported something. Bounds heads, trailers and chunk
        extensions."""
        self._refusal: _Refusal | None = None
        self._has_ended = False
        """Whether no further requests are read: the client has closed its side, or the connection is ending."""
        self._has_slot = False
        self._is_refused = False
        """Whether the connection has no slot, and is being sent the error."""
        self._stall: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._unsent_since = 0.0

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Accept a connection if it has a slot. Otherwise answer 503 and close it."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(UNSENT_BYTES, 0)
        if self.client is None:
            transport.abort()  # the client has gone
            return
        self._has_slot, given_up = self._server.open.add(self, source_of(self.client[0]))
        if given_up is not None:
            given_up.transport.abort()
        if self._has_slot and self._requires_tls:
            self._close_with(PLAIN)
        elif self._has_slot:
            shown = certificate_of(transport)
            name = None if shown is None else client_name(read(shown), self._server.client_name_of)
            known = {CERTIFICATE_NAME: name, IS_ENCRYPTED: shown is not None}
            self.app_state = {IS_SPARE: self._server.open.is_spare(self), **known}
            self._end_after(self._deadlines.idle_s)
        elif self._server.refused < REFUSED_MOST:
            self._server.refused += 1
            self._is_refused = True
            self._close_with(FULL)
        else:
            self._has_ended = True
            transport.write(FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that the connection holds, and report to its requests that the client has gone."""
        self._server.lost(self)
        self._server.refused -= self._is_refused
        self._is_refused = False
        for cycle in (self._running, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._drop_rest()
        self._unset_keepalive_if_required()
        self._stop_stall()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer the request in progress within a deadline, if it was received completely. Start no further request."""
        self._has_ended = True
        self._drop_rest()
        if not self._is_running or (self._running is self.cycle and self.cycle.more_body):
            return False
        self._end_after(self._deadlines.leave_s)
        return True

    def shutdown(self) -> None:
        """End the connection when its request in progress is done: the server stops."""
        self._drop_rest()
        if self._running is not None and self._is_running:
            self._running.keep_alive = False
        elif not self.transport.is_closing():
            self.transport.close()

    def _drop_rest(self) -> None:
        """Drop all requests and bytes behind the request in progress."""
        self.pipeline.clear()
        self._ahead.clear()

    def _end_after(self, seconds: float) -> None:
        """Set the timer: close the connection after this time, unless it is set again."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _close_with(self, answer: bytes) -> None:
        """Send a last response and close the connection after a moment.

        Reading goes on meanwhile: closing a socket with unread data would discard the response."""
        self._has_ended = True
        self.transport.write(answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            # With TLS, the transport itself reads the remaining data, until the client has ended TLS.
            self.transport.close()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self._deadlines.refused_s, self.transport.abort)

    # -- received data -----------------------------------------------------------------------------------------------

    @property
    def _is_running(self) -> bool:
        """Whether a request is in progress."""
        return self._running is not None and not self._running.response_complete

    @property
    def _must_wait(self) -> bool:
        """Whether received bytes belong to requests behind the one in progress."""
        return bool(self.pipeline)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, or keep them while an earlier request is in progress."""
        if self._has_ended or self._refusal is not None:
            return
        if self._must_wait or self._ahead:
            self._ahead += data
        else:
            self._parse(data)
        self._read_on_or_not()

    def _read_on_or_not(self) -> None:
        """Stop reading while too many bytes wait behind the request in progress."""
        if len(self._ahead) > AHEAD_BYTES:
            self.flow.pause_reading()
        elif self.pipeline:
            self.flow.resume_reading()  # so that a disconnection is noticed while requests wait

    def _parse(self, data: bytes) -> None:
        """Parse received bytes in slices. Bytes behind an unfinished request are kept in `_ahead`."""
        for start in range(0, len(data), SLICE_BYTES):
            if self._must_wait:
                self._ahead += data[start:]
                break
            self._parse_slice(data[start : start + SLICE_BYTES])
            if self._refusal is not None or self.transport.is_closing():
                return
        if self._in_head and not self._is_running and self._is_new:
            self._is_new = False
            self._end_after(self._deadlines.head_s)

    def _parse_slice(self, data: bytes) -> None:
        """Parse a slice of received bytes; answer with an error if they are no valid HTTP."""
        self._unseen_bytes += len(data)
        try:
            self.parser.feed_data(data)
            if self._unseen_bytes > HEAD_BYTES:
                raise _Refusal(431, f"more than {HEAD_BYTES} bytes of headers")
        except httptools.HttpParserUpgrade:
            # Upgrades are not supported. The following bytes may belong to the new protocol, so they are not parsed.
            self._has_ended = True
            if self._is_running or self.pipeline:
                self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, _Refusal) else _refusal_of(error))
        except _Refusal as refusal:
            self._refuse(refusal)

    def _refuse(self, refusal: _Refusal) -> None:
        """Answer with an error, after the responses to the requests before."""
        self._refusal = refusal
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            # The request whose body is being received stays incomplete.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle is self._running:
                self._running = None
                if cycle.response_started:
                    self.transport.abort()
                    return
            else:
                self.pipeline.popleft()
        if not self._is_running and not self.pipeline:
            self._send_refusal(refusal)

    def _send_refusal(self, refusal: _Refusal) -> None:
        """Send the response to a refused request, and close the connection."""
        why = str(refusal).encode("ascii", "replace")
        headers = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(why)
        self._close_with(STATUS_LINE[refusal.status] + headers + why)

    # -- callbacks of the parser -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Note that the head of a request begins."""
        super().on_message_begin()
        self._in_head = True
        self._is_new = True
        self._unseen_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of a request. Refuse too many headers."""
        if not self._in_head:
            return  # trailers after a body are ignored
        super().on_header(name, value)
        if len(self.headers) > HEADERS_MOST:
            raise _Refusal(431, f"more than {HEADERS_MOST} headers")

    def on_headers_complete(self) -> None:
        """Check the head of a request, then let uvicorn start the request."""
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise _Refusal(505, "this server supports HTTP 1.1")
        names = [name for name, _ in self.headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            raise _Refusal(400, "a request must not have both Content-Length and Transfer-Encoding")
        if not self.url.startswith(b"/"):
            self._use_authority_of_target()
        self._in_head = False
        self._unseen_bytes = 0
        if not self._is_running:
            self._unset_keepalive_if_required()
        super().on_headers_complete()

    def _use_authority_of_target(self) -> None:
        """Replace Host by the authority of a request target in absolute form (RFC 9112, 3.2.2)."""
        match = _ABSOLUTE.match(self.url)
        if match is not None:
            self.headers[:] = [(b"host", match[1]), *(header for header in self.headers if header[0] != b"host")]

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._unseen_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request was received completely."""
        self._unseen_bytes = 0
        super().on_message_complete()

    # -- responses ---------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Run the application for a request, which is now in progress."""
        self._running = cycle
        self._server.open.set_idle(self, False)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on with the next request of the connection, or close the connection if it has ended."""
        if self._has_ended and not self.pipeline and not self.transport.is_closing():
            self.transport.close()
        super().on_response_complete()
        if self.transport.is_closing() or self._is_running:
            return
        if self._refusal is not None:
            self._send_refusal(self._refusal)
            return
        if not self.flow.write_paused:
            self._server.open.set_idle(self, True)
        if self._in_head:
            self._end_after(self._deadlines.head_s)
        ahead, self._ahead = bytes(self._ahead), bytearray()
        if ahead:
            self._parse(ahead)
        self._read_on_or_not()

    def pause_writing(self) -> None:
        """Begin to check whether the client accepts its response in time: too much of it is unsent."""
        super().pause_writing()
        self._server.open.set_idle(self, False)
        self._unsent = self.transport.get_write_buffer_size()
        self._unsent_since = self.loop.time()
        self._stall = self.loop.call_later(self._deadlines.crowded_stall_s, self._check_stall)

    def resume_writing(self) -> None:
        """End this check: everything is sent."""
        super().resume_writing()
        self._stop_stall()
        if not self._is_running and not self.transport.is_closing():
            self._server.open.set_idle(self, True)

    def _check_stall(self) -> None:
        """Disconnect the client if it has accepted less than `SEND_BYTES` for too long. Otherwise check again later.

        If other requests wait for memory, the client has less time."""
        unsent, now = self.transport.get_write_buffer_size(), self.loop.time()
        if unsent <= self._unsent - SEND_BYTES:
            self._unsent, self._unsent_since = unsent, now
        deadlines = self._deadlines
        longest = deadlines.crowded_stall_s if self._account.is_waited_for else deadlines.send_stall_s
        if now - self._unsent_since >= longest:
            log.warning("a client takes nothing of its answer: its connection is closed")
            self.transport.abort()
        else:
            self._stall = self.loop.call_later(self._deadlines.crowded_stall_s, self._check_stall)

    def _stop_stall(self) -> None:
        """Cancel the next check."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def _refusal_of(error: httptools.HttpParserError) -> _Refusal:
    """Return the refusal for an error of the parser (llhttp)."""
    why = str(error)
    is_version = "version" in why.lower() or "PRI" in why
    return _Refusal(
        505 if is_version else 400, "this server supports HTTP 1.1" if is_version else "this is not an HTTP request"
    )


class HttpServer:
    """Accepts connections up to the limit. Further connections get an error and are closed."""

    def __init__(
        self, app: ASGIApp, connections: int, account: Account, deadlines: Deadlines, tls: TlsListener | None = None
    ) -> None:
        """`tls`: None if the server does not use TLS."""
        self._tls = tls
        self.client_name_of = SUBJECT if tls is None else tls.client_name
        self.app = app
        self.deadlines = deadlines
        self.account = account
        self.config = Config(
            app,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=math.ceil(deadlines.idle_s),
        )
        self.config.load()
        self.state = ServerState()
        self.open: OpenConnections[_Connection] = OpenConnections(connections, SPARE_SLOTS)
        self.refused = 0
        """Number of connections without a slot that are being sent the error."""
        self._none_left = anyio.Event()
        self._is_ending = False

    async def serve(
        self,
        listeners: list[socket.socket],
        ending: anyio.Event,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `ending` is set, and until requests in progress are done or out of time. Close the listeners."""
        loop, tls = asyncio.get_running_loop(), self._tls
        # Without TLS, asyncio accepts connections. With TLS, `tls.serve` accepts them, to check the first byte and to
        # limit handshakes.
        servers = [
            await loop.create_server(lambda: _Connection(self), sock=listener, backlog=BACKLOG)
            for listener in listeners
            if tls is None
        ]
        try:
            async with anyio.create_task_group() as tasks:
                if tls is not None:
                    tasks.start_soon(tls.certificates.follow)
                    for listener in listeners:
                        listener.listen(BACKLOG)
                        tasks.start_soon(tls.serve, listener, partial(_Connection, self))
                tasks.start_soon(self._update_date)
                task_status.started()
                await ending.wait()
                tasks.cancel_scope.cancel()
        finally:
            for server in servers:
                server.close()
            for listener in listeners if tls is not None else ():
                listener.close()
            with anyio.CancelScope(shield=True):
                await self._end()

    async def _end(self) -> None:
        """End all connections in steps, each with its time, until none is left."""
        self._is_ending = True
        for step, seconds in self._steps():
            for connection in self._connections():
                step(connection)
            if not self.state.connections:
                return
            with anyio.move_on_after(seconds):
                await self._none_left.wait()

    def _steps(self) -> Iterator[tuple[Callable[[_Connection], None], float]]:
        """Yield the steps that end connections, and the time in seconds to wait after each."""
        yield _Connection.shutdown, self.deadlines.grace_s
        yield lambda connection: connection.transport.close(), self.deadlines.leave_s
        yield lambda connection: connection.transport.abort(), self.deadlines.leave_s

    def _connections(self) -> list[_Connection]:
        """Return all connections."""
        return [connection for connection in self.state.connections if isinstance(connection, _Connection)]

    def lost(self, connection: _Connection) -> None:
        """Release the slot of a connection that has ended."""
        self.open.remove(connection)
        self.state.connections.discard(connection)
        if self._is_ending and not self.state.connections:
            self._none_left.set()

    async def _update_date(self) -> None:
        """Update the Date header each second."""
        while True:
            self.state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            await anyio.sleep(1)


@asynccontextmanager
async def serve_http(
    listeners: list[socket.socket],
    settings: HttpSettings,
    limits: Limits,
    deadlines: Deadlines,
    node: Node,
    observe: Observe,
    account: Account,
    tls: TlsListener | None = None,
) -> AsyncIterator[RunningApp]:
    """Serve within the block. At its end, close the listeners, and wait until the requests in progress are done."""
    async with (
        running_app(settings, limits, node, observe, account) as running,
        anyio.create_task_group() as serving,
    ):
        server = HttpServer(running.guard, limits.http_connections, account, deadlines, tls)
        await serving.start(server.serve, listeners, running.ending)
        try:
            yield running
        finally:
            running.ending.set()
