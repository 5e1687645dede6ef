"""The UDP socket of gossip. A datagram that cannot be sent at once is lost, as any datagram may be."""

from __future__ import annotations

import errno
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import trio

from sandq.gossip.packets import RECEIVE_BYTES
from sandq.model.config_schema import Address
from sandq.model.errors import StartupError

BUFFER_BYTES = 1 << 20
"""Receive buffer requested from the kernel: it keeps the datagrams that arrive while the process is stalled."""


class Datagrams:
    """The UDP socket. `address`: the address that it is bound to."""

    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound
        self._is_v6 = bound.family == socket.AF_INET6
        host, port = bound.getsockname()[:2]
        self.address = Address(host, port)

    def receive(self) -> tuple[bytes, Address] | None:
        """Return a received datagram and its source; None if there is none."""
        try:
            datagram, source = self._socket.recvfrom(RECEIVE_BYTES)
        except OSError:
            # There is no datagram, or the kernel reports that a datagram sent earlier met a closed port or no route.
            return None
        return datagram, Address(unmapped(source[0]), source[1])

    def send(self, datagram: bytes, to: Address) -> bool:
        """Send a datagram; return whether the kernel accepted it."""
        host = to.host
        if self._is_v6 and ":" not in host:
            host = f"::ffff:{host}"
        try:
            self._socket.sendto(datagram, (host, to.port))
        except OSError:  # no buffer space, no route, no receiver: the protocol treats all of these as silence
            return False
        return True

    async def readable(self) -> None:
        await trio.lowlevel.wait_readable(self._socket)

    def close(self) -> None:
        self._socket.close()


def unmapped(host: str) -> str:
    """Return an IPv4-mapped IPv6 address as IPv4: each member must have only one text form."""
    if not host.startswith("::ffff:"):
        return host
    address: IPv4Address | IPv6Address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


async def open_both(address: Address) -> tuple[Datagrams, list[trio.SocketListener]]:
    """Open UDP and TCP on one port (0: any port that is free for both). Raises StartupError with the setting to
    change."""
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
    # A name may stand for several addresses; gossip listens on the first one.
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


def _cannot(address: Address, error: OSError, protocol: str) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        return StartupError(
            f"{address} ({protocol}) is in use by another process: stop it, or set listen.gossip to another port"
        )
    return StartupError(f"cannot listen on {address} ({protocol}, listen.gossip): {error.strerror or error}")
