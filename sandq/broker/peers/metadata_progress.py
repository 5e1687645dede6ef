"""Track how much of what metadata says was done, on this node and on those that it is linked with."""

from __future__ import annotations

from sandq.broker.event_loop import Signal
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.this_node import ThisNode
from sandq.protocol.peer import PeerFrame


class MetadataProgress:
    """Indices of the metadata group's log."""

    def __init__(self, links: PeerLinks, this_node: ThisNode) -> None:
        self.index = 0
        """What metadata had applied when this node did last what it says."""
        self.others: dict[str, int] = {}
        """The same, of other nodes, as they said."""
        self._links = links
        self._this_node = this_node
        self._changed = Signal()

    def advance(self, index: int) -> None:
        """Note that this node has done what metadata said at an index, and tell the others."""
        self.index = index
        self._changed.set()
        for node in self._links.up:
            self.tell(node)

    def tell(self, node: str) -> None:
        """Tell one node how far this one is."""
        self._links.send(node, PeerFrame.FOLLOWED, self.index)

    def heard(self, node: str, index: int) -> None:
        """Note what a node says of itself."""
        self.others[node] = index
        self._changed.set()

    def down(self, node: str) -> None:
        """Forget what a node said: it is linked no more."""
        self.others.pop(node, None)
        self._changed.set()

    async def until(self, index: int) -> None:
        """Wait until this node has done what metadata said at an index."""
        while self.index < index:
            await self._changed.wait()

    async def until_others(self, index: int) -> None:
        """Wait until the other nodes that can be reached have."""
        links, is_ours = self._links, self._this_node.is_ours
        while any(self.others.get(node, 0) < index for node, peer in links.up.items() if is_ours(peer)):
            await self._changed.wait()
