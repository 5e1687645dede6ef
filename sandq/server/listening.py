"""Bind and open the listening sockets of a node."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from sandq.model.config_types import Address
from sandq.model.errors import InvalidRequest, StartupError
from sandq.model.ports import UNIX
from sandq.model.unix_sockets import reachable
from sandq.storage.files import FILE_MODE
from sandq.storage.forks import close_in_children

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
            return [_listening(one) for one in self._sockets]
        except OSError as error:
            raise _refusal(self.address, self._setting, error) from None

    def close(self) -> None:
        """Close the sockets."""
        for one in self._sockets:
            one.close()


class LocalPort(BoundPort):
    """A Unix socket that is bound. Only the user whom the node runs as, and root, may connect to it."""

    def __init__(self, one: trio.socket.SocketType, path: Path) -> None:
        self._sockets = [one]
        self._path = path
        self.address = Address(f"{UNIX}{path}", 0)
        close_in_children(one)

    def listen(self) -> list[trio.SocketListener]:
        """Start to listen. Raise StartupError."""
        try:
            return [_listening(one) for one in self._sockets]
        except OSError as error:
            raise _local_refusal(self._path, error) from None

    def close(self) -> None:
        """Close the socket, and remove its path."""
        super().close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


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


def bind_local(path: Path) -> LocalPort:
    """Bind a Unix socket at an absolute path. Raise StartupError.

    A socket of this path that a killed node has left is replaced. The caller has locked the directory."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with reachable(str(path)) as short:
            one.bind(short)
        path.chmod(FILE_MODE)  # before it listens: until then nothing can connect
    except BaseException as error:
        one.close()
        if isinstance(error, OSError):
            raise _local_refusal(path, error) from None
        if isinstance(error, InvalidRequest):
            raise StartupError(error.message) from None
        raise
    return LocalPort(trio.socket.from_stdlib_socket(one), path)


async def listen(host: str, port: int, setting: str) -> list[trio.SocketListener]:
    """Listen on each address of a host. `setting`: its key. Raise StartupError, which names the setting."""
    bound = await bind(host, port, setting)
    try:
        return bound.listen()
    except StartupError:
        bound.close()
        raise


def _listening(one: trio.socket.SocketType) -> trio.SocketListener:
    one.listen(BACKLOG)
    return trio.SocketListener(one)


def _local_refusal(path: Path, error: OSError) -> StartupError:
    """Return the error for a Unix socket on which the node cannot listen."""
    return StartupError(f"cannot listen on the Unix socket {path}: {error.strerror or error}")


def _refusal(address: Address, setting: str, error: OSError) -> StartupError:
    """Return the error for an address on which the node cannot listen."""
    at = f"{address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"{at} is in use by another process: stop it, or set listen.{setting} to another port")
    return StartupError(f"cannot listen on {at} (listen.{setting}): {error.strerror or error}")
