"""The identity of this node, for other nodes and for its own components."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.model.features import KNOWN, Levels
from sandq.storage.identity import Identity


class ThisNode:
    """This node.

    `is_named`: the configuration names all nodes that form the cluster together. `feature_level()`: return the feature
    level of the cluster. `levels`: feature levels that this node's version supports.
    """

    def __init__(
        self,
        own: Identity,
        zone: str,
        weight: int,
        feature_level: Callable[[], int | None],
        *,
        is_named: bool,
        levels: Levels = KNOWN,
        version: str | None = None,
    ) -> None:
        self.own = own
        """Identity that is stored in the data directory. The UUID of the cluster may be added later."""
        self.is_named = is_named
        self._zone = zone
        self._weight = weight
        self._feature_level = feature_level
        self._levels = levels
        self._version = version
        self._addresses: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The id of this node."""
        return self.own.node

    @property
    def cluster_uuid(self) -> str | None:
        """UUID of the cluster; None if the node belongs to no cluster yet."""
        return self.own.cluster_uuid

    def advertise(self, addresses: Mapping[str, str]) -> None:
        """Set the addresses of this node, by protocol."""
        self._addresses = dict(addresses)

    def identity(self) -> PeerIdentity:
        """Return the identity that this node shows to others now."""
        own = self.own
        return PeerIdentity(
            node_id=own.node,
            store_uuid=own.store_uuid,
            cluster_uuid=own.cluster_uuid,
            addresses=self._addresses,
            zone=self._zone,
            weight=self._weight,
            levels=self._levels,
            feature_level=self._feature_level(),
            version=self._version,
        )

    def is_ours(self, peer: Peer) -> bool:
        """Return whether a peer and this node are in the same cluster, by the UUID that the peer stated for the link.

        If the configuration names the nodes of the cluster, every peer is in it."""
        uuid = self.own.cluster_uuid
        return self.is_named or (uuid is not None and peer.identity.cluster_uuid == uuid)
