"""Report the configurations of groups that this node leads to the metadata leader."""

from __future__ import annotations

from sandq.broker.controller.cluster_controller import ClusterController, Report
from sandq.broker.event_loop import Signal
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.node_log import NodeLog
from sandq.protocol.peer import PeerFrame


class Reports:
    """Sends reports to the metadata leader. A report may be lost; the caller sends it again later.

    If this node itself leads the metadata, give the reports to its `ClusterController`, and set `changed`.
    """

    def __init__(self, node_log: NodeLog, links: PeerLinks, controller: ClusterController, changed: Signal) -> None:
        self._node_log = node_log
        self._links = links
        self._controller = controller
        self._changed = changed

    def report_settled(self, reports: list[Report]) -> None:
        """Report committed configurations of groups that this node leads."""
        leader = self._node_log.metadata.leader
        if leader == self._node_log.node_id:
            self._controller.settled(reports)
            self._changed.set()
        elif leader is not None:
            self._links.send(leader, PeerFrame.SETTLED, reports)
