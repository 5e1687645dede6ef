"""Accept HTTP connections with TLS on asyncio: check whether a client begins a handshake, and start its protocol.

uvloop does the handshake, and does not report its cost. Each handshake is charged the CPU time of a trial handshake,
which was measured when the certificates were loaded.
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

from sandq.model.config_tls import REQUIRE, TlsSection
from sandq.model.errors import SandqError
from sandq.model.logger import get_logger
from sandq.model.sources import source_of
from sandq.tls.budget import HANDSHAKE_S, Handshakes
from sandq.tls.certificates import Certificates, Loaded
from sandq.tls.port import FIRST_BYTE_S
from sandq.tls.session import TlsSession
from sandq.tls.stream import FIRST_BYTE

log = get_logger("sandq.http")

COST_S: Final = 0.001
"""Assumed CPU time of a handshake if the trial failed, in seconds."""
SHUTDOWN_S: Final = 3.0
"""Time for the client to answer the end of TLS, in seconds."""
FULL_PAUSE_S: Final = 0.1
"""Pause before the next connection is accepted if this process cannot open more files, in seconds."""

Make = Callable[[bool], asyncio.BaseProtocol]
"""Creates the protocol of a connection. The argument says whether it is refused because it does not use TLS."""


class TlsListener:
    """Accepts the connections of one server."""

    def __init__(self, settings: TlsSection, certificates: Certificates) -> None:
        self._mode = settings.http
        self.client_name = settings.client_name
        self.certificates = certificates
        self._cost: tuple[Loaded, float] | None = None

    @property
    def requires_tls(self) -> bool:
        """Whether clients without TLS are refused."""
        return self._mode == REQUIRE

    @cached_property
    def handshakes(self) -> Handshakes:
        """The limits of handshakes, for the loop that serves."""
        return Handshakes()

    async def serve(self, listener: socket.socket, make: Make) -> None:
        """Accept connections until cancelled."""
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
        """Do the TLS handshake of an accepted connection, and start its protocol. Close the socket if that fails."""
        try:
            source = source_of(str(accepted.getpeername()[0]))
            async with self.handshakes.slot(source) as slot:
                if not await self._start_protocol(accepted, make, source, slot):
                    accepted.close()
        except (OSError, SandqError, ConnectionError, TimeoutError) as error:
            accepted.close()
            log.debug("a client was rejected", error=str(error))
        except Exception:
            # An unexpected error in one connection must not end the others. The log has the traceback.
            accepted.close()
            log.exception("a handshake ended with an unexpected error")
        except BaseException:
            accepted.close()
            raise

    async def _start_protocol(self, accepted: socket.socket, make: Make, source: str, slot: anyio.CancelScope) -> bool:
        """Start the protocol of a connection. Return False if the client sends nothing in time: the caller closes
        it."""
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
        await handshakes.wait_for_step(source, slot)
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
        """Return the cost of a handshake with these certificates. Measure it once."""
        if self._cost is None or self._cost[0] is not loaded:
            self._cost = loaded, cost_of(loaded)
        return self._cost[1]


async def _first_byte(accepted: socket.socket) -> bytes:
    """Return the first byte that a client sends, without consuming it; nothing if the client disconnects."""
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
    """Return the CPU time of the expensive step of a handshake on this side, measured by a trial, in seconds."""
    server, client = TlsSession(loaded.http, is_server=True), TlsSession(loaded.dial, is_server=False)
    with suppress(SandqError, ssl.SSLError):
        client.greet()
        return server.greet(client.words())
    return COST_S


def certificate_of(transport: Any) -> bytes | None:
    """Return the certificate of a client: empty if it has shown none, None if the connection does not use TLS."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else tls.getpeercert(True) or b""
