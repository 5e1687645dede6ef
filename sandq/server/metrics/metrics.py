"""What a node tells Prometheus.

`Metrics.render` copies what it needs on the event loop, which is a matter of references, and makes the text in a
thread. Of partitions it reads what they published, and what `refresh` learnt now and then; it never asks the thread
that owns them.
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
from sandq.broker.event_loop import Turn
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
from sandq.server.metrics.node import tell_members, tell_quotas, tell_tls
from sandq.server.metrics.own_process import OwnProcess
from sandq.server.metrics.text import Exposition
from sandq.server.metrics.topics import (
    Board,
    GroupNumbers,
    PartitionSeen,
    TenantRows,
    TopicNumbers,
    TopicSeen,
    tell_pushes,
    tell_tenants,
)
from sandq.server.quota_meters import QuotaMeters
from sandq.tls.budget import Handshakes
from sandq.tls.certificates import Certificates

STALL_CHECK_S = 0.1
REFRESH_S = 5.0
"""How often partitions in which nothing happens are asked what came due."""
REFRESH_PARTITIONS = 100
"""Of one question: others come between."""
FORECAST_S = 30.0
"""How often it is looked what comes to be due soon: it costs a look at each second of that time in each partition."""
SOON_S = (60, 300)
SOON_LABELS = ("1m", "5m")
GROUPS_OF_WORK = 32
"""Looked at with one unit of work."""
REFRESH_FORECASTS = 20
"""The same, of questions about what comes soon."""
REFRESH_FAIR_PARTITIONS = 10
"""The same, of questions about tenants, of whom there may be many."""
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
    """Which node this is."""

    version: str
    node: str
    cluster: str
    data_dir: Path
    is_insecure: bool = False
    """It listens beyond its machine without TLS or authentication."""
    slo_target: float = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the event loop owns, as it was at one moment."""

    topics: list[OpenTopic]
    clock: ClockStatus
    connections: int
    in_flight_bytes: int
    requests_in_flight: int
    raft_entries: int
    memory: dict[str, tuple[float, int]]
    """Of each account: its share, and what it holds."""
    members: Seen
    pushes: tuple[dict[tuple[str, str], PushCounts], dict[tuple[str, str], str]]
    """Of groups that are pushed: what was counted, and what their pumps do."""


class Metrics:
    """Of one node, with a registry of its own: several nodes may be in one process."""

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
        """`http`: the process that serves HTTP; None if none does."""
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
        """By group number: the status it is an addition to, the second up to which it is known, messages."""
        self._soon: dict[int, tuple[int, ...]] = {}
        """By group number: messages that come to be due within `SOON_S`."""
        self._tenants: dict[int, tuple[Any, list[tuple[str, dict[str, Any]]]]] = {}
        """By group number: the status that they were asked for at, and the tenants of its groups."""
        self._rendering = trio.Lock()
        OwnProcess(registry=self.registry)
        self.http = http if http is not None else HttpProcess()

    # -- what others call -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watches the event loop, and what comes due while nothing happens, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self._refresh_often)
            nursery.start_soon(self._forecast_often)

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text for Prometheus, and its content type: OpenMetrics where the Accept header asks for it."""
        async with self._rendering:
            return await trio.to_thread.run_sync(self._text, self._see(), accept)

    async def refresh(self) -> None:
        """Learn what came due in partitions in which nothing happened since."""
        now_s = self._broker.clock.now_ms() // 1000
        asked: list[tuple[int, PartitionReplica, Any, int, int]] = []
        turn = Turn()
        for topic in self._broker.topics():
            for leader in list(topic.led().values()):
                host, status = leader.raft_group, leader.raft_group.status
                await turn.spend(1 + len(status.groups) // GROUPS_OF_WORK)
                last, until_s, count = self._came_due.get(host.number, (None, 0, 0))
                if last is not status:
                    until_s, count = status.now_ms // 1000 + 1, 0
                if status.later > count and until_s <= now_s and status.groups.is_any_due(now_s * 1000):
                    assert isinstance(host.replica, PartitionReplica)
                    asked.append((host.number, host.replica, status, until_s, count))
        for start in range(0, len(asked), REFRESH_PARTITIONS):
            part = asked[start : start + REFRESH_PARTITIONS]
            counted = await self._broker.ask(partial(_due_in, part, now_s + 1))
            for (number, _, status, _, count), more in zip(part, counted, strict=True):
                self._came_due[number] = (status, now_s + 1, count + more)
        await self._refresh_tenants()

    async def forecast(self) -> None:
        """Learn what comes to be due soon in partitions that groups take from."""
        now_s = self._broker.clock.now_ms() // 1000
        hosts = []
        turn = Turn()
        for topic in self._broker.topics():
            for leader in list(topic.led().values()):
                await turn.spend(1)
                status = leader.raft_group.status
                if status.later and len(status.groups):
                    hosts.append(leader.raft_group)
        soon: dict[int, tuple[int, ...]] = {}
        for start in range(0, len(hosts), REFRESH_FORECASTS):
            part = hosts[start : start + REFRESH_FORECASTS]
            counted = await self._broker.ask(partial(_soon_in, [host.replica for host in part], now_s + 1))
            soon.update(zip([host.number for host in part], counted, strict=True))
        self._soon = soon

    async def _refresh_tenants(self) -> None:
        """Learn what tenants wait for in partitions of fair topics in which something happened since."""
        fair = [topic for topic in self._broker.topics() if topic.record.kind == FAIR]
        hosts = [leader.raft_group for topic in fair for leader in topic.led().values()]
        known = self._tenants
        self._tenants = {host.number: known[host.number] for host in hosts if host.number in known}
        asked = [host for host in hosts if self._tenants.get(host.number, (None,))[0] is not host.status]
        for start in range(0, len(asked), REFRESH_FAIR_PARTITIONS):
            part = [(host.number, host.status, host.replica) for host in asked[start : start + REFRESH_FAIR_PARTITIONS]]
            found = await self._broker.ask(partial(_tenants_in, [replica for *_, replica in part]))
            for (number, status, _), rows in zip(part, found, strict=True):
                self._tenants[number] = (status, rows)

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            due = trio.current_time() + STALL_CHECK_S
            await trio.sleep_until(due)
            self._stalls.observe(max(trio.current_time() - due, 0.0))

    async def _refresh_often(self) -> None:
        while True:
            await trio.sleep(REFRESH_S)
            numbers = {leader.raft_group.number for t in self._broker.topics() for leader in t.partitions.values()}
            self._came_due = {number: found for number, found in self._came_due.items() if number in numbers}
            with suppress(StorageFailed, Unavailable):
                await self.refresh()

    async def _forecast_often(self) -> None:
        while True:
            with suppress(StorageFailed, Unavailable):
                await self.forecast()
            await trio.sleep(FORECAST_S)

    # -- looking (event loop) -------------------------------------------------------------------------------------

    def _see(self) -> _Seen:
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

    # -- telling (a thread) ---------------------------------------------------------------------------------------

    def _text(self, seen: _Seen, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        told = Exposition(catalog.EVERY, openmetrics=content_type.startswith("application/openmetrics-text"))
        self._tell_node(seen, told)
        self._tell_clients(seen, told)
        self._tell_storage(seen, told)
        tell_members(seen.members, self._stats.round_trips, told)
        topics, groups = self._board.sums([self.topic_seen(topic) for topic in seen.topics])
        told.value("sandq_subscriptions", sum([group.consumers for group in groups.values()]))
        _tell_topics(topics, told)
        _tell_groups(groups, seen.clock.guarded_ms, told)
        tell_pushes(*seen.pushes, groups, told)
        if self._pusher is not None:
            told.histogram("sandq_push_request_duration_seconds", self._pusher.durations)
        if self._quotas is not None:
            tell_quotas(self._quotas, {} if self._usage is None else self._usage.held, told)
        tell_tenants(self._tenants_seen(seen), groups, self._broker.limits.metric_groups, told)
        if self._tls is not None:
            tell_tls(*self._tls, told)
        return told.text(encode(self.registry)), content_type

    def topic_seen(self, topic: OpenTopic) -> TopicSeen:
        """What partitions of a topic that are led here published, and what came due in them since."""
        partitions = []
        for leader in topic.led().values():
            status = leader.raft_group.status
            known_for, _, count = self._came_due.get(leader.raft_group.number, (None, 0, 0))
            came_due = count if known_for is status else 0
            soon = self._soon.get(leader.raft_group.number, ())
            partitions.append(PartitionSeen(status, came_due, leader.consumers_by_group(), soon))
        return TopicSeen(topic.record.number, topic.record.name, partitions, topic.stats)

    def _tenants_seen(self, seen: _Seen) -> Iterable[tuple[str, TenantRows]]:
        for topic in seen.topics:
            known = [self._tenants.get(leader.raft_group.number) for leader in topic.led().values()]
            rows = [row for found in known if found is not None for row in found[1]]
            if rows:
                yield topic.record.name, rows

    def _tell_node(self, seen: _Seen, told: Exposition) -> None:
        about = self._about
        labels = (about.version, platform.python_version(), zones.data_version(), about.node, about.cluster)
        told.value("sandq_build_info", 1, told.labels("sandq_build_info", *labels))
        told.value("sandq_storage_failed", self._broker.node_log.failed is not None)
        told.value("sandq_node_sick", self._health.reason is not None)
        told.value("sandq_damage_found", self._scrubber.damage is not None)
        told.value("sandq_scrubbed_bytes_total", self._scrubber.read_bytes)
        told.value("sandq_replicas_different", len(self._digests.different))
        shut = sum([host.shut is not None for host in list(self._broker.node_log.hosts.values())])
        told.value("sandq_replicas_shut", shut)
        told.value("sandq_replicas_compared_total", self._digests.compared)
        told.value("sandq_no_room", self._health.no_room is not None)
        for work, age_s in self._health.ages_s.items():
            told.value("sandq_no_progress_seconds", age_s, told.labels("sandq_no_progress_seconds", work))
        told.value("sandq_insecure", about.is_insecure)
        if self._broker.node_log.feature_level is not None:
            told.value("sandq_feature_level", self._broker.node_log.feature_level)
        told.value("sandq_clock_drift_seconds", seen.clock.drift_ms / 1000)
        told.value("sandq_clock_alarm", seen.clock.alarm)
        for peer, offset_ms in seen.clock.peers.items():
            name = "sandq_clock_peer_offset_seconds"
            told.value(name, offset_ms / 1000, told.labels(name, peer))
        if seen.clock.median_ms is not None:
            told.value("sandq_clock_median_offset_seconds", seen.clock.median_ms / 1000)
        told.value("sandq_slo_lateness_seconds", self._stats.slo_lateness_s)
        told.value("sandq_slo_target_ratio", about.slo_target)
        told.histogram("sandq_event_loop_stall_seconds", self._stalls)
        told.value("sandq_log_lines_dropped_total", logs.lines_dropped())
        if self._audit is not None:
            told.value("sandq_audit_lines_total", self._audit.written)
            told.value("sandq_audit_lines_lost_total", self._audit.lost)
        memory = self._broker.node_log.memory
        told.value("sandq_memory_limit_bytes", memory.limit_bytes)
        for account, (share_bytes, held_bytes) in seen.memory.items():
            told.value("sandq_memory_share_bytes", share_bytes, told.labels("sandq_memory_share_bytes", account))
            told.value("sandq_memory_bytes", held_bytes, told.labels("sandq_memory_bytes", account))
        told.value("sandq_look_aheads_evicted_total", memory.look_aheads.evicted)
        hosts = [leader.raft_group for topic in seen.topics for leader in topic.partitions.values()]
        told.value("sandq_topics", len(seen.topics))
        told.value("sandq_topics_auto_created_total", self._broker.administration.topics.auto_created)
        told.value("sandq_partitions", len(hosts))
        told.value("sandq_groups", sum([len(host.status.groups) for host in hosts]))
        told.value("sandq_partitions_led", sum([host.ready for host in hosts]))
        told.value("sandq_partitions_without_leader", sum([host.leader is None for host in hosts]))
        floor_ms = max([host.status.floor_ms for host in hosts if host.ready], default=0)
        told.value("sandq_floor_ahead_seconds", max(floor_ms - seen.clock.guarded_ms, 0) / 1000)

    def _tell_clients(self, seen: _Seen, told: Exposition) -> None:
        clients = self.clients
        told.value("sandq_connections", seen.connections)
        told.value("sandq_connections_accepted_total", clients.accepted)
        told.value("sandq_connections_refused_total", clients.refused)
        for code, count in sorted(list(clients.errors.items())):
            told.value("sandq_connection_errors_total", count, told.labels("sandq_connection_errors_total", code))
        told.value("sandq_in_flight_bytes", seen.in_flight_bytes)
        told.value("sandq_received_bytes_total", clients.received_bytes)
        told.value("sandq_sent_bytes_total", clients.sent_bytes)
        told.value("sandq_requests_in_flight", seen.requests_in_flight)
        failures = sorted(list(clients.failures.items()))
        counter, timer = "sandq_requests_total", "sandq_request_duration_seconds"
        for kind, durations in sorted(list(clients.durations.items()), key=_first):
            failed = sum([count for (of, _), count in failures if of == kind])
            told.value(counter, max(sum(durations.counts) - failed, 0), told.labels(counter, kind, "ok"))
            told.histogram(timer, durations, told.labels(timer, kind))
        for labels, count in failures:
            told.value(counter, count, told.labels(counter, *labels))
        self.http.tell(told)

    def _tell_storage(self, seen: _Seen, told: Exposition) -> None:
        stats, node_log = self._stats, self._broker.node_log
        told.histogram("sandq_wal_fsync_duration_seconds", stats.fsync)
        told.histogram("sandq_wal_pass_records", stats.pass_records)
        told.value("sandq_wal_written_bytes_total", node_log.wal.mark)
        told.value("sandq_wal_bytes", node_log.wal.bytes_on_disk)
        told.value("sandq_wal_segments", node_log.wal.segments)
        with suppress(OSError, RuntimeError):  # it is being changed, or closed, while it is looked at
            told.value("sandq_store_bytes", node_log.stores.approximate_bytes())
        with suppress(OSError):
            disk = shutil.disk_usage(self._about.data_dir)
            told.value("sandq_data_free_bytes", disk.free)
            told.value("sandq_data_size_bytes", disk.total)
        told.histogram("sandq_apply_duration_seconds", stats.apply)
        told.histogram("sandq_apply_batch_entries", stats.apply_entries)
        told.histogram("sandq_store_write_duration_seconds", stats.store_write)
        told.value("sandq_apply_backlog_bytes", node_log.backlog.bytes)
        told.value("sandq_raft_log_entries", seen.raft_entries)
        told.histogram("sandq_delivery_attempts", stats.attempts)
        told.value("sandq_early_deliveries_total", stats.early)


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _due_in(asked: Iterable[tuple[int, PartitionReplica, Any, int, int]], stop_s: int) -> list[int]:
    """On the thread that owns the partitions."""
    return [replica.due_between(start_s, stop_s) for _, replica, _, start_s, _ in asked]


def _soon_in(replicas: Iterable[Any], start_s: int) -> list[tuple[int, ...]]:
    """On the thread that owns the partitions."""
    found = []
    for replica in replicas:
        counts, last_s = [0], 0
        for within_s in SOON_S:
            counts.append(counts[-1] + replica.due_between(start_s + last_s, start_s + within_s))
            last_s = within_s
        found.append(tuple(counts[1:]))
    return found


def _tenants_in(replicas: Iterable[Any]) -> list[list[tuple[str, dict[str, Any]]]]:
    """On the thread that owns the partitions."""
    return [replica.queries.tenants() for replica in replicas]


def _tell_topics(topics: dict[str, TopicNumbers], told: Exposition) -> None:
    for topic, numbers in topics.items():
        labels = told.labels("sandq_topic_messages", topic)
        told.value("sandq_topic_messages", numbers.messages, labels)
        told.value("sandq_topic_delayed", numbers.delayed, labels)
        told.value("sandq_topic_schedules", numbers.schedules, labels)
        told.value("sandq_topic_outbox", numbers.outbox, labels)
        told.value("sandq_topic_keys", numbers.keys, labels)
        told.value("sandq_topic_bytes", numbers.bytes, labels)
        for name, counted in _OF_TOPIC:
            told.value(name, numbers.count(counted), labels)
        told.value("sandq_messages_out_total", numbers.sent, labels)
        told.value("sandq_message_bytes_out_total", numbers.sent_bytes, labels)
        told.value("sandq_messages_redelivered_total", numbers.redelivered, labels)
        for reason in DEAD_REASONS:
            dead = told.labels("sandq_messages_dead_total", topic, reason)
            told.value("sandq_messages_dead_total", numbers.count(f"dead_{reason}"), dead)
        told.value("sandq_slo_deliveries_total", numbers.slo_deliveries, labels)
        told.value("sandq_slo_late_deliveries_total", numbers.slo_late, labels)
        if any(numbers.lateness.counts):
            told.histogram("sandq_delivery_lateness_seconds", numbers.lateness, labels)


def _tell_groups(groups: dict[tuple[str, str], GroupNumbers], now_ms: int, told: Exposition) -> None:
    for (topic, name), group in groups.items():
        labels = told.labels("sandq_group_lag", topic, name)
        age_s = max(now_ms - group.oldest_ms, 0) / 1000 if group.oldest_ms is not None else 0
        told.value("sandq_group_lag", group.ready + group.leased + group.waiting, labels)
        told.value("sandq_group_ready", group.ready, labels)
        told.value("sandq_group_delayed", group.delayed, labels)
        for within, count in zip_longest(SOON_LABELS, group.soon, fillvalue=0):
            of_soon = told.labels("sandq_group_due_soon", topic, name, str(within))
            told.value("sandq_group_due_soon", min(count, group.delayed), of_soon)
        told.value("sandq_group_leased", group.leased, labels)
        told.value("sandq_group_waiting", group.waiting, labels)
        told.value("sandq_group_dead", group.dead, labels)
        told.value("sandq_group_oldest_unacked_age_seconds", age_s, labels)
        told.value("sandq_group_consumers", group.consumers, labels)
        told.value("sandq_group_paused", group.paused, labels)
        told.value("sandq_group_stalled", group.stalled, labels)
        if (held_up := group.held_up(now_ms)) is not None:
            for limit, is_held_up in zip(GROUP_LIMITS, held_up, strict=True):
                of_limit = told.labels("sandq_group_limited", topic, name, limit)
                told.value("sandq_group_limited", is_held_up, of_limit)
