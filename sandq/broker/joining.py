"""How a node comes into a cluster that there is already.

It asks every node that it has a link with (JOIN) until one answers. Who leads the metadata group takes it in as a
learner, so that it gets all of the metadata's log, and tells it (WELCOME) which configuration it is part of; it begins
its replica with that. Up to `VOTERS_MOST` learners become voters, once they have caught up; the others go on as
learners, which is how they watch the metadata.

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
        while self._welcomed is None:
            for node in self._links.up:
                self._links.send(node, JOIN, None)
            with trio.move_on_after(ASK_PAUSE_S):
                await self._changed.wait()
        return self._welcomed

    def _heard_welcome(self, members: Members, cluster_uuid: str) -> None:
        if own_member(self._own_node, (*members.voters, *members.learners)) is not None:
            self._welcomed = members, cluster_uuid
            self._changed.set()

    # -- who leads the metadata group -----------------------------------------------------------------------------

    async def admit(self, metadata: GroupHost, view: MetadataView) -> None:
        """Take in who asks, one step. Raises SandqError when it could not be done now."""
        if view.cluster_uuid is None:
            return
        for node in sorted(self._asking):
            peer = self._links.up.get(node)
            if peer is None:
                self._asking.discard(node)
                continue
            record = view.nodes.get(node)
            if record is not None and record.store_uuid != peer.identity.store_uuid:
                self._refuse(node)
                continue
            members = metadata.group.members
            if own_member(node, (*members.voters, *members.learners)) is None:
                learner = member_id(node, FIRST_INCARNATION)
                await metadata.change_members(Members(members.voters, (*members.learners, learner)))
                log.info("a node joins the cluster", joining=node)
            self._asking.discard(node)
            self._links.send(node, WELCOME, (view.cluster_uuid, *metadata.group.members))
        await self._promote(metadata, view)

    async def _promote(self, metadata: GroupHost, view: MetadataView) -> None:
        """Only who is registered: from then on everybody knows by which store it votes."""
        voters, learners = metadata.group.members
        for learner in learners:
            node = node_of(learner)
            if len(voters) < VOTERS_MOST and node in self._links.up and node in view.nodes:
                rest = tuple(other for other in learners if other != learner)
                await metadata.change_members(Members((*voters, learner), rest))
                return

    def _refuse(self, node: str) -> None:
        self._asking.discard(node)
        if node not in self._told:
            self._told.add(node)
            log.error("a node asks to join under the name of one that had another data directory", joining=node)


def _is_welcome(body: Any) -> bool:
    if not isinstance(body, tuple) or [type(part) for part in body] != [str, tuple, tuple]:
        return False
    return all(isinstance(member, str) for part in body[1:] for member in part)
