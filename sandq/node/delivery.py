"""Delivery of a node: its topics, the partitions that it leads, and the components that serve requests about them."""

from __future__ import annotations

import dataclasses

import trio

from sandq.broker.access.authenticator import Authenticator
from sandq.broker.backups.log_reads import LogReads
from sandq.broker.backups.whole_restores import WholeRestores
from sandq.broker.broker import Broker
from sandq.broker.catalog import Catalog
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.controller.administration import Administration
from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.delivery.limit_pauses import LimitPauses
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.delivery.pause_spreader import PauseSpreader
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.leader.lease_window import LeaseWindow
from sandq.broker.stats.slo import LatenessSlo
from sandq.model.auto_create import AutoCreate
from sandq.model.config import NodeConfig
from sandq.node.context import Context
from sandq.node.replication import Replication
from sandq.node.storage import Storage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Topics and partitions of a node, and the components that serve requests about them."""

    broker: Broker
    digests: ReplicaDigests
    limit_shares: LimitShares
    limit_pauses: LimitPauses
    outbox: OutboxSender
    pauses: PauseSpreader
    restores: WholeRestores
    log_reads: LogReads
    slo: LatenessSlo
    authenticator: Authenticator

    def start(self, nursery: trio.Nursery) -> None:
        """Compare the digests of replicas until the nursery is cancelled."""
        nursery.start_soon(self.digests.run)


def open_delivery(context: Context, storage: Storage, replication: Replication) -> Delivery:
    """Create the `Delivery` of a node. No topic is opened before the node belongs to its cluster.

    Raises StartupError."""
    config, clock, timers, own = context.config, context.clock, context.timers, storage.own.node
    links, node_log, runner = replication.links, replication.node_log, replication.runner
    routes, progress, nursery = replication.routes, replication.progress, replication.nursery
    auto_create = AutoCreate(config.auto_create_topics)
    catalog = Catalog(node_log, clock, timers, routes, replication.barrier, progress, config.push.rules(), auto_create)
    limit_shares = LimitShares(own, catalog, links, clock, timers)
    is_shut = replication.shut_replicas.is_shut
    limit_pauses = LimitPauses(own, catalog, shares=limit_shares, links=links, is_shut=is_shut, nursery=nursery)
    outbox = OutboxSender(own, catalog, runner, clock, links, nursery)
    pauses = PauseSpreader(own, catalog, routes=routes, runner=runner, links=links, nursery=nursery)
    restores = WholeRestores(own, catalog, routes, links)
    log_reads = LogReads(own, node_log, clock.now_ms, links)
    window = LeaseWindow(
        timers, ahead_ms=config.delivery.lease_ahead_ms, stats=context.stats, most_ms=config.slo.lateness_ms // 2
    )
    node_log.group_commit.before_proposals = lambda: window.before_proposals(clock.now_ms())
    reconciler = Reconciler(
        catalog=catalog,
        progress=progress,
        snapshots=replication.snapshots,
        sweeper=replication.sweeper,
        node_log=node_log,
        runner=runner,
        clock=clock,
        timers=timers,
        window=window,
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
        links=links,
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
        links=links,
        routes=routes,
        catalog=catalog,
        reconciler=reconciler,
        administration=administration,
        outbox=outbox,
        pauses=pauses,
        limit_pauses=limit_pauses,
        log_reads=log_reads,
        nursery=nursery,
    )
    return Delivery(
        broker=broker,
        digests=_digests(config, replication, catalog),
        limit_shares=limit_shares,
        limit_pauses=limit_pauses,
        outbox=outbox,
        pauses=pauses,
        restores=restores,
        log_reads=log_reads,
        slo=LatenessSlo(config.slo, context.stats, clock, storage.files),
        authenticator=_authenticator(config, catalog, clock),
    )


def _digests(config: NodeConfig, replication: Replication, catalog: Catalog) -> ReplicaDigests:
    digests = ReplicaDigests(
        replication.node_log,
        catalog,
        replication.links,
        replication.shut_replicas,
        config.storage.scrub_rate,
    )
    replication.hooks.on_digest = digests.on_view
    return digests


def _authenticator(config: NodeConfig, catalog: Catalog, clock: GuardedClock) -> Authenticator:
    """Create the component that authenticates callers. Raises StartupError."""
    verifier = None
    if config.jwt.issuer is not None:
        from sandq.broker.access.jwt_tokens import JwtVerifier  # 9 MB, which most nodes do not need

        verifier = JwtVerifier(config.jwt, clock.now_ms)
    return Authenticator(
        config.security.authentication,
        catalog,
        clock.now_ms,
        verifier,
        takes_certificates=config.security.certificate_identities,
    )
