"""How a port lets others in: plain, by TLS, or either, which the first byte tells apart."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import trio

from sandq.model.config_tls import REQUIRE
from sandq.model.errors import ConnectionLost, WrongPort
from sandq.tls.budget import Handshakes
from sandq.tls.session import TlsSession
from sandq.tls.stream import let_in, speaks_tls

FIRST_BYTE_S: Final = 10.0
"""Whoever connects has said something by then, in seconds."""
PLAIN: Final = "plain"
"""What who is told so speaks."""


class TlsPort:
    """Of one port. `context`: that of now."""

    def __init__(self, mode: str, context: Callable[[], ssl.SSLContext], handshakes: Handshakes) -> None:
        self.mode = mode
        self._context = context
        self._handshakes = handshakes

    async def greet(self, stream: trio.SocketStream, source: str) -> TlsSession | None:
        """Shake hands with who connected; None: it speaks plain, and may. Raises WrongPort (it speaks plain, and may
        not: what it said is still in the socket), TlsError, Overloaded, ConnectionLost."""
        try:
            with trio.fail_after(FIRST_BYTE_S):
                is_tls = await speaks_tls(stream)
        except trio.TooSlowError:
            raise ConnectionLost(f"nothing was said within {FIRST_BYTE_S:g} s") from None
        if is_tls:
            return await let_in(stream, self._context(), self._handshakes, source)
        if self.mode == REQUIRE:
            raise WrongPort("this port requires TLS", speaks=PLAIN)
        return None
