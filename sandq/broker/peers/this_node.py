"""Say who this node is, to other nodes and to the parts of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.model.features import KNOWN, Levels
from sandq.storage.identity import Identity


class ThisNode:
    """`is_named`: the configuration names the nodes of the cluster, which form it together. `feature_level()`: what the
    cluster has come to; `levels`: what this node's version knows."""

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
        """What its data directory says; its cluster's UUID may come later."""
        self.is_named = is_named
        self._zone = zone
        self._weight = weight
        self._feature_level = feature_level
        self._levels = levels
        self._version = version
        self._addresses: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The node id."""
        return self.own.node

    @property
    def cluster_uuid(self) -> str | None:
        """None: it belongs to no cluster yet."""
        return self.own.cluster_uuid

    def advertise(self, addresses: Mapping[str, str]) -> None:
        """Serve what at which address, from now on."""
        self._addresses = dict(addresses)

    def identity(self) -> PeerIdentity:
        """How it introduces itself, at this moment."""
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
        """Whether a peer is of this node's cluster, and knows that this node is. Named ones form theirs together."""
        uuid = self.own.cluster_uuid
        return self.is_named or (uuid is not None and peer.identity.cluster_uuid == uuid)
