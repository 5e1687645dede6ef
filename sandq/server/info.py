"""Collect what a server reports about itself, its cluster and its nodes (CLUSTER_INFO, METADATA, readiness)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sandq.broker.access.authenticator import Authenticator
from sandq.broker.access.identities import Identities
from sandq.broker.broker import Broker
from sandq.broker.cluster.cluster import Cluster
from sandq.broker.event_loop import TimeSlice
from sandq.broker.health.entry_skips import EntrySkips
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.health.scrubber import Scrubber
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.memory_budget import MemoryBudget
from sandq.broker.owner_usage import OwnerUsage
from sandq.broker.replication.replica import METADATA_GROUP, MetadataView
from sandq.broker.stats.slo import LatenessSlo
from sandq.gossip import tags
from sandq.model.access import Access
from sandq.model.errors import NotLeader, SandqError
from sandq.model.members import node_of
from sandq.model.membership import Membership
from sandq.model.ports import parse_server
from sandq.partition.clock_reset import LEAST_AHEAD_MS as FLOOR_AHEAD_MS
from sandq.push.pusher import Pusher
from sandq.server.audit.audit_log import AuditLog
from sandq.server.debug.dump import NodeDump
from sandq.server.debug.log_level import LogLevel
from sandq.server.entrance import Logins
from sandq.server.failed_logins import FailedLogins
from sandq.server.gateway_proof import GatewayKeys
from sandq.server.metrics.http_requests import HttpProcess
from sandq.server.metrics.metrics import Metrics
from sandq.server.overview import Overview
from sandq.server.quota_meters import QuotaMeters
from sandq.server.request_rates import RequestRates
from sandq.server.topic_records import TopicRecords


class PlacedReplicas:
    """Counts the replicas that each node is assigned, once for each version of the metadata."""

    def __init__(self) -> None:
        self.by_node: Mapping[str, int] = {}
        """Replicas assigned to each node, including former ones that may still exist there."""
        self.moving = 0
        """Number of partitions that are being moved between nodes."""
        self._view: MetadataView | None = None
        """The version of the metadata to which the counts belong."""

    async def count(self, view: MetadataView, time_slice: TimeSlice) -> None:
        """Count the replicas, in time slices, unless the counts belong to this version already."""
        if view is self._view:
            return
        held: Counter[str] = Counter()
        moving = 0
        for topic in view.topics.values():
            for partition in topic.partitions:
                moving += partition.moving
                held.update({node_of(member) for member in (*partition.members, *partition.former)})
                await time_slice.spend(1)
        self._view, self.by_node, self.moving = view, held, moving


NAMED: Final = "named"
"""State that is shown for members from the configuration, when there is no gossip about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Settings, state and parts of this server, for the handlers of requests."""

    version: str
    zone_data: str
    """Version of the time zone data that this node uses to plan schedules."""
    node_id: str
    cluster_name: str
    store_uuid: str
    host: str
    port: int
    limits: dict[str, int]
    broker: Broker
    cluster: Cluster
    membership: Membership
    hears_of_members: bool
    """Whether the node learns the state of members by gossip. Otherwise they are configured, and assumed to be
    alive."""
    health: NodeHealth
    scrubber: Scrubber
    digests: ReplicaDigests
    log_level: LogLevel
    dump: NodeDump
    topics: TopicRecords
    pusher: Pusher
    memory: MemoryBudget
    logins: Logins
    identities: Identities
    overview: Overview
    shut_replicas: ShutReplicas
    http: HttpProcess
    entry_skips: EntrySkips
    gateway_keys: GatewayKeys
    exposed: Sequence[str] = ()
    """Services of this node that other machines can reach without TLS or authentication."""
    placed: PlacedReplicas = field(default_factory=PlacedReplicas)
    usage: OwnerUsage | None = None
    """Storage used by topics, for owners with storage limits; None: there are no such limits here."""
    audit: AuditLog | None = None
    """The audit log; None if it is off."""
    slo: LatenessSlo | None = None
    """The objective for late deliveries; None if none is configured."""
    quotas: QuotaMeters = field(default_factory=QuotaMeters)
    request_rates: RequestRates = field(default_factory=RequestRates)
    failed_logins: FailedLogins = field(default_factory=FailedLogins)

    @property
    def authenticator(self) -> Authenticator:
        """The authenticator of the node's clients."""
        return self.logins.authenticator

    def nodes(self) -> list[list[Any]]:
        """Return [node id, host, port] of each node, as METADATA carries it."""
        others = []
        for node in self.broker.metadata.nodes.values():
            if node.node_id != self.node_id and "client" in node.addresses:
                others.append([node.node_id, *parse_server(node.addresses["client"])])
        return [[self.node_id, self.host, self.port], *others]

    @property
    def cluster_uuid(self) -> str:
        """UUID of the cluster; empty if this node does not belong to one yet."""
        if self.cluster.waiting() is not None:
            return ""
        # After a restart, the metadata may not have it before a leader is elected.
        return self.broker.metadata.cluster_uuid or self.cluster.uuid or ""

    def add_hint(self, error: SandqError) -> None:
        """Add the address of the node that an error names, if this node knows it."""
        named = error.details.get("node_id")
        if isinstance(error, NotLeader) and named is not None:
            for node_id, host, port in self.nodes():
                if node_id == named:
                    error.details.update(host=host, port=port)

    async def describe(self, time_slice: TimeSlice, access: Access | None = None) -> dict[str, Any]:
        """Return the reply to CLUSTER_INFO, made in time slices. `access`: of the caller; topics on which it has no
        right are left out."""
        broker = self.broker
        if self.cluster.waiting() is None:
            await self.placed.count(broker.metadata, time_slice)
        floors_ahead = await self._floors_ahead(time_slice)
        waiting = self.cluster.waiting()
        nodes, others = self._nodes_and_others({} if waiting is not None else broker.metadata.nodes)
        return {
            "cluster": self.cluster_name,
            "cluster_uuid": self.cluster_uuid,
            "node": self.node_id,
            "store_uuid": self.store_uuid,
            "version": self.version,
            "zone_data": self.zone_data,
            "other_zone_data": self._other_zone_data(nodes),
            "waiting": waiting,
            "metadata_leader": broker.metadata_host.leader if waiting is None else None,
            "feature_level": None if waiting is not None else broker.metadata.feature_level,
            "feature_level_next": None if waiting is not None else self._next_level(),
            "moving": self.placed.moving if waiting is None else 0,
            "nodes": nodes,
            "others": others,
            "topics": sum(access is None or access.sees(name) for name in broker.catalog.topics),
            "clock_alarm": broker.clock.alarm,
            "exposed": list(self.exposed),
            "storage_failed": broker.node_log.failed.message if broker.node_log.failed else None,
            "stalled": self.health.stalled,
            "no_room": self.health.disk_full,
            "http_down": self.http.down,
            "damage": self.scrubber.damage,
            "floors_ahead": floors_ahead,
            "different": [] if waiting is not None else self._different(access),
            "shut": [] if waiting is not None else self.shut(access),
            "memory": self._memory(),
        }

    def _next_level(self) -> int | None:
        """Return the highest feature level that all registered nodes support, if it is above the current one."""
        metadata = self.broker.metadata
        reachable = min([node.levels.highest for node in metadata.nodes.values()], default=metadata.feature_level)
        return reachable if reachable > metadata.feature_level else None

    async def _floors_ahead(self, time_slice: TimeSlice) -> int:
        """Count the partitions led here whose time is ahead of this node's clock, for example after a wrong clock."""
        latest_ms = self.broker.clock.now_ms() + FLOOR_AHEAD_MS
        ahead = 0
        for topic in self.broker.topics():
            for leader in topic.led().values():
                ahead += leader.raft_group.status.floor_ms >= latest_ms
                await time_slice.spend(1)
        return ahead

    def _memory(self) -> list[dict[str, Any]]:
        """Return the bytes held and the limit of each account of the memory budget."""
        accounts = self.memory.accounts.items()
        return [{"account": name, "bytes": held.bytes, "limit": int(held.share_bytes)} for name, held in accounts]

    def _different(self, access: Access | None) -> list[dict[str, Any]]:
        """Return the partitions led here whose replicas differ, with the nodes that hold the divergent replicas."""
        positions = self.broker.metadata.partition_of_group
        found = [(positions[group], nodes) for group, nodes in self.digests.different.items() if group in positions]
        return [
            {"topic": topic, "partition": at, "nodes": list(nodes)}
            for (topic, at), nodes in found
            if access is None or access.sees(topic)
        ]

    def shut(self, access: Access | None) -> list[dict[str, Any]]:
        """Return the replicas that are shut on any node, as far as this node knows. `access`: of the caller; topics on
        which it has no right are left out."""
        positions = self.broker.metadata.partition_of_group
        found = []
        for node, report in self.shut_replicas.all():
            topic, at = (None, 0) if report.group == METADATA_GROUP else positions.get(report.group, ("", 0))
            if topic == "" or (access is not None and topic is not None and not access.sees(topic)):
                continue
            named = {"topic": topic, "partition": at, "node": node, "index": report.index}
            found.append({**named, "leads": report.leads, "step": report.step, "error": report.error})
        return found

    def _other_zone_data(self, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the nodes with other time zone data, where schedules might fire at other times than here."""
        return [node["node"] for node in nodes if node.get("zone_data") not in (None, self.zone_data)]

    def _nodes_and_others(self, registered: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the registered nodes with their gossip state, and all other members.

        Other members are nodes that have not joined the cluster, or other machines of the same Serf cluster."""
        up = self.broker.links.versions()
        believed: dict[str, dict[str, Any]] = {}
        others = []
        # Put nodes first: another machine of the same Serf cluster may have a name that equals the id of a node.
        for member in sorted(self.membership.members().values(), key=lambda member: tags.NODE not in member.tags):
            node_id = member.tags.get(tags.NODE, member.name)
            row: dict[str, Any] = {
                "node": node_id,
                "up": node_id in up,
                "member": member.state.value if self.hears_of_members else NAMED,
                "since_ms": member.since_ms if self.hears_of_members else None,
                "gossip": str(member.address) if self.hears_of_members else None,
                "zone": member.tags.get(tags.ZONE),
                "version": member.tags.get(tags.VERSION) or up.get(node_id),
                "zone_data": member.tags.get(tags.ZONE_DATA),
            }
            if node_id in registered and node_id not in believed:
                believed[node_id] = row
            elif node_id != self.node_id or node_id in believed:
                others.append({**row, "cluster_uuid": member.tags.get(tags.CLUSTER_UUID)})
        nodes = []
        sick = self.health.sick()
        held = self.placed.by_node if registered else {}
        voting = {node_of(member) for member in self.broker.metadata_host.members.voters} if registered else ()
        for _, node in sorted(registered.items()):
            known = {"node": node.node_id, "store_uuid": node.store_uuid, "up": node.node_id in up, **node.addresses}
            written = {
                "standing": node.standing,
                "failed_since_ms": node.failed_since_ms,
                "sick": sick.get(node.node_id),
                "zone": node.zone,
                "weight": node.weight,
                "feature_levels": list(node.levels),
                "voter": node.node_id in voting,
                "replicas": held.get(node.node_id, 0),
            }
            nodes.append({**known, **believed.get(node.node_id, {"member": None, "since_ms": None}), **written})
        return nodes, sorted(others, key=lambda row: row["node"])


class NodeState:
    """The health and readiness of this node, for health checks."""

    def __init__(
        self,
        broker: Broker,
        health: NodeHealth,
        metrics: Metrics,
        cluster: Cluster,
    ) -> None:
        self._broker = broker
        self._health = health
        self._metrics = metrics
        self._cluster = cluster

    def failure(self) -> str | None:
        """Return why the node cannot store anything any more; None if it can."""
        failed = self._broker.node_log.failed
        return failed.message if failed is not None else None

    def stalled(self) -> str | None:
        """Return which work is stalled and may recover by itself; None if nothing is stalled."""
        return self._health.stalled

    def silent(self) -> str | None:
        """Return None: if this process hangs, it does not answer the health check at all."""
        return None

    async def catch_up(self) -> None:
        """Do nothing: the node itself is never behind its own state."""

    def ready(self) -> str | None:
        """Return why the node is not ready; None if it is."""
        if (failure := self.failure()) is not None:
            return failure
        if (stalled := self.stalled()) is not None:
            return stalled
        if (waiting := self._cluster.waiting()) is not None:
            return waiting
        groups = [part.group for topic in self._broker.topics() for part in topic.record.partitions]
        idle = sum(self._broker.routes.leader(group) is None for group in groups)
        return f"{idle} of {len(groups)} partitions have no leader yet" if idle else None

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a format of Prometheus, and its content type."""
        return await self._metrics.render(accept)
