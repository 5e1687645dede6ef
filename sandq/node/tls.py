"""TLS of a node: of its ports, of its links to peers, and of its own client connections (floor F6)."""

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
    """TLS of a node that uses TLS on at least one port. Raises StartupError."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.certificates = Certificates(config.tls)
        self.handshakes = Handshakes()

    @classmethod
    def of(cls, config: NodeConfig) -> NodeTls | None:
        """Return the TLS of a node; None: it does not use TLS."""
        return cls(config) if config.tls.is_on else None

    @property
    def client_port(self) -> TlsPort | None:
        """TLS of the client port; None: the port does not use TLS."""
        mode = self._config.tls.client
        return None if mode == OFF else TlsPort(mode, lambda: self.certificates.loaded.client, self.handshakes)

    @property
    def peers(self) -> PeerTls | None:
        """TLS of the links between nodes; None: the links do not use TLS."""
        mode = self._config.tls.peer
        return None if mode == OFF else PeerTls(mode, self.certificates, self.handshakes)

    def for_nodes(self) -> ClientTls | None:
        """Return the TLS for connections to client ports, including this node's own; None: no TLS. See `nodes_tls`."""
        return nodes_tls(self.certificates, own_hosts(self._config), own_names(self._config))


def own_hosts(config: NodeConfig) -> tuple[str, ...]:
    """Return the hosts at which this node connects to its own client port."""
    return (config.listen.client.host, config.advertise_host, "127.0.0.1", "::1")


def own_names(config: NodeConfig) -> tuple[str, ...]:
    """Return the names for which this node's certificate may be issued."""
    return (config.advertise_host, config.node.id)
