"""HTTP in the loop of its node, by Hypercorn on trio: as many connections as are allowed, each ended when its client
takes nothing, all of them at the end.

Hypercorn speaks the protocol: HTTP/1 and nothing else, read strictly. It shields what it sends from being cancelled, so
a client that reads nothing is cut off here, below it.

When there is no place left, the connection goes that has been without a request for longest: who floods a node with
connections, or with halves of requests, loses those. When all have requests, a few more are taken, for which health and
metrics are answered alone.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
import h11
import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr, wrap_app

from sandq.broker.memory_budget import Account
from sandq.model.config_tls import SUBJECT
from sandq.model.errors import SandqError, WrongPort
from sandq.model.limits import Limits
from sandq.model.sources import source_of
from sandq.server.http.bounds import (
    CROWDED_STALL_S,
    FULL,
    GRACE_S,
    HEAD_BYTES,
    HEAD_S,
    HEADERS_MOST,
    IDLE_S,
    PLAIN,
    REFUSED_MOST,
    REFUSED_S,
    SEND_BYTES,
    SEND_STALL_S,
    SPARE_PLACES,
)
from sandq.server.http.gateway import Node
from sandq.server.http.guards import CERTIFICATE_NAME, IS_ENCRYPTED, NO_PLACE, Observe
from sandq.server.http.serve import HttpSettings, running_app
from sandq.server.slots import OpenConnections
from sandq.tls.names import client_name
from sandq.tls.port import TlsPort
from sandq.tls.stream import TlsStream

log = structlog.get_logger("sandq.http")

READ_AHEAD: Final = 1
"""Pieces that were received and are not looked at, while a request is under way: those of the requests behind it."""
SMALL_BYTES: Final = 16_384
PIECES_PER_S: Final = 1000
"""Pieces smaller than that, of requests that have not come whole, which are read of all connections together. Who sends
byte by byte has its bytes gather meanwhile: each read costs some 60 us."""
READ_S = 120
"""A connection on which nothing is said for so long, while no request is under way, is closed."""


class _Stream:
    """A client's socket, as Hypercorn uses it."""

    def __init__(self, stream: trio.SocketStream, account: Account) -> None:
        """`account`: of what answers take."""
        self.socket = stream.socket
        self._stream: trio.SocketStream | TlsStream = stream
        self._account = account

    def secure(self, stream: TlsStream) -> None:
        """From now on what is said goes through this one."""
        self._stream = stream

    @property
    def is_encrypted(self) -> bool:
        """Whether it is TLS."""
        return isinstance(self._stream, TlsStream)

    async def send_all(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), SEND_BYTES):
            with trio.move_on_after(CROWDED_STALL_S if self._account.is_waited_for else SEND_STALL_S) as scope:
                await self._stream.send_all(view[start : start + SEND_BYTES])
            if scope.cancelled_caught:
                log.warning("a client takes nothing of its answer: its connection is closed")
                await self.cut()
                raise trio.BrokenResourceError

    async def receive_some(self, max_bytes: int) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def cut(self) -> None:
        """Whoever is sending, or waiting for more, is told that it is closed."""
        await trio.aclose_forcefully(self._stream)


class SmallPieces:
    """The turns of those who send in small pieces."""

    def __init__(self) -> None:
        self._next_s = -math.inf

    async def wait(self) -> None:
        """Wait for the next turn, behind all who wait already."""
        self._next_s = max(self._next_s + 1 / PIECES_PER_S, trio.current_time())
        await trio.sleep_until(self._next_s)


class _Requests(h11.Connection):
    """Reads requests, and refuses what two readers might understand differently."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check(event)
        return event


def _check(request: h11.Request) -> None:
    names = [name for name, _ in request.headers]
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("HTTP/1.1 is spoken here", 505)
    if len(names) > HEADERS_MOST:
        raise h11.RemoteProtocolError(f"{len(names)} headers; {HEADERS_MOST} at most", 431)
    if b"transfer-encoding" in names and b"content-length" in names:
        raise h11.RemoteProtocolError("the length of the body is told in two ways", 400)


class _Gone(Exception):
    """The client says nothing more: no further request of it is begun."""


class _NextRequest(EventWrapper):
    """Set when the next request may be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self._has_gone = False

    async def wait(self) -> None:
        await super().wait()
        if self._has_gone:
            raise _Gone

    async def leave(self) -> None:
        """There is none any more."""
        self._has_gone = True
        await self.set()

    async def clear(self) -> None:
        if not self._has_gone:
            await super().clear()


class _Http1(H11Protocol):
    def __init__(self, app: Any, config: Config, *args: Any) -> None:
        super().__init__(app, config, *args)
        self.can_read: _NextRequest = _NextRequest()
        self.connection = _Requests(h11.SERVER, max_incomplete_event_size=config.h11_max_incomplete_size)

    @property
    def has_half(self) -> bool:
        """Whether something came that is no whole request yet."""
        return bool(self.connection.trailing_data[0])

    @property
    def has_half_body(self) -> bool:
        """Whether a request came whose body has not come whole."""
        return bool(self.connection.their_state is h11.SEND_BODY)

    async def _check_protocol(self, event: h11.Request) -> None:
        """No other protocol is begun, whatever is asked for."""


class _Connection(TCPServer):
    """`on_idle(whether it is)`: told when a request begins, and when all of its answer is out."""

    protocol: _Http1  # type: ignore[assignment]

    def __init__(self, *args: Any, on_idle: Callable[[bool], None], small_pieces: SmallPieces) -> None:
        super().__init__(*args)
        self._on_idle = on_idle
        self._small_pieces = small_pieces
        self._is_idle = True
        self._head_begun = False
        self._has_ended = False
        """The client says nothing more."""

    async def run(self) -> None:
        socket: Any = self.stream.socket
        try:
            client = parse_socket_addr(socket.family, socket.getpeername())
            server = parse_socket_addr(socket.family, socket.getsockname())
            async with TaskGroup() as tasks:
                self._task_group = tasks
                state = ConnectionState(self.state)
                send = self.protocol_send
                is_tls = self.stream.is_encrypted
                self.protocol = _Http1(self.app, self.config, self.context, tasks, state, is_tls, client, server, send)
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass  # it has gone
        finally:
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            if self._has_ended:
                return  # its last answer is out: the idle time would be waited out with nobody there
            self._is_idle = event.idle
            self._head_begun = False
            self._on_idle(event.idle)
        await super().protocol_send(event)

    async def _read_data(self) -> None:
        """Read a little ahead of what is handled: a client that has gone is noticed while requests that it sent one
        behind the other wait, and those are not begun."""
        ahead, pieces = trio.open_memory_channel[bytes](READ_AHEAD)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._handle_data, pieces)
            async with ahead:
                while data := await self._receive():
                    await ahead.send(data)
            self._has_ended = True
            nursery.cancel_scope.deadline = trio.current_time() + GRACE_S
            await self.protocol.can_read.leave()
        await self.idle_task.stop()
        await self.protocol.handle(Closed())

    async def _receive(self) -> bytes:
        """What comes next; nothing: that was all."""
        while True:
            try:
                with trio.fail_after(self.config.read_timeout or math.inf):
                    return bytes(await self.stream.receive_some(MAX_RECV))
            except trio.TooSlowError:
                if self._is_idle:
                    return b""  # a client whose answer is under way has nothing to say
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                return b""

    async def _handle_data(self, pieces: trio.MemoryReceiveChannel[bytes]) -> None:
        with suppress(_Gone, OSError):
            async for data in pieces:
                await self.protocol.handle(RawData(data))
                if self._is_idle and not self._head_begun and self.protocol.has_half:
                    self._head_begun = True
                    await self.idle_task.restart(self._task_group, self._head_timeout)
                if len(data) < SMALL_BYTES and (self._head_begun or self.protocol.has_half_body):
                    await self._small_pieces.wait()
        async for _ in pieces:
            pass  # it is of no request that is looked at

    async def _head_timeout(self) -> None:
        with trio.move_on_after(HEAD_S):
            await self.context.terminated.wait()
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()


class HttpServer:
    """Accepts connections up to the limit, see above; one for which there is no place is told so and closed."""

    def __init__(
        self,
        app: Any,
        connections: int,
        account: Account,
        tls: TlsPort | None = None,
        client_name_of: str = SUBJECT,
    ) -> None:
        """`tls`: None: it speaks none. `client_name_of`: what of a client's certificate is its name."""
        self._tls = tls
        self._client_name_of = client_name_of
        self._account = account
        self._app = wrap_app(app, 0, "asgi")
        self._config = _config()
        self._context = WorkerContext(None)
        self._open: OpenConnections[_Stream] = OpenConnections(connections, SPARE_PLACES)
        self._small_pieces = SmallPieces()
        self._refused = 0
        """Connections without a place that take their answer."""
        self._none_left = trio.Event()

    async def serve(self, listeners: list[trio.SocketListener], ending: anyio.Event) -> None:
        """Until `ending`, and until what is under way then is done, or its time is over."""
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                serve = partial(trio.serve_listeners, self._serve, listeners, handler_nursery=connections)
                accepting.start_soon(serve)
                await ending.wait()
                accepting.cancel_scope.cancel()
            await self._context.terminated.set()
            connections.start_soon(self._end, connections.cancel_scope)

    async def _end(self, scope: trio.CancelScope) -> None:
        if self._open:
            with trio.move_on_after(GRACE_S):
                await self._none_left.wait()
        scope.deadline = trio.current_time() + GRACE_S
        for stream in list(self._open):
            await stream.cut()
        scope.cancel()

    async def _serve(self, accepted: trio.SocketStream) -> None:
        try:
            address = str(accepted.socket.getpeername()[0])
        except OSError:
            await trio.aclose_forcefully(accepted)
            return
        stream, source = _Stream(accepted, self._account), source_of(address)
        has_place, given_up = self._open.add(stream, source)
        if given_up is not None:
            await given_up.cut()
        if not has_place:
            await self._refuse(accepted, FULL)
            return

        def on_idle(is_idle: bool) -> None:
            self._open.set_idle(stream, is_idle)

        try:
            session = None if self._tls is None else await self._tls.greet(accepted, source)
            name = None
            if session is not None:
                stream.secure(TlsStream(accepted, session))
                name = client_name(session.certificate, self._client_name_of)
            known = {CERTIFICATE_NAME: name, IS_ENCRYPTED: session is not None}
            state = ConnectionState({NO_PLACE: self._open.is_spare(stream), **known})
            of_server = self._app, self._config, self._context
            connection = _Connection(*of_server, state, stream, on_idle=on_idle, small_pieces=self._small_pieces)
            await connection.run()
        except WrongPort:
            await self._refuse(accepted, PLAIN)
        except SandqError as error:
            log.debug("a client was not let in", error=error.message)
        except Exception:
            # A fault in one connection must not take the others with it; the log has it whole.
            log.exception("an HTTP connection ended with an unexpected error")
        finally:
            self._open.remove(stream)
            if not self._open and self._context.terminated.is_set():
                self._none_left.set()
            await stream.cut()

    async def _refuse(self, accepted: trio.SocketStream, answer: bytes) -> None:
        if self._refused < REFUSED_MOST:
            self._refused += 1
            try:
                with trio.move_on_after(REFUSED_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await accepted.send_all(answer)
                    await accepted.send_eof()
                    while await accepted.receive_some(65_536):
                        pass  # what is left unread would take the answer away from the client
            finally:
                self._refused -= 1
        else:
            with suppress(OSError):
                os.write(accepted.socket.fileno(), answer)
        await trio.aclose_forcefully(accepted)


@asynccontextmanager
async def serve_http(
    listeners: list[trio.SocketListener],
    settings: HttpSettings,
    limits: Limits,
    node: Node,
    observe: Observe,
    account: Account,
    tls: TlsPort | None = None,
    client_name_of: str = SUBJECT,
) -> AsyncIterator[None]:
    """Serves inside the block. The client port must be served already: what is asked here is asked there."""
    async with running_app(settings, limits, node, observe, account) as running, trio.open_nursery() as nursery:
        server = HttpServer(running.app, limits.http_connections, account, tls, client_name_of)
        nursery.start_soon(server.serve, listeners, running.ending)
        try:
            yield
        finally:
            running.ending.set()


def _config() -> Config:
    config = Config()
    config.errorlog = logging.getLogger("sandq.http.server")
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.h11_max_incomplete_size = HEAD_BYTES
    config.keep_alive_timeout = IDLE_S
    config.read_timeout = READ_S
    return config
