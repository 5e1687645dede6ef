"""Listens for clients."""

from __future__ import annotations

import errno
from collections.abc import Callable

import structlog
import trio

from sandq.model.errors import Overloaded, StartupError
from sandq.model.limits import Limits
from sandq.protocol.frames import encode_error

from .connection import Connection, Session

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

    def __init__(self, make_session: Callable[[Connection], Session], limits: Limits, http_address: str) -> None:
        self._make_session = make_session
        self._limits = limits
        self._http_address = http_address
        self._open = 0

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        if self._open >= self._limits.connections:
            error = Overloaded(f"this node has {self._open} connections, which is its limit; try again later")
            with trio.move_on_after(1):
                await stream.send_all(encode_error(0, error))
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            await Connection(stream, self._limits, self._http_address).run(self._make_session)
        except Exception:
            # A fault of ours in one connection must not take the others with it; the log has it whole.
            log.exception("a connection ended with an unexpected error")
        finally:
            self._open -= 1
