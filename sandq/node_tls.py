"""TLS of a node: its ports, its peers, and itself as a client of its cluster (floor F6)."""

from __future__ import annotations

from sandq.broker.peers.peer_tls import PeerTls
from sandq.client.tls import ClientTls
from sandq.model.config import NodeConfig
from sandq.model.config_tls import OFF, REQUIRE
from sandq.tls.budget import Handshakes
from sandq.tls.certificates import Certificates
from sandq.tls.port import TlsPort


class NodeTls:
    """Of a node that speaks TLS anywhere. Raises StartupError."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.certificates = Certificates(config.tls)
        self.handshakes = Handshakes()

    @classmethod
    def of(cls, config: NodeConfig) -> NodeTls | None:
        """None: it speaks none."""
        return cls(config) if config.tls.is_on else None

    @property
    def client_port(self) -> TlsPort | None:
        """Of the client port."""
        return self._port(self._config.tls.client, "client")

    @property
    def http_port(self) -> TlsPort | None:
        """Of HTTP, in the node."""
        return self._port(self._config.tls.http, "http")

    @property
    def peers(self) -> PeerTls | None:
        """Between nodes."""
        mode = self._config.tls.peer
        return None if mode == OFF else PeerTls(mode, self.certificates, self.handshakes)

    def _port(self, mode: str, which: str) -> TlsPort | None:
        if mode == OFF:
            return None
        return TlsPort(mode, lambda: getattr(self.certificates.loaded, which), self.handshakes)

    def inside(self) -> ClientTls | None:
        """How this node speaks to client ports, its own among them: by TLS where that is required. Whose certificate
        it is, is checked by the host that is dialled; of its own port by any name that it has."""
        if self._config.tls.client != REQUIRE:
            return None
        own = {self._config.listen.client.host, self._config.advertise_host, "127.0.0.1", "::1"}
        names = self._config.advertise_host, self._config.node.id

        def name_of(host: str) -> str:
            return self.certificates.name_for(host, *names) if host in own else host

        return ClientTls(lambda: self.certificates.loaded.inside, name_of=name_of)
