"""Create the HTTP application, and the client with which it uses the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from sandq.broker.memory_budget import SOURCE_SHARE, Account
from sandq.client import Client, connect_with
from sandq.client.options import Options
from sandq.client.tls import ClientTls
from sandq.model.config_sql import SqlSection
from sandq.model.limits import Limits
from sandq.server.http.app import create_app
from sandq.server.http.audit_notes import AuditNotes
from sandq.server.http.backups import BackupTarget, HttpBackups
from sandq.server.http.bounds import GATEWAY_S
from sandq.server.http.cluster_watch import ClusterWatch
from sandq.server.http.gateway import Gateway, Node
from sandq.server.http.guards import BODY_COPIES, BODY_SHARE, Guard, Observe, Rules
from sandq.server.http.queries import HttpSql
from sandq.server.quota_meters import QuotaMeters


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Settings of the HTTP server. `names`: host names that clients may use, in addition to addresses."""

    names: frozenset[str]
    origins: frozenset[str]
    servers: tuple[str, ...]
    """Client ports of the cluster."""
    version: str
    timeout_s: float = GATEWAY_S
    starts_alone: bool = False
    """Whether it serves before a node of the cluster can be reached."""
    gateway_secret: Callable[[], bytes] | None = None
    """Returns the secret with which it proves to nodes that it is a gateway; None: all requests count as its own."""
    nodes_tls: ClientTls | None = None
    """TLS settings for connections to nodes; None: no TLS."""
    backup: BackupTarget | None = None
    """Where backups are stored; None: backups over HTTP are off."""
    sql: SqlSection | None = None
    """Limits of SQL statements; None: SQL over HTTP is off."""
    sql_tls: Mapping[str, Any] | None = None
    """TLS settings for the connections of SQL processes to nodes, as JSON; None: no TLS.

    `{"section", "own_hosts", "own_names"}` (see `nodes_tls`), or `{"ca"}`, a path."""
    requires_tls: bool = False
    """Whether clients must use TLS."""
    quotas: QuotaMeters | None = None
    """Counts the usage of identities; None: the counts are not needed."""


@dataclass(frozen=True, slots=True)
class RunningApp:
    guard: Guard
    """The ASGI application."""
    client: Client
    ending: anyio.Event
    """Set when the server stops: requests that wait for an event are then answered."""


@asynccontextmanager
async def running_app(
    settings: HttpSettings, limits: Limits, node: Node, observe: Observe, account: Account
) -> AsyncIterator[RunningApp]:
    """Run the application and its client within the block.

    The client port must be served already, unless the settings say otherwise.
    """
    options = Options(
        timeout_s=settings.timeout_s,
        delivery_timeout_s=settings.timeout_s,
        connect_timeout_s=settings.timeout_s,
        starts_alone=settings.starts_alone,
        gateway_secret=settings.gateway_secret,
        tls=settings.nodes_tls,
        waits_for_quota=False,
        # Message bodies are bounded per address by the account. A smaller buffer here would let one caller block
        # others.
        buffer_bytes=int(account.share_bytes),
    )
    names = settings.names | {"localhost"}
    # The largest body that fits into the memory of one address.
    fits = int(BODY_SHARE * SOURCE_SHARE * account.share_bytes) // BODY_COPIES
    body = (limits.http_body_bytes, "limits.http_body_bytes"), (fits, "limits.memory_bytes")
    rules = Rules(names, settings.origins, limits.http_requests, limits.http_waiting, *min(body), settings.requires_tls)
    ending = anyio.Event()
    async with connect_with(options, settings.servers, "sandq-http") as client:
        watch = ClusterWatch(client)
        notes = AuditNotes(client)
        async with anyio.create_task_group() as tasks:
            backups = HttpBackups(client, settings.backup, tasks)
            streamed = limits.http_stream_messages
            sql = HttpSql(settings.sql, settings.servers, settings.sql_tls, settings.gateway_secret)
            gateway = Gateway(
                client=client,
                node=node,
                version=settings.version,
                ending=ending,
                stream_messages=streamed,
                watch=watch,
                backups=backups,
                sql=sql,
            )
            guard = create_app(gateway, rules, observe, account, notes, settings.quotas)
            tasks.start_soon(notes.run)
            tasks.start_soon(watch.run)
            try:
                yield RunningApp(guard, client, ending)
            finally:
                await sql.close()
            tasks.cancel_scope.cancel()
