"""Listens for clients."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable

import structlog
import trio

from sandq.broker.memory_budget import MemoryBudget
from sandq.model.caller import ANONYMOUS, Caller
from sandq.model.errors import Overloaded, SandqError, StartupError
from sandq.model.limits import Limits
from sandq.protocol.frames import encode_error
from sandq.server.client_stats import ClientStats
from sandq.server.connection import Connection, Gate, Session
from sandq.server.sender import Sender

log = structlog.get_logger("sandq.server")


async def listen(host: str, port: int, what: str) -> list[trio.SocketListener]:
    """Raises StartupError that says which setting to change."""
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"{host}:{port} is in use by another process: stop it, or set listen.{what} to another port"
            ) from None
        raise StartupError(f"cannot listen on {host}:{port} (listen.{what}): {error.strerror or error}") from None


class ClientServer:
    """Accepts connections up to the limit; one beyond it is told so and closed."""

    def __init__(
        self,
        make_session: Callable[[Connection], Session],
        limits: Limits,
        http_address: str,
        stats: ClientStats | None = None,
        gate: Gate | None = None,
        request_timeout_s: float = math.inf,
        memory: MemoryBudget | None = None,
        sender: Sender | None = None,
    ) -> None:
        self._memory = memory if memory is not None else MemoryBudget(limits.memory_bytes)
        self._request_timeout_s = request_timeout_s
        self._gate = gate
        self._make_session = make_session
        self._limits = limits
        self._http_address = http_address
        self._stats = stats if stats is not None else ClientStats()
        self._sender = sender if sender is not None else Sender()

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sender.run)
            await trio.serve_listeners(self._serve, listeners, handler_nursery=nursery)

    async def _serve(self, stream: trio.SocketStream) -> None:
        stats = self._stats
        if len(stats.open) >= self._limits.connections:
            stats.refused += 1
            error = Overloaded(f"this node has {len(stats.open)} connections, which is its limit; try again later")
            with trio.move_on_after(1):
                await stream.send_all(encode_error(0, error))
            await trio.aclose_forcefully(stream)
            return
        stats.accepted += 1
        # Of the task of this connection, and of those it begins.
        caller = Caller(ANONYMOUS, _peer(stream))
        structlog.contextvars.bind_contextvars(
            connection=stats.accepted, principal=caller.principal, peer=caller.address
        )
        connection = Connection(
            stream,
            self._sender,
            self._limits,
            self._http_address,
            stats,
            self._gate,
            caller,
            self._request_timeout_s,
            self._memory,
        )
        stats.open.add(connection)
        log.debug("a client has connected")
        try:
            await connection.run(self._make_session)
        except Exception:
            # A fault of ours in one connection must not take the others with it; the log has it whole.
            stats.errors[SandqError.code] += 1
            if (held_back := stats.warnings.held_back()) is not None:
                log.exception("a connection ended with an unexpected error", not_logged_before=held_back)
        finally:
            stats.open.discard(connection)
            log.debug("a client has gone")


def _peer(stream: trio.SocketStream) -> str:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "gone"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
