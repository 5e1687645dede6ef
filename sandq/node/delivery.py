"""Delivery of a node: topics, partitions that it leads, and everything that clients ask of them."""

from __future__ import annotations

import dataclasses

import trio

from sandq.broker.access.authenticator import Authenticator
from sandq.broker.access.jwt_tokens import JwtVerifier
from sandq.broker.backups.log_reads import LogReads
from sandq.broker.backups.whole_restores import WholeRestores
from sandq.broker.broker import Broker
from sandq.broker.catalog import Catalog
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.controller.administration import Administration
from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.broker.stats.slo import LatenessSlo
from sandq.model.auto_create import AutoCreate
from sandq.model.config import NodeConfig
from sandq.node.context import Context
from sandq.node.replication import Replication
from sandq.node.storage import Storage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Topics and partitions, and everything that clients ask of them."""

    broker: Broker
    digests: ReplicaDigests
    limit_shares: LimitShares
    outbox: OutboxSender
    restores: WholeRestores
    log_reads: LogReads
    slo: LatenessSlo
    authenticator: Authenticator

    def start(self, nursery: trio.Nursery) -> None:
        """Compare replicas until the nursery is cancelled."""
        nursery.start_soon(self.digests.run)


def open_delivery(context: Context, storage: Storage, replication: Replication) -> Delivery:
    """Return the delivery of a node. It opens no topic before the node belongs to its cluster. Raises StartupError."""
    config, clock, timers, own = context.config, context.clock, context.timers, storage.own.node
    links, node_log, runner, nursery = (
        replication.links,
        replication.node_log,
        replication.runner,
        replication.nursery,
    )
    routes, progress = replication.routes, replication.progress
    auto_create = AutoCreate(config.auto_create_topics)
    catalog = Catalog(node_log, clock, timers, routes, replication.barrier, progress, auto_create)
    limit_shares = LimitShares(own, catalog, links.send, clock, timers)
    outbox = OutboxSender(own, catalog, runner, clock, links.send, links.room, nursery)
    restores = WholeRestores(own, catalog, routes.leader, links.send)
    log_reads = LogReads(own, node_log, clock.now_ms, links.send)
    reconciler = Reconciler(
        catalog=catalog,
        progress=progress,
        snapshots=replication.snapshots,
        sweeper=replication.sweeper,
        node_log=node_log,
        runner=runner,
        clock=clock,
        timers=timers,
        lease_ahead_ms=config.delivery.lease_ahead_ms,
        stats=context.stats,
        limits=limit_shares,
        outbox=outbox,
        nursery=nursery,
    )
    administration = Administration(
        node_log=node_log,
        catalog=catalog,
        progress=progress,
        routes=routes,
        limits=config.limits,
        up=links.reachable,
        nursery=nursery,
        push_rules=config.push.rules(),
        restores=restores,
        auto_create=auto_create,
    )
    broker = Broker(
        node_log=node_log,
        runner=runner,
        clock=clock,
        timers=timers,
        limits=config.limits,
        stats=context.stats,
        up=links.reachable,
        routes=routes,
        catalog=catalog,
        reconciler=reconciler,
        administration=administration,
        outbox=outbox,
        log_reads=log_reads,
        nursery=nursery,
    )
    return Delivery(
        broker=broker,
        digests=_digests(config, replication, catalog),
        limit_shares=limit_shares,
        outbox=outbox,
        restores=restores,
        log_reads=log_reads,
        slo=LatenessSlo(config.slo, context.stats, clock, storage.files),
        authenticator=_authenticator(config, node_log, catalog, clock),
    )


def _digests(config: NodeConfig, replication: Replication, catalog: Catalog) -> ReplicaDigests:
    links = replication.links
    is_shut = replication.shut_replicas.is_shut
    digests = ReplicaDigests(
        replication.node_log, catalog, links.send, links.reachable, config.storage.scrub_rate, is_shut
    )
    replication.hooks.on_digest = digests.on_view
    return digests


def _authenticator(config: NodeConfig, node_log: NodeLog, catalog: Catalog, clock: GuardedClock) -> Authenticator:
    """Return what authenticates callers. Raises StartupError."""

    def is_alone() -> bool:
        metadata = node_log.metadata
        return metadata.group.is_only_voter and metadata.ready

    return Authenticator(
        config.security.authentication,
        lambda: node_log.metadata.status if METADATA_GROUP in node_log.hosts else None,
        catalog.catch_up,
        is_alone,
        clock.now_ms,
        JwtVerifier(config.jwt, clock.now_ms) if config.jwt.issuer is not None else None,
        takes_certificates=config.security.certificate_identities,
    )
