"""Makes the HTTP application and the client behind it."""

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
from sandq.server.http.gateway import Gateway, Node
from sandq.server.http.guards import BODY_COPIES, BODY_SHARE, Guard, Observe, Rules
from sandq.server.http.looks import Looks
from sandq.server.http.queries import HttpSql
from sandq.server.quota_meters import QuotaMeters


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """For whom, and what is behind it. `names`: by which it may be called, beside addresses."""

    names: frozenset[str]
    origins: frozenset[str]
    servers: tuple[str, ...]
    """Client ports, through which everything is asked."""
    version: str
    timeout_s: float = GATEWAY_S
    starts_alone: bool = False
    """Whether it serves also before any of them answers."""
    gateway_secret: Callable[[], bytes] | None = None
    """Proves to nodes that they may believe for whom it asks; None: its requests count as its own."""
    nodes_tls: ClientTls | None = None
    """How it speaks to these; None: no TLS."""
    backup: BackupTarget | None = None
    """Where backups go; None: there are none by HTTP."""
    sql: SqlSection | None = None
    """What statements of SQL may take; None: there are none by HTTP."""
    sql_tls: Mapping[str, Any] | None = None
    """How processes of SQL speak to nodes, as JSON: `{"section", "own_hosts", "own_names"}` (see `nodes_tls`), or
    `{"ca"}`, a path; None: no TLS."""
    requires_tls: bool = False
    """Whether it is served by TLS alone."""
    quotas: QuotaMeters | None = None
    """Counts what identities take; None: nobody reads these counts."""


@dataclass(frozen=True, slots=True)
class RunningApp:
    guard: Guard
    """The ASGI application."""
    client: Client
    ending: anyio.Event
    """Set by the server that ends: requests that wait for something to happen are then answered."""


@asynccontextmanager
async def running_app(
    settings: HttpSettings, limits: Limits, node: Node, observe: Observe, account: Account
) -> AsyncIterator[RunningApp]:
    """The application, with its client, inside the block.

    The client port must be served already, unless the settings say otherwise: what is asked here is asked there.
    """
    options = Options(
        timeout_s=settings.timeout_s,
        delivery_timeout_s=settings.timeout_s,
        connect_timeout_s=settings.timeout_s,
        starts_alone=settings.starts_alone,
        gateway_secret=settings.gateway_secret,
        tls=settings.nodes_tls,
        waits_for_quota=False,
        # What callers have in bodies is bounded by the account, by address: in a smaller buffer one would keep others
        # waiting.
        buffer_bytes=int(account.share_bytes),
    )
    names = settings.names | {"localhost"}
    fits = int(BODY_SHARE * SOURCE_SHARE * account.share_bytes) // BODY_COPIES
    body = (limits.http_body_bytes, "limits.http_body_bytes"), (fits, "limits.memory_bytes")
    rules = Rules(names, settings.origins, limits.http_requests, limits.http_waiting, *min(body), settings.requires_tls)
    ending = anyio.Event()
    async with connect_with(options, settings.servers, "sandq-http") as client:
        looks = Looks(client)
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
                looks=looks,
                backups=backups,
                sql=sql,
            )
            guard = create_app(gateway, rules, observe, account, notes, settings.quotas)
            tasks.start_soon(notes.run)
            tasks.start_soon(looks.run)
            try:
                yield RunningApp(guard, client, ending)
            finally:
                await sql.close()
            tasks.cancel_scope.cancel()
