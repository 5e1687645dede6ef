"""The UDP socket of gossip. What cannot be sent at once is lost, as datagrams are."""

from __future__ import annotations

import errno
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import trio

from sandq.gossip.packets import RECEIVE_BYTES
from sandq.model.config_schema import Address
from sandq.model.errors import StartupError

BUFFER_BYTES = 1 << 20
"""Asked of the kernel for what arrives: a member that stood still for a while finds all of it."""


class Datagrams:
    """`address`: where it is bound."""

    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound
        self._is_v6 = bound.family == socket.AF_INET6
        host, port = bound.getsockname()[:2]
        self.address = Address(host, port)

    def receive(self) -> tuple[bytes, Address] | None:
        """One that has arrived; None when there is none."""
        try:
            datagram, source = self._socket.recvfrom(RECEIVE_BYTES)
        except OSError:
            # Nothing is there; or an earlier one met a closed port or no route: the kernel says so here, and it
            # concerns nothing that arrived.
            return None
        return datagram, Address(unmapped(source[0]), source[1])

    def send(self, datagram: bytes, to: Address) -> bool:
        """Whether the kernel took it."""
        host = to.host
        if self._is_v6 and ":" not in host:
            host = f"::ffff:{host}"
        try:
            self._socket.sendto(datagram, (host, to.port))
        except OSError:  # no room, no route, nobody there: to the protocol all of them are silence
            return False
        return True

    async def readable(self) -> None:
        await trio.lowlevel.wait_readable(self._socket)

    def close(self) -> None:
        self._socket.close()


def unmapped(host: str) -> str:
    """An IPv4 address in IPv6 as an IPv4 one: members know each other by one text."""
    if not host.startswith("::ffff:"):
        return host
    address: IPv4Address | IPv6Address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


async def open_both(address: Address) -> tuple[Datagrams, list[trio.SocketListener]]:
    """UDP and TCP on one port (0: any that is free for both). StartupError that says which setting to change."""
    for _ in range(FREE_PORT_ATTEMPTS if address.port == 0 else 1):
        listeners = await _listen(address)
        host, port = listeners[0].socket.getsockname()[:2]
        family = listeners[0].socket.family
        try:
            return Datagrams(_bind(family, host, port)), listeners
        except OSError as error:
            for listener in listeners:
                listener.socket.close()
            if error.errno != errno.EADDRINUSE or address.port:
                raise _cannot(address, error, "udp") from None
    raise StartupError("no port is free for both UDP and TCP: set listen.gossip")


FREE_PORT_ATTEMPTS = 20


async def _listen(address: Address) -> list[trio.SocketListener]:
    try:
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as error:
        raise _cannot(address, error, "tcp") from None
    # A name may stand for several addresses; gossip has one.
    for listener in listeners[1:]:
        listener.socket.close()
    return listeners[:1]


def _bind(family: int, host: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _cannot(address: Address, error: OSError, what: str) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        return StartupError(
            f"{address} ({what}) is in use by another process: stop it, or set listen.gossip to another port"
        )
    return StartupError(f"cannot listen on {address} ({what}, listen.gossip): {error.strerror or error}")
