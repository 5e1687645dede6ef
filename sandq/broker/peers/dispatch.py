"""Hand the frames of other nodes to the part of this node that they are for, and send what it has to tell them.

What belongs to Raft, to the clocks and to metadata flows only between nodes that have named the same cluster UUID to
each other (`is_ours`): every cluster numbers its groups and members alike. What comes from others is dropped; there is
another link once they have joined, and over that it is said anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import NoneType
from typing import Any, Final

import structlog
import trio

from sandq.broker.broker import Broker
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.controller.rebalancer import Report
from sandq.broker.peers.handshake import Peer
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.routes import Route
from sandq.broker.replication.node_log import NodeLog
from sandq.raft.wire import size_of

log = structlog.get_logger("sandq.cluster")

RAFT: Final = 1
ROUTES: Final = 2
FOLLOWED: Final = 3
ASKED: Final = 4
TOLD: Final = 5
SETTLED: Final = 9
SICK: Final = 12
"""Kinds of frames; those of nodes that are not in a cluster yet are in `joining.py` and `founder_election.py`, those of
the clocks in `clock_keeper.py`."""
_TOLD_FIELDS: Final = ([int, int], [int, NoneType])
FRAME_BYTES: Final = 4 << 20
"""The messages of a pass go in one frame, unless they are larger than this."""

Handler = Callable[[str, int, Any], bool]
"""Given node, kind and body: whether it was one of its own."""


class PeerDispatch:
    def __init__(
        self,
        node_log: NodeLog,
        broker: Broker,
        clocks: ClockKeeper,
        controller: ClusterController,
        is_ours: Callable[[Peer], bool],
        outside: Handler,
    ) -> None:
        """`outside`: takes what nodes say that are not in the cluster, or not yet."""
        self.links: PeerLinks
        """Set right after construction: they need `up`, `down` and `on_frame`."""
        self.followed: dict[str, int] = {}
        """What of metadata each peer has done."""
        self.changed = trio.Event()
        """Something has come that may matter to who sees to the cluster; another one then."""
        self._node_log = node_log
        self._broker = broker
        self._clocks = clocks
        self._controller = controller
        self._is_ours = is_ours
        self._outside = outside
        self._barrier = broker.catalog.barrier
        self._barrier.ask = lambda node, question: self.links.send(node, ASKED, question)

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    # -- links ----------------------------------------------------------------------------------------------------

    def up(self, peer: Peer) -> None:
        """There is a link with a node."""
        node = peer.identity.node_id
        if self._is_ours(peer):
            self._node_log.group_commit.connected(node)
            self._clocks.up(node)
            self._broker.routes.up(node)
            self.links.send(node, FOLLOWED, self._broker.reconciler.index)
        self.wake()

    def down(self, node: str) -> None:
        """There is no link with a node any more."""
        self._node_log.group_commit.disconnected(node)
        self._clocks.down(node)
        self._broker.routes.down(node)
        self.followed.pop(node, None)
        self.wake()

    def takes_more(self) -> bool:
        """Whether frames may be read."""
        return self._node_log.failed is not None or self._node_log.group_commit.takes_more

    def on_frame(self, node: str, kind: int, body: Any, size: int) -> None:
        """A node sent this."""
        if self._outside(node, kind, body):
            self.wake()
        elif not self._is_ours(self.links.up[node]):
            log.debug("a frame of a node that is in no cluster, or in another one, is dropped", peer=node, kind=kind)
        elif not self._heard(node, kind, body, size) and not self._clocks.on_frame(node, kind, body):
            log.error("a peer sent a frame that is not known here; it is dropped", peer=node, kind=kind)

    def _heard(self, node: str, kind: int, body: Any, size: int) -> bool:
        """Whether it was one of these, of a node of this cluster."""
        if kind == RAFT and isinstance(body, tuple):
            if self._node_log.failed is None:  # nobody would read it
                self._node_log.group_commit.receive(node, body, size)
        elif kind == ROUTES and isinstance(body, tuple):
            self._broker.routes.heard(node, body)
        elif kind == FOLLOWED and type(body) is int:
            self.followed[node] = body
            self.wake()
        elif kind == ASKED and type(body) is int:
            self._barrier.answer(partial(self._tell_latest, node, body))
        elif kind == TOLD and isinstance(body, tuple) and [type(part) for part in body] in _TOLD_FIELDS:
            self._barrier.told(*body)
        elif kind == SETTLED and _is_settled(body):
            self._controller.settled(body)
            self.wake()
        elif kind == SICK and body is None:
            self._controller.sick(node)
        else:
            return False
        return True

    # -- telling --------------------------------------------------------------------------------------------------

    def send_raft(self, node: str, messages: Sequence[Any]) -> None:
        """In frames that are not much larger than one message needs to be."""
        frame: list[Any] = []
        size = 0
        for message in messages:
            frame.append(message)
            size += size_of(message)
            if size >= FRAME_BYTES:
                self.links.send(node, RAFT, frame)
                frame, size = [], 0
        if frame:
            self.links.send(node, RAFT, frame)

    def tell_routes(self, node: str | None, routes: list[Route]) -> None:
        """To one node, or (None) to all."""
        for each in [node] if node is not None else list(self.links.up):
            if routes:
                self.links.send(each, ROUTES, routes)

    def tell_followed(self, index: int) -> None:
        """What of metadata this node has done."""
        for node in self.links.up:
            self.links.send(node, FOLLOWED, index)

    def tell_settled(self, reports: list[Report]) -> None:
        """To who leads the metadata group. It may get lost, and is told again."""
        leader = self._broker.metadata_host.leader
        if leader == self._node_log.node_id:
            self._controller.settled(reports)
            self.wake()
        elif leader is not None:
            self.links.send(leader, SETTLED, reports)

    def tell_sick(self) -> None:
        """This node cannot write any more: to who leads the metadata group, again and again."""
        leader = self._broker.metadata_host.leader
        if leader == self._node_log.node_id:
            self._controller.sick(leader)
        elif leader is not None:
            self.links.send(leader, SICK, None)

    async def until_others_followed(self, index: int) -> None:
        """Wait until the other nodes that can be reached have done what metadata said at an index."""
        while any(self.followed.get(node, 0) < index for node, peer in self.links.up.items() if self._is_ours(peer)):
            await self.changed.wait()

    def _tell_latest(self, node: str, question: int, index: int | None) -> None:
        self.links.send(node, TOLD, (question, index))


def _is_settled(body: Any) -> bool:
    """(group, epoch, whole), any number of them."""
    return isinstance(body, tuple) and all(
        isinstance(report, tuple) and [type(part) for part in report] == [int, int, bool] for report in body
    )
