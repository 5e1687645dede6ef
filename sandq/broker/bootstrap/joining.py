"""Let nodes join an existing cluster.

The joining node sends JOIN to every linked node of one cluster until it gets a WELCOME. The metadata leader adds the
node to the metadata group as a learner, which gets the whole log of the metadata. Then the leader registers the node
with its store UUID. Finally the leader sends WELCOME, with a configuration of the group that includes the node. The
node begins its replica with this configuration. `cluster_controller.py` decides which nodes vote.

The log of the metadata begins with old entries. Suppose that a node lost its disk and joins again under its old name.
According to the old entries, this node is still a founding member of its former groups. So WELCOME includes the current
index of the metadata, and the node does not act on earlier entries (`Pointers.metadata_index`).

A node that lost its disk has a new store UUID. Other nodes that remember the old store UUID refuse this node. After an
operator has removed the node, it may join again, with a new incarnation number.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import trio

from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView
from sandq.model.logger import get_logger
from sandq.model.members import member_id, own_member
from sandq.protocol.peer import PeerFrame
from sandq.raft import Members

FIRST_INCARNATION: Final = 1
ASK_PAUSE_S: Final = 0.5

log = get_logger("sandq.cluster")


class Beginning(NamedTuple):
    """The initial state of a node's replica of the metadata group."""

    members: Members
    cluster_uuid: str | None = None
    """UUID of the cluster; None if the cluster has no UUID yet."""
    metadata_index: int = 0
    """Index of the metadata up to which the node applies entries without acting on them."""


class Joining:
    """The join protocol: the side of the joining node, and the side of the metadata leader."""

    def __init__(self, own_node: str, links: PeerLinks) -> None:
        self._own_node = own_node
        self._links = links
        self._asking: set[str] = set()
        """Nodes that have sent JOIN to this node. Only the metadata leader answers them."""
        self._logged: set[str] = set()
        self._welcomed: Beginning | None = None
        self._changed = trio.Event()

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Handle a frame. Return True if the frame is well-formed and for this component."""
        if kind == PeerFrame.JOIN and body is None:
            self._asking.add(node)
        elif kind == PeerFrame.WELCOME and _is_welcome(body):
            self._heard_welcome(Beginning(Members(body[1], body[2]), body[0], body[3]))
        else:
            return False
        return True

    # -- joining node ---------------------------------------------------------------------------------------------

    @property
    def welcomed(self) -> Beginning | None:
        """The result of `until_welcome`; None until this node is admitted."""
        return self._welcomed

    async def until_welcome(self) -> Beginning:
        """Ask the linked nodes until this node is admitted. Return the initial state of its metadata replica."""
        asked = None
        while self._welcomed is None:
            clusters = {node: peer.identity.cluster_uuid for node, peer in self._links.up.items()}
            if asked not in clusters.values():
                asked = None
            for node, cluster_uuid in clusters.items():
                # Ask the nodes of one cluster only: if two clusters have the same name, this node must not join both.
                asked = asked or cluster_uuid
                if cluster_uuid is not None and cluster_uuid == asked:
                    self._links.send(node, PeerFrame.JOIN, None)
            with trio.move_on_after(ASK_PAUSE_S):
                await self._changed.wait()
        return self._welcomed

    def _heard_welcome(self, beginning: Beginning) -> None:
        """Store the content of a WELCOME if its configuration includes this node."""
        members = beginning.members
        if own_member(self._own_node, (*members.voters, *members.learners)) is not None:
            self._welcomed = beginning
            self._changed.set()

    # -- metadata leader ------------------------------------------------------------------------------------------

    async def take_in(self, metadata: RaftGroup) -> None:
        """Add the nodes that asked to join, as learners of the metadata group. Raise SandqError if the group cannot
        change now."""
        for node in sorted(self._asking):
            view: MetadataView = metadata.status
            peer = self._links.up.get(node)
            members = metadata.group.members
            if view.cluster_uuid is None:
                return
            if peer is None:
                self._asking.discard(node)
            elif _is_wrong_store(peer.identity.store_uuid, node, view):
                self._refuse(
                    node,
                    "a node asks to join under the name of a node with a different data directory",
                    f"restore that directory; if it is lost: sandctl cluster remove {node}, and start the node again",
                )
            elif view.feature_level not in peer.identity.levels:
                # The link was opened before the cluster's level was raised, and will end soon.
                self._refuse(
                    node,
                    f"a node asks to join whose version does not support feature level {view.feature_level}",
                    "start a version on it that does (docs/upgrading.md)",
                )
            elif own_member(node, (*members.voters, *members.learners)) is None:
                learner = member_id(node, _next_incarnation(node, view))
                await metadata.change_members(Members(members.voters, (*members.learners, learner)))
                log.info("a node joins the cluster", joining=node)

    def welcome(self, metadata: RaftGroup) -> None:
        """Send WELCOME to each node that asked to join and is registered now.

        If several stores appear under one name, only the registered store may act as the member of this name. A
        registered node is certainly a member, because it became a member before it was registered."""
        view: MetadataView = metadata.status
        for node in sorted(self._asking):
            if self._is_registered(node, view):
                self._asking.discard(node)
                body = (view.cluster_uuid, *metadata.group.members, view.applied_index)
                self._links.send(node, PeerFrame.WELCOME, body)

    def linked_as_registered(self, view: MetadataView) -> list[str]:
        """Return the linked nodes whose store UUID is the registered store UUID."""
        return [node for node in sorted(self._links.up) if self._is_registered(node, view)]

    def _is_registered(self, node: str, view: MetadataView) -> bool:
        """Return whether a node is linked, and is registered with the store UUID that it reported on this link."""
        peer, record = self._links.up.get(node), view.nodes.get(node)
        return peer is not None and record is not None and record.store_uuid == peer.identity.store_uuid

    def _refuse(self, node: str, why: str, remedy: str) -> None:
        """Forget the request of a node, and log the reason once."""
        self._asking.discard(node)
        if node not in self._logged:
            self._logged.add(node)
            log.error(why, joining=node, remedy=remedy)


def _is_wrong_store(store_uuid: str, node: str, view: MetadataView) -> bool:
    """Return True if the store belonged to a removed node of this name, or if this name is registered with another
    store."""
    record, removed = view.nodes.get(node), view.removed.get(node)
    if removed is not None and store_uuid in removed.stores:
        return True
    return record is not None and record.store_uuid != store_uuid


def _next_incarnation(node: str, view: MetadataView) -> int:
    """Return the incarnation number with which a node joins: a new number if the node was removed before."""
    record, removed = view.nodes.get(node), view.removed.get(node)
    if record is not None:
        return record.incarnation
    return removed.incarnation + 1 if removed is not None else FIRST_INCARNATION


def _is_welcome(body: Any) -> bool:
    """Return whether a body is (cluster UUID, voters, learners, index of metadata)."""
    if not isinstance(body, tuple) or [type(part) for part in body] != [str, tuple, tuple, int]:
        return False
    return all(isinstance(member, str) for part in body[1:3] for member in part)
