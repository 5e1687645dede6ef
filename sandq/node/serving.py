"""Serving of a node: listeners for clients and peers, metrics, HTTP, SQL and pushes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable

import trio

import sandq
from sandq.broker.access.first_token import give_first_token
from sandq.broker.access.identities import Identities
from sandq.broker.health.entry_skips import EntrySkips
from sandq.broker.memory_budget import HTTP_SHARE
from sandq.broker.peers.secret import follow_secrets
from sandq.client.tls import ClientTls
from sandq.model.config import NodeConfig
from sandq.model.config_schema import Address
from sandq.model.logger import get_logger
from sandq.model.ports import parse_server, socket_path
from sandq.model.shares import PPM
from sandq.model.show_config import without_secrets
from sandq.node.context import Context
from sandq.node.delivery import Delivery
from sandq.node.membership import Membership, open_membership
from sandq.node.replication import Replication
from sandq.node.running import Serving
from sandq.node.sql import serving_sql
from sandq.node.storage import Storage
from sandq.node.web import NodeHttp, own_server
from sandq.push.pusher import Pusher, pushing
from sandq.schedules.zones import data_version
from sandq.server.audit.audit_log import AuditLog
from sandq.server.audit.files import AuditFiles
from sandq.server.client_stats import ClientStats
from sandq.server.connection import Connection
from sandq.server.debug.dump import NodeDump
from sandq.server.debug.log_level import LogLevel
from sandq.server.entrance import Logins
from sandq.server.handlers.session import ClientSession
from sandq.server.info import NodeState, ServerInfo
from sandq.server.listening import listen
from sandq.server.metrics.metrics import About, Metrics
from sandq.server.overview import Overview
from sandq.server.tcp import ClientServer
from sandq.server.topic_records import TopicRecords

log = get_logger("sandq.node")

AUDIT_NAME = "audit"
Listeners = list[trio.SocketListener]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """Components that the listeners of a node use."""

    context: Context
    replication: Replication
    delivery: Delivery
    membership: Membership
    http: NodeHttp
    audit: AuditLog
    logins: Logins
    clients: ClientStats
    pusher: Pusher
    advertised: Address
    """Address at which clients connect to this node."""


@contextlib.asynccontextmanager
async def serving(
    context: Context, storage: Storage, replication: Replication, delivery: Delivery, http: NodeHttp
) -> AsyncIterator[Serving]:
    """Serve clients inside the block.

    A node that must wait for its cluster serves clients before it takes part in the cluster. Raises StartupError."""
    config, broker, links = context.config, delivery.broker, replication.links
    async with (
        _audit(context, broker.clock.now_ms) as audit,
        _listening(config) as (peer_listeners, sql_listeners),
        trio.open_nursery() as nursery,
    ):
        addresses = _addresses(context, peer_listeners)
        replication.this_node.advertise(addresses)
        membership = open_membership(context, storage, replication, delivery, addresses)
        discovery, cluster = membership.discovery, membership.cluster
        if peer_listeners:
            await nursery.start(links.run, peer_listeners, membership.dispatch)
            nursery.start_soon(replication.snapshots.run)
        nursery.start_soon(replication.clocks.run, replication.node_log.hosts.values)
        await nursery.start(discovery.run)
        nursery.start_soon(membership.directory.follow)
        logins = Logins(delivery.authenticator, context.timers.at)
        _follow_secrets(context, replication, membership, logins, nursery)
        waits = cluster.waits
        if not waits:
            await membership.take_part(broker, nursery)
        server = _Server(
            context=context,
            replication=replication,
            delivery=delivery,
            membership=membership,
            http=http,
            audit=audit,
            logins=logins,
            clients=ClientStats(),
            pusher=_pusher(context, delivery),
            advertised=Address(*parse_server(addresses["client"])),
        )
        metrics, info = _serve_clients(server, nursery)
        async with _serving_http(server, metrics):
            if waits:
                await membership.take_part(broker, nursery)
            nursery.start_soon(replication.sweeper.sweep)
            _serve_identities(server, storage, info, nursery)
            client = str(own_server(context.started))
            async with serving_sql(config, sql_listeners, client), pushing(server.pusher):
                yield _running(server, metrics, info, sql_listeners)
                await cluster.hand_over(replication.clocks, replication.health)
            await discovery.leave()
        nursery.cancel_scope.cancel()


def _addresses(context: Context, peer_listeners: Listeners) -> dict[str, str]:
    """Return the addresses at which other nodes and clients reach this node, by kind."""
    started, host = context.started, context.config.node.advertise_host
    bound = {"client": started.client.address}
    if started.http is not None:
        bound["http"] = started.http.address
    if peer_listeners:
        bound["peer"] = Address(*peer_listeners[0].socket.getsockname()[:2])
    return {
        kind: str(at if host is None or socket_path(at.host) else Address(host, at.port)) for kind, at in bound.items()
    }


def _nodes_tls(context: Context) -> ClientTls | None:
    """Return the TLS that this node uses as a client of client ports; None: no TLS."""
    return None if context.tls is None else context.tls.for_nodes()


def _pusher(context: Context, delivery: Delivery) -> Pusher:
    config, keys = context.config, context.gateway_keys
    return Pusher(
        broker=delivery.broker,
        node=config.node.id,
        server=str(own_server(context.started)),
        rules=config.push.rules(),
        version=sandq.__version__,
        tls=context.push_tls,
        grace_s=config.shutdown_grace_ms / 1000,
        nodes_tls=_nodes_tls(context),
        gateway_secret=lambda: keys.first,
    )


def _serve_clients(server: _Server, nursery: trio.Nursery) -> tuple[Metrics, ServerInfo]:
    """Serve the client port and collect metrics until the nursery is cancelled."""
    context, broker, config = server.context, server.delivery.broker, server.context.config
    started, tls = context.started, context.tls
    if tls is not None:
        nursery.start_soon(tls.certificates.follow)
    log_level = LogLevel(broker.clock.now_ms)
    metrics = _metrics(server)
    overview = Overview(broker, metrics, server.pusher)
    info = _info(server, log_level, overview)

    def session(connection: Connection) -> ClientSession:
        return ClientSession(broker, connection, info)

    clients = ClientServer(
        make_session=session,
        limits=broker.limits,
        http_address="" if started.http is None else str(started.http.address),
        stats=server.clients,
        gate=context.gate,
        request_timeout_s=config.health.request_timeout_ms / 1000,
        memory=server.replication.node_log.memory,
        sender=server.replication.sender,
        tls=None if tls is None else tls.client_port,
        client_name=config.tls.client_name,
    )
    nursery.start_soon(log_level.run)
    listeners = started.client.listen()
    if started.local is not None:
        listeners += started.local.listen()
    nursery.start_soon(clients.serve, listeners)
    log.info("clients are served", address=str(server.advertised))
    nursery.start_soon(metrics.run)
    nursery.start_soon(server.delivery.slo.run)
    nursery.start_soon(overview.run)
    return metrics, info


def _metrics(server: _Server) -> Metrics:
    context, config, tls = server.context, server.context.config, server.context.tls
    return Metrics(
        broker=server.delivery.broker,
        health=server.replication.health,
        scrubber=server.replication.scrubber,
        digests=server.delivery.digests,
        clients=server.clients,
        about=About(
            sandq.__version__,
            config.node.id,
            config.cluster.name,
            context.started.data_dir,
            bool(config.exposed),
            config.slo.target_ppm / PPM,
        ),
        discovery=server.membership.discovery,
        pusher=server.pusher,
        audit=server.audit,
        tls=None if tls is None else (tls.certificates, tls.handshakes),
        quotas=server.http.quotas,
        usage=server.membership.usage,
        http=server.http.status,
    )


def _info(server: _Server, log_level: LogLevel, overview: Overview) -> ServerInfo:
    """Create the source of replies to requests about the node and its cluster."""
    context, replication, delivery = server.context, server.replication, server.delivery
    config, broker, this_node = context.config, delivery.broker, replication.this_node
    discovery, cluster = server.membership.discovery, server.membership.cluster
    dump = NodeDump(
        broker, replication.health, server.clients, context.watch, lambda: without_secrets(config), sandq.__version__
    )
    return ServerInfo(
        version=sandq.__version__,
        zone_data=data_version(),
        node_id=this_node.name,
        cluster_name=config.cluster.name,
        store_uuid=this_node.own.store_uuid,
        host=server.advertised.host,
        port=server.advertised.port,
        limits={
            **dataclasses.asdict(broker.limits),
            "credit_least": -broker.limits.credit_max,
            "authentication": delivery.authenticator.mode,
        },
        broker=broker,
        cluster=cluster,
        membership=discovery.membership,
        hears_of_members=config.cluster.membership != "static",
        health=replication.health,
        scrubber=replication.scrubber,
        digests=delivery.digests,
        log_level=log_level,
        dump=dump,
        topics=TopicRecords(broker.routes),
        pusher=server.pusher,
        memory=replication.node_log.memory,
        logins=server.logins,
        identities=Identities(broker.administration.changes),
        overview=overview,
        shut_replicas=replication.shut_replicas,
        http=server.http.status,
        entry_skips=EntrySkips(
            own=this_node.name,
            node_log=replication.node_log,
            catalog=broker.catalog,
            shut_replicas=replication.shut_replicas,
            links=replication.links,
        ),
        gateway_keys=context.gateway_keys,
        exposed=config.exposed,
        audit=server.audit,
        usage=server.membership.usage,
        slo=delivery.slo,
        quotas=server.http.quotas,
    )


def _serving_http(server: _Server, metrics: Metrics) -> contextlib.AbstractAsyncContextManager[None]:
    """Return a context manager that reports the node's state to the HTTP process inside the block.

    At the end of the block, the process completes its requests and ends."""
    supervisor, status, replication = server.http.supervisor, server.http.status, server.replication
    replication.node_log.memory.measure("http", HTTP_SHARE, lambda: status.held_bytes)
    if supervisor is None:
        return contextlib.nullcontext()
    cluster = server.membership.cluster
    return supervisor.reporting(NodeState(server.delivery.broker, replication.health, metrics, cluster))


def _serve_identities(server: _Server, storage: Storage, info: ServerInfo, nursery: trio.Nursery) -> None:
    """Keep the identities of the cluster up to date, and create its first token."""
    metadata, mode = server.delivery.broker.metadata_host, server.delivery.authenticator.mode
    runner, data_dir = server.replication.runner, server.context.started.data_dir
    nursery.start_soon(server.logins.run, metadata)
    nursery.start_soon(give_first_token, mode, metadata, info.identities, runner, storage.files, data_dir)


def _running(server: _Server, metrics: Metrics, info: ServerInfo, sql_listeners: Listeners) -> Serving:
    started = server.context.started
    return Serving(
        client_host=started.client.address.host,
        client_port=started.client.address.port,
        http=None if started.http is None else started.http.address,
        sql=Address(*sql_listeners[0].socket.getsockname()[:2]) if sql_listeners else None,
        data_dir=started.data_dir,
        broker=server.delivery.broker,
        metrics=metrics,
        digests=server.delivery.digests,
        identities=info.identities,
        quotas=server.http.quotas,
        usage=server.membership.usage,
        restart=server.replication.health.restart,
    )


def _follow_secrets(
    context: Context, replication: Replication, membership: Membership, logins: Logins, nursery: trio.Nursery
) -> None:
    """Apply changed secret files. The gateway secret itself needs no update: it is read at each use."""

    def on_change() -> None:
        membership.discovery.secrets_changed()
        replication.links.secrets_changed()
        logins.secrets_changed()

    if context.secrets is not None:
        nursery.start_soon(follow_secrets, context.secrets, on_change)
    if context.gateway_secrets is not None:
        nursery.start_soon(follow_secrets, context.gateway_secrets, logins.secrets_changed)


@contextlib.asynccontextmanager
async def _audit(context: Context, now_ms: Callable[[], int]) -> AsyncIterator[AuditLog]:
    """Open the audit log for the block. At the end of the block, write the records that are still in memory."""
    settings = context.config.audit
    directory = context.started.data_dir / AUDIT_NAME
    files = AuditFiles(directory, settings.file_bytes, settings.files) if settings.enabled else None
    audit = AuditLog(context.config.node.id, files, now_ms)
    try:
        yield audit
    finally:
        await audit.close()


@contextlib.asynccontextmanager
async def _listening(config: NodeConfig) -> AsyncIterator[tuple[Listeners, Listeners]]:
    """Listen for peers, if the node can have peers, and for SQL. If one listener fails, none stays open."""
    has_peers = config.cluster.peers or config.cluster.membership != "static"
    async with contextlib.AsyncExitStack() as stack:

        async def opened(address: Address | None, name: str) -> Listeners:
            listeners = await listen(address.host, address.port, name) if address else []
            for listener in listeners:
                stack.push_async_callback(listener.aclose)
            return listeners

        peer_listeners = await opened(config.listen.peer if has_peers else None, "peer")
        yield peer_listeners, await opened(config.listen.sql, "sql")
