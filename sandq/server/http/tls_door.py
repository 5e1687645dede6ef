"""TLS of HTTP in a process of its own, on asyncio: accepts connections, looks whether they begin a handshake, and hands
them on.

The handshake itself is uvloop's, which does not tell what it costs: it counts as much as one that was tried when the
certificates were read.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import anyio
import structlog

from sandq.model.config_tls import REQUIRE, TlsSection
from sandq.model.errors import SandqError
from sandq.model.sources import source_of
from sandq.tls.budget import HANDSHAKE_S, Handshakes
from sandq.tls.certificates import Certificates, Loaded
from sandq.tls.port import FIRST_BYTE_S
from sandq.tls.session import TlsSession
from sandq.tls.stream import FIRST_BYTE

log = structlog.get_logger("sandq.http")

COST_S: Final = 0.001
"""Of a handshake that could not be tried."""
SHUTDOWN_S: Final = 3.0
"""For the other side to take the words that end TLS."""
FULL_PAUSE_S: Final = 0.1
"""Before more is accepted, when this process may open no more files."""

Make = Callable[[bool], asyncio.BaseProtocol]
"""The protocol of a connection; whether it is refused because it is plain."""


class TlsDoor:
    """Of one server."""

    def __init__(self, settings: TlsSection, certificates: Certificates) -> None:
        self._mode = settings.http
        self.client_name = settings.client_name
        self.certificates = certificates
        self._cost: tuple[Loaded, float] | None = None

    @property
    def requires_tls(self) -> bool:
        """Whether clients that speak plain are refused."""
        return self._mode == REQUIRE

    @cached_property
    def handshakes(self) -> Handshakes:
        """Of the loop that serves."""
        return Handshakes()

    async def serve(self, listener: socket.socket, make: Make) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listener)
                except OSError:
                    await anyio.sleep(FULL_PAUSE_S)
                else:
                    tasks.start_soon(self._let_in, accepted, make)

    async def _let_in(self, accepted: socket.socket, make: Make) -> None:
        try:
            source = source_of(str(accepted.getpeername()[0]))
            async with self.handshakes.place(source) as place:
                if not await self._hand_on(accepted, make, source, place):
                    accepted.close()
        except (OSError, SandqError, ConnectionError, TimeoutError) as error:
            accepted.close()
            log.debug("a client was not let in", error=str(error))
        except Exception:
            # A fault in one connection must not take the others with it; the log has it whole.
            accepted.close()
            log.exception("a handshake ended with an unexpected error")
        except BaseException:
            accepted.close()
            raise

    async def _hand_on(self, accepted: socket.socket, make: Make, source: str, place: anyio.CancelScope) -> bool:
        """False: it is not needed."""
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = b""
        with anyio.move_on_after(FIRST_BYTE_S):
            head = await _first_byte(accepted)
        if not head:
            return False
        loop = asyncio.get_running_loop()
        if head[0] != FIRST_BYTE:
            await loop.connect_accepted_socket(lambda: make(self.requires_tls), accepted)
            return True
        handshakes, loaded = self.handshakes, self.certificates.loaded
        await handshakes.turn(source, place)
        handshakes.spent(source, self._cost_of(loaded))
        try:
            await loop.connect_accepted_socket(
                lambda: make(False),
                accepted,
                ssl=loaded.http,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except Exception:
            handshakes.failed += 1
            raise
        handshakes.done += 1
        return True

    def _cost_of(self, loaded: Loaded) -> float:
        if self._cost is None or self._cost[0] is not loaded:
            self._cost = loaded, cost_of(loaded)
        return self._cost[1]


async def _first_byte(accepted: socket.socket) -> bytes:
    """What a client says first stays where it is; nothing: it says nothing."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(accepted.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(accepted.fileno())
    try:
        return accepted.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def cost_of(loaded: Loaded) -> float:
    """The CPU time of a handshake's expensive step at this side, in seconds: it is done once, with itself."""
    server, client = TlsSession(loaded.http, is_server=True), TlsSession(loaded.dial, is_server=False)
    with suppress(SandqError, ssl.SSLError):
        client.greet()
        return server.greet(client.words())
    return COST_S


def certificate_of(transport: Any) -> bytes | None:
    """The certificate that a client has shown; None: there is no TLS."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else tls.getpeercert(True) or b""
