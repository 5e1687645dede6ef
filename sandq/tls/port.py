"""Accept connections on a port: plain, TLS, or both. The first byte of a client shows whether it uses TLS."""

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
"""Timeout in s for the first byte of a client."""
PLAIN: Final = "plain"
"""Value of `speaks` in `WrongPort` for a client that does not use TLS."""


class TlsPort:
    """TLS of one port. `mode`: the port's TLS setting. `context`: returns the current context."""

    def __init__(self, mode: str, context: Callable[[], ssl.SSLContext], handshakes: Handshakes) -> None:
        self.mode = mode
        self._context = context
        self._handshakes = handshakes

    async def greet(self, stream: trio.SocketStream, source: str) -> TlsSession | None:
        """Do the handshake with a client. Return None if the client does not use TLS, and the port allows that.

        Raise WrongPort if the client does not use TLS, but must; its bytes are then still in the socket. Raise TlsError
        if the handshake fails, Overloaded if too many handshakes are in progress, ConnectionLost if the connection
        breaks or is too slow."""
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
