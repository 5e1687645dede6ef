"""Connections of HTTP: as many as are allowed, each ended when its client takes nothing, all of them at the end.

Hypercorn speaks the protocol: HTTP/1 and nothing else, read strictly. It shields what it sends from being cancelled, so
a client that reads nothing is cut off here, below it.

When there is no place left, the connection goes that has been without a request for longest: who floods a node with
connections, or with halves of requests, loses those. When all have requests, a few more are taken, for which health and
metrics are answered alone.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

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
from sandq.server.http.guards import NO_PLACE
from sandq.server.http.places import Places

log = structlog.get_logger("sandq.http")

SEND_BYTES = 262_144
SEND_STALL_S = 30.0
"""A client that does not take a piece of `SEND_BYTES` for so long is cut off ..."""
CROWDED_STALL_S = 2.0
"""... and for so long, while others wait because there is too much that is not taken."""
HEAD_S = 10.0
"""The rest of a request's head has so long to come after its first bytes."""
HEADERS_MOST: Final = 100
"""Of a request."""
READ_AHEAD: Final = 1
"""Pieces that were received and are not looked at, while a request is under way: those of the requests behind it."""
SPARE_PLACES: Final = 16
"""Beyond the limit, for who asks for health and metrics."""
GRACE_S = 3.0
"""Requests under way when the node stops have so long, and their answers as long again to be taken."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 45\r\n\r\nthis node has no room for another connection\n"
)


class _Stream:
    """A client's socket, as Hypercorn uses it."""

    def __init__(self, stream: trio.SocketStream, account: Account) -> None:
        """`account`: of what answers take."""
        self.socket = stream.socket
        self._stream = stream
        self._account = account

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

    async def _check_protocol(self, event: h11.Request) -> None:
        """No other protocol is begun, whatever is asked for."""


class _Connection(TCPServer):
    """`on_idle(whether it is)`: told when a request begins, and when all of its answer is out."""

    protocol: _Http1  # type: ignore[assignment]

    def __init__(self, *args: Any, on_idle: Callable[[bool], None]) -> None:
        super().__init__(*args)
        self._on_idle = on_idle
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
                self.protocol = _Http1(self.app, self.config, self.context, tasks, state, False, client, server, send)
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
        try:
            with trio.fail_after(self.config.read_timeout or math.inf):
                return bytes(await self.stream.receive_some(MAX_RECV))
        except (trio.ClosedResourceError, trio.BrokenResourceError, trio.TooSlowError):
            return b""

    async def _handle_data(self, pieces: trio.MemoryReceiveChannel[bytes]) -> None:
        with suppress(_Gone, OSError):
            async for data in pieces:
                await self.protocol.handle(RawData(data))
                if self._is_idle and not self._head_begun and self.protocol.has_half:
                    self._head_begun = True
                    await self.idle_task.restart(self._task_group, self._head_timeout)
        async for _ in pieces:
            pass  # it is of no request that is looked at

    async def _head_timeout(self) -> None:
        with trio.move_on_after(HEAD_S):
            await self.context.terminated.wait()
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()


class HttpServer:
    """Accepts connections up to the limit, see above; one for which there is no place is told so and closed."""

    def __init__(self, app: Any, config: Config, connections: int, account: Account) -> None:
        self._account = account
        self._app = wrap_app(app, 0, "asgi")
        self._config = config
        self._places = Places(connections)
        self._spare = Places(SPARE_PLACES)
        self._context = WorkerContext(None)
        self._open: set[_Stream] = set()
        self._idle: OrderedDict[_Stream, tuple[Places, str]] = OrderedDict()
        """Those that have no request, with their places and addresses; first who has had none for longest."""
        self._none_left = trio.Event()

    async def serve(self, listeners: list[trio.SocketListener], ending: trio.Event) -> None:
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
        places = await self._place(address)
        if places is None:
            await _refuse(accepted)
            return
        stream = _Stream(accepted, self._account)

        def on_idle(is_idle: bool) -> None:
            self._idle.pop(stream, None)
            if is_idle and stream in self._open:
                self._idle[stream] = places, address

        self._open.add(stream)
        on_idle(True)
        try:
            state = ConnectionState({NO_PLACE: places is self._spare})
            await _Connection(self._app, self._config, self._context, state, stream, on_idle=on_idle).run()
        except Exception:
            # A fault in one connection must not take the others with it; the log has it whole.
            log.exception("an HTTP connection ended with an unexpected error")
        finally:
            if stream in self._open:
                self._forget(stream, places, address)
            if not self._open and self._context.terminated.is_set():
                self._none_left.set()
            await stream.cut()

    async def _place(self, address: str) -> Places | None:
        """Where a connection has found a place; None: nowhere."""
        for places in (self._places, self._spare):
            if places.take(address) or (await self._end_idle(places, address) and places.take(address)):
                return places
        return None

    async def _end_idle(self, places: Places, address: str) -> bool:
        """End the connection that has been without a request for longest, if there is one; of an address that has its
        share one of its own."""
        own = not places.has_share(address)
        for stream, (where, of) in self._idle.items():
            if where is places and (of == address or not own):
                self._forget(stream, where, of)
                await stream.cut()
                return True
        return False

    def _forget(self, stream: _Stream, places: Places, address: str) -> None:
        self._open.discard(stream)
        self._idle.pop(stream, None)
        places.give(address)


async def _refuse(accepted: trio.SocketStream) -> None:
    with trio.move_on_after(1), suppress(trio.BrokenResourceError):
        await accepted.send_all(_FULL)
        await accepted.send_eof()
        while await accepted.receive_some(65_536):
            pass  # what is left unread would take the answer away from the client
    await trio.aclose_forcefully(accepted)
