"""One node: what it is made of, and in which order it starts and stops (floor F6).

Start: lock the data directory - identity - stores - WAL - threads and passes - peers and gossip - metadata -
partitions - serve. A node that must wait for its cluster serves before metadata: it answers who it is, and what it
waits for.
Stop: hand over leaderships - leave gossip - HTTP (what is under way is answered) - listeners - threads (what is queued
is finished) - checkpoint - seal the WAL - close.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import structlog
import trio

import sandq
from sandq.broker.access.authenticator import Authenticator
from sandq.broker.access.first_token import give_first_token
from sandq.broker.access.identities import Identities
from sandq.broker.access.jwt_tokens import JwtVerifier
from sandq.broker.bootstrap.bootstrap import Bootstrap, way_of
from sandq.broker.bootstrap.joining import Joining
from sandq.broker.broker import Broker
from sandq.broker.catalog import Catalog
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.cluster import Cluster
from sandq.broker.controller.administration import Administration
from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.controller.metadata_barrier import MetadataBarrier
from sandq.broker.controller.rebalancer import Rebalancer
from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.controller.reports import Reports
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.health.scrubber import Scrubber
from sandq.broker.health.sick_peers import SickPeers
from sandq.broker.memory_budget import HTTP_SHARE, MemoryBudget
from sandq.broker.owner_usage import OwnerUsage
from sandq.broker.peers.directory import PeerDirectory
from sandq.broker.peers.dispatch import PeerDispatch
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.raft_frames import send_messages
from sandq.broker.peers.routes import Routes, tell_by
from sandq.broker.peers.secret import read_secret
from sandq.broker.peers.this_node import ThisNode
from sandq.broker.replication.applier import Published
from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.node_log import METADATA_GROUP, Hooks, NodeLog
from sandq.broker.replication.runner import CLOSE_S, Runner
from sandq.broker.replication.store_compaction import StoreSweeper
from sandq.broker.signals import Signal
from sandq.broker.snapshots.snapshots import Snapshots
from sandq.broker.stats import NodeStats
from sandq.broker.timers import Timers
from sandq.gossip.tags import judge_of, node_tags
from sandq.membership.discovery import Discovery
from sandq.model.auto_create import AutoCreate
from sandq.model.config import NodeConfig
from sandq.model.config_schema import Address
from sandq.model.errors import StartupError, StorageFailed
from sandq.model.features import KNOWN, Levels
from sandq.model.limits import Limits
from sandq.push.pusher import Pusher, pushing, tls_of
from sandq.schedules.zones import data_version
from sandq.server import logs, open_files
from sandq.server.audit.audit_log import AuditLog
from sandq.server.audit.files import AuditFiles
from sandq.server.client_stats import ClientStats
from sandq.server.connection import Connection, Gate
from sandq.server.gateway_proof import gateway_keys
from sandq.server.handlers.session import ClientSession
from sandq.server.http.supervisor import Supervisor, launch_on, serve_http_apart
from sandq.server.http.worker_pipe import Begin
from sandq.server.info import NodeState, ServerInfo
from sandq.server.logins import Logins
from sandq.server.metrics.metrics import About, Metrics
from sandq.server.quota_meters import QuotaMeters
from sandq.server.sender import Sender
from sandq.server.tcp import ClientServer, listen
from sandq.server.topic_records import TopicRecords
from sandq.storage import identity
from sandq.storage.files import DIRECTORY_MODE, Files, RealFiles
from sandq.storage.known_peers import KnownPeers
from sandq.storage.stores import LevelStores, Stores

log = structlog.get_logger("sandq.node")

LOCK_NAME = "lock"
STORES_NAME = "stores.level"
_REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this node itself connects to what listens everywhere."""
AUDIT_NAME = "audit"
SWITCH_INTERVAL_S = 0.0005
"""Python's default of 5 ms would let one busy thread hold up the others for as long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """Where a started node can be reached."""

    client_host: str
    client_port: int
    http: Address | None
    """None: not served."""
    data_dir: Path
    broker: Broker
    metrics: Metrics
    digests: ReplicaDigests
    identities: Identities
    quotas: QuotaMeters
    usage: OwnerUsage
    restart: trio.Event
    """Set when the node takes nothing more for want of room, and would again if it were started anew."""


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
) -> AsyncIterator[Serving]:
    """A running node; it serves inside the block and stops cleanly at its end.

    `files`, `stores`, `clock` and `timers` may be twins (tests start real nodes over faulty ones, and `sandq.testing`
    one whose time stands still); `gate` is awaited before what a client sent is looked at; `levels` are the feature
    levels that it knows (a test has nodes of another version by that). `abandon` is called at the end when a thread
    hangs in the disk, and does not return; without it StorageFailed is raised then, and the data directory must not be
    opened again by this process. Raises StartupError (ConfigError, DataDirInUse, Corruption), StorageFailed.
    """
    # Of what runs in here; several nodes may be in one process.
    structlog.contextvars.bind_contextvars(node=config.node.id)
    data_dir = _make_data_dir(config)
    files = files or RealFiles(data_dir)
    lock = files.lock(LOCK_NAME)
    try:
        async with _running(config, data_dir, files, stores, clock, timers, gate, levels, abandon) as serving:
            yield serving
    finally:
        lock.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """What a node is made of, whether it takes part in a cluster yet or not."""

    config: NodeConfig
    data_dir: Path
    files: Files
    secret: bytes | None
    gateway_keys: tuple[bytes, ...]
    this_node: ThisNode
    known: KnownPeers
    links: PeerLinks
    clocks: ClockKeeper
    node_log: NodeLog
    runner: Runner
    progress: MetadataProgress
    barrier: MetadataBarrier
    sweeper: StoreSweeper
    snapshots: Snapshots
    sick_peers: SickPeers
    health: NodeHealth
    scrubber: Scrubber
    digests: ReplicaDigests
    limit_shares: LimitShares
    outbox: OutboxSender
    broker: Broker
    sender: Sender
    push_tls: ssl.SSLContext | None
    timers: Timers
    authenticator: Authenticator


@contextlib.asynccontextmanager
async def _running(
    config: NodeConfig,
    data_dir: Path,
    files: Files,
    stores_at: Callable[..., Stores],
    clock: GuardedClock | None,
    timers_of: Callable[[GuardedClock], Timers],
    gate: Gate | None,
    levels: Levels,
    abandon: Callable[[], None] | None,
) -> AsyncIterator[Serving]:
    first_start = not files.exists(identity.NAME)
    way = way_of(config)
    if first_start:
        # A cluster of several nodes gets its UUID when it is formed.
        cluster_uuid = identity.new_uuid() if way == "alone" else None
        own = identity.Identity(config.node.id, identity.new_uuid(), cluster_uuid)
    else:
        own = identity.open_identity(files, config.node.id)
    secret = read_secret(config.cluster.secret_file) if config.cluster.secret_file is not None else None
    push_tls = tls_of(config.push.ca_file)
    keys = gateway_keys(config.http.gateway_secret_file, secret)
    clock = clock or GuardedClock(max_drift_ms=config.clock.max_drift_ms, slew_ppm=config.clock.slew_ppm)
    config = config.model_copy(update={"limits": open_files.within(config.limits)})
    this_node = ThisNode(
        own,
        config.node.zone,
        config.node.weight,
        lambda: node_log.feature_level,
        is_named=way == "named",
        levels=levels,
    )
    known = KnownPeers.open(files)
    links = PeerLinks(
        cluster=config.cluster.name,
        secret=secret,
        identity=this_node.identity,
        peers={peer.id: peer.peer for peer in config.cluster.peers},
        known=known,
    )
    clocks = ClockKeeper(clock, links.send, lambda: node_log.nodes)
    stats = NodeStats()
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
                    node_log,
                    runner,
                    links,
                    sick_peers,
                    clocks.may_lead,
                    partial(trio.to_thread.run_sync, files.free_bytes, abandon_on_cancel=True),
                    config.storage.reserve_bytes,
                    config.health.stall_after_ms / 1000,
                    config.health.request_timeout_ms / 1000,
                )
                routes = Routes(own.node, tell_by(links))
                progress = MetadataProgress(links, this_node)
                barrier = MetadataBarrier(node_log, links.send)
                sweeper = StoreSweeper(node_log, runner, nursery)
                rate = config.storage.snapshot_rate
                snapshots = Snapshots(node_log, runner, rate, links.open_stream, sweeper.sweep_soon)
                auto_create = AutoCreate(config.auto_create_topics)
                catalog = Catalog(node_log, clock, timers, routes, barrier, progress, auto_create)
                digests = ReplicaDigests(node_log, catalog, links.send, links.reachable, scrub_rate)
                limit_shares = LimitShares(own.node, catalog, links.send, clock, timers)
                outbox = OutboxSender(own.node, catalog, runner, clock, links.send, links.room, nursery)
                reconciler = Reconciler(
                    catalog,
                    progress,
                    snapshots,
                    sweeper,
                    node_log,
                    runner,
                    clock,
                    timers,
                    config.delivery.lease_ahead_ms,
                    stats,
                    limit_shares,
                    outbox,
                    nursery,
                )
                administration = Administration(
                    node_log,
                    catalog,
                    progress,
                    routes,
                    config.limits,
                    links.reachable,
                    nursery,
                    config.push.rules(),
                    auto_create,
                )
                broker = Broker(
                    node_log,
                    runner,
                    clock,
                    timers,
                    config.limits,
                    stats,
                    links.reachable,
                    routes,
                    catalog,
                    reconciler,
                    administration,
                    outbox,
                    nursery,
                )
                parts = _Parts(
                    config,
                    data_dir,
                    files,
                    secret,
                    keys,
                    this_node,
                    known,
                    links,
                    clocks,
                    node_log,
                    runner,
                    progress,
                    barrier,
                    sweeper,
                    snapshots,
                    sick_peers,
                    health,
                    scrubber,
                    digests,
                    limit_shares,
                    outbox,
                    broker,
                    sender,
                    push_tls,
                    timers,
                    _authenticator(config, node_log, catalog, clock),
                )
                await nursery.start(runner.run)
                nursery.start_soon(timers.run)
                nursery.start_soon(health.run)
                nursery.start_soon(scrubber.run)
                nursery.start_soon(digests.run)
                async with _serving(parts, gate) as serving:
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


@contextlib.asynccontextmanager
async def _serving(parts: _Parts, gate: Gate | None) -> AsyncIterator[Serving]:
    config, broker, this_node = parts.config, parts.broker, parts.this_node
    async with (
        _audit(parts) as audit,
        _listening(config) as (listeners, web, between),
        trio.open_nursery() as serving,
    ):
        host, port = listeners[0].socket.getsockname()[:2]
        advertised = config.node.advertise_host or host
        addresses = {"client": str(Address(advertised, port))}
        web_address = Address(*web[0].socket.getsockname()[:2]) if web else None
        if web_address is not None:
            addresses["http"] = str(Address(config.node.advertise_host or web_address.host, web_address.port))
        if between:
            peer_address = Address(*between[0].socket.getsockname()[:2])
            addresses["peer"] = str(Address(config.node.advertise_host or peer_address.host, peer_address.port))
        this_node.advertise(addresses)
        discovery = _discovery(parts, addresses)
        member = _member(parts, discovery)
        cluster = member.cluster
        if between:
            await serving.start(parts.links.run, between, member.dispatch)
            serving.start_soon(parts.snapshots.run)
        serving.start_soon(parts.clocks.run, parts.node_log.hosts.values)
        await serving.start(discovery.run)
        serving.start_soon(member.directory.follow)
        waits = cluster.waits
        if not waits:
            await _take_part(member, broker, serving)
        server_address = Address(_REACHED.get(host, host), port)
        pusher = Pusher(
            broker,
            this_node.name,
            str(server_address),
            config.push.rules(),
            sandq.__version__,
            parts.push_tls,
            grace_s=config.shutdown_grace_ms / 1000,
            gateway_secret=parts.gateway_keys[0],
        )
        info = ServerInfo(
            sandq.__version__,
            data_version(),
            this_node.name,
            config.cluster.name,
            this_node.own.store_uuid,
            advertised,
            port,
            {
                **dataclasses.asdict(broker.limits),
                "credit_least": -broker.limits.credit_max,
                "authentication": parts.authenticator.mode,
            },
            broker,
            broker.up,
            discovery.membership.members,
            config.cluster.membership != "static",
            cluster.waiting,
            parts.health,
            parts.scrubber,
            parts.digests,
            lambda: this_node.cluster_uuid,
            cluster.init,
            TopicRecords(broker.routes),
            pusher.rows,
            parts.node_log.memory,
            Logins(parts.authenticator, parts.timers.at),
            Identities(broker.administration, lambda: broker.metadata),
            parts.gateway_keys,
            audit=audit,
            usage=member.usage,
        )

        def session(connection: Connection) -> ClientSession:
            return ClientSession(broker, connection, info)

        clients = ClientStats()
        about = About(sandq.__version__, this_node.name, config.cluster.name, parts.data_dir)
        metrics = Metrics(
            broker,
            parts.health,
            parts.scrubber,
            parts.digests,
            clients,
            about,
            discovery.seen,
            pusher,
            audit,
            info.quotas,
            member.usage,
        )
        request_timeout_s = config.health.request_timeout_ms / 1000
        memory = parts.node_log.memory
        server = ClientServer(
            session, broker.limits, str(web_address or ""), clients, gate, request_timeout_s, memory, parts.sender
        )
        serving.start_soon(server.serve, listeners)
        serving.start_soon(metrics.run)
        node = NodeState(broker, parts.health, metrics.render, cluster.waiting)
        async with _serving_http(
            config,
            this_node.name,
            memory,
            broker.limits,
            metrics,
            node,
            web,
            str(server_address),
            parts.gateway_keys[0],
            info.quotas,
        ):
            if waits:
                await _take_part(member, broker, serving)
            serving.start_soon(parts.sweeper.sweep)
            metadata = broker.metadata_host
            serving.start_soon(info.logins.run, metadata)
            mode, files = parts.authenticator.mode, parts.files
            serving.start_soon(give_first_token, mode, metadata, info.identities, parts.runner, files, parts.data_dir)
            async with pushing(pusher):
                yield Serving(
                    host,
                    port,
                    web_address,
                    parts.data_dir,
                    broker,
                    metrics,
                    parts.digests,
                    info.identities,
                    info.quotas,
                    member.usage,
                    parts.health.restart,
                )
                await cluster.hand_over(parts.clocks, parts.health)
            await discovery.leave()
        serving.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def _audit(parts: _Parts) -> AsyncIterator[AuditLog]:
    """The audit log; what was noted is written when the block ends."""
    kept = parts.config.audit
    files = AuditFiles(parts.data_dir / AUDIT_NAME, kept.file_bytes, kept.files) if kept.enabled else None
    audit = AuditLog(parts.this_node.name, files, parts.broker.clock.now_ms)
    try:
        yield audit
    finally:
        await audit.close()


def _discovery(parts: _Parts, addresses: dict[str, str]) -> Discovery:
    config, this_node = parts.config, parts.this_node
    is_meeting = way_of(config) == "meets"

    def tags() -> dict[str, str]:
        return node_tags(
            node=this_node.name,
            cluster=config.cluster.name,
            cluster_uuid=this_node.cluster_uuid,
            store_uuid=this_node.own.store_uuid,
            zone=config.node.zone,
            version=sandq.__version__,
            zone_data=data_version(),
            addresses=addresses,
            # It is to found the cluster, unless it finds one, and has not yet.
            founder=is_meeting and this_node.cluster_uuid is None,
        )

    return Discovery(
        config,
        secret=parts.secret,
        tags=tags,
        judge=judge_of(config.cluster.name, lambda: this_node.cluster_uuid),
        files=parts.files,
        now_ms=parts.broker.clock.now_ms,
        on_round_trip=parts.broker.stats.round_trips.observe,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """What makes a node one of its cluster."""

    directory: PeerDirectory
    dispatch: PeerDispatch
    rebalancer: Rebalancer
    cluster: Cluster
    usage: OwnerUsage


def _member(parts: _Parts, discovery: Discovery) -> _Member:
    config, broker, links, this_node = parts.config, parts.broker, parts.links, parts.this_node
    node_log, runner, catalog, routes = parts.node_log, parts.runner, parts.broker.catalog, parts.broker.routes
    changed = Signal()
    directory = PeerDirectory(
        config.cluster.name,
        this_node,
        links,
        parts.known,
        discovery.membership,
        node_log,
        runner,
        catalog,
        changed,
    )
    joining = Joining(this_node.name, links)
    controller = ClusterController(
        joining,
        directory.linked,
        directory.alive,
        lambda group: routes.leader(group) is not None and not broker.administration.is_rebuilding(group),
        parts.health.may_lead,
        parts.health.sick,
        broker.clock.now_ms,
        config.cluster.reassign_after_ms,
        config.limits.partitions_per_node,
    )
    reports = Reports(node_log, links, controller, changed)
    way = way_of(config)
    bootstrap = Bootstrap(
        way,
        this_node.name,
        [peer.id for peer in config.cluster.peers],
        lambda: this_node.cluster_uuid,
        joining,
        links.send,
        lambda: links.up,
        lambda: parts.progress.others,
        directory.seen,
    )
    usage = OwnerUsage(catalog, links.send, lambda: list(links.up), broker.ask, broker.clock.now_ms)
    dispatch = PeerDispatch(
        node_log=node_log,
        links=links,
        this_node=this_node,
        routes=routes,
        progress=parts.progress,
        barrier=parts.barrier,
        clocks=parts.clocks,
        controller=controller,
        sick_peers=parts.sick_peers,
        digests=parts.digests,
        limits=parts.limit_shares,
        outbox=parts.outbox,
        usage=usage,
        outside=lambda *frame: joining.on_frame(*frame) or bootstrap.on_frame(*frame),
        on_stream=parts.snapshots.receive,
        changed=changed,
    )
    cluster = Cluster(
        way=way,
        this_node=this_node,
        files=parts.files,
        links=links,
        node_log=node_log,
        runner=runner,
        directory=directory,
        bootstrap=bootstrap,
        controller=controller,
        changed=changed,
        on_joined=discovery.refresh_tags,
    )
    rebalancer = Rebalancer(node_log, catalog, broker.up, parts.health.may_lead, reports.tell_settled)
    return _Member(directory, dispatch, rebalancer, cluster, usage)


async def _take_part(member: _Member, broker: Broker, serving: trio.Nursery) -> None:
    """Be a member of the cluster: form it, or go on in it."""
    beginning = await member.cluster.formed()
    metadata = broker.node_log.open_metadata(beginning.members, beginning.metadata_index)
    await broker.start(metadata)
    await member.cluster.take_part(metadata)
    serving.start_soon(member.cluster.run, metadata)
    serving.start_soon(member.rebalancer.run)
    serving.start_soon(member.usage.run)


@contextlib.asynccontextmanager
async def _listening(
    config: NodeConfig,
) -> AsyncIterator[tuple[list[trio.SocketListener], list[trio.SocketListener], list[trio.SocketListener]]]:
    """Listeners for clients, for HTTP and, of a node that may have peers, for them: all or none."""
    listen_at = config.listen
    peer = listen_at.peer if config.cluster.peers or config.cluster.membership != "static" else None
    async with contextlib.AsyncExitStack() as stack:
        listeners: list[list[trio.SocketListener]] = []
        for address, what in ((listen_at.client, "client"), (listen_at.http, "http"), (peer, "peer")):
            listeners.append(await listen(address.host, address.port, what) if address else [])
            for listener in listeners[-1]:
                stack.push_async_callback(listener.aclose)
        yield listeners[0], listeners[1], listeners[2]


def _serving_http(
    config: NodeConfig,
    name: str,
    memory: MemoryBudget,
    limits: Limits,
    metrics: Metrics,
    node: NodeState,
    listeners: list[trio.SocketListener],
    server: str,
    gateway_secret: bytes,
    quotas: QuotaMeters,
) -> contextlib.AbstractAsyncContextManager[None]:
    if not listeners:
        return contextlib.nullcontext()
    names = {name.lower() for name in (config.node.advertise_host, *config.http.allowed_hosts) if name}
    if config.http.workers:
        begin = Begin(
            sandq.__version__,
            name,
            (server,),
            tuple(names),
            tuple(config.http.allowed_origins),
            limits,
            tuple(listener.socket.fileno() for listener in listeners),
            *logs.as_set_up(),
            gateway_secret.hex(),
        )
        requests, on_restart = metrics.http_requests, metrics.on_http_restart
        supervisor = Supervisor(begin, node, requests, on_restart, launch_on(begin.listeners))
        memory.measure("http", HTTP_SHARE, lambda: supervisor.held_bytes)
        return serve_http_apart(listeners, supervisor)
    # FastAPI takes its time: who does not serve HTTP by itself does not pay for it.
    from sandq.server.http.connections import serve_http
    from sandq.server.http.serve import HttpSettings

    origins = frozenset(config.http.allowed_origins)
    settings = HttpSettings(
        frozenset(names), origins, (server,), sandq.__version__, gateway_secret=gateway_secret, quotas=quotas
    )
    return serve_http(listeners, settings, limits, node, metrics.http_requests.observe, memory.http)


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
