"""Binds the sockets on which a node listens."""

from __future__ import annotations

import errno

import trio

from sandq.model.errors import StartupError


async def listen(host: str, port: int, what: str) -> list[trio.SocketListener]:
    """Listen on each address of a host. `what`: the key of the setting. Raises StartupError that names it."""
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"{host}:{port} is in use by another process: stop it, or set listen.{what} to another port"
            ) from None
        raise StartupError(f"cannot listen on {host}:{port} (listen.{what}): {error.strerror or error}") from None
