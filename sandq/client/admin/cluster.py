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
    """The part of `client.admin` that is about the cluster and its nodes."""

    _cluster: Cluster

    @timed_read
    async def cluster(self, node: str | None = None, *, timeout: Duration | None = None) -> dict[str, Any]:
        """The cluster as this node sees it; None: as any of them does. `waiting`: why that node belongs to none yet,
        or None. `nodes`: a row each, with `standing`, `replicas` (those that it is to hold, or may still hold),
        `voter` (in the metadata group); `moving`: partitions that are on their way.

        The node that leads the metadata group (`metadata_leader`) knows first what has changed.
        """
        return map_of(await self._at(node, ClusterInfo(), idempotent=True))

    @timed_read
    async def audit(
        self, last: int = 100, *, after: str | None = None, node: str | None = None, timeout: Duration | None = None
    ) -> audit.AuditPage:
        """The last lines of the audit logs of all nodes, or of one: who did what, and who was refused it. `after`: the
        `position` of an earlier answer: up to `last` lines of each node that were written since.

        Conflict when a node that is asked by its name keeps none; of several nodes `missing` says why nothing is told
        of one.
        """
        audit.check_last(last)
        positions = audit.positions_of(after)
        told, missing = await self._ask_nodes(
            node, lambda name: AuditList(last, positions.get(name)), audit.told_by, AuditList.type
        )
        return audit.together(told, positions, missing, None if after else last)

    @timed_read
    async def slo(self, *, node: str | None = None, timeout: Duration | None = None) -> slo.SloReport:
        """How late messages were delivered, beside what the nodes promise (`slo` in their configuration): of all nodes,
        or of one.

        Conflict when a node that is asked by its name counts nothing; of several nodes `missing` says why nothing is
        told of one. Unavailable when nothing is told of any.
        """
        told, missing = await self._ask_nodes(node, lambda name: Slo(), slo.told_by, Slo.type)
        if not told:
            why = "; ".join([f"nothing is told of {name}: {why}" for name, why in missing.items()])
            raise Unavailable(why or "the node that is asked belongs to no cluster yet, so nothing is counted")
        return slo.together(told, missing)

    async def _ask_nodes(
        self, node: str | None, request: Callable[[str], Request], told_by: Callable[[Frame], T], kind: Type
    ) -> tuple[dict[str, T], dict[str, str]]:
        """What all nodes, or one, answer to a request about themselves; and why nothing is told of some."""
        rows: list[dict[str, Any]] = (await self.cluster()).get("nodes") or []
        up = {str(row.get("node")) for row in rows if row.get("up")}
        told: dict[str, T] = {}
        missing: dict[str, str] = {}
        for name in [str(row.get("node")) for row in rows] if node is None else [check_name("node", node)]:
            if node is None and name not in up:
                missing[name] = "it cannot be reached"
                continue
            try:
                self._introduce(name, rows)
                told[name] = told_by(await call(self._cluster, request(name), node_id=name))
            except (Conflict, Retriable, NotFound, InvalidRequest) as error:
                if node is not None or (isinstance(error, InvalidRequest) and error.message != unknown_request(kind)):
                    raise
                missing[name] = error.message
        return told, missing

    @timed_change
    async def log_level(
        self,
        level: str | None = None,
        *,
        for_: Duration | None = None,
        node: str | None = None,
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """At which level a node logs; with `level` (debug, info, warning, error) it logs at that from now on, `for_` so
        long at most a day, or until it stops.

        Its `node`, `level`, the `configured` one, and `until_ms`. None as `node`: the one that is asked. Connections
        that began before keep the level they had.
        """
        for_ms = None if for_ is None else duration_ms(for_)
        request = LogLevel(level, for_ms)
        return map_of(await self._at(node, request, idempotent=level is None))

    @timed_read
    async def dump(self, node: str | None = None, *, timeout: Duration | None = None) -> dict[str, Any]:
        """What a node does now: `process`, `threads` and `tasks` with their stacks, `loop_stalls`, `memory`,
        `raft_groups`, `connections`, its `configuration` without secrets and the last lines of its `log`.

        None: of the node that is asked. There are names in it, but no values, keys, headers or secrets.
        """
        return map_of(await self._at(node, DebugDump(), idempotent=True))

    async def _at(self, node: str | None, request: Request, *, idempotent: bool) -> Frame:
        """What a node answers, whether this client knows it or not; None: any."""
        if node is not None and not self._cluster.knows(check_name("node", node)):
            self._cluster.introduce(node, address_of(node, (await self.cluster()).get("nodes")))
        return await call(self._cluster, request, node_id=node, idempotent=idempotent)

    @timed_change
    async def drain_node(self, node: str, *, undo: bool = False, timeout: Duration | None = None) -> None:
        """Let a node hold nothing: its replicas move to the others, and it stays registered. `undo`: it takes part
        again.

        Returns when it is written down, not when it is done: see `replicas` in `cluster()`. NotFound when there is no
        such node, InvalidRequest when the others would be too few.
        """
        request = NodeChange(check_name("node", node), UNDRAIN if undo else DRAIN)
        await call(self._cluster, request)

    @timed_change
    async def remove_node(self, node: str, *, timeout: Duration | None = None) -> None:
        """Let the cluster forget a node that was drained, or that has failed; then its replicas are made elsewhere
        first.

        Returns when it is written down; the node is gone when `cluster()` does not have it any more. NotFound when
        there is no such node, Conflict while it is there and holds something, or is the last that does. A TimedOut or
        ConnectionLost leaves open whether it is written down.
        """
        await call(self._cluster, NodeChange(check_name("node", node), REMOVE), idempotent=False)

    @timed_change
    async def transfer(self, topic: str, partition: int, node: str, *, timeout: Duration | None = None) -> None:
        """Let a node that holds a partition lead it; returns once it does. InvalidRequest when it does not hold it;
        TimedOut when it does not lead it yet: it will, once it can."""
        request = Transfer(check_name("topic", topic), check_partition(partition), check_name("node", node))
        await call(self._cluster, request)
        self._cluster.refresh(topic, node)

    @timed_change
    async def rebuild(self, topic: str, partition: int, node: str, *, timeout: Duration | None = None) -> None:
        """Let a node drop its replica of a partition and get it anew from the others: for one that is not what the
        others are (`different` of `cluster()`).

        Returns when it is dropped and on its way back; `topic()` tells that it has come (`moving` is over). Until then
        there is a replica less. InvalidRequest when the node does not hold it, or nobody else does; Conflict when the
        others are not all there. A TimedOut or ConnectionLost leaves open whether it was dropped; it comes back.
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
        """Skip the log entry that shut a partition, because no replica can apply it; its replicas open again then.

        What is skipped is lost; whoever sent it has not had an answer. `topic`: None is the metadata. `index`: of the
        entry; None, the one that shut the partition. `commands`: positions in the entry of what is skipped; None: the
        command that failed, or all of the entry if that is not known. `dry_run`: only return what the entry holds:
        `index`, `error` and `commands`, a row for each. `force`: also while a replica that may have applied the entry
        cannot be reached. Conflict when there is nothing to skip, or such a replica; InvalidRequest when there is
        another entry. A TimedOut or ConnectionLost leaves open whether it is skipped: `cluster()` tells (`shut`).
        """
        name = None if topic is None else check_name("topic", topic)
        request = EntrySkip(name, check_partition(partition), index, commands, dry_run, force)
        return map_of(await call(self._cluster, request, idempotent=dry_run))

    @timed_change
    async def finalize(self, *, dry_run: bool = False, timeout: Duration | None = None) -> tuple[int, int]:
        """Let the cluster come to the highest feature level that all nodes know, for good: the level before, and after.

        It is for clusters of `cluster.finalize: manual`; others do it by themselves. No node of a version that does not
        know the new level can be started afterwards. `dry_run`: only say. Conflict when there is no higher level that
        all know, and when a node is older. A TimedOut or ConnectionLost leaves open whether it is done: `cluster()`
        tells (`feature_level`).
        """
        # Asked again it would be told that there is nothing to do, though it was done.
        told = map_of(await call(self._cluster, Finalize(dry_run), idempotent=dry_run))
        return told["before"], told["after"]

    @timed_change
    async def init_cluster(self, *, timeout: Duration | None = None) -> str:
        """Found the cluster with the node that is asked, alone, now; the cluster's UUID.

        Only a node that waits to be taken in does it; Conflict when it belongs to a cluster, or knows of one. Those
        that wait beside it join. Two clusters of one name never become one. A TimedOut or ConnectionLost leaves open
        whether it was founded: `cluster()` tells.
        """
        uuid = field_of(await call(self._cluster, ClusterInit(), idempotent=False))
        if type(uuid) is not str:
            raise ProtocolError(f"CLUSTER_INIT reply: {str(uuid)[:100]}")
        return uuid

    @timed_change
    async def clock(self, *, accept: bool = False, timeout: Duration | None = None) -> dict[str, Any]:
        """The guarded clock of a node: `guarded_ms`, `wall_ms`, `drift_ms`, `alarm`, its `reason`; `peers` and
        `median_ms`, the other nodes' guarded clocks less this one's.

        `accept` makes it follow a step of the wall clock that it did not trust.
        """
        request = ClusterClock(ACCEPT if accept else SHOW)
        return map_of(await call(self._cluster, request, idempotent=not accept))

    @timed_change
    async def reset_clock(self, topic: str, partition: int, *, timeout: Duration | None = None) -> dict[str, Any]:
        """Set the time of a partition, which a wrong clock put far ahead, back to the clock of the node that leads it.

        Its `outcome`: "begun"; "under_way", when it had begun before; "not_ahead", when there is nothing to set back.
        And the partition's `floor_ms` before, its `now_ms` and `clock_epoch` after. Until it is through the partition
        answers `Unavailable`; `stats` tells how far it is (`clock_reset`), and which are ahead (`ahead_ms`). Raises
        Conflict when the leader's clock is in alarm; InvalidRequest for a
        compacted topic; UnknownTopic, UnknownPartition.
        """
        await check_partitions(self._cluster, topic, [partition])
        request = ClockReset(check_name("topic", topic), check_partition(partition))
        return map_of(await call_leader(self._cluster, request))

    def _introduce(self, node: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Have the client know where a node is. Raises NotFound."""
        if not self._cluster.knows(node):
            self._cluster.introduce(node, address_of(node, list(rows)))
