"""Track which metadata entries this node and the linked nodes have acted on.

A node acts on an entry by doing the work that the entry requires of it, for example by opening a new partition.
"""

from __future__ import annotations

from sandq.broker.event_loop import Signal
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.this_node import ThisNode
from sandq.protocol.peer import PeerFrame


class MetadataProgress:
    """Index of the last metadata entry that each node has acted on."""

    def __init__(self, links: PeerLinks, this_node: ThisNode) -> None:
        self.index = 0
        """Index of the last metadata entry that this node has acted on."""
        self.others: dict[str, int] = {}
        """By other node: index of the last metadata entry that the node has acted on, as it reported."""
        self._links = links
        self._this_node = this_node
        self._changed = Signal()

    def advance(self, index: int) -> None:
        """Record that this node has acted on all metadata entries up to `index`. Report this to the linked nodes."""
        self.index = index
        self._changed.set()
        for node in self._links.up:
            self.report_to(node)

    def report_to(self, node: str) -> None:
        """Report the progress of this node to another node."""
        self._links.send(node, PeerFrame.FOLLOWED, self.index)

    def heard(self, node: str, index: int) -> None:
        """Record the progress that another node reported."""
        self.others[node] = index
        self._changed.set()

    def down(self, node: str) -> None:
        """Forget the progress of a node whose link has ended."""
        self.others.pop(node, None)
        self._changed.set()

    async def until(self, index: int) -> None:
        """Wait until this node has acted on all metadata entries up to `index`."""
        while self.index < index:
            await self._changed.wait()

    async def until_others(self, index: int) -> None:
        """Wait until all linked nodes of the cluster have acted on all metadata entries up to `index`."""
        links, is_ours = self._links, self._this_node.is_ours
        while any(self.others.get(node, 0) < index for node, peer in links.up.items() if is_ours(peer)):
            await self._changed.wait()
