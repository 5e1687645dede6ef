"""TLS of a node: its ports, its peers, and itself as a client of its cluster (floor F6)."""

from __future__ import annotations

from sandq.broker.peers.peer_tls import PeerTls
from sandq.client.tls import ClientTls
from sandq.model.config import NodeConfig
from sandq.model.config_tls import OFF
from sandq.server.http.nodes_tls import nodes_tls
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
        """TLS of the client port; None: it speaks none."""
        mode = self._config.tls.client
        return None if mode == OFF else TlsPort(mode, lambda: self.certificates.loaded.client, self.handshakes)

    @property
    def peers(self) -> PeerTls | None:
        """Between nodes."""
        mode = self._config.tls.peer
        return None if mode == OFF else PeerTls(mode, self.certificates, self.handshakes)

    def inside(self) -> ClientTls | None:
        """How this node speaks to client ports, its own among them: see `nodes_tls`."""
        return nodes_tls(self.certificates, own_hosts(self._config), own_names(self._config))


def own_hosts(config: NodeConfig) -> tuple[str, ...]:
    """Where a node itself finds its client port."""
    return (config.listen.client.host, config.advertise_host, "127.0.0.1", "::1")


def own_names(config: NodeConfig) -> tuple[str, ...]:
    """What its certificate may be issued for."""
    return (config.advertise_host, config.node.id)
