"""Binds the sockets on which a node listens."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Final

import trio

from sandq.model.config_types import Address
from sandq.model.errors import StartupError

BACKLOG: Final = 65_535
"""Connections that may wait to be accepted; the system has a limit of its own (`net.core.somaxconn`)."""


class BoundPort:
    """Sockets that are bound but do not listen yet: the system refuses connections to them."""

    def __init__(self, sockets: Sequence[trio.socket.SocketType], what: str) -> None:
        """`what`: the key of the setting."""
        self._sockets = list(sockets)
        self._what = what
        self.address = Address(*sockets[0].getsockname()[:2])

    def listen(self) -> list[trio.SocketListener]:
        """Listen from now on. Raises StartupError if another process has begun to, in the meantime."""
        try:
            for one in self._sockets:
                one.listen(BACKLOG)
        except OSError as error:
            raise _refusal(self.address, self._what, error) from None
        return [trio.SocketListener(one) for one in self._sockets]

    def close(self) -> None:
        """Close the sockets."""
        for one in self._sockets:
            one.close()


async def bind(host: str, port: int, what: str) -> BoundPort:
    """Take a port on each address of a host. `what`: the key of the setting. Raises StartupError that names it."""
    sockets: list[trio.socket.SocketType] = []
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            try:
                one = trio.socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue  # names may have addresses of a family that this machine does not speak
                raise
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            await one.bind(address)
    except BaseException as error:  # a start is also cancelled here: trio's `bind` is a checkpoint
        for one in sockets:
            one.close()
        if isinstance(error, OSError):
            raise _refusal(Address(host, port), what, error) from None
        raise
    return BoundPort(sockets, what)


async def listen(host: str, port: int, what: str) -> list[trio.SocketListener]:
    """Listen on each address of a host. `what`: the key of the setting. Raises StartupError that names it."""
    bound = await bind(host, port, what)
    try:
        return bound.listen()
    except StartupError:
        bound.close()
        raise


def _refusal(address: Address, what: str, error: OSError) -> StartupError:
    at = f"{address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return StartupError(f"{at} is in use by another process: stop it, or set listen.{what} to another port")
    return StartupError(f"cannot listen on {at} (listen.{what}): {error.strerror or error}")
