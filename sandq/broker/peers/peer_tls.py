"""TLS between nodes.

Both sides show certificates that the cluster's certificate authorities have signed. Each side checks that the
certificate of the other side matches its node id. After TLS, the peer handshake (`handshake.py`) runs inside the TLS
connection.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from sandq.broker.peers.handshake import Refusal
from sandq.broker.peers.stream import PeerStream
from sandq.model.config_tls import ACCEPT, REQUIRE
from sandq.model.errors import Overloaded
from sandq.model.sources import source_of
from sandq.tls.budget import Handshakes
from sandq.tls.certificates import Certificates
from sandq.tls.names import is_of_node
from sandq.tls.session import TlsError
from sandq.tls.stream import TlsStream, let_in, reach, speaks_tls


class PeerTls:
    """TLS of the peer port. `mode`: `accept`, `send` or `require`."""

    def __init__(self, mode: str, certificates: Certificates, handshakes: Handshakes) -> None:
        self.mode = mode
        self._certificates = certificates
        self._handshakes = handshakes

    @property
    def is_required(self) -> bool:
        """True if connections without TLS are refused."""
        return self.mode == REQUIRE

    async def reach(self, stream: PeerStream, socket_stream: trio.SocketStream, node_id: str) -> None:
        """Do the TLS handshake with a node that this node has dialled. From then on, `stream` uses TLS.

        If the mode is `accept`, do nothing: this node dials without TLS.

        Raise Refusal, ConnectionLost."""
        if self.mode == ACCEPT:
            return
        try:
            session = await reach(socket_stream, self._certificates.loaded.dial)
        except TlsError as error:
            raise Refusal("tls", f"TLS with {node_id} fails: {error.message}") from None
        if not is_of_node(session.certificate, node_id):
            raise Refusal("certificate", f"the certificate that is shown there does not belong to {node_id}")
        stream.secure(TlsStream(socket_stream, session))

    async def let_in(
        self, stream: PeerStream, socket_stream: trio.SocketStream, host: str, is_known: bool
    ) -> Callable[[str], bool] | None:
        """If the other side starts TLS on an accepted connection, do the TLS handshake. Then `stream` uses TLS.

        Return a function (node id) -> whether the certificate of the other side belongs to that node. Return None if
        the connection has no TLS. `is_known`: the connection comes from a known peer, so its handshake need not wait
        for handshakes of unknown sources. Raise Refusal, ConnectionLost."""
        if not await speaks_tls(socket_stream):
            return None
        handshakes = None if is_known else self._handshakes
        try:
            session = await let_in(socket_stream, self._certificates.loaded.peer, handshakes, source_of(host))
        except TlsError as error:
            raise Refusal("tls", f"TLS fails: {error.message}") from None
        except Overloaded as error:
            raise Refusal("tls", error.message) from None
        stream.secure(TlsStream(socket_stream, session))
        certificate = session.certificate
        return lambda node_id: is_of_node(certificate, node_id)
