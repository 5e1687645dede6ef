"""One node: what it is made of, and in which order it starts and stops (floor F6).

Start: lock the data directory - identity - stores - WAL - threads and passes - peers and gossip - metadata -
partitions - serve. A node that must wait for its cluster serves before metadata: it answers who it is, and what it
waits for.
Stop: hand over leaderships - leave gossip - HTTP (what is under way is answered) - listeners - threads (what is queued
is finished) - checkpoint - seal the WAL - close.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import structlog
import trio

import sandq
from sandq.broker.access.authenticator import Authenticator
from sandq.broker.access.jwt_tokens import JwtVerifier
from sandq.broker.backups.log_reads import LogReads
from sandq.broker.backups.whole_restores import WholeRestores
from sandq.broker.bootstrap.bootstrap import way_of
from sandq.broker.broker import Broker
from sandq.broker.catalog import Catalog
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.controller.administration import Administration
from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.event_loop import Signal
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.health.scrubber import Scrubber
from sandq.broker.health.shut_replicas import ShutReplicas, send_by
from sandq.broker.health.sick_peers import SickPeers
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_barrier import MetadataBarrier
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.raft_frames import send_messages
from sandq.broker.peers.routes import Routes, tell_by
from sandq.broker.peers.secret import Secrets
from sandq.broker.peers.this_node import ThisNode
from sandq.broker.replication.applier import Published
from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.node_log import Hooks, NodeLog
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.broker.replication.runner import CLOSE_S, Runner
from sandq.broker.replication.store_compaction import StoreSweeper
from sandq.broker.snapshots.snapshots import Snapshots
from sandq.broker.stats.node_stats import NodeStats
from sandq.broker.stats.slo import LatenessSlo
from sandq.model.auto_create import AutoCreate
from sandq.model.config import NodeConfig
from sandq.model.errors import StartupError, StorageFailed
from sandq.model.features import KNOWN, Levels
from sandq.node.parts import Parts, Serving
from sandq.node.serving import serve
from sandq.node.tls import NodeTls
from sandq.push.pusher import tls_of
from sandq.server import open_files
from sandq.server.connection import Gate
from sandq.server.debug.loop_watch import LoopWatch
from sandq.server.gateway_proof import SETTING as GATEWAY_SETTING
from sandq.server.gateway_proof import GatewayKeys
from sandq.server.output import Sender
from sandq.storage import identity
from sandq.storage.files import DIRECTORY_MODE, Files, RealFiles
from sandq.storage.known_peers import KnownPeers
from sandq.storage.stores import LevelStores, Stores

log = structlog.get_logger("sandq.node")

LOCK_NAME = "lock"
STORES_NAME = "stores.level"
SWITCH_INTERVAL_S = 0.0005
"""Python's default of 5 ms would let one busy thread hold up the others for as long."""


@contextlib.asynccontextmanager
async def run_node(
    config: NodeConfig,
    *,
    files: Files | None = None,
    stores: Callable[..., Stores] = LevelStores,
    clock: GuardedClock | None = None,
    timers: Callable[[GuardedClock], Timers] = Timers,
    gate: Gate | None = None,
    levels: Levels = KNOWN,
    abandon: Callable[[], None] | None = None,
    watch: LoopWatch | None = None,
) -> AsyncIterator[Serving]:
    """A running node; it serves inside the block and stops cleanly at its end.

    `files`, `stores`, `clock` and `timers` may be twins (tests start real nodes over faulty ones, and `sandq.testing`
    one whose time stands still); `gate` is awaited before what a client sent is looked at; `levels` are the feature
    levels that it knows (a test has nodes of another version by that). `abandon` is called at the end when a thread
    hangs in the disk, and does not return; without it StorageFailed is raised then, and the data directory must not be
    opened again by this process. `watch` remembers when this process' loop stood still; whoever makes it runs it.
    Raises StartupError (ConfigError, DataDirInUse, Corruption), StorageFailed.
    """
    # Of what runs in here; several nodes may be in one process.
    structlog.contextvars.bind_contextvars(node=config.node.id)
    data_dir = _make_data_dir(config)
    files = files or RealFiles(data_dir)
    identity.load(files)  # refuses data of another version before anything is written or opened
    lock = files.lock(LOCK_NAME)
    try:
        async with _running(
            config,
            data_dir,
            files,
            stores_at=stores,
            clock=clock,
            timers_of=timers,
            gate=gate,
            levels=levels,
            abandon=abandon,
            watch=watch,
        ) as serving:
            yield serving
    finally:
        lock.close()


@contextlib.asynccontextmanager
async def _running(
    config: NodeConfig,
    data_dir: Path,
    files: Files,
    *,
    stores_at: Callable[..., Stores],
    clock: GuardedClock | None,
    timers_of: Callable[[GuardedClock], Timers],
    gate: Gate | None,
    levels: Levels,
    abandon: Callable[[], None] | None,
    watch: LoopWatch | None,
) -> AsyncIterator[Serving]:
    first_start = not files.exists(identity.NAME)
    way = way_of(config)
    if first_start:
        # A cluster of several nodes gets its UUID when it is formed.
        cluster_uuid = identity.new_uuid() if way == "alone" else None
        own = identity.Identity(config.node.id, identity.new_uuid(), cluster_uuid)
    else:
        own = identity.open_identity(files, config.node.id)
    secret_file, gateway_file = config.cluster.secret_file, config.http.gateway_secret_file
    secrets = Secrets(secret_file) if secret_file is not None else None
    gateway_secrets = Secrets(gateway_file, GATEWAY_SETTING) if gateway_file is not None else None
    push_tls = tls_of(config.push.ca_file)
    tls = NodeTls.of(config)
    clock = clock or GuardedClock(max_drift_ms=config.clock.max_drift_ms, slew_ppm=config.clock.slew_ppm)
    config = config.model_copy(update={"limits": open_files.within(config.limits)})
    this_node = ThisNode(
        own,
        config.node.zone,
        config.node.weight,
        lambda: node_log.feature_level,
        is_named=way == "named",
        levels=levels,
        version=sandq.__version__,
    )
    known = KnownPeers.open(files)
    links = PeerLinks(
        cluster=config.cluster.name,
        secrets=None if secrets is None else lambda: secrets.current,
        identity=this_node.identity,
        peers={peer.id: peer.peer for peer in config.cluster.peers},
        known=known,
        tls=None if tls is None else tls.peers,
    )
    clocks = ClockKeeper(clock, links.send, lambda: node_log.nodes)
    stats = NodeStats(config.slo.lateness_ms / 1000)
    wakeup = Signal()
    inbox = Inbox()
    sender = Sender()

    def publish(published: Published) -> None:
        with sender.gathering():
            node_log.published(published)

    ended = True
    # Later a file that is missing is a file that was lost, and not to be made anew.
    stores = stores_at(data_dir / STORES_NAME, create=first_start)
    try:
        node_log = NodeLog(
            files,
            stores,
            node_id=own.node,
            now_ms=clock.now_ms,
            publish=partial(inbox.put, publish),
            limits=config.limits,
            segment_bytes=config.storage.segment_bytes,
            create=first_start,
            levels=levels,
            hooks=Hooks(
                wake=wakeup.set,
                room=links.room,
                on_leads=clocks.leads,
                reason_to_wait=clocks.reason_to_wait,
                on_sync=stats.fsync.observe,
                on_applied=stats.applied,
                on_written=stats.store_write.observe,
                on_digest=lambda view: digests.on_view(view),
                on_shut=lambda host: shut_replicas.note(host),
            ),
        )
        if first_start:
            # From here on a file that is missing was lost; and nobody has heard of this node before it knows its name.
            identity.save(files, own)
        runner = Runner(
            node_log,
            wakeup,
            inbox,
            partial(send_messages, links.send),
            checkpoint_bytes=config.storage.checkpoint_bytes,
            checkpoint_interval_s=config.storage.checkpoint_interval_ms / 1000,
            on_pass=stats.pass_records.observe,
        )
        clean = False
        try:
            async with trio.open_nursery() as nursery:
                timers = timers_of(clock)
                sick_peers = SickPeers()
                scrub_rate = config.storage.scrub_rate
                scrubber = Scrubber(files, data_dir / STORES_NAME, scrub_rate)
                health = NodeHealth(
                    node_log=node_log,
                    runner=runner,
                    links=links,
                    sick_peers=sick_peers,
                    may_lead=clocks.may_lead,
                    free_bytes=partial(trio.to_thread.run_sync, files.free_bytes, abandon_on_cancel=True),
                    reserve_bytes=config.storage.reserve_bytes,
                    stall_after_s=config.health.stall_after_ms / 1000,
                    request_timeout_s=config.health.request_timeout_ms / 1000,
                )
                routes = Routes(own.node, tell_by(links))
                progress = MetadataProgress(links, this_node)
                barrier = MetadataBarrier(node_log, links.send)
                sweeper = StoreSweeper(node_log, runner, nursery)
                rate = config.storage.snapshot_rate
                shut_replicas = ShutReplicas(
                    own=own.node,
                    node_log=node_log,
                    runner=runner,
                    send_all=send_by(links),
                    up=lambda: links.up,
                )
                snapshots = Snapshots(
                    node_log,
                    runner,
                    rate,
                    links.open_stream,
                    sweeper.sweep_soon,
                    shut_replicas.members_to_restore,
                )
                auto_create = AutoCreate(config.auto_create_topics)
                catalog = Catalog(node_log, clock, timers, routes, barrier, progress, auto_create)
                digests = ReplicaDigests(
                    node_log, catalog, links.send, links.reachable, scrub_rate, shut_replicas.is_shut
                )
                limit_shares = LimitShares(own.node, catalog, links.send, clock, timers)
                outbox = OutboxSender(own.node, catalog, runner, clock, links.send, links.room, nursery)
                reconciler = Reconciler(
                    catalog=catalog,
                    progress=progress,
                    snapshots=snapshots,
                    sweeper=sweeper,
                    node_log=node_log,
                    runner=runner,
                    clock=clock,
                    timers=timers,
                    lease_ahead_ms=config.delivery.lease_ahead_ms,
                    stats=stats,
                    limits=limit_shares,
                    outbox=outbox,
                    nursery=nursery,
                )
                restores = WholeRestores(own.node, catalog, routes.leader, links.send)
                log_reads = LogReads(own.node, node_log, clock.now_ms, links.send)
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
                    stats=stats,
                    up=links.reachable,
                    routes=routes,
                    catalog=catalog,
                    reconciler=reconciler,
                    administration=administration,
                    outbox=outbox,
                    log_reads=log_reads,
                    nursery=nursery,
                )
                parts = Parts(
                    config=config,
                    data_dir=data_dir,
                    files=files,
                    secrets=secrets,
                    gateway_secrets=gateway_secrets,
                    gateway_keys=GatewayKeys(gateway_secrets, secrets),
                    this_node=this_node,
                    known=known,
                    links=links,
                    clocks=clocks,
                    node_log=node_log,
                    runner=runner,
                    progress=progress,
                    barrier=barrier,
                    sweeper=sweeper,
                    snapshots=snapshots,
                    sick_peers=sick_peers,
                    health=health,
                    scrubber=scrubber,
                    digests=digests,
                    limit_shares=limit_shares,
                    outbox=outbox,
                    restores=restores,
                    log_reads=log_reads,
                    broker=broker,
                    sender=sender,
                    push_tls=push_tls,
                    tls=tls,
                    timers=timers,
                    slo=LatenessSlo(config.slo, stats, clock, files),
                    authenticator=_authenticator(config, node_log, catalog, clock),
                    watch=watch,
                    shut_replicas=shut_replicas,
                )
                await nursery.start(runner.run)
                nursery.start_soon(timers.run)
                nursery.start_soon(health.run)
                nursery.start_soon(scrubber.run)
                nursery.start_soon(digests.run)
                nursery.start_soon(shut_replicas.run)
                async with serve(parts, gate) as serving:
                    yield serving
                await _checkpoint(runner, node_log, config.shutdown_grace_ms / 1000)
                clean = True
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                ended = await runner.close(config.shutdown_grace_ms / 1000 + CLOSE_S)
            if not ended:
                _leave_behind(abandon)
            _close_log(node_log, clean and node_log.failed is None)
    finally:
        if ended:
            stores.close()


def _authenticator(config: NodeConfig, node_log: NodeLog, catalog: Catalog, clock: GuardedClock) -> Authenticator:
    """Raises StartupError."""

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


def _leave_behind(abandon: Callable[[], None] | None) -> None:
    """A thread hangs in the disk, and will go on with what it has when that comes back: nothing may be closed."""
    log.error("the disk hangs: this node ends without what it waits for, and the next start replays the log")
    if abandon is not None:
        abandon()
    raise StorageFailed("the disk hangs: a thread of this node cannot be ended")


def _close_log(node_log: NodeLog, clean: bool) -> None:
    """`clean`: everything in it is where it belongs, and the log may say so."""
    if clean:
        try:
            node_log.wal.seal()
        except StorageFailed as error:
            log.warning("the log could not be sealed: the next start looks for a torn end", error=error.message)
    node_log.wal.close()


async def _checkpoint(runner: Runner, node_log: NodeLog, grace_s: float) -> None:
    """So that the next start has nothing to replay; without it, it replays."""
    if node_log.failed is None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + grace_s) as scope:
            await runner.checkpoint()
        if scope.cancelled_caught:
            log.warning("no checkpoint within the shutdown grace: the next start replays the log", grace_s=grace_s)


def _make_data_dir(config: NodeConfig) -> Path:
    data_dir = Path(config.node.data_dir).absolute()
    try:
        data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"node.data_dir {data_dir}: {error.strerror or error}") from None
    return data_dir
