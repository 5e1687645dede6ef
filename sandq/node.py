"""One node: what it is made of, and in which order it starts and stops (floor F6).

Start: lock the data directory - identity - stores - WAL - threads and passes - peers and gossip - metadata -
partitions - serve. A node that must wait for its cluster serves before metadata: it answers who it is, and what it
waits for.
Stop: hand over leaderships - leave gossip - listeners - threads (what is queued is finished) - checkpoint - seal the
WAL - close.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog
import trio

import sandq
from sandq.broker.bootstrap.bootstrap import way_of
from sandq.broker.broker import Broker
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.cluster import Cluster
from sandq.broker.peers.secret import read_secret
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.runner import Runner
from sandq.broker.snapshots.snapshots import Snapshots
from sandq.broker.stats import NodeStats
from sandq.broker.timers import Timers
from sandq.gossip.tags import judge_of, node_tags
from sandq.membership.discovery import Discovery
from sandq.model.config import NodeConfig
from sandq.model.config_schema import Address
from sandq.model.errors import StartupError, StorageFailed
from sandq.server import open_files
from sandq.server.client_stats import ClientStats
from sandq.server.connection import Connection, Gate
from sandq.server.handlers.session import ClientSession
from sandq.server.info import NodeState, ServerInfo
from sandq.server.metrics.metrics import About, Metrics
from sandq.server.tcp import ClientServer, listen
from sandq.storage import identity
from sandq.storage.files import Files, RealFiles
from sandq.storage.stores import LevelStores, Stores

log = structlog.get_logger("sandq.node")

LOCK_NAME = "lock"
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


@contextlib.asynccontextmanager
async def run_node(
    config: NodeConfig,
    *,
    files: Files | None = None,
    stores: Callable[..., Stores] = LevelStores,
    clock: GuardedClock | None = None,
    timers: Callable[[GuardedClock], Timers] = Timers,
    gate: Gate | None = None,
) -> AsyncIterator[Serving]:
    """A running node; it serves inside the block and stops cleanly at its end.

    `files`, `stores`, `clock` and `timers` may be twins (tests start real nodes over faulty ones, and `sandq.testing`
    one whose time stands still); `gate` is awaited before what a client sent is looked at. Raises StartupError
    (ConfigError, DataDirInUse, Corruption), StorageFailed.
    """
    # Of what runs in here; several nodes may be in one process.
    structlog.contextvars.bind_contextvars(node=config.node.id)
    data_dir = _make_data_dir(config)
    files = files or RealFiles(data_dir)
    lock = files.lock(LOCK_NAME)
    try:
        async with _running(config, data_dir, files, stores, clock, timers, gate) as serving:
            yield serving
    finally:
        lock.close()


@contextlib.asynccontextmanager
async def _running(
    config: NodeConfig,
    data_dir: Path,
    files: Files,
    stores_at: Callable[..., Stores],
    clock: GuardedClock | None,
    timers_of: Callable[[GuardedClock], Timers],
    gate: Gate | None,
) -> AsyncIterator[Serving]:
    first_start = not files.exists(identity.NAME)
    if first_start:
        # A cluster of several nodes gets its UUID when it is formed.
        cluster_uuid = identity.new_uuid() if way_of(config) == "alone" else None
        own = identity.Identity(config.node.id, identity.new_uuid(), cluster_uuid)
    else:
        own = identity.open_identity(files, config.node.id)
    clock = clock or GuardedClock(max_drift_ms=config.clock.max_drift_ms, slew_ppm=config.clock.slew_ppm)
    runner = Runner(
        checkpoint_bytes=config.storage.checkpoint_bytes,
        checkpoint_interval_s=config.storage.checkpoint_interval_ms / 1000,
    )
    config = config.model_copy(update={"limits": open_files.within(config.limits)})
    limits = config.limits
    # Later a file that is missing is a file that was lost, and not to be made anew.
    stores = stores_at(data_dir / "stores.level", create=first_start)
    try:
        node_log = NodeLog(
            files,
            stores,
            node_id=own.node,
            now_ms=clock.now_ms,
            publish=runner.publish,
            limits=limits,
            segment_bytes=config.storage.segment_bytes,
            create=first_start,
        )
        if first_start:
            # From here on a file that is missing was lost; and nobody has heard of this node before it knows its name.
            identity.save(files, own)
        runner.start(node_log)
        timers = timers_of(clock)
        stats = NodeStats()
        node_log.wal.on_sync = stats.fsync.observe
        node_log.applier.on_applied = stats.applied
        runner.on_pass = stats.pass_records.observe
        broker = Broker(node_log, runner, clock, timers, config, stats)
        clean = False
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(runner.run)
                nursery.start_soon(timers.run)
                async with _serving(config, data_dir, own, broker, runner, files, nursery, gate) as serving:
                    yield serving
                await _checkpoint(runner, node_log, config.shutdown_grace_ms / 1000)
                clean = True
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await runner.close()
            _close_log(node_log, clean and node_log.failed is None)
    finally:
        stores.close()


def _close_log(node_log: NodeLog, clean: bool) -> None:
    """`clean`: everything in it is where it belongs, and the log may say so."""
    if clean:
        try:
            node_log.wal.seal()
        except StorageFailed as error:
            log.warning("the log could not be sealed: the next start looks for a torn end", error=error.message)
    node_log.wal.close()


@contextlib.asynccontextmanager
async def _serving(
    config: NodeConfig,
    data_dir: Path,
    own: identity.Identity,
    broker: Broker,
    runner: Runner,
    files: Files,
    nursery: trio.Nursery,
    gate: Gate | None,
) -> AsyncIterator[Serving]:
    limits = broker.limits
    async with _listening(config) as (listeners, web, between), trio.open_nursery() as serving:
        host, port = listeners[0].socket.getsockname()[:2]
        advertised = config.node.advertise_host or host
        addresses = {"client": str(Address(advertised, port))}
        web_address = Address(*web[0].socket.getsockname()[:2]) if web else None
        if web_address is not None:
            addresses["http"] = str(Address(config.node.advertise_host or web_address.host, web_address.port))
        if between:
            peer_address = Address(*between[0].socket.getsockname()[:2])
            addresses["peer"] = str(Address(config.node.advertise_host or peer_address.host, peer_address.port))
        secret = read_secret(config.cluster.secret_file) if config.cluster.secret_file is not None else None
        cluster = _cluster(config, own, addresses, secret, files, runner, broker)
        discovery = _discovery(config, cluster, addresses, secret, files, broker)
        if between:
            await serving.start(cluster.links.run, between)
            serving.start_soon(cluster.snapshots.run)
        serving.start_soon(cluster.clock_keeper.run)
        await serving.start(discovery.run)
        serving.start_soon(cluster.follow, discovery.membership)
        waits = cluster.waits
        if not waits:
            await _take_part(cluster, broker, nursery, serving)
        info = ServerInfo(
            sandq.__version__,
            own.node,
            config.cluster.name,
            own.store_uuid,
            advertised,
            port,
            dataclasses.asdict(limits),
            broker,
            lambda: cluster.up,
            discovery.membership.members,
            cluster.waiting,
            lambda: cluster.identity().cluster_uuid,
            cluster.init,
        )

        def session(connection: Connection) -> ClientSession:
            return ClientSession(broker, connection, info)

        clients = ClientStats()
        about = About(sandq.__version__, own.node, config.cluster.name, data_dir)
        metrics = Metrics(broker, clients, about, discovery.seen)
        serving.start_soon(ClientServer(session, limits, str(web_address or ""), clients, gate).serve, listeners)
        serving.start_soon(metrics.run)
        node = NodeState(broker, metrics.render, cluster.waiting)
        async with _serving_http(config, broker, metrics, node, web, Address(host, port)):
            if waits:
                await _take_part(cluster, broker, nursery, serving)
            serving.start_soon(broker.reconciler.sweep)
            yield Serving(host, port, web_address, data_dir, broker, metrics)
            await cluster.hand_over()
            await discovery.leave()
        serving.cancel_scope.cancel()


def _cluster(
    config: NodeConfig,
    own: identity.Identity,
    addresses: dict[str, str],
    secret: bytes | None,
    files: Files,
    runner: Runner,
    broker: Broker,
) -> Cluster:
    section = config.cluster
    return Cluster(
        name=section.name,
        secret=secret,
        own=own,
        addresses=addresses,
        zone=config.node.zone,
        weight=config.node.weight,
        way=way_of(config),
        reassign_after_ms=section.reassign_after_ms,
        peers={peer.id: peer.peer for peer in section.peers},
        files=files,
        node_log=broker.node_log,
        runner=runner,
        broker=broker,
        snapshots=Snapshots(broker.node_log, runner, config.storage.snapshot_rate),
    )


def _discovery(
    config: NodeConfig,
    cluster: Cluster,
    addresses: dict[str, str],
    secret: bytes | None,
    files: Files,
    broker: Broker,
) -> Discovery:
    def tags() -> dict[str, str]:
        identity = cluster.identity()
        return node_tags(
            node=identity.node_id,
            cluster=config.cluster.name,
            cluster_uuid=identity.cluster_uuid,
            store_uuid=identity.store_uuid,
            zone=config.node.zone,
            version=sandq.__version__,
            addresses=addresses,
            founder=cluster.is_founder,
        )

    discovery = Discovery(
        config,
        secret=secret,
        tags=tags,
        judge=judge_of(config.cluster.name, lambda: cluster.identity().cluster_uuid),
        files=files,
        now_ms=broker.clock.now_ms,
        on_round_trip=broker.stats.round_trips.observe,
    )
    cluster.on_joined = discovery.refresh_tags
    return discovery


async def _take_part(cluster: Cluster, broker: Broker, nursery: trio.Nursery, serving: trio.Nursery) -> None:
    """Be a member of the cluster: form it, or go on in it."""
    beginning = await cluster.formed()
    metadata = broker.node_log.open_metadata(beginning.members, beginning.metadata_index)
    await broker.start(nursery, metadata)
    if metadata.ready:
        await cluster.register(metadata)
    serving.start_soon(cluster.run, metadata)
    serving.start_soon(cluster.rebalancer.run)
    cluster.takes_part = True


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


@contextlib.asynccontextmanager
async def _serving_http(
    config: NodeConfig,
    broker: Broker,
    metrics: Metrics,
    node: NodeState,
    listeners: list[trio.SocketListener],
    clients: Address,
) -> AsyncIterator[None]:
    if not listeners:
        yield
        return
    # FastAPI takes its time: who serves no HTTP does not pay for it.
    from sandq.server.http.serve import HttpSettings, serve_http

    names = {name.lower() for name in (config.node.advertise_host, *config.http.allowed_hosts) if name}
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(clients.host, clients.host)
    settings = HttpSettings(
        frozenset(names),
        frozenset(config.http.allowed_origins),
        str(Address(reached, clients.port)),
        sandq.__version__,
    )
    async with serve_http(listeners, settings, broker.limits, node, metrics.http_request):
        yield


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
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"node.data_dir {data_dir}: {error.strerror or error}") from None
    return data_dir
