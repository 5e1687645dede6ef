"""Serves HTTP on asyncio, by uvicorn's HTTP protocol with uvloop and httptools.

Uvicorn reads and writes. What it does not bound is bounded here: the number of connections in all and of one address,
the size of a request's head and the time it may take, the bytes that are read ahead of the request under way, the time
in which a client must take its response, and the time in which all connections end. A request that two parsers might
understand differently is refused.
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
import structlog
from anyio.abc import TaskStatus
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from sandq.broker.memory_budget import Account
from sandq.model.config_tls import SUBJECT
from sandq.model.limits import Limits
from sandq.model.sources import source_of
from sandq.server.http.bounds import (
    FULL,
    HEAD_BYTES,
    HEADERS_MOST,
    PLAIN,
    REFUSED_MOST,
    SEND_BYTES,
    SPARE_PLACES,
    Deadlines,
)
from sandq.server.http.gateway import Node
from sandq.server.http.guards import CERTIFICATE_NAME, IS_ENCRYPTED, NO_PLACE, Observe
from sandq.server.http.serve import HttpSettings, RunningApp, running_app
from sandq.server.http.tls_door import TlsDoor, certificate_of
from sandq.server.slots import OpenConnections
from sandq.tls.names import client_name, read

log = structlog.get_logger("sandq.http")

SLICE_BYTES: Final = 4096
"""So much is parsed at once: requests one behind the other that are in it wait as what they are, not as bytes."""
AHEAD_BYTES: Final = 65_536
"""What is received behind a request that is under way; beyond it, nothing is read any more."""
UNSENT_BYTES: Final = 16_384
"""Of an answer, that the system has not taken yet, when no more of it is made."""
BACKLOG: Final = 1024
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
"""Scheme and authority of a request target, as clients send it to proxies."""


class _Refusal(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Connection(HttpToolsProtocol):
    """A client's connection. The timer is of one thing at a time: between requests, for a head, or at the end."""

    def __init__(self, server: HttpServer, requires_tls: bool = False) -> None:
        """`requires_tls`: it is told so, and nothing else."""
        self._requires_tls = requires_tls
        super().__init__(server.config, server.state, {}, asyncio.get_running_loop())
        self._server = server
        self._account = server.account
        self._deadlines = server.deadlines
        app = server.app

        async def drained(scope: Scope, receive: Receive, send: Send) -> None:
            """What is answered is there until the client has taken it, and so its request is under way until then."""

            async def sent(message: Message) -> None:
                await send(message)
                if self.flow.write_paused:
                    await self.flow.drain()

            await app(scope, receive, sent)

        self.app: Any = drained
        self._running: RequestResponseCycle | None = None
        """The request under way; `cycle` is the one that came last."""
        self._ahead = bytearray()
        self._in_head = False
        self._is_new = True
        """Nothing of the next request has come."""
        self._unseen_bytes = 0
        """That were parsed since anything came of it that is bounded elsewhere."""
        self._refusal: _Refusal | None = None
        self._has_ended = False
        """The client says nothing more."""
        self._has_place = False
        self._is_refused = False
        """It has no place, and takes its answer."""
        self._stall: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._unsent_since = 0.0

    # -- from its beginning to its end -------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(UNSENT_BYTES, 0)
        if self.client is None:
            transport.abort()  # it has gone
            return
        self._has_place, given_up = self._server.open.add(self, source_of(self.client[0]))
        if given_up is not None:
            given_up.transport.abort()
        if self._has_place and self._requires_tls:
            self._leave_with(PLAIN)
        elif self._has_place:
            shown = certificate_of(transport)
            name = None if shown is None else client_name(read(shown), self._server.client_name_of)
            known = {CERTIFICATE_NAME: name, IS_ENCRYPTED: shown is not None}
            self.app_state = {NO_PLACE: self._server.open.is_spare(self), **known}
            self._end_after(self._deadlines.idle_s)
        elif self._server.refused < REFUSED_MOST:
            self._server.refused += 1
            self._is_refused = True
            self._leave_with(FULL)
        else:
            self._has_ended = True
            transport.write(FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.lost(self)
        self._server.refused -= self._is_refused
        self._is_refused = False
        for cycle in (self._running, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._drop_what_follows()
        self._unset_keepalive_if_required()
        self._stop_stall()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """What is under way is answered for a while, if it has come whole; no further request is begun."""
        self._has_ended = True
        self._drop_what_follows()
        if not self._is_running or (self._running is self.cycle and self.cycle.more_body):
            return False
        self._end_after(self._deadlines.leave_s)
        return True

    def shutdown(self) -> None:
        self._drop_what_follows()
        if self._running is not None and self._is_running:
            self._running.keep_alive = False
        elif not self.transport.is_closing():
            self.transport.close()

    def _drop_what_follows(self) -> None:
        self.pipeline.clear()
        self._ahead.clear()

    def _end_after(self, seconds: float) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _leave_with(self, answer: bytes) -> None:
        """What is left unread would take the answer away from the client: it is read for a moment."""
        self._has_ended = True
        self.transport.write(answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()  # TLS reads what is left by itself, until the client has said the last word
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self._deadlines.refused_s, self.transport.abort)

    # -- what it sends -----------------------------------------------------------------------------------------------

    @property
    def _is_running(self) -> bool:
        return self._running is not None and not self._running.response_complete

    @property
    def _must_wait(self) -> bool:
        """Whether what has come is of requests behind the one that is under way."""
        return bool(self.pipeline)

    def data_received(self, data: bytes) -> None:
        if self._has_ended or self._refusal is not None:
            return
        if self._must_wait or self._ahead:
            self._ahead += data
        else:
            self._parse(data)
        self._read_on_or_not()

    def _read_on_or_not(self) -> None:
        if len(self._ahead) > AHEAD_BYTES:
            self.flow.pause_reading()
        elif self.pipeline:
            self.flow.resume_reading()  # a client that has gone is noticed while its requests wait

    def _parse(self, data: bytes) -> None:
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
        self._unseen_bytes += len(data)
        try:
            self.parser.feed_data(data)
            if self._unseen_bytes > HEAD_BYTES:
                raise _Refusal(431, f"more than {HEAD_BYTES} bytes of headers")
        except httptools.HttpParserUpgrade:
            # No other protocol is begun, whatever is asked for; what follows might be of that.
            self._has_ended = True
            if self._is_running or self.pipeline:
                self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, _Refusal) else _refusal_of(error))
        except _Refusal as refusal:
            self._refuse(refusal)

    def _refuse(self, refusal: _Refusal) -> None:
        """Behind the answers to what came before."""
        self._refusal = refusal
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            # The rest of this one never comes.
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
            self._say_refusal(refusal)

    def _say_refusal(self, refusal: _Refusal) -> None:
        why = str(refusal).encode("ascii", "replace")
        headers = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(why)
        self._leave_with(STATUS_LINE[refusal.status] + headers + why)

    # -- what the parser calls ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._is_new = True
        self._unseen_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # behind a body: nobody asks for these
        super().on_header(name, value)
        if len(self.headers) > HEADERS_MOST:
            raise _Refusal(431, f"more than {HEADERS_MOST} headers")

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise _Refusal(505, "version 1.1 of HTTP is spoken here")
        names = [name for name, _ in self.headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            raise _Refusal(400, "the length of the body is told in two ways")
        if not self.url.startswith(b"/"):
            self._take_authority()
        self._in_head = False
        self._unseen_bytes = 0
        if not self._is_running:
            self._unset_keepalive_if_required()
        super().on_headers_complete()

    def _take_authority(self) -> None:
        """Put the authority of a request target in absolute form in place of Host (RFC 9112, 3.2.2)."""
        match = _ABSOLUTE.match(self.url)
        if match is not None:
            self.headers[:] = [(b"host", match[1]), *(header for header in self.headers if header[0] != b"host")]

    def on_body(self, body: bytes) -> None:
        self._unseen_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unseen_bytes = 0
        super().on_message_complete()

    # -- its answers -------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self._server.open.set_idle(self, False)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._has_ended and not self.pipeline and not self.transport.is_closing():
            self.transport.close()
        super().on_response_complete()
        if self.transport.is_closing() or self._is_running:
            return
        if self._refusal is not None:
            self._say_refusal(self._refusal)
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
        super().pause_writing()
        self._server.open.set_idle(self, False)
        self._unsent = self.transport.get_write_buffer_size()
        self._unsent_since = self.loop.time()
        self._stall = self.loop.call_later(self._deadlines.crowded_stall_s, self._look_for_stall)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall()
        if not self._is_running and not self.transport.is_closing():
            self._server.open.set_idle(self, True)

    def _look_for_stall(self) -> None:
        unsent, now = self.transport.get_write_buffer_size(), self.loop.time()
        if unsent <= self._unsent - SEND_BYTES:
            self._unsent, self._unsent_since = unsent, now
        deadlines = self._deadlines
        longest = deadlines.crowded_stall_s if self._account.is_waited_for else deadlines.send_stall_s
        if now - self._unsent_since >= longest:
            log.warning("a client takes nothing of its answer: its connection is closed")
            self.transport.abort()
        else:
            self._stall = self.loop.call_later(self._deadlines.crowded_stall_s, self._look_for_stall)

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def _refusal_of(error: httptools.HttpParserError) -> _Refusal:
    """What llhttp says."""
    why = str(error)
    is_version = "version" in why.lower() or "PRI" in why
    return _Refusal(
        505 if is_version else 400, "version 1.1 of HTTP is spoken here" if is_version else "that is no request"
    )


class HttpServer:
    """Accepts connections up to the limit; one for which there is no place is told so and closed."""

    def __init__(
        self, app: ASGIApp, connections: int, account: Account, deadlines: Deadlines, tls: TlsDoor | None = None
    ) -> None:
        """`tls`: None: it speaks none."""
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
        self.open: OpenConnections[_Connection] = OpenConnections(connections, SPARE_PLACES)
        self.refused = 0
        """Connections without a place that take their answer."""
        self._none_left = anyio.Event()
        self._is_ending = False

    async def serve(
        self,
        listeners: list[socket.socket],
        ending: anyio.Event,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Until `ending`, and until what is under way then is done, or its time is over. Closes the listeners."""
        loop, tls = asyncio.get_running_loop(), self._tls
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
                tasks.start_soon(self._tell_time)
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
        self._is_ending = True
        for step, seconds in self._steps():
            for connection in self._connections():
                step(connection)
            if not self.state.connections:
                return
            with anyio.move_on_after(seconds):
                await self._none_left.wait()

    def _steps(self) -> Iterator[tuple[Callable[[_Connection], None], float]]:
        yield _Connection.shutdown, self.deadlines.grace_s
        yield lambda connection: connection.transport.close(), self.deadlines.leave_s
        yield lambda connection: connection.transport.abort(), self.deadlines.leave_s

    def _connections(self) -> list[_Connection]:
        return [connection for connection in self.state.connections if isinstance(connection, _Connection)]

    def lost(self, connection: _Connection) -> None:
        """Its place is free."""
        self.open.remove(connection)
        self.state.connections.discard(connection)
        if self._is_ending and not self.state.connections:
            self._none_left.set()

    async def _tell_time(self) -> None:
        """Of the Date header: it has seconds."""
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
    tls: TlsDoor | None = None,
) -> AsyncIterator[RunningApp]:
    """Serve inside the block; close the listeners at its end, and leave it once what is under way then is done."""
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
