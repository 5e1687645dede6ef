"""Make a node a member of the metadata group when it starts with its data directory for the first time.

    alone    it founds a cluster of its own, at once
    named    it founds one with the nodes that its configuration names, once all of them have met and none belongs to a
             cluster yet: a silent node is never taken for a new one
    meets    it founds one as soon as it has met another node that belongs to none; it joins if one belongs to one.
             Of several that see each other the one with the smallest id founds, and the others join it
    joins    it founds nothing, and asks to be taken in

Never on silence: who hears of nobody waits. Of those that wait, `meets` and `joins` found one when an operator says so
(`init`). founder_election.py sees to it that of linked nodes only one does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Literal, TypeVar

import structlog
import trio

from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.bootstrap.founder_election import FounderElection
from sandq.broker.bootstrap.joining import FIRST_INCARNATION, Beginning, Joining
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.this_node import ThisNode
from sandq.gossip import tags
from sandq.model.config import NodeConfig
from sandq.model.errors import Conflict, SandqError
from sandq.model.members import member_id
from sandq.raft import Members

T = TypeVar("T")
Way = Literal["alone", "named", "meets", "joins"]

TELL_WAITING_S = 5.0
LOOK_PAUSE_S = 0.1
NAMES_SHOWN = 5
INIT = "sandctl cluster init"

log = structlog.get_logger("sandq.cluster")


def way_of(config: NodeConfig) -> Way:
    """As the configuration says."""
    cluster = config.cluster
    if cluster.peers:
        return "named"
    if not cluster.bootstrap:
        return "joins"
    return "meets" if cluster.seeds else "alone"


class Bootstrap:
    """The way in which this node becomes a member of a cluster."""

    def __init__(
        self,
        *,
        way: Way,
        this_node: ThisNode,
        named: Collection[str],
        joining: Joining,
        links: PeerLinks,
        progress: MetadataProgress,
        directory: PeerDirectory,
    ) -> None:
        """`named`: the other nodes that the configuration names."""
        self._way = way
        self._this_node = this_node
        self._own_node = this_node.name
        self._named = named
        self._joining = joining
        self._links = links
        self._progress = progress
        self._directory = directory
        self._told = trio.Event()
        self._founder_election = FounderElection(this_node.name, links, lambda: self._member() is not None)
        self.on_frame = self._founder_election.on_frame

    async def formed(self) -> Beginning:
        """Wait until this node may take part."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_waiting)
            found = await self._found()
            nursery.cancel_scope.cancel()
        self.is_over()
        return found

    def is_over(self) -> None:
        """This node takes part in a cluster, and agrees to no other."""
        self._founder_election.decided = True

    @property
    def founders(self) -> Members:
        names = sorted([self._own_node, *self._named])
        return Members(tuple(member_id(name, FIRST_INCARNATION) for name in names))

    async def init(self) -> None:
        """Found the cluster with this node alone, now, because an operator says so. Raises Conflict; Unavailable when a
        node that is there does not say that it may."""
        if self._way == "named":
            raise Conflict(f"this node founds nothing alone, for cluster.peers names the others: {self.why()}")
        member = self._member()
        if member is not None:
            raise Conflict(f"there is a cluster already: {member} belongs to it, and this node joins it")
        other = await self._founder_election.decide(lambda: [found[tags.NODE] for found in self._directory.seen()])
        if other is not None:
            raise Conflict(f"there is a cluster already: {other} founds it, or knows of it, and this node joins it")
        self._told.set()

    def why(self) -> str:
        """What this node waits for, and what to do, for a person."""
        if self._founder_election.decided:
            return "this node is about to take part in its cluster: ask again in a moment"
        if self._way == "named":
            if self._member() is not None:
                return (
                    f"this node asks to be taken in by the cluster of {self._member()}; if that takes long, see its log"
                )
            missing = sorted(set(self._named) - set(self._links.up))
            return f"the cluster is formed once all its nodes have met; missing: {_some(missing) or 'none'}"
        member = self._member()
        if member is not None:
            return (
                f"this node asks to be taken in by the cluster of {member}; if that takes long, see the logs of both, "
                "and that each can be reached at its peer address"
            )
        met = _some(sorted({*self._links.up, *(found[tags.NODE] for found in self._directory.seen())}))
        if self._way == "meets":
            if not met:
                return f"this node founds the cluster once it has met another one; start one, or say it here: {INIT}"
            return f"this node has met {met}; {self._founder()} founds the cluster"
        if not met:
            return (
                "this node waits to be taken in by a cluster, and has met no other node: see that one runs and can be "
                f"reached at cluster.seeds, or found the cluster here: {INIT}"
            )
        return (
            f"this node waits to be taken in by a cluster, and {met}, which it has met, belongs to none: "
            f"found the cluster at one of them: {INIT}"
        )

    # -- the ways -------------------------------------------------------------------------------------------------

    async def _found(self) -> Beginning:
        if self._way == "alone":
            return Beginning(self.founders)
        if self._way == "named":
            return await self._all_named()
        if self._this_node.cluster_uuid is not None:
            # It was taken in, and stopped before it took part: a second cluster must not get the UUID of that one.
            return await self._joining.until_welcome()
        return await _first(self._meet if self._way == "meets" else self._joining.until_welcome, self._by_hand)

    async def _all_named(self) -> Beginning:
        """All are there and new; or there is a cluster, which has this node for a member, or takes it in."""
        while True:
            up = self._links.up
            if any(peer.identity.cluster_uuid is not None for peer in up.values()):
                return await self._joining.until_welcome()
            if all(name in up and name in self._progress.others for name in self._named):
                return Beginning(self.founders)
            await trio.sleep(LOOK_PAUSE_S)

    async def _meet(self) -> Beginning:
        while True:
            if self._member() is not None:
                return await self._joining.until_welcome()
            if self._directory.seen() and self._founder() == self._own_node:
                # Who does not answer, or refuses, is asked again: it may be gone by then, or have founded one.
                with suppress(SandqError):
                    if await self._founder_election.decide(self._rivals) is None:
                        return Beginning(self.founders)
            await trio.sleep(LOOK_PAUSE_S)

    async def _by_hand(self) -> Beginning:
        await self._told.wait()
        # Taken in at the very same moment: then it is a member there.
        return self._joining.welcomed or Beginning(self.founders)

    # -- what is seen ---------------------------------------------------------------------------------------------

    def _member(self) -> str | None:
        """A node that is there and belongs to a cluster."""
        linked = [node for node, peer in self._links.up.items() if peer.identity.cluster_uuid is not None]
        seen = [found[tags.NODE] for found in self._directory.seen() if tags.CLUSTER_UUID in found]
        return min([*linked, *seen], default=None)

    def _rivals(self) -> list[str]:
        """Other nodes that are to found the cluster as well."""
        return [found[tags.NODE] for found in self._directory.seen() if tags.FOUNDER in found]

    def _founder(self) -> str:
        """Which node founds it, of those that this one sees, itself included."""
        return min([self._own_node, *self._rivals()])

    async def _tell_waiting(self) -> None:
        while True:
            await trio.sleep(TELL_WAITING_S)
            log.warning("this node waits for its cluster", reason=self.why(), linked=sorted(self._links.up))


async def _first(*ways: Callable[[], Awaitable[T]]) -> T:
    """The result of whichever has one first; the others are cancelled."""
    found: list[T] = []

    async def go(way: Callable[[], Awaitable[T]]) -> None:
        found.append(await way())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for way in ways:
            nursery.start_soon(go, way)
    return found[0]


def _some(names: Iterable[str]) -> str:
    """The first ones of them, and how many more."""
    found = list(names)
    more = len(found) - NAMES_SHOWN
    return ", ".join(found[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
