"""Bind and open the listening sockets of a node."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Final

import trio

from sandq.model.config_types import Address
from sandq.model.errors import StartupError

BACKLOG: Final = 65_535
"""Maximum number of connections that wait to be accepted. The system's own limit is `net.core.somaxconn`."""


class BoundPort:
    """Sockets that are bound, but do not listen yet: until then the system refuses connections."""

    def __init__(self, sockets: Sequence[trio.socket.SocketType], setting: str) -> None:
        """`setting`: key of the setting, below `listen`."""
        self._sockets = list(sockets)
        self._setting = setting
        self.address = Address(*sockets[0].getsockname()[:2])

    def listen(self) -> list[trio.SocketListener]:
        """Start to listen. Raise StartupError if another process listens on the port by now."""
        try:
            for one in self._sockets:
                one.listen(BACKLOG)
        except OSError as error:
            raise _refusal(self.address, self._setting, error) from None
        return [trio.SocketListener(one) for one in self._sockets]

    def close(self) -> None:
        """Close the sockets."""
        for one in self._sockets:
            one.close()


class PortInUse(StartupError):
    """Another process uses the address on which the node should listen."""


async def bind(host: str, port: int, setting: str) -> BoundPort:
    """Bind a port on each address of a host. `setting`: its key. Raise StartupError, which names the setting."""
    sockets: list[trio.socket.SocketType] = []
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            try:
                one = trio.socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue  # the name has an address of a family that this machine does not support
                raise
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            await one.bind(address)
    except BaseException as error:  # including cancellation: trio's `bind` is a checkpoint
        for one in sockets:
            one.close()
        if isinstance(error, OSError):
            raise _refusal(Address(host, port), setting, error) from None
        raise
    return BoundPort(sockets, setting)


async def listen(host: str, port: int, setting: str) -> list[trio.SocketListener]:
    """Listen on each address of a host. `setting`: its key. Raise StartupError, which names the setting."""
    bound = await bind(host, port, setting)
    try:
        return bound.listen()
    except StartupError:
        bound.close()
        raise


def _refusal(address: Address, setting: str, error: OSError) -> StartupError:
    """Return the error for an address on which the node cannot listen."""
    at = f"{address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"{at} is in use by another process: stop it, or set listen.{setting} to another port")
    return StartupError(f"cannot listen on {at} (listen.{setting}): {error.strerror or error}")
