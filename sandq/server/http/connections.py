"""Connections of HTTP: as many as are allowed, each ended when its client takes nothing, all of them at the end.

Hypercorn speaks the protocol. It shields what it sends from being cancelled, so a client that reads nothing is cut off
here, below it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

log = structlog.get_logger("sandq.http")

SEND_BYTES = 262_144
SEND_STALL_S = 30.0
"""A client that does not take a piece of `SEND_BYTES` for so long is cut off."""
GRACE_S = 3.0
"""Requests under way when the node stops have so long, and their answers as long again to be taken."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 45\r\n\r\nthis node has no room for another connection\n"
)


class _Stream:
    """A client's socket, as Hypercorn uses it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket = stream.socket
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), SEND_BYTES):
            with trio.move_on_after(SEND_STALL_S) as scope:
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


class _Connection(TCPServer):
    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()  # else it would wait out the idle time, with nobody there


class HttpServer:
    """Accepts connections up to the limit; one beyond it is told so and closed."""

    def __init__(self, app: Any, config: Config, connections: int) -> None:
        self._app = wrap_app(app, 0, "asgi")
        self._config = config
        self._connections = connections
        self._context = WorkerContext(None)
        self._open: set[_Stream] = set()
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
        if len(self._open) >= self._connections:
            with trio.move_on_after(1), suppress(trio.BrokenResourceError):
                await accepted.send_all(_FULL)
                await accepted.send_eof()
                while await accepted.receive_some(65_536):
                    pass  # what is left unread would take the answer away from the client
            await trio.aclose_forcefully(accepted)
            return
        stream = _Stream(accepted)
        self._open.add(stream)
        try:
            state = ConnectionState({})
            await _Connection(self._app, self._config, self._context, state, stream).run()  # type: ignore[arg-type]
        except Exception:
            # A fault in one connection must not take the others with it; the log has it whole.
            log.exception("an HTTP connection ended with an unexpected error")
        finally:
            self._open.discard(stream)
            if not self._open and self._context.terminated.is_set():
                self._none_left.set()
            await stream.cut()
