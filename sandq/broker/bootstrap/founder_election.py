"""Elect exactly one founder among linked nodes.

A candidate asks every linked node. Once all of these nodes have agreed, the candidate founds the cluster. A node
refuses if it belongs to, founds or knows of a cluster, or if it is a candidate with a smaller id. Otherwise the node
agrees, and ends its own candidacy. This node may become a candidate again later, but then it needs the agreement of all
linked nodes again. So at most one of two linked nodes founds a cluster, in whatever order they ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import trio

from sandq.broker.peers.handshake import Peer
from sandq.broker.peers.links import PeerLinks
from sandq.model.errors import Conflict, Unavailable
from sandq.model.logger import get_logger
from sandq.protocol.peer import PeerFrame

ASKS: Final = "asks"
AGREES: Final = "agrees"
REFUSES: Final = "refuses"
ANSWER_S: Final = 3.0
"""Time limit in s for all nodes to agree."""
POLL_S: Final = 0.1
"""Interval in s at which new links are checked."""

log = get_logger("sandq.cluster")


class FounderElection:
    """The election of a founder, on one node."""

    def __init__(self, own_node: str, links: PeerLinks, knows: Callable[[], bool]) -> None:
        """`own_node`: id of this node. `knows()`: returns whether this node knows of a cluster."""
        self.decided = False
        """True if this node founds a cluster or belongs to one. The node then refuses all candidates."""
        self._own_node = own_node
        self._links = links
        self._knows = knows
        self._wants = False
        self._agreed: set[str] = set()
        self._refused_by: str | None = None
        self._heard = trio.Event()
        """Event that each reply sets. `_ask_all` waits for this event."""
        self._deciding = trio.Lock()

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Handle a frame. Return True if the frame is well-formed and for this component."""
        if kind != PeerFrame.FOUND or body not in (ASKS, AGREES, REFUSES):
            return False
        if body == ASKS:
            self._answer(node)
        elif self._wants and body == AGREES:
            self._agreed.add(node)
        elif self._wants:
            self._yield_to(node)
        self._heard.set()
        return True

    async def decide(self, seen: Callable[[], Collection[str]]) -> str | None:
        """Hold the election. Return None if this node founds the cluster; then `decided` is True.

        Otherwise return the id of the node for which this node has ended its candidacy.

        `seen()`: returns the nodes that must agree even if they are not linked yet. Raise Unavailable if a node does
        not answer; Conflict if the election was decided before."""
        async with self._deciding:
            if self.decided:
                raise Conflict("this node is founding or joining a cluster at this moment")
            self._wants, self._agreed, self._refused_by = True, set(), None
            try:
                return await self._ask_all(seen)
            finally:
                self._wants = False

    async def _ask_all(self, seen: Callable[[], Collection[str]]) -> str | None:
        """Ask all linked nodes, and all nodes of `seen()`. Return the same result as `decide`."""
        asked: dict[str, Peer] = {}
        missing: set[str] = set()
        with trio.move_on_after(ANSWER_S):
            while True:
                for node, peer in self._links.up.items():
                    if asked.get(node) is not peer:  # ask again on a new link: a reply on the earlier link may be lost
                        asked[node] = peer
                        self._agreed.discard(node)
                        self._links.send(node, PeerFrame.FOUND, ASKS)
                if self._refused_by is not None:
                    return self._refused_by
                # An agreement counts only while its node is linked. Without a link, that node cannot ask this node, and
                # might found a cluster itself.
                missing = {*self._links.up, *seen()} - (self._agreed & self._links.up.keys())
                if not missing:
                    self.decided = True
                    return None
                self._heard = trio.Event()
                with trio.move_on_after(POLL_S):
                    await self._heard.wait()
        raise Unavailable(
            f"{', '.join(sorted(missing))} did not say within {ANSWER_S:g} s whether this node may found the cluster: "
            "check that they can be reached at their peer addresses, or stop them"
        )

    def _answer(self, node: str) -> None:
        """Answer a candidate. Refuse if this node has decided, knows of a cluster, or is a candidate with a smaller
        id."""
        still_wants = self._wants and self._refused_by is None
        if self.decided or self._knows() or (still_wants and self._own_node < node):
            self._links.send(node, PeerFrame.FOUND, REFUSES)
            return
        self._yield_to(node)
        self._links.send(node, PeerFrame.FOUND, AGREES)

    def _yield_to(self, node: str) -> None:
        """End this node's own candidacy, because `node` founds or knows of a cluster, or is a candidate with a smaller
        id."""
        if self._wants and self._refused_by is None:
            self._refused_by = node
            log.info("a different node founds the cluster, or knows of one", other=node)
