"""Administration of the cluster: its nodes, replicas, logs and clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sandq.client.admin import audit, slo
from sandq.client.admin.requests import address_of, check_partition, check_partitions, field_of, map_of
from sandq.client.arguments import suggesting
from sandq.client.timeouts import timed_change, timed_read
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call, call_leader
from sandq.model.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    ProtocolError,
    Retriable,
    Unavailable,
)
from sandq.model.names import check_name
from sandq.model.times import Duration, duration_ms
from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import Request, unknown_request
from sandq.protocol.requests_admin import (
    ACCEPT,
    DRAIN,
    REMOVE,
    SHOW,
    UNDRAIN,
    ClockReset,
    ClusterClock,
    ClusterInfo,
    ClusterInit,
    EntrySkip,
    Finalize,
    NodeChange,
    Rebuild,
    Transfer,
)
from sandq.protocol.requests_audit import AuditList
from sandq.protocol.requests_debug import DebugDump, LogLevel
from sandq.protocol.requests_slo import Slo

T = TypeVar("T")


@suggesting
class ClusterAdmin:
    """The part of `client.admin` for the cluster and its nodes."""

    _cluster: Cluster

    @timed_read
    async def cluster(self, node: str | None = None, *, timeout: Duration | None = None) -> dict[str, Any]:
        """Return the view that `node` has of the cluster; None for any node.

        `waiting`: why that node belongs to no cluster yet, or None. `nodes`: one row per node, with `standing`,
        `replicas` (number of replicas that the node holds or will hold) and `voter` (in the metadata group). `moving`:
        partitions whose replicas are moving.

        The leader of the metadata group (`metadata_leader`) sees changes first.
        """
        return map_of(await self._at(node, ClusterInfo(), idempotent=True))

    @timed_read
    async def audit(
        self, last: int = 100, *, after: str | None = None, node: str | None = None, timeout: Duration | None = None
    ) -> audit.AuditPage:
        """Return the latest lines of the audit logs of all nodes, or of one node: actions and refusals, with their
        callers.

        `after`: the `position` of an earlier reply; the result then has up to `last` newer lines of each node.

        Raises Conflict if `node` is given and keeps no audit log. For all nodes, `missing` has the reasons why lines of
        a node are missing.
        """
        audit.check_last(last)
        positions = audit.positions_of(after)
        replies, missing = await self._ask_nodes(
            node, lambda name: AuditList(last, positions.get(name)), audit.parse_reply, AuditList.type
        )
        return audit.merge(replies, positions, missing, None if after else last)

    @timed_read
    async def slo(self, *, node: str | None = None, timeout: Duration | None = None) -> slo.SloReport:
        """Return how late messages were delivered, compared with the objective of the nodes (`slo` in their
        configuration).

        Covers all nodes, or only `node`. Raises Conflict if `node` is given and does not measure. For all nodes,
        `missing` has the reasons why a node's part is missing. Raises Unavailable if the parts of all nodes are
        missing.
        """
        replies, missing = await self._ask_nodes(node, lambda name: Slo(), slo.parse_reply, Slo.type)
        if not replies:
            why = "; ".join([f"{name} did not report: {why}" for name, why in missing.items()])
            raise Unavailable(why or "the node that is asked belongs to no cluster yet, so nothing is counted")
        return slo.merge(replies, missing)

    async def _ask_nodes(
        self, node: str | None, request: Callable[[str], Request], parse: Callable[[Frame], T], kind: Type
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Send a request to all nodes, or to one node. Return (replies by node, reasons why replies are missing by
        node)."""
        rows: list[dict[str, Any]] = (await self.cluster()).get("nodes") or []
        up = {str(row.get("node")) for row in rows if row.get("up")}
        replies: dict[str, T] = {}
        missing: dict[str, str] = {}
        for name in [str(row.get("node")) for row in rows] if node is None else [check_name("node", node)]:
            if node is None and name not in up:
                missing[name] = "it cannot be reached"
                continue
            try:
                self._introduce(name, rows)
                replies[name] = parse(await call(self._cluster, request(name), node_id=name))
            except (Conflict, Retriable, NotFound, InvalidRequest) as error:
                if node is not None or (isinstance(error, InvalidRequest) and error.message != unknown_request(kind)):
                    raise
                missing[name] = error.message
        return replies, missing

    @timed_change
    async def log_level(
        self,
        level: str | None = None,
        *,
        for_: Duration | None = None,
        node: str | None = None,
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """Return the log level of a node. With `level` (debug, info, warning, error), change it first.

        The change lasts for `for_` (at most a day), or until the node stops. The result has `node`, `level`, the
        `configured` level, and `until_ms`. `node`: None for the node to which the client sends the request. Connections
        that are already open keep their level.
        """
        for_ms = None if for_ is None else duration_ms(for_)
        request = LogLevel(level, for_ms)
        return map_of(await self._at(node, request, idempotent=level is None))

    @timed_read
    async def dump(self, node: str | None = None, *, timeout: Duration | None = None) -> dict[str, Any]:
        """Return a debug dump of a node.

        It contains `process`, `threads` and `tasks` with their stacks, `loop_stalls`, `memory`, `raft_groups`,
        `connections`, the `configuration` without secrets, and the last lines of the `log`. It contains names, but no
        values, keys, headers or secrets. `node`: None for any node.
        """
        return map_of(await self._at(node, DebugDump(), idempotent=True))

    async def _at(self, node: str | None, request: Request, *, idempotent: bool) -> Frame:
        """Send a request to a node, even if this client does not know it yet; None for any node."""
        if node is not None and not self._cluster.knows(check_name("node", node)):
            self._cluster.introduce(node, address_of(node, (await self.cluster()).get("nodes")))
        return await call(self._cluster, request, node_id=node, idempotent=idempotent)

    @timed_change
    async def drain_node(self, node: str, *, undo: bool = False, timeout: Duration | None = None) -> None:
        """Move all replicas of a node to the other nodes; the node stays registered. `undo`: use the node again.

        Returns once the request is recorded. The replicas move afterwards: see `replicas` in `cluster()`. Raises
        NotFound if there is no such node, InvalidRequest if too few other nodes would be left.
        """
        request = NodeChange(check_name("node", node), UNDRAIN if undo else DRAIN)
        await call(self._cluster, request)

    @timed_change
    async def remove_node(self, node: str, *, timeout: Duration | None = None) -> None:
        """Remove a node that was drained or has failed from the cluster. The replicas of a failed node are recreated
        first.

        Returns once the request is recorded. The node is removed when `cluster()` no longer lists it. Raises NotFound
        if there is no such node. Raises Conflict while the node is up and holds replicas, or if no other node could
        hold replicas. After TimedOut or ConnectionLost, the outcome is unknown.
        """
        await call(self._cluster, NodeChange(check_name("node", node), REMOVE), idempotent=False)

    @timed_change
    async def transfer(self, topic: str, partition: int, node: str, *, timeout: Duration | None = None) -> None:
        """Make a node that holds a replica of a partition its leader; returns once it leads.

        Raises InvalidRequest if the node holds no replica. Raises TimedOut if the node does not lead yet; it will lead
        as soon as it can.
        """
        request = Transfer(check_name("topic", topic), check_partition(partition), check_name("node", node))
        await call(self._cluster, request)
        self._cluster.refresh(topic, node)

    @timed_change
    async def rebuild(self, topic: str, partition: int, node: str, *, timeout: Duration | None = None) -> None:
        """Make a node delete its replica of a partition, and copy the partition from the other replicas.

        Use it for a replica that differs from the others (`different` of `cluster()`). Returns once the replica is
        deleted and the copy has begun. `topic()` shows when the copy is complete (`moving` is over); until then there
        is one replica less. Raises InvalidRequest if the node holds no replica or the only one. Raises Conflict unless
        all other replicas are available. After TimedOut or ConnectionLost it is unknown whether the replica was
        deleted; if so, it is restored.
        """
        request = Rebuild(check_name("topic", topic), check_partition(partition), check_name("node", node))
        await call(self._cluster, request, idempotent=False)

    @timed_change
    async def skip_entry(
        self,
        topic: str | None,
        partition: int = 0,
        *,
        index: int | None = None,
        commands: Sequence[int] | None = None,
        dry_run: bool = False,
        force: bool = False,
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """Skip the log entry that shut a partition because no replica can apply it; then its replicas open again.

        The skipped commands are lost; their callers got no reply. `topic`: None for the metadata. `index`: index of the
        entry; None for the entry that shut the partition. `commands`: positions of the commands to skip; None for the
        command that failed, or for the whole entry if that is unknown. `dry_run`: only return the content of the entry:
        `index`, `error`, and `commands` (one row per command). `force`: skip the entry even if a replica that may have
        applied it is unreachable.

        Raises Conflict if there is nothing to skip, or if a replica that may have applied the entry is unreachable.
        Raises InvalidRequest if the entry differs from the arguments. After TimedOut or ConnectionLost the outcome is
        unknown; `cluster()` shows it (`shut`).
        """
        name = None if topic is None else check_name("topic", topic)
        request = EntrySkip(name, check_partition(partition), index, commands, dry_run, force)
        return map_of(await call(self._cluster, request, idempotent=dry_run))

    @timed_change
    async def finalize(self, *, dry_run: bool = False, timeout: Duration | None = None) -> tuple[int, int]:
        """Raise the feature level of the cluster, permanently, to the highest level that all nodes know.

        Returns the levels before and after. For clusters with `cluster.finalize: manual`; other clusters raise the
        level automatically. Afterwards, nodes of a version without that level cannot start. `dry_run`: only return the
        levels. Raises Conflict if no higher level is known to all nodes, or if a node has an older version. After
        TimedOut or ConnectionLost the outcome is unknown; `cluster()` shows it (`feature_level`).
        """
        # A retry would report that there is nothing to do, although the first attempt did it.
        levels = map_of(await call(self._cluster, Finalize(dry_run), idempotent=dry_run))
        return levels["before"], levels["after"]

    @timed_change
    async def init_cluster(self, *, timeout: Duration | None = None) -> str:
        """Create the cluster with the node that receives the request as its only member; return the cluster's UUID.

        The node must be waiting to join a cluster; Conflict is raised if it belongs to a cluster or knows one. Other
        waiting nodes then join. Two clusters of the same name never merge. After TimedOut or ConnectionLost the outcome
        is unknown; `cluster()` shows it.
        """
        uuid = field_of(await call(self._cluster, ClusterInit(), idempotent=False))
        if type(uuid) is not str:
            raise ProtocolError(f"CLUSTER_INIT reply: {str(uuid)[:100]}")
        return uuid

    @timed_change
    async def clock(self, *, accept: bool = False, timeout: Duration | None = None) -> dict[str, Any]:
        """Return the state of a node's guarded clock.

        It contains `guarded_ms`, `wall_ms`, `drift_ms`, `alarm` and its `reason`. `peers` and `median_ms` are the
        guarded clocks of the other nodes, relative to this node's clock. `accept`: follow a step of the wall clock that
        the node did not trust.
        """
        request = ClusterClock(ACCEPT if accept else SHOW)
        return map_of(await call(self._cluster, request, idempotent=not accept))

    @timed_change
    async def reset_clock(self, topic: str, partition: int, *, timeout: Duration | None = None) -> dict[str, Any]:
        """Set the time of a partition back to its leader's clock, after a wrong clock has moved it far ahead.

        The result has the `outcome`: "begun"; "under_way" if an earlier reset is in progress; "not_ahead" if there is
        nothing to reset. It also has the partition's former `floor_ms`, and its new `now_ms` and `clock_epoch`. Until
        the reset is done, the partition responds with `Unavailable`. `stats` shows its progress (`clock_reset`) and how
        far partitions are ahead (`ahead_ms`).

        Raises Conflict if the leader's clock is in alarm; InvalidRequest for a compacted topic; UnknownTopic,
        UnknownPartition.
        """
        await check_partitions(self._cluster, topic, [partition])
        request = ClockReset(check_name("topic", topic), check_partition(partition))
        return map_of(await call_leader(self._cluster, request))

    def _introduce(self, node: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Make a node's address known to the client. Raises NotFound."""
        if not self._cluster.knows(node):
            self._cluster.introduce(node, address_of(node, list(rows)))
