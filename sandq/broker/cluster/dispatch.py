"""Pass the frames of other nodes to the component that handles them.

Frames of Raft, clocks and metadata are accepted only from nodes that reported the same cluster UUID
(`ThisNode.is_ours`). Without this check, frames of another cluster could be taken for frames of this cluster, because
all clusters number their groups alike. Frames of other nodes are dropped. When a node has joined this cluster, it opens
a new link and sends its frames again.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, Final

from sandq.broker.backups.log_reads import LogReads
from sandq.broker.backups.whole_restores import WholeRestores
from sandq.broker.bootstrap.bootstrap import Bootstrap
from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.bootstrap.joining import Joining
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.delivery.limit_pauses import LimitPauses
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.delivery.pause_spreader import PauseSpreader
from sandq.broker.event_loop import Signal
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.health.sick_peers import SickPeers
from sandq.broker.owner_usage import OwnerUsage
from sandq.broker.peers.handshake import Peer
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_barrier import MetadataBarrier
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.routes import Routes
from sandq.broker.peers.stream import PeerStream
from sandq.broker.peers.this_node import ThisNode
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.snapshots.snapshots import Snapshots
from sandq.model.logger import get_logger
from sandq.protocol.peer import PeerFrame

log = get_logger("sandq.cluster")

_REPLY_FIELDS: Final = ([int, int], [int, NoneType])


class PeerDispatch:
    """The `Receiver` of all links of this node: handles their events and frames.

    `changed`: set by every event that may require work in `Cluster.run`."""

    def __init__(
        self,
        *,
        node_log: NodeLog,
        links: PeerLinks,
        this_node: ThisNode,
        routes: Routes,
        progress: MetadataProgress,
        barrier: MetadataBarrier,
        clocks: ClockKeeper,
        controller: ClusterController,
        sick_peers: SickPeers,
        digests: ReplicaDigests,
        limits: LimitShares,
        limit_pauses: LimitPauses,
        outbox: OutboxSender,
        pauses: PauseSpreader,
        restores: WholeRestores,
        log_reads: LogReads,
        usage: OwnerUsage,
        shut_replicas: ShutReplicas,
        directory: PeerDirectory,
        joining: Joining,
        bootstrap: Bootstrap,
        snapshots: Snapshots,
        changed: Signal,
    ) -> None:
        self._node_log = node_log
        self._links = links
        self._this_node = this_node
        self._routes = routes
        self._progress = progress
        self._barrier = barrier
        self._clocks = clocks
        self._controller = controller
        self._sick_peers = sick_peers
        self._digests = digests
        self._limits = limits
        self._limit_pauses = limit_pauses
        self._outbox = outbox
        self._pauses = pauses
        self._restores = restores
        self._log_reads = log_reads
        self._usage = usage
        self._shut_replicas = shut_replicas
        self._directory = directory
        self._joining = joining
        self._bootstrap = bootstrap
        self._snapshots = snapshots
        self._changed = changed

    def up(self, peer: Peer) -> None:
        """Handle a new link with a node."""
        node = peer.identity.node_id
        if self._this_node.is_ours(peer):
            self._node_log.group_commit.connected(node)
            self._clocks.up(node)
            self._routes.up(node)
            self._progress.report_to(node)
            self._shut_replicas.up(node)
            self._directory.up(node)
        self._changed.set()

    def down(self, node: str) -> None:
        """Handle the end of the link with a node."""
        self._node_log.group_commit.disconnected(node)
        self._clocks.down(node)
        self._routes.down(node)
        self._progress.down(node)
        self._sick_peers.forget(node)
        self._shut_replicas.down(node)
        self._changed.set()

    def takes_more(self) -> bool:
        """Return whether more frames may be read from the links."""
        # After a failure, no task uses the received Raft messages. Read and drop them, so that the links stay up.
        return self._node_log.failed is not None or self._node_log.group_commit.takes_more

    async def on_stream(self, node: str, stream: PeerStream) -> None:
        """Handle a stream that a node opened."""
        await self._snapshots.receive(node, stream)

    def on_frame(self, node: str, kind: int, body: Any, size: int) -> None:
        """Handle a frame of a node."""
        if self._joining.on_frame(node, kind, body) or self._bootstrap.on_frame(node, kind, body):
            self._changed.set()
        elif not self._this_node.is_ours(self._links.up[node]):
            log.debug(
                "a frame of a node that is in no cluster, or in a different one, is dropped", peer=node, kind=kind
            )
        elif not self._heard(node, kind, body, size) and not self._clocks.on_frame(node, kind, body):
            log.error("a peer sent an unknown frame; it is dropped", peer=node, kind=kind)

    def _heard(self, node: str, kind: int, body: Any, size: int) -> bool:
        """Handle a frame from a node of this cluster. Return whether the frame is of a known kind and well-formed."""
        if kind == PeerFrame.RAFT and isinstance(body, tuple):
            if self._node_log.failed is None:  # after a failure, no task reads the received messages
                self._node_log.group_commit.receive(node, body, size)
        elif kind == PeerFrame.ROUTES and isinstance(body, tuple):
            self._routes.heard(node, body)
        elif kind == PeerFrame.FOLLOWED and type(body) is int:
            self._progress.heard(node, body)
            self._changed.set()
        elif kind == PeerFrame.ASKED and type(body) is int:
            self._barrier.on_request(node, body)
        elif kind == PeerFrame.TOLD and isinstance(body, tuple) and [type(part) for part in body] in _REPLY_FIELDS:
            self._barrier.on_reply(*body)
        elif kind == PeerFrame.SETTLED and _is_settled(body):
            self._controller.settled(body)
            self._changed.set()
        elif kind == PeerFrame.SICK and isinstance(body, tuple) and [type(part) for part in body] == [str, bool]:
            self._sick_peers.heard(node, *body)
        elif kind == PeerFrame.DIGEST:
            return self._digests.on_frame(node, body)
        elif kind in (PeerFrame.LIMITS_ASKED, PeerFrame.LIMITS_TOLD):
            return self._limits.on_frame(node, kind, body)
        elif kind in (PeerFrame.LIMIT_PAUSE_ASKED, PeerFrame.LIMIT_PAUSE_TOLD):
            return self._limit_pauses.on_frame(node, kind, body)
        elif kind in (PeerFrame.OUTBOX_BATCH, PeerFrame.OUTBOX_ANSWER):
            return self._outbox.on_frame(node, kind, body)
        elif kind in (PeerFrame.PAUSE_ASKED, PeerFrame.PAUSE_TOLD):
            return self._pauses.on_frame(node, kind, body)
        elif kind in (PeerFrame.RESTORE_ASKED, PeerFrame.RESTORE_TOLD):
            return self._restores.on_frame(node, kind, body)
        elif kind == PeerFrame.LOG_PINNED:
            return self._log_reads.on_frame(node, body)
        elif kind == PeerFrame.USAGE:
            return self._usage.on_frame(node, body)
        elif kind == PeerFrame.SHUT:
            return self._shut_replicas.on_frame(node, body)
        elif kind == PeerFrame.REMOVED:
            return self._directory.on_frame(body)
        else:
            return False
        return True


def _is_settled(body: Any) -> bool:
    """Return whether a body is a tuple of reports (group, epoch, whole)."""
    return isinstance(body, tuple) and all(
        isinstance(report, tuple) and [type(part) for part in report] == [int, int, bool] for report in body
    )
