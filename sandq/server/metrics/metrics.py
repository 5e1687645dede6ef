"""Collect the metrics of a node, and render them for Prometheus.

`Metrics.render` copies the needed state (mostly references) on the event loop, and makes the text in a thread. For each
partition, it uses the published status and the later results of `refresh`. So a scrape never waits for the thread that
owns the partitions.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sandq.broker.broker import Broker
from sandq.broker.catalog import OpenTopic
from sandq.broker.clock.guarded_clock import ClockStatus
from sandq.broker.event_loop import TimeSlice
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.health.scrubber import Scrubber
from sandq.broker.owner_usage import OwnerUsage
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.stats.histogram import SECONDS, Histogram
from sandq.membership.discovery import Discovery, Seen
from sandq.model.errors import StorageFailed, Unavailable
from sandq.model.names import FAIR
from sandq.push.pump import PushCounts
from sandq.push.pusher import Pusher
from sandq.schedules import zones
from sandq.server import logs
from sandq.server.audit.audit_log import AuditLog
from sandq.server.client_stats import ClientStats
from sandq.server.metrics import catalog
from sandq.server.metrics.http_requests import HttpProcess
from sandq.server.metrics.named_limits import write_named_limits
from sandq.server.metrics.node import write_members, write_quotas, write_tls
from sandq.server.metrics.own_process import OwnProcess
from sandq.server.metrics.text import Exposition
from sandq.server.metrics.topics import (
    Board,
    GroupNumbers,
    PartitionSeen,
    TenantRows,
    TopicNumbers,
    TopicSeen,
    write_pushes,
    write_tenants,
)
from sandq.server.quota_meters import QuotaMeters
from sandq.tls.budget import Handshakes
from sandq.tls.certificates import Certificates

STALL_CHECK_S = 0.1
"""Interval between two measurements of the event loop's delay, in seconds."""
REFRESH_S = 5.0
"""Interval between two queries for messages that became due in idle partitions, in seconds."""
REFRESH_PARTITIONS = 100
"""Number of partitions in one query. Other work can run between two queries."""
FORECAST_S = 30.0
"""Interval between two forecasts, in seconds. A forecast reads one row per second of its period and partition."""
SOON_S = (60, 300)
"""Periods of the forecast, in seconds from now."""
SOON_LABELS = ("1m", "5m")
GROUPS_OF_WORK = 32
"""Groups that can be visited with one unit of work."""
REFRESH_FORECASTS = 20
"""Number of partitions in one query of the forecast."""
REFRESH_FAIR_PARTITIONS = 10
"""Number of partitions in one query for tenants, of which a partition may have many."""
GROUP_LIMITS = ("max_in_flight", "rate")
DEAD_REASONS = ("nacked", "lease_expired", "expired", "rejected")
_OF_TOPIC = (
    ("sandq_messages_in_total", "stored"),
    ("sandq_message_bytes_in_total", "stored_bytes"),
    ("sandq_leases_total", "leases"),
    ("sandq_messages_acked_total", "acked"),
    ("sandq_messages_nacked_total", "nacked"),
    ("sandq_messages_snoozed_total", "snoozed"),
    ("sandq_messages_superseded_total", "superseded"),
    ("sandq_messages_lease_expired_total", "lease_expired"),
    ("sandq_messages_released_total", "released"),
    ("sandq_messages_cancelled_total", "cancelled"),
    ("sandq_messages_moved_total", "moved"),
    ("sandq_messages_updated_total", "updated"),
    ("sandq_outbox_sent_total", "forwarded"),
    ("sandq_outbox_refused_total", "undeliverable"),
)


@dataclass(frozen=True, slots=True)
class About:
    """Constant properties of the node."""

    version: str
    node: str
    cluster: str
    data_dir: Path
    is_insecure: bool = False
    """Whether it listens beyond its machine without TLS or authentication."""
    slo_target: float = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """State that the event loop owns, copied at one moment."""

    topics: list[OpenTopic]
    clock: ClockStatus
    connections: int
    in_flight_bytes: int
    requests_in_flight: int
    raft_entries: int
    memory: dict[str, tuple[float, int]]
    """Share and held bytes of each account."""
    members: Seen
    pushes: tuple[dict[tuple[str, str], PushCounts], dict[tuple[str, str], str]]
    """Counts of pushed groups, and the states of their pumps."""


class Metrics:
    """The metrics of one node. It has its own registry, because a process may contain several nodes."""

    def __init__(
        self,
        *,
        broker: Broker,
        health: NodeHealth,
        scrubber: Scrubber,
        digests: ReplicaDigests,
        clients: ClientStats,
        about: About,
        discovery: Discovery,
        pusher: Pusher | None = None,
        audit: AuditLog | None = None,
        tls: tuple[Certificates, Handshakes] | None = None,
        quotas: QuotaMeters | None = None,
        usage: OwnerUsage | None = None,
        http: HttpProcess | None = None,
    ) -> None:
        """`http`: state of the process that serves HTTP; None if there is none."""
        self._tls = tls
        self.registry = CollectorRegistry()
        self._broker = broker
        self._health = health
        self._scrubber = scrubber
        self._digests = digests
        self._stats = broker.stats
        self.clients = clients
        self._about = about
        self._discovery = discovery
        self._pusher = pusher
        self._audit = audit
        self._quotas = quotas
        self._usage = usage
        self._board = Board(broker.limits.metric_topics, broker.limits.metric_groups)
        self._stalls = Histogram(SECONDS)
        self._came_due: dict[int, tuple[Any, int, int]] = {}
        """By Raft group number: status at the time of the query, second up to which messages were counted, and number
        of messages that became due since that status."""
        self._soon: dict[int, tuple[int, ...]] = {}
        """By Raft group number: number of messages that become due within each period of `SOON_S`."""
        self._tenants: dict[int, tuple[Any, list[tuple[str, dict[str, Any]]]]] = {}
        """By Raft group number: status at the time of the query, and the tenants of the consumer groups."""
        self._rendering = trio.Lock()
        OwnProcess(registry=self.registry)
        self.http = http if http is not None else HttpProcess()

    # -- interface ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Measure the event loop's delay, and refresh counts of due messages, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self._refresh_often)
            nursery.start_soon(self._forecast_often)

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text for Prometheus, and its content type: OpenMetrics if the Accept header asks for it."""
        async with self._rendering:
            return await trio.to_thread.run_sync(self._text, self._see(), accept)

    async def refresh(self) -> None:
        """Count messages that became due since the last status, in partitions that have not published a new one."""
        now_s = self._broker.clock.now_ms() // 1000
        selected: list[tuple[int, PartitionReplica, Any, int, int]] = []
        time_slice = TimeSlice()
        for topic in self._broker.topics():
            for leader in list(topic.led().values()):
                raft_group, status = leader.raft_group, leader.raft_group.status
                await time_slice.spend(1 + len(status.groups) // GROUPS_OF_WORK)
                last, until_s, count = self._came_due.get(raft_group.number, (None, 0, 0))
                if last is not status:
                    until_s, count = status.now_ms // 1000 + 1, 0
                if status.later > count and until_s <= now_s and status.groups.is_any_due(now_s * 1000):
                    assert isinstance(raft_group.replica, PartitionReplica)
                    selected.append((raft_group.number, raft_group.replica, status, until_s, count))
        for start in range(0, len(selected), REFRESH_PARTITIONS):
            part = selected[start : start + REFRESH_PARTITIONS]
            counted = await self._broker.ask(partial(_due_in, part, now_s + 1))
            for (number, _, status, _, count), more in zip(part, counted, strict=True):
                self._came_due[number] = (status, now_s + 1, count + more)
        await self._refresh_tenants()

    async def forecast(self) -> None:
        """Count messages that become due soon, in partitions that have consumer groups."""
        now_s = self._broker.clock.now_ms() // 1000
        raft_groups = []
        time_slice = TimeSlice()
        for topic in self._broker.topics():
            for leader in list(topic.led().values()):
                await time_slice.spend(1)
                status = leader.raft_group.status
                if status.later and len(status.groups):
                    raft_groups.append(leader.raft_group)
        soon: dict[int, tuple[int, ...]] = {}
        for start in range(0, len(raft_groups), REFRESH_FORECASTS):
            part = raft_groups[start : start + REFRESH_FORECASTS]
            counted = await self._broker.ask(partial(_soon_in, [raft_group.replica for raft_group in part], now_s + 1))
            soon.update(zip([raft_group.number for raft_group in part], counted, strict=True))
        self._soon = soon

    async def _refresh_tenants(self) -> None:
        """Query the tenants of fair topics, in partitions whose status has changed since the last query."""
        fair = [topic for topic in self._broker.topics() if topic.record.kind == FAIR]
        raft_groups = [leader.raft_group for topic in fair for leader in topic.led().values()]
        known = self._tenants
        self._tenants = {
            raft_group.number: known[raft_group.number] for raft_group in raft_groups if raft_group.number in known
        }
        selected = [
            raft_group
            for raft_group in raft_groups
            if self._tenants.get(raft_group.number, (None,))[0] is not raft_group.status
        ]
        for start in range(0, len(selected), REFRESH_FAIR_PARTITIONS):
            part = [
                (raft_group.number, raft_group.status, raft_group.replica)
                for raft_group in selected[start : start + REFRESH_FAIR_PARTITIONS]
            ]
            found = await self._broker.ask(partial(_tenants_in, [replica for *_, replica in part]))
            for (number, status, _), rows in zip(part, found, strict=True):
                self._tenants[number] = (status, rows)

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Measure how late the event loop wakes this task, until cancelled."""
        while True:
            due = trio.current_time() + STALL_CHECK_S
            await trio.sleep_until(due)
            self._stalls.observe(max(trio.current_time() - due, 0.0))

    async def _refresh_often(self) -> None:
        """Refresh the numbers of groups every `REFRESH_S`, until cancelled."""
        while True:
            await trio.sleep(REFRESH_S)
            numbers = {leader.raft_group.number for t in self._broker.topics() for leader in t.partitions.values()}
            self._came_due = {number: found for number, found in self._came_due.items() if number in numbers}
            with suppress(StorageFailed, Unavailable):
                await self.refresh()

    async def _forecast_often(self) -> None:
        """Refresh the forecast every `FORECAST_S`, until cancelled."""
        while True:
            with suppress(StorageFailed, Unavailable):
                await self.forecast()
            await trio.sleep(FORECAST_S)

    # -- on the event loop ----------------------------------------------------------------------------------------

    def _see(self) -> _Seen:
        """Return the numbers that only the event loop may read."""
        broker, connections = self._broker, self.clients.open
        return _Seen(
            topics=broker.topics(),
            clock=broker.clock.status(),
            connections=len(connections),
            in_flight_bytes=sum([connection.waiting_bytes for connection in connections]),
            requests_in_flight=sum([connection.requests for connection in connections]),
            raft_entries=broker.node_log.entries_kept,
            memory={name: (held.share_bytes, held.bytes) for name, held in broker.node_log.memory.accounts.items()},
            members=self._discovery.seen(),
            pushes=({}, {}) if self._pusher is None else (dict(self._pusher.counts), dict(self._pusher.doing())),
        )

    # -- in a thread ----------------------------------------------------------------------------------------------

    def _text(self, seen: _Seen, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text, and the content type. Runs in a thread."""
        encode, content_type = choose_encoder(accept)
        out = Exposition(catalog.EVERY, openmetrics=content_type.startswith("application/openmetrics-text"))
        self._write_node(seen, out)
        self._write_clients(seen, out)
        self._write_storage(seen, out)
        write_members(seen.members, self._stats.round_trips, out)
        topics, groups = self._board.sums([self.topic_seen(topic) for topic in seen.topics])
        out.value("sandq_subscriptions", sum([group.consumers for group in groups.values()]))
        _write_topics(topics, out)
        _write_groups(groups, seen.clock.guarded_ms, out)
        statuses = [leader.raft_group.status for topic in seen.topics for leader in topic.led().values()]
        write_named_limits(statuses, seen.clock.guarded_ms, out)
        write_pushes(*seen.pushes, groups, out)
        if self._pusher is not None:
            out.histogram("sandq_push_request_duration_seconds", self._pusher.durations)
        if self._quotas is not None:
            write_quotas(self._quotas, {} if self._usage is None else self._usage.held, out)
        write_tenants(self._tenants_seen(seen), groups, self._broker.limits.metric_groups, out)
        if self._tls is not None:
            write_tls(*self._tls, out)
        return out.text(encode(self.registry)), content_type

    def topic_seen(self, topic: OpenTopic) -> TopicSeen:
        """Return the statuses of the partitions of a topic that are led here, with the messages that became due
        since."""
        partitions = []
        for leader in topic.led().values():
            status = leader.raft_group.status
            known_for, _, count = self._came_due.get(leader.raft_group.number, (None, 0, 0))
            came_due = count if known_for is status else 0
            soon = self._soon.get(leader.raft_group.number, ())
            partitions.append(PartitionSeen(status, came_due, leader.consumers_by_group(), soon))
        return TopicSeen(topic.record.number, topic.record.name, partitions, topic.stats)

    def _tenants_seen(self, seen: _Seen) -> Iterable[tuple[str, TenantRows]]:
        """Yield the tenants of each topic, from the partitions that this node leads."""
        for topic in seen.topics:
            known = [self._tenants.get(leader.raft_group.number) for leader in topic.led().values()]
            rows = [row for found in known if found is not None for row in found[1]]
            if rows:
                yield topic.record.name, rows

    def _write_node(self, seen: _Seen, out: Exposition) -> None:
        """Write the metrics of the node: health, disk, replicas and clock."""
        about = self._about
        labels = (about.version, platform.python_version(), zones.data_version(), about.node, about.cluster)
        out.value("sandq_build_info", 1, out.labels("sandq_build_info", *labels))
        out.value("sandq_storage_failed", self._broker.node_log.failed is not None)
        out.value("sandq_node_sick", self._health.reason is not None)
        out.value("sandq_damage_found", self._scrubber.damage is not None)
        out.value("sandq_scrubbed_bytes_total", self._scrubber.read_bytes)
        out.value("sandq_replicas_different", len(self._digests.different))
        shut = sum([raft_group.shut is not None for raft_group in list(self._broker.node_log.hosts.values())])
        out.value("sandq_replicas_shut", shut)
        out.value("sandq_replicas_compared_total", self._digests.compared)
        out.value("sandq_no_room", self._health.disk_full is not None)
        for work, age_s in self._health.ages_s.items():
            out.value("sandq_no_progress_seconds", age_s, out.labels("sandq_no_progress_seconds", work))
        out.value("sandq_insecure", about.is_insecure)
        if self._broker.node_log.feature_level is not None:
            out.value("sandq_feature_level", self._broker.node_log.feature_level)
        out.value("sandq_clock_drift_seconds", seen.clock.drift_ms / 1000)
        out.value("sandq_clock_alarm", seen.clock.alarm)
        for peer, offset_ms in seen.clock.peers.items():
            name = "sandq_clock_peer_offset_seconds"
            out.value(name, offset_ms / 1000, out.labels(name, peer))
        if seen.clock.median_ms is not None:
            out.value("sandq_clock_median_offset_seconds", seen.clock.median_ms / 1000)
        out.value("sandq_lease_window_seconds", self._stats.lease_window_s)
        out.value("sandq_slo_lateness_seconds", self._stats.slo_lateness_s)
        out.value("sandq_slo_target_ratio", about.slo_target)
        out.histogram("sandq_event_loop_stall_seconds", self._stalls)
        out.value("sandq_log_lines_dropped_total", logs.lines_dropped())
        if self._audit is not None:
            out.value("sandq_audit_lines_total", self._audit.written)
            out.value("sandq_audit_lines_lost_total", self._audit.lost)
        memory = self._broker.node_log.memory
        out.value("sandq_memory_limit_bytes", memory.limit_bytes)
        for account, (share_bytes, held_bytes) in seen.memory.items():
            out.value("sandq_memory_share_bytes", share_bytes, out.labels("sandq_memory_share_bytes", account))
            out.value("sandq_memory_bytes", held_bytes, out.labels("sandq_memory_bytes", account))
        out.value("sandq_look_aheads_evicted_total", memory.look_aheads.evicted)
        raft_groups = [leader.raft_group for topic in seen.topics for leader in topic.partitions.values()]
        out.value("sandq_topics", len(seen.topics))
        out.value("sandq_topics_auto_created_total", self._broker.administration.topics.auto_created)
        out.value("sandq_partitions", len(raft_groups))
        out.value("sandq_groups", sum([len(raft_group.status.groups) for raft_group in raft_groups]))
        out.value("sandq_partitions_led", sum([raft_group.ready for raft_group in raft_groups]))
        out.value("sandq_partitions_without_leader", sum([raft_group.leader is None for raft_group in raft_groups]))
        floor_ms = max([raft_group.status.floor_ms for raft_group in raft_groups if raft_group.ready], default=0)
        out.value("sandq_floor_ahead_seconds", max(floor_ms - seen.clock.guarded_ms, 0) / 1000)

    def _write_clients(self, seen: _Seen, out: Exposition) -> None:
        """Write the metrics of client connections and their requests."""
        clients = self.clients
        out.value("sandq_connections", seen.connections)
        out.value("sandq_connections_accepted_total", clients.accepted)
        out.value("sandq_connections_refused_total", clients.refused)
        for code, count in sorted(list(clients.errors.items())):
            out.value("sandq_connection_errors_total", count, out.labels("sandq_connection_errors_total", code))
        out.value("sandq_in_flight_bytes", seen.in_flight_bytes)
        out.value("sandq_received_bytes_total", clients.received_bytes)
        out.value("sandq_sent_bytes_total", clients.sent_bytes)
        out.value("sandq_requests_in_flight", seen.requests_in_flight)
        failures = sorted(list(clients.failures.items()))
        counter, timer = "sandq_requests_total", "sandq_request_duration_seconds"
        for kind, durations in sorted(list(clients.durations.items()), key=_first):
            failed = sum([count for (of, _), count in failures if of == kind])
            out.value(counter, max(sum(durations.counts) - failed, 0), out.labels(counter, kind, "ok"))
            out.histogram(timer, durations, out.labels(timer, kind))
        for labels, count in failures:
            out.value(counter, count, out.labels(counter, *labels))
        self.http.write(out)

    def _write_storage(self, seen: _Seen, out: Exposition) -> None:
        """Write the metrics of the log, the store and the disk."""
        stats, node_log = self._stats, self._broker.node_log
        out.histogram("sandq_wal_fsync_duration_seconds", stats.fsync)
        out.histogram("sandq_wal_pass_records", stats.batch_records)
        out.value("sandq_wal_written_bytes_total", node_log.wal.mark)
        out.value("sandq_wal_bytes", node_log.wal.bytes_on_disk)
        out.value("sandq_wal_segments", node_log.wal.segments)
        with suppress(OSError, RuntimeError):  # the store may be changed or closed meanwhile
            out.value("sandq_store_bytes", node_log.stores.approximate_bytes())
        with suppress(OSError):
            disk = shutil.disk_usage(self._about.data_dir)
            out.value("sandq_data_free_bytes", disk.free)
            out.value("sandq_data_size_bytes", disk.total)
        out.histogram("sandq_apply_duration_seconds", stats.apply)
        out.histogram("sandq_apply_batch_entries", stats.apply_entries)
        out.histogram("sandq_store_write_duration_seconds", stats.store_write)
        out.value("sandq_apply_backlog_bytes", node_log.backlog.bytes)
        out.value("sandq_raft_log_entries", seen.raft_entries)
        out.histogram("sandq_delivery_attempts", stats.attempts)
        out.value("sandq_early_deliveries_total", stats.early)


def _first(pair: tuple[Any, Any]) -> Any:
    """Return the first item of a pair: its sort key."""
    return pair[0]


def _due_in(selected: Iterable[tuple[int, PartitionReplica, Any, int, int]], stop_s: int) -> list[int]:
    """Count due messages. Called on the thread that owns the partitions."""
    return [replica.due_between(start_s, stop_s) for _, replica, _, start_s, _ in selected]


def _soon_in(replicas: Iterable[Any], start_s: int) -> list[tuple[int, ...]]:
    """Count messages that become due soon. Called on the thread that owns the partitions."""
    found = []
    for replica in replicas:
        counts, last_s = [0], 0
        for within_s in SOON_S:
            counts.append(counts[-1] + replica.due_between(start_s + last_s, start_s + within_s))
            last_s = within_s
        found.append(tuple(counts[1:]))
    return found


def _tenants_in(replicas: Iterable[Any]) -> list[list[tuple[str, dict[str, Any]]]]:
    """Return the tenants of each replica. Called on the thread that owns the partitions."""
    return [replica.queries.tenants() for replica in replicas]


def _write_topics(topics: dict[str, TopicNumbers], out: Exposition) -> None:
    """Write the metrics of topics."""
    for topic, numbers in topics.items():
        labels = out.labels("sandq_topic_messages", topic)
        out.value("sandq_topic_messages", numbers.messages, labels)
        out.value("sandq_topic_delayed", numbers.delayed, labels)
        out.value("sandq_topic_schedules", numbers.schedules, labels)
        out.value("sandq_topic_outbox", numbers.outbox, labels)
        out.value("sandq_topic_keys", numbers.keys, labels)
        out.value("sandq_topic_bytes", numbers.bytes, labels)
        for name, counted in _OF_TOPIC:
            out.value(name, numbers.count(counted), labels)
        out.value("sandq_messages_out_total", numbers.sent, labels)
        out.value("sandq_message_bytes_out_total", numbers.sent_bytes, labels)
        out.value("sandq_messages_redelivered_total", numbers.redelivered, labels)
        for reason in DEAD_REASONS:
            dead = out.labels("sandq_messages_dead_total", topic, reason)
            out.value("sandq_messages_dead_total", numbers.count(f"dead_{reason}"), dead)
        out.value("sandq_slo_deliveries_total", numbers.slo_deliveries, labels)
        out.value("sandq_slo_late_deliveries_total", numbers.slo_late, labels)
        if any(numbers.lateness.counts):
            out.histogram("sandq_delivery_lateness_seconds", numbers.lateness, labels)


def _write_groups(groups: dict[tuple[str, str], GroupNumbers], now_ms: int, out: Exposition) -> None:
    """Write the metrics of groups."""
    for (topic, name), group in groups.items():
        labels = out.labels("sandq_group_lag", topic, name)
        age_s = max(now_ms - group.oldest_ms, 0) / 1000 if group.oldest_ms is not None else 0
        out.value("sandq_group_lag", group.ready + group.leased + group.waiting, labels)
        out.value("sandq_group_ready", group.ready, labels)
        out.value("sandq_group_delayed", group.delayed, labels)
        for within, count in zip_longest(SOON_LABELS, group.soon, fillvalue=0):
            of_soon = out.labels("sandq_group_due_soon", topic, name, str(within))
            out.value("sandq_group_due_soon", min(count, group.delayed), of_soon)
        out.value("sandq_group_leased", group.leased, labels)
        out.value("sandq_group_waiting", group.waiting, labels)
        out.value("sandq_group_dead", group.dead, labels)
        out.value("sandq_group_dead_removed_total", group.removed, labels)
        out.value("sandq_group_dropped_total", group.dropped, labels)
        out.value("sandq_group_oldest_unacked_age_seconds", age_s, labels)
        out.value("sandq_group_consumers", group.consumers, labels)
        out.value("sandq_group_paused", group.paused, labels)
        out.value("sandq_group_paused_tenants", group.paused_tenants, labels)
        out.value("sandq_group_paused_keys", group.paused_keys, labels)
        out.value("sandq_group_stalled", group.stalled, labels)
        if (held_up := group.held_up(now_ms)) is not None:
            for limit, is_held_up in zip(GROUP_LIMITS, held_up, strict=True):
                of_limit = out.labels("sandq_group_limited", topic, name, limit)
                out.value("sandq_group_limited", is_held_up, of_limit)
