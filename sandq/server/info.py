"""What a server says of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sandq.broker.broker import Broker
from sandq.gossip import tags
from sandq.gossip.membership import Member
from sandq.model.config_schema import Address
from sandq.model.errors import NotLeader, SandqError


@dataclass(frozen=True, slots=True)
class ServerInfo:
    version: str
    node_id: str
    cluster_name: str
    store_uuid: str
    host: str
    port: int
    limits: dict[str, int]
    broker: Broker
    up: Callable[[], Collection[str]]
    """The nodes that this one has a connection to, itself included."""
    members: Callable[[], Mapping[str, Member]]
    """What this node believes of all members."""

    def nodes(self) -> list[list[Any]]:
        """[node id, host, port] of each, as METADATA carries it."""
        others = []
        for node in self.broker.metadata.nodes.values():
            if node.node_id != self.node_id and "client" in node.addresses:
                address = Address.parse(node.addresses["client"])
                others.append([node.node_id, address.host, address.port])
        return [[self.node_id, self.host, self.port], *others]

    @property
    def cluster_uuid(self) -> str:
        return self.broker.metadata.cluster_uuid or ""

    def add_hint(self, error: SandqError) -> None:
        """Who names another node says where it is."""
        named = error.details.get("node_id")
        if isinstance(error, NotLeader) and named is not None:
            for node_id, host, port in self.nodes():
                if node_id == named:
                    error.details.update(host=host, port=port)

    def cluster(self) -> dict[str, Any]:
        broker = self.broker
        nodes, others = self._nodes_and_others()
        return {
            "cluster": self.cluster_name,
            "cluster_uuid": self.cluster_uuid,
            "node": self.node_id,
            "store_uuid": self.store_uuid,
            "version": self.version,
            "metadata_leader": broker.metadata_host.leader,
            "nodes": nodes,
            "others": others,
            "topics": len(broker.topics()),
            "clock_alarm": broker.clock.alarm,
            "storage_failed": broker.engine.failed.message if broker.engine.failed else None,
        }

    def _nodes_and_others(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The registered ones, with what is believed of them; and members that are not: nodes that are still outside,
        or machines of the same Serf cluster."""
        up = self.up()
        others: dict[str, dict[str, Any]] = {}
        for member in self.members().values():
            node_id = member.tags.get(tags.NODE, member.name)
            others[node_id] = {
                "node": node_id,
                "up": node_id in up,
                "member": member.state.value,
                "since_ms": member.since_ms,
                "gossip": str(member.address),
                "zone": member.tags.get(tags.ZONE),
                "version": member.tags.get(tags.VERSION),
            }
        nodes = []
        for _, node in sorted(self.broker.metadata.nodes.items()):
            known = {"node": node.node_id, "store_uuid": node.store_uuid, "up": node.node_id in up, **node.addresses}
            nodes.append({**known, **others.pop(node.node_id, {"member": None, "since_ms": None})})
        return nodes, [row for _, row in sorted(others.items())]


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
        groups = [part.group for topic in self._broker.topics() for part in topic.record.partitions]
        waiting = sum(self._broker.routes.leader(group) is None for group in groups)
        return f"{waiting} of {len(groups)} partitions have no leader yet" if waiting else None

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type."""
        return await self._render(accept)
