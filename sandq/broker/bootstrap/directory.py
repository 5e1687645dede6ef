"""The other nodes that this node knows, from metadata, from gossip or from the configuration.

Each node remembers the store UUIDs of the other nodes (`KnownPeers`). So a node that lost its disk cannot vote under
its old name.

Nodes tell each other the stores of removed nodes (`REMOVED`). Otherwise a node whose metadata is behind would refuse
such a node for ever if that node, with its new store, leads the metadata: only the leader can bring it up to date.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.event_loop import Signal
from sandq.broker.peers.handshake import UUID_CHARS, PeerIdentity
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_barrier import ANSWER_S
from sandq.broker.peers.this_node import ThisNode
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.broker.replication.runner import Runner
from sandq.gossip import tags
from sandq.metadata.records import NodeRecord
from sandq.model.config_schema import Address
from sandq.model.limits import FIXED
from sandq.model.logger import get_logger
from sandq.model.membership import Membership, State
from sandq.protocol.peer import PeerFrame
from sandq.storage.known_peers import KnownPeers

log = get_logger("sandq.cluster")

REMOVED_MOST: Final = 10_000
"""Maximum number of removed stores in a frame."""
_LIVE = (State.ALIVE, State.SUSPECT)


class PeerDirectory:
    """The other nodes of the cluster. `cluster`: name of the cluster. `changed` is set when members come or go."""

    def __init__(
        self,
        *,
        cluster: str,
        this_node: ThisNode,
        links: PeerLinks,
        known: KnownPeers,
        membership: Membership,
        node_log: NodeLog,
        runner: Runner,
        catalog: Catalog,
        changed: Signal,
    ) -> None:
        self._cluster = cluster
        self._this_node = this_node
        self._links = links
        self._known = known
        self._membership = membership
        self._node_log = node_log
        self._runner = runner
        self._catalog = catalog
        self._changed = changed
        self._reported: list[tuple[str, str]] = []
        """Node id and store UUID of each removed node that another node has reported, until its store is banned."""

    async def follow(self) -> None:
        """Until cancelled, update the links whenever the members of the cluster change."""
        async for _ in self._membership.changes():
            self.update_peers()
            self._changed.set()

    def seen(self) -> list[Mapping[str, str]]:
        """Return the gossip tags of the other live nodes whose cluster has the same name."""
        members = self._membership.members().values()
        ours = [m.tags for m in members if m.state in _LIVE and m.tags.get(tags.CLUSTER) == self._cluster]
        return [found for found in ours if found.get(tags.NODE, self._this_node.name) != self._this_node.name]

    def alive(self) -> list[tuple[str, str]]:
        """Return the node id and store UUID of each other node that is alive according to gossip."""
        return [(found[tags.NODE], found.get(tags.STORE_UUID, "")) for found in self.seen()]

    def linked(self) -> list[PeerIdentity]:
        """Return the identities of this node and of the linked nodes."""
        return [self._this_node.identity(), *[peer.identity for peer in self._links.up.values()]]

    def update_peers(self) -> None:
        """Set the nodes with which this node should be linked: the registered nodes, and the nodes known by gossip.

        If both sources have an address of a node, use the address from gossip, which is more recent. Do nothing if the
        configuration names all nodes."""
        if self._this_node.is_named:
            return
        metadata = self._node_log.hosts.get(METADATA_GROUP)
        registered = metadata.status.nodes if metadata is not None else {}
        found = {name: record.addresses.get("peer") for name, record in registered.items()}
        for seen in self.seen():
            found[seen[tags.NODE]] = seen.get("peer") or found.get(seen[tags.NODE])
        found.pop(self._this_node.name, None)
        peers = {}
        for node, text in found.items():
            try:
                peers[node] = Address.parse(text)
            except ValueError:
                continue  # the node's address is unknown
        self._links.set_peers(peers)

    def end_unfit(self) -> None:
        """End links with nodes whose version does not support the cluster's feature level.

        Such a link was opened before the level was raised. The peer must not get data that it cannot read. The next
        handshake tells the peer the reason."""
        level = self._node_log.feature_level
        for peer in list(self._links.up.values()):
            if level is not None and level not in peer.identity.levels:
                self._links.end(peer.identity.node_id, f"its version does not support feature level {level}")

    async def pin_registered(self) -> None:
        """Remember the store UUID of each registered node, even if this node was never linked with it.

        Ban the stores of removed nodes, and end the links with these nodes."""
        view, registered = self._catalog.view, self._removed()
        (reported, self._reported), is_news = (self._reported, []), False
        for node_id, store in (*registered, *reported):
            if not self._known.is_removed(store):
                is_news = True
                await self._runner.on_maintenance(partial(self._known.remove, node_id, store))
                self._links.end(node_id, "the node was removed from the cluster")
        if is_news:
            self._links.send_to_all(PeerFrame.REMOVED, registered)
        for node in view.nodes.values():
            is_new = self._known.get(node.node_id) is None and not self._known.is_removed(node.store_uuid)
            if node.node_id != self._this_node.name and is_new:
                await self._runner.on_maintenance(partial(self._known.pin, node.node_id, node.store_uuid))

    def up(self, node_id: str) -> None:
        """Tell a newly linked node the stores of removed nodes."""
        self._links.send(node_id, PeerFrame.REMOVED, self._removed())

    def on_frame(self, body: Any) -> bool:
        """Handle a frame REMOVED of another node: `pin_registered` will ban these stores. Return True if the frame is
        well-formed."""
        if not isinstance(body, tuple) or len(body) > REMOVED_MOST or not all(map(_is_removed, body)):
            return False
        own = self._this_node.name
        self._reported = [
            (node_id, store) for node_id, store in body if node_id != own and not self._known.is_removed(store)
        ]
        if self._reported:
            self._changed.set()
        return True

    def _removed(self) -> list[tuple[str, str]]:
        """Return the node id and store UUID of each removed node, from metadata. Empty if this node has no metadata
        yet."""
        metadata = self._node_log.hosts.get(METADATA_GROUP)
        removed = metadata.status.removed.values() if metadata is not None else ()
        return [(gone.node_id, store) for gone in removed for store in gone.stores][:REMOVED_MOST]

    async def correct_pins(self) -> None:
        """Replace remembered store UUIDs that differ from the registered store UUIDs.

        Such a difference arises if a node lost its disk, and was linked with this node before the new store was
        registered. Bring the metadata up to date first: an older state would lock out nodes that were added again.
        Raise Unavailable."""

        def wrong() -> list[NodeRecord]:
            """Return the registered nodes whose remembered store differs from the registered store."""
            nodes = self._catalog.view.nodes.values()
            return [node for node in nodes if self._known.get(node.node_id) not in (None, node.store_uuid)]

        if wrong():
            with trio.move_on_after(ANSWER_S):
                await self._catalog.catch_up()
                for node in wrong():
                    log.warning("a known node was registered with a different data directory", peer=node.node_id)
                    await self._runner.on_maintenance(partial(self._known.correct, node.node_id, node.store_uuid))
                    self._links.end(node.node_id, "its data directory is not the registered one")


def _is_removed(row: Any) -> bool:
    """Return whether this is a node id and a store UUID."""
    if not isinstance(row, tuple) or [type(part) for part in row] != [str, str]:
        return False
    return 0 < len(row[0]) <= FIXED.name_chars and 0 < len(row[1]) <= UUID_CHARS
