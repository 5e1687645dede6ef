"""How a node comes into a cluster that there is already.

It asks every node of one cluster that it has a link with (JOIN) until one answers. Who leads the metadata group takes
it in as a learner, so that it gets all of the metadata's log, registers it with its store, and tells it (WELCOME) which
configuration it is part of; it begins its replica with that. Up to `VOTERS_MOST` learners become voters, once they have
caught up; the others go on as learners, which is how they watch the metadata.

The member is always the node's first incarnation: a node that lost its disk has another store UUID, is refused where
it is known, and must not come back under its name as if nothing had been.
"""

from __future__ import annotations

from typing import Any, Final

import structlog
import trio

from sandq.raft import Members, member_id, node_of, own_member

from .host import GroupHost
from .peer_links import PeerLinks
from .replica import MetadataView

JOIN: Final = 6
"""A frame: nothing in it; the link says who it is."""
WELCOME: Final = 7
"""A frame: [cluster UUID, voters, learners], these of the metadata group."""
VOTERS_MOST: Final = 5
FIRST_INCARNATION: Final = 1
ASK_PAUSE_S: Final = 0.5

log = structlog.get_logger("sandq.cluster")


class Joining:
    """Both sides of it."""

    def __init__(self, own_node: str, links: PeerLinks) -> None:
        self._own_node = own_node
        self._links = links
        self._asking: set[str] = set()
        self._told: set[str] = set()
        self._welcomed: tuple[Members, str] | None = None
        self._changed = trio.Event()

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Whether it was one of these."""
        if kind == JOIN and body is None:
            self._asking.add(node)
        elif kind == WELCOME and _is_welcome(body):
            self._heard_welcome(Members(body[1], body[2]), body[0])
        else:
            return False
        return True

    # -- who joins ------------------------------------------------------------------------------------------------

    async def until_welcome(self) -> tuple[Members, str]:
        """Ask until this node is taken in. The configuration it is part of, and the cluster's UUID."""
        asked = None
        while self._welcomed is None:
            there = {node: peer.identity.cluster_uuid for node, peer in self._links.up.items()}
            if asked not in there.values():
                asked = None
            for node, cluster_uuid in there.items():
                # There may be two clusters of one name: of both it must not become a member.
                asked = asked or cluster_uuid
                if cluster_uuid is not None and cluster_uuid == asked:
                    self._links.send(node, JOIN, None)
            with trio.move_on_after(ASK_PAUSE_S):
                await self._changed.wait()
        return self._welcomed

    def _heard_welcome(self, members: Members, cluster_uuid: str) -> None:
        if own_member(self._own_node, (*members.voters, *members.learners)) is not None:
            self._welcomed = members, cluster_uuid
            self._changed.set()

    # -- who leads the metadata group -----------------------------------------------------------------------------

    async def take_in(self, metadata: GroupHost) -> None:
        """Make who asks a learner. Raises SandqError when it could not be done now."""
        for node in sorted(self._asking):
            view: MetadataView = metadata.status
            peer, record = self._links.up.get(node), view.nodes.get(node)
            members = metadata.group.members
            if view.cluster_uuid is None:
                return
            if peer is None:
                self._asking.discard(node)
            elif record is not None and record.store_uuid != peer.identity.store_uuid:
                self._refuse(node)
            elif own_member(node, (*members.voters, *members.learners)) is None:
                learner = member_id(node, FIRST_INCARNATION)
                await metadata.change_members(Members(members.voters, (*members.learners, learner)))
                log.info("a node joins the cluster", joining=node)

    def welcome(self, metadata: GroupHost) -> None:
        """Tell who asks, once it is registered: of all stores that come under a name only the registered one may ever
        act as its member. It is one for certain: it was a member before it was registered."""
        view: MetadataView = metadata.status
        for node in sorted(self._asking):
            if self._is_registered(node, view):
                self._asking.discard(node)
                self._links.send(node, WELCOME, (view.cluster_uuid, *metadata.group.members))

    async def promote(self, metadata: GroupHost) -> None:
        """Let a learner vote that has caught up, if more are to. Raises SandqError when it could not be done now."""
        group = metadata.group
        voters, learners = group.members
        for learner in learners:
            may_vote = self._is_registered(node_of(learner), metadata.status)
            if may_vote and len(voters) < VOTERS_MOST and group.match_index(learner) >= group.commit_index:
                rest = tuple(other for other in learners if other != learner)
                await metadata.change_members(Members((*voters, learner), rest))
                return

    def _is_registered(self, node: str, view: MetadataView) -> bool:
        """With the store that this node is linked with."""
        peer, record = self._links.up.get(node), view.nodes.get(node)
        return peer is not None and record is not None and record.store_uuid == peer.identity.store_uuid

    def _refuse(self, node: str) -> None:
        self._asking.discard(node)
        if node not in self._told:
            self._told.add(node)
            log.error("a node asks to join under the name of one that had another data directory", joining=node)


def _is_welcome(body: Any) -> bool:
    if not isinstance(body, tuple) or [type(part) for part in body] != [str, tuple, tuple]:
        return False
    return all(isinstance(member, str) for part in body[1:] for member in part)
