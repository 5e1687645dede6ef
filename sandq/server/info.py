"""What a server says of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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


class NodeState:
    """How this node is."""

    def __init__(self, broker: Broker, render: Callable[[str], Awaitable[tuple[bytes, str]]]) -> None:
        self._broker = broker
        self._render = render

    def failure(self) -> str | None:
        """Why it cannot store anything any more."""
        failed = self._broker.engine.failed
        return failed.message if failed is not None else None

    def ready(self) -> str | None:
        """Why it is not ready to work; None when it is."""
        if (failure := self.failure()) is not None:
            return failure
        partitions = [part for topic in self._broker.topics() for part in topic.partitions.values()]
        waiting = sum(not part.host.ready for part in partitions)
        return f"{waiting} of {len(partitions)} partitions have no leader yet" if waiting else None

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type."""
        return await self._render(accept)
