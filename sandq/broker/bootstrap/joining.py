"""How a node comes into a cluster that there is already.

It asks every node of one cluster that it has a link with (JOIN) until one answers. Who leads the metadata group takes
it in as a learner, so that it gets all of the metadata's log, registers it with its store, and tells it (WELCOME) which
configuration it is part of; it begins its replica with that. Who of them votes, `cluster_controller.py` sees to.

The metadata's log begins with what was long ago: a node that joins anew under its name would find itself a founder of
groups that its lost disk was a member of. So WELCOME says how far metadata is, and what comes before is no news to it
(`Pointers.metadata_index`).

A node that lost its disk has another store UUID, is refused where it is known, and must not come back under its name as
if nothing had been: only once it was removed it is taken in again, as another incarnation.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import structlog
import trio

from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView
from sandq.model.members import member_id, own_member
from sandq.protocol.peer import PeerFrame
from sandq.raft import Members

FIRST_INCARNATION: Final = 1
ASK_PAUSE_S: Final = 0.5

log = structlog.get_logger("sandq.cluster")


class Beginning(NamedTuple):
    """What a node's replica of the metadata group begins with."""

    members: Members
    cluster_uuid: str | None = None
    """None: there is none yet."""
    metadata_index: int = 0
    """What metadata says before it got there is no news."""


class Joining:
    """Both sides of it."""

    def __init__(self, own_node: str, links: PeerLinks) -> None:
        self._own_node = own_node
        self._links = links
        self._asking: set[str] = set()
        self._told: set[str] = set()
        self._welcomed: Beginning | None = None
        self._changed = trio.Event()

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Whether it was one of these."""
        if kind == PeerFrame.JOIN and body is None:
            self._asking.add(node)
        elif kind == PeerFrame.WELCOME and _is_welcome(body):
            self._heard_welcome(Beginning(Members(body[1], body[2]), body[0], body[3]))
        else:
            return False
        return True

    # -- who joins ------------------------------------------------------------------------------------------------

    @property
    def welcomed(self) -> Beginning | None:
        """What `until_welcome` gives, once it is there."""
        return self._welcomed

    async def until_welcome(self) -> Beginning:
        """Ask until this node is taken in."""
        asked = None
        while self._welcomed is None:
            there = {node: peer.identity.cluster_uuid for node, peer in self._links.up.items()}
            if asked not in there.values():
                asked = None
            for node, cluster_uuid in there.items():
                # There may be two clusters of one name: of both it must not become a member.
                asked = asked or cluster_uuid
                if cluster_uuid is not None and cluster_uuid == asked:
                    self._links.send(node, PeerFrame.JOIN, None)
            with trio.move_on_after(ASK_PAUSE_S):
                await self._changed.wait()
        return self._welcomed

    def _heard_welcome(self, beginning: Beginning) -> None:
        members = beginning.members
        if own_member(self._own_node, (*members.voters, *members.learners)) is not None:
            self._welcomed = beginning
            self._changed.set()

    # -- who leads the metadata group -----------------------------------------------------------------------------

    async def take_in(self, metadata: RaftGroup) -> None:
        """Make who asks a learner. Raises SandqError when it could not be done now."""
        for node in sorted(self._asking):
            view: MetadataView = metadata.status
            peer = self._links.up.get(node)
            members = metadata.group.members
            if view.cluster_uuid is None:
                return
            if peer is None:
                self._asking.discard(node)
            elif _is_another(peer.identity.store_uuid, node, view):
                self._refuse(
                    node,
                    "a node asks to join under the name of one that had another data directory",
                    f"give it back that directory; if it is lost: sandctl cluster remove {node}, and start it again",
                )
            elif view.feature_level not in peer.identity.levels:
                # Its link was made before the cluster came to this level, and is about to be ended.
                self._refuse(
                    node,
                    f"a node asks to join whose version does not know feature level {view.feature_level}",
                    "start a version on it that does (docs/upgrading.md)",
                )
            elif own_member(node, (*members.voters, *members.learners)) is None:
                learner = member_id(node, _next_incarnation(node, view))
                await metadata.change_members(Members(members.voters, (*members.learners, learner)))
                log.info("a node joins the cluster", joining=node)

    def welcome(self, metadata: RaftGroup) -> None:
        """Tell who asks, once it is registered: of all stores that come under a name only the registered one may ever
        act as its member. It is one for certain: it was a member before it was registered."""
        view: MetadataView = metadata.status
        for node in sorted(self._asking):
            if self._is_registered(node, view):
                self._asking.discard(node)
                body = (view.cluster_uuid, *metadata.group.members, view.applied_index)
                self._links.send(node, PeerFrame.WELCOME, body)

    def linked_as_registered(self, view: MetadataView) -> list[str]:
        """Nodes that this one has a link with, and that have the store that is registered."""
        return [node for node in sorted(self._links.up) if self._is_registered(node, view)]

    def _is_registered(self, node: str, view: MetadataView) -> bool:
        """With the store that this node is linked with."""
        peer, record = self._links.up.get(node), view.nodes.get(node)
        return peer is not None and record is not None and record.store_uuid == peer.identity.store_uuid

    def _refuse(self, node: str, why: str, remedy: str) -> None:
        self._asking.discard(node)
        if node not in self._told:
            self._told.add(node)
            log.error(why, joining=node, remedy=remedy)


def _is_another(store_uuid: str, node: str, view: MetadataView) -> bool:
    """Whether the node with this store is not the one of that name that is known, or was removed."""
    record, removed = view.nodes.get(node), view.removed.get(node)
    if removed is not None and store_uuid in removed.stores:
        return True
    return record is not None and record.store_uuid != store_uuid


def _next_incarnation(node: str, view: MetadataView) -> int:
    record, removed = view.nodes.get(node), view.removed.get(node)
    if record is not None:
        return record.incarnation
    return removed.incarnation + 1 if removed is not None else FIRST_INCARNATION


def _is_welcome(body: Any) -> bool:
    if not isinstance(body, tuple) or [type(part) for part in body] != [str, tuple, tuple, int]:
        return False
    return all(isinstance(member, str) for part in body[1:3] for member in part)
