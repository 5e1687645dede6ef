"""What a server says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandq.broker.broker import Broker


@dataclass(frozen=True, slots=True)
class ServerInfo:
    version: str
    node_id: str
    cluster_uuid: str
    cluster_name: str
    store_uuid: str
    host: str
    port: int
    limits: dict[str, int]
    broker: Broker

    def node(self) -> list[Any]:
        """[node id, host, port] as METADATA carries it."""
        return [self.node_id, self.host, self.port]

    def cluster(self) -> dict[str, Any]:
        broker = self.broker
        return {
            "cluster": self.cluster_name,
            "cluster_uuid": self.cluster_uuid,
            "node": self.node_id,
            "store_uuid": self.store_uuid,
            "version": self.version,
            "nodes": [
                {"node": node.node_id, "store_uuid": node.store_uuid, **node.addresses}
                for node in broker.metadata.nodes.values()
            ],
            "topics": len(broker.topics()),
            "clock_alarm": broker.clock.alarm,
            "storage_failed": broker.engine.failed.message if broker.engine.failed else None,
        }
