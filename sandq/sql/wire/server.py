"""The server of MySQL's protocol: accepts connections, and keeps the list of open ones."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskStatus

from sandq.model.sources import source_of
from sandq.sql.budget import Budget
from sandq.sql.duck import Ducks
from sandq.sql.errors import TOO_MANY_CONNECTIONS, SqlError
from sandq.sql.wire import packets, rows
from sandq.sql.wire.connection import Connect, Connection, Settings

log = logging.getLogger("sandq.sql")

CONNECTIONS: Final = 100
"""Default maximum number of connections."""
ARRIVING_SHARE: Final = 4
"""A client address may use at most 1/ARRIVING_SHARE of all connections before it authenticates.

So one address cannot keep all others out.
"""
PORT: Final = 3306
_CLOSE_S: Final = 1.0


class Server:
    """Serves SQL on listeners. Each connection has a separate client of the cluster."""

    def __init__(
        self,
        connect: Connect,
        budget: Budget,
        *,
        connections: int = CONNECTIONS,
        tls: Callable[[], ssl.SSLContext] | None = None,
        needs_tls: bool = False,
    ) -> None:
        """`connect` opens a client with a token. `tls` returns the TLS context for the next connection; None if the
        server does not support TLS. `needs_tls`: connections without TLS are refused."""
        self._most = connections
        self._most_arriving = max(1, connections // ARRIVING_SHARE)
        self._connections: dict[int, Connection] = {}
        self._last = 0
        self._ducks = Ducks(budget)
        self._settings = Settings(
            connect, self._ducks, budget, tls, needs_tls, find=self._connections.get, connections=self.open_connections
        )

    async def serve(
        self, listeners: Sequence[SocketListener], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept connections until cancelled; then close all connections, which cancels their statements."""
        try:
            async with anyio.create_task_group() as tasks:
                for listener in listeners:
                    tasks.start_soon(listener.serve, self._handle)
                task_status.started()
        finally:
            with anyio.CancelScope(shield=True):
                for listener in listeners:
                    await listener.aclose()
            self._ducks.close()

    def open_connections(self) -> list[Connection]:
        """Return all open connections."""
        return list(self._connections.values())

    async def _handle(self, stream: SocketStream) -> None:
        """Serve one connection, unless there are too many, or too many of its source have not authenticated yet."""
        async with stream:
            peer = str(stream.extra(SocketAttribute.remote_address, ("",))[0])
            source = source_of(peer)
            if len(self._connections) >= self._most:
                await _refuse(stream, f"{self._most} are open")
                return
            arriving = sum(
                not one.is_authenticated and source_of(one.peer) == source for one in self._connections.values()
            )
            if arriving >= self._most_arriving:
                await _refuse(stream, f"{arriving} of {source} have not authenticated yet")
                return
            self._last = self._last % 0xFFFFFFFF + 1
            number = self._last
            connection = Connection(stream, number, self._settings, peer)
            self._connections[number] = connection
            try:
                await connection.run()
            except Exception:
                # An unexpected error in one connection must not end the others. The log has the traceback.
                log.exception("a connection failed")
            finally:
                del self._connections[number]


async def _refuse(stream: SocketStream, reason: str) -> None:
    """Send the error that there are too many connections, for at most `_CLOSE_S`."""
    error = SqlError(TOO_MANY_CONNECTIONS, f"Too many connections: {reason}")
    data, _ = rows.framed([packets.error(error)], 0)
    with anyio.move_on_after(_CLOSE_S):
        try:
            await stream.send(data)
        except (OSError, anyio.BrokenResourceError):
            return
