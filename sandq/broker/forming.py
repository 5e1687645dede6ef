"""How a node comes to be a member of the metadata group, the first time it starts with its data directory.

    alone    it founds a cluster of its own, at once
    named    it founds one with the nodes that its configuration names, once all of them have met and none belongs to a
             cluster yet: a silent node is never taken for a new one
    meets    it founds one as soon as it has met another node that belongs to none; it joins if one belongs to one
    joins    it founds nothing, and asks to be taken in

Never on silence: who hears of nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal

import structlog
import trio

from sandq.gossip import tags
from sandq.model.config import NodeConfig
from sandq.raft import Members, member_id

from .joining import FIRST_INCARNATION, Joining
from .peer_handshake import Peer

Way = Literal["alone", "named", "meets", "joins"]

TELL_WAITING_S = 5.0
LOOK_PAUSE_S = 0.1

log = structlog.get_logger("sandq.cluster")


def way_of(config: NodeConfig) -> Way:
    """As the configuration says."""
    cluster = config.cluster
    if cluster.peers:
        return "named"
    if not cluster.bootstrap:
        return "joins"
    return "meets" if cluster.seeds else "alone"


class Forming:
    """`links`: node id -> peer, of those linked. `ready`: the nodes among them that know this one's store by now.
    `seen`: the tags of other live members, by gossip."""

    def __init__(
        self,
        way: Way,
        own_node: str,
        named: Collection[str],
        joining: Joining,
        links: Callable[[], Mapping[str, Peer]],
        ready: Callable[[], Collection[str]],
        seen: Callable[[], Collection[Mapping[str, str]]],
    ) -> None:
        self._way = way
        self._own_node = own_node
        self._named = named
        self._joining = joining
        self._links = links
        self._ready = ready
        self._seen = seen

    async def formed(self) -> tuple[Members, str | None]:
        """Wait until this node may take part: the configuration it begins with, and the cluster's UUID where there is
        one already."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_waiting)
            found = await self._found()
            nursery.cancel_scope.cancel()
        return found

    @property
    def founders(self) -> Members:
        names = sorted([self._own_node, *self._named])
        return Members(tuple(member_id(name, FIRST_INCARNATION) for name in names))

    async def _found(self) -> tuple[Members, str | None]:
        match self._way:
            case "alone":
                return self.founders, None
            case "named":
                return await self._all_named()
            case "meets":
                return await self._meet()
            case "joins":
                return await self._joining.until_welcome()

    async def _all_named(self) -> tuple[Members, str | None]:
        """All are there and new; or one of a cluster has known this node from its founding on."""
        while True:
            up = {name: peer for name, peer in self._links().items() if name in self._ready()}
            for peer in up.values():
                if peer.known and peer.identity.cluster_uuid is not None:
                    return self.founders, peer.identity.cluster_uuid
            if all(name in up and up[name].identity.cluster_uuid is None for name in self._named):
                return self.founders, None
            await trio.sleep(LOOK_PAUSE_S)

    async def _meet(self) -> tuple[Members, str | None]:
        while True:
            others = [found for found in self._seen() if tags.CLUSTER in found]
            if any(tags.CLUSTER_UUID in found for found in others):
                return await self._joining.until_welcome()
            if others:
                return self.founders, None
            await trio.sleep(LOOK_PAUSE_S)

    async def _tell_waiting(self) -> None:
        while True:
            await trio.sleep(TELL_WAITING_S)
            linked = sorted(self._links())
            if self._way == "named":
                missing = sorted(set(self._named) - set(linked))
                log.warning("the cluster is formed once all its nodes have met", missing=missing)
            else:
                met = sorted(found[tags.NODE] for found in self._seen() if tags.NODE in found)
                log.warning("this node waits to be taken in by a cluster", met=met, linked=linked)
