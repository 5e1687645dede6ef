"""What a node serves: clients, peers, HTTP, pushes; from the moment on at which it listens."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator

import trio

import sandq
from sandq.broker.access.first_token import give_first_token
from sandq.broker.access.identities import Identities
from sandq.broker.health.entry_skips import EntrySkips
from sandq.broker.peers.secret import follow_secrets
from sandq.membership.discovery import Discovery
from sandq.model.config import NodeConfig
from sandq.model.config_schema import Address
from sandq.model.shares import PPM
from sandq.model.show_config import told
from sandq.node.member import make_discovery, make_member, take_part
from sandq.node.parts import Parts, Serving
from sandq.node.sql import serving_sql
from sandq.node.web import serving_http
from sandq.push.pusher import Pusher, pushing
from sandq.schedules.zones import data_version
from sandq.server.audit.audit_log import AuditLog
from sandq.server.audit.files import AuditFiles
from sandq.server.client_stats import ClientStats
from sandq.server.connection import Connection, Gate
from sandq.server.debug.dump import NodeDump
from sandq.server.debug.log_level import LogLevel
from sandq.server.entrance import Logins
from sandq.server.handlers.session import ClientSession
from sandq.server.info import NodeState, ServerInfo
from sandq.server.metrics.metrics import About, Metrics
from sandq.server.overview import Overview
from sandq.server.quota_meters import QuotaMeters
from sandq.server.tcp import ClientServer, listen
from sandq.server.topic_records import TopicRecords

_REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this node itself connects to what listens everywhere."""
AUDIT_NAME = "audit"


@contextlib.asynccontextmanager
async def serve(parts: Parts, gate: Gate | None) -> AsyncIterator[Serving]:
    config, broker, this_node = parts.config, parts.broker, parts.this_node
    async with (
        _audit(parts) as audit,
        _listening(config) as (listeners, web, between, queries),
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
        discovery = make_discovery(parts, addresses)
        member = make_member(parts, discovery)
        cluster = member.cluster
        if between:
            await serving.start(parts.links.run, between, member.dispatch)
            serving.start_soon(parts.snapshots.run)
        serving.start_soon(parts.clocks.run, parts.node_log.hosts.values)
        await serving.start(discovery.run)
        serving.start_soon(member.directory.follow)
        logins = Logins(parts.authenticator, parts.timers.at)
        _follow_secrets(parts, discovery, logins, serving)
        tls = parts.tls
        if tls is not None:
            serving.start_soon(tls.certificates.follow)
        inside = None if tls is None else tls.inside()
        waits = cluster.waits
        if not waits:
            await take_part(member, broker, serving)
        server_address = Address(_REACHED.get(host, host), port)
        pusher = Pusher(
            broker=broker,
            node=this_node.name,
            server=str(server_address),
            rules=config.push.rules(),
            version=sandq.__version__,
            tls=parts.push_tls,
            grace_s=config.shutdown_grace_ms / 1000,
            nodes_tls=inside,
            gateway_secret=lambda: parts.gateway_keys.first,
        )
        clients, quotas, log_level = ClientStats(), QuotaMeters(), LogLevel(broker.clock.now_ms)
        serving.start_soon(log_level.run)
        dump = NodeDump(broker, parts.health, clients, parts.watch, lambda: told(config), sandq.__version__)
        about = About(
            sandq.__version__,
            this_node.name,
            config.cluster.name,
            parts.data_dir,
            bool(config.exposed),
            config.slo.target_ppm / PPM,
        )
        numbers = None if tls is None else (tls.certificates, tls.handshakes)
        metrics = Metrics(
            broker=broker,
            health=parts.health,
            scrubber=parts.scrubber,
            digests=parts.digests,
            clients=clients,
            about=about,
            members=discovery.seen,
            pusher=pusher,
            audit=audit,
            tls=numbers,
            quotas=quotas,
            usage=member.usage,
        )
        overview = Overview(broker, metrics.topic_seen, pusher.states)
        info = ServerInfo(
            version=sandq.__version__,
            zone_data=data_version(),
            node_id=this_node.name,
            cluster_name=config.cluster.name,
            store_uuid=this_node.own.store_uuid,
            host=advertised,
            port=port,
            limits={
                **dataclasses.asdict(broker.limits),
                "credit_least": -broker.limits.credit_max,
                "authentication": parts.authenticator.mode,
            },
            broker=broker,
            up=parts.links.versions,
            members=discovery.membership.members,
            hears_of_members=config.cluster.membership != "static",
            waiting=cluster.waiting,
            health=parts.health,
            scrubber=parts.scrubber,
            digests=parts.digests,
            belongs=lambda: this_node.cluster_uuid,
            init=cluster.init,
            finalize=lambda dry_run: cluster.finalize(dry_run=dry_run),
            log_level=log_level,
            dump=dump.make,
            topics=TopicRecords(broker.routes),
            pushes=pusher.rows,
            memory=parts.node_log.memory,
            logins=logins,
            identities=Identities(broker.administration.changes, lambda: broker.metadata),
            overview=overview,
            shut_replicas=parts.shut_replicas,
            entry_skips=EntrySkips(
                own=this_node.name,
                node_log=parts.node_log,
                catalog=broker.catalog,
                shut_replicas=parts.shut_replicas,
                up=broker.up,
            ),
            gateway_keys=lambda: parts.gateway_keys.current,
            exposed=config.exposed,
            audit=audit,
            usage=member.usage,
            slo=parts.slo,
            quotas=quotas,
        )

        def session(connection: Connection) -> ClientSession:
            return ClientSession(broker, connection, info)

        request_timeout_s = config.health.request_timeout_ms / 1000
        memory = parts.node_log.memory
        server = ClientServer(
            make_session=session,
            limits=broker.limits,
            http_address=str(web_address or ""),
            stats=clients,
            gate=gate,
            request_timeout_s=request_timeout_s,
            memory=memory,
            sender=parts.sender,
            tls=None if tls is None else tls.client_port,
            client_name=config.tls.client_name,
        )
        serving.start_soon(server.serve, listeners)
        serving.start_soon(metrics.run)
        serving.start_soon(parts.slo.run)
        serving.start_soon(overview.run)
        node = NodeState(broker, parts.health, metrics.render, cluster.waiting)
        async with serving_http(
            config=config,
            name=this_node.name,
            memory=memory,
            limits=broker.limits,
            metrics=metrics,
            node=node,
            listeners=web,
            server=str(server_address),
            gateway_secret=lambda: parts.gateway_keys.first,
            quotas=info.quotas,
            tls=tls,
            inside=inside,
        ):
            if waits:
                await take_part(member, broker, serving)
            serving.start_soon(parts.sweeper.sweep)
            metadata = broker.metadata_host
            serving.start_soon(info.logins.run, metadata)
            mode, files = parts.authenticator.mode, parts.files
            serving.start_soon(give_first_token, mode, metadata, info.identities, parts.runner, files, parts.data_dir)
            async with serving_sql(config, queries, str(server_address)), pushing(pusher):
                yield Serving(
                    client_host=host,
                    client_port=port,
                    http=web_address,
                    sql=Address(*queries[0].socket.getsockname()[:2]) if queries else None,
                    data_dir=parts.data_dir,
                    broker=broker,
                    metrics=metrics,
                    digests=parts.digests,
                    identities=info.identities,
                    quotas=info.quotas,
                    usage=member.usage,
                    restart=parts.health.restart,
                )
                await cluster.hand_over(parts.clocks, parts.health)
            await discovery.leave()
        serving.cancel_scope.cancel()


def _follow_secrets(parts: Parts, discovery: Discovery, logins: Logins, serving: trio.Nursery) -> None:
    """Go on with others when they are changed: those of gateways are asked for each time."""

    def on_change() -> None:
        discovery.secrets_changed()
        parts.links.secrets_changed()
        logins.secrets_changed()

    if parts.secrets is not None:
        serving.start_soon(follow_secrets, parts.secrets, on_change)
    if parts.gateway_secrets is not None:
        serving.start_soon(follow_secrets, parts.gateway_secrets, logins.secrets_changed)


@contextlib.asynccontextmanager
async def _audit(parts: Parts) -> AsyncIterator[AuditLog]:
    """The audit log; what was noted is written when the block ends."""
    kept = parts.config.audit
    files = AuditFiles(parts.data_dir / AUDIT_NAME, kept.file_bytes, kept.files) if kept.enabled else None
    audit = AuditLog(parts.this_node.name, files, parts.broker.clock.now_ms)
    try:
        yield audit
    finally:
        await audit.close()


@contextlib.asynccontextmanager
async def _listening(
    config: NodeConfig,
) -> AsyncIterator[list[list[trio.SocketListener]]]:
    """Listeners for clients, for HTTP, of a node that may have peers for them, and for SQL: all or none."""
    listen_at = config.listen
    peer = listen_at.peer if config.cluster.peers or config.cluster.membership != "static" else None
    async with contextlib.AsyncExitStack() as stack:
        listeners: list[list[trio.SocketListener]] = []
        for address, what in (
            *((listen_at.client, "client"), (listen_at.http, "http")),
            *((peer, "peer"), (listen_at.sql, "sql")),
        ):
            listeners.append(await listen(address.host, address.port, what) if address else [])
            for listener in listeners[-1]:
                stack.push_async_callback(listener.aclose)
        yield listeners
