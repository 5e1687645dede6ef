"""Implement the requests about the cluster and its nodes for the fake server."""

from __future__ import annotations

from typing import Any

from sandq.model.errors import Conflict, NotFound
from sandq.model.features import KNOWN
from sandq.protocol.frames import Frame
from sandq.protocol.replies import TopicRecord
from sandq.protocol.requests_admin import ClockReset, ClusterClock, NodeChange, Rebuild, Transfer


def registered(*nodes: str) -> dict[str, dict[str, Any]]:
    """Return rows of nodes that hold two replicas each."""
    row = {"up": True, "standing": "in", "failed_since_ms": None, "zone": "a", "weight": 1}
    row |= {"version": "0.3.0", "feature_levels": list(KNOWN)}
    return {node: {**row, "replicas": 2, "voter": True} for node in nodes}


class FakeNodes:
    """The part of `FakeServer` that implements nodes."""

    node_id: str
    cluster_uuid: str
    now_ms: int
    topics: dict[str, TopicRecord]
    registered: dict[str, dict[str, Any]]

    def do_cluster_info(self, connection: Any, frame: Frame) -> Any:
        waiting = None if self.cluster_uuid else "it waits"
        found = {"cluster": "sandq", "node": self.node_id, "cluster_uuid": self.cluster_uuid, "waiting": waiting}
        nodes = [{"node": node, **row} for node, row in self.registered.items()]
        found |= {"metadata_leader": self.node_id, "moving": 0, "nodes": nodes, "others": [{"node": "n2"}]}
        for node, row in list(self.registered.items()):
            self._go_on(node, row)
        return (found,)

    def _go_on(self, node: str, row: dict[str, Any]) -> None:
        """Continue a removal. Each request does one step: remove a replica, then the vote, then the registration."""
        if row["standing"] != "in" and row["replicas"]:
            row["replicas"] -= 1
        elif row["standing"] != "in" and row["voter"]:
            row["voter"] = False
        elif row["standing"] == "removing":
            del self.registered[node]

    def do_node_change(self, connection: Any, frame: Frame) -> Any:
        request = NodeChange.parse(frame)
        if request.node not in self.registered:
            raise NotFound(f"no node {request.node!r} is registered")
        standing = {"drain": "draining", "undrain": "in", "remove": "removing"}[request.action]
        self.registered[request.node]["standing"] = standing
        return ()

    def do_transfer(self, connection: Any, frame: Frame) -> Any:
        request = Transfer.parse(frame)
        record = self.record(request.topic)
        rows = list(record.partitions)
        rows[request.partition] = rows[request.partition]._replace(leader=request.node)
        self.topics[request.topic] = record._replace(partitions=rows)
        return ()

    def do_rebuild(self, connection: Any, frame: Frame) -> Any:
        request = Rebuild.parse(frame)
        self.record(request.topic)
        return ()

    def do_clock_reset(self, connection: Any, frame: Frame) -> Any:
        request = ClockReset.parse(frame)
        self.record(request.topic)
        return ({"outcome": "begun", "floor_ms": self.now_ms + 5000, "now_ms": self.now_ms, "clock_epoch": 1},)

    def do_cluster_clock(self, connection: Any, frame: Frame) -> Any:
        alarm = ClusterClock.parse(frame).action == "show"
        return ({"guarded_ms": self.now_ms, "wall_ms": self.now_ms + 5, "drift_ms": 5, "alarm": alarm},)

    def do_cluster_init(self, connection: Any, frame: Frame) -> Any:
        if self.cluster_uuid:
            raise Conflict(f"this node belongs to cluster {self.cluster_uuid} already")
        self.cluster_uuid = "founded-here"
        return (self.cluster_uuid,)
