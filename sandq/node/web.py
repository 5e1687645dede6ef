"""HTTP of a node: in its loop, or in a process that it starts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import trio

import sandq
from sandq.broker.memory_budget import HTTP_SHARE, MemoryBudget
from sandq.client.tls import ClientTls
from sandq.model.config import NodeConfig
from sandq.model.config_tls import REQUIRE
from sandq.model.errors import StartupError
from sandq.model.limits import Limits
from sandq.node.tls import NodeTls, own_hosts, own_names
from sandq.server import logs
from sandq.server.http.supervisor import Supervisor, launch_on, serve_http_apart
from sandq.server.http.worker_pipe import Begin
from sandq.server.info import NodeState
from sandq.server.metrics.metrics import Metrics
from sandq.server.quota_meters import QuotaMeters


def serving_http(
    *,
    config: NodeConfig,
    name: str,
    memory: MemoryBudget,
    limits: Limits,
    metrics: Metrics,
    node: NodeState,
    listeners: list[trio.SocketListener],
    server: str,
    gateway_secret: Callable[[], bytes],
    quotas: QuotaMeters,
    tls: NodeTls | None,
    inside: ClientTls | None,
) -> contextlib.AbstractAsyncContextManager[None]:
    if not listeners:
        return contextlib.nullcontext()
    names = {name.lower() for name in (config.node.advertise_host, *config.http.allowed_hosts) if name}
    if config.http.workers:
        log_format, log_level = logs.as_set_up()
        begin = Begin(
            version=sandq.__version__,
            node=name,
            servers=(server,),
            names=tuple(names),
            origins=tuple(config.http.allowed_origins),
            limits=limits,
            listeners=tuple(listener.socket.fileno() for listener in listeners),
            log_format=log_format,
            log_level=log_level,
            gateway_secret=gateway_secret().hex(),
            tls=None if tls is None else config.tls.model_dump(mode="json", exclude_none=True),
            own_hosts=own_hosts(config),
            own_names=own_names(config),
            backup=None if config.backup.url is None else config.backup.model_dump(mode="json", exclude_none=True),
            sql=config.sql.model_dump(mode="json") if config.sql.http else None,
        )
        requests, on_restart = metrics.http_requests, metrics.on_http_restart
        supervisor = Supervisor(begin, node, requests, on_restart, launch_on(begin.listeners), gateway_secret)
        memory.measure("http", HTTP_SHARE, lambda: supervisor.held_bytes)
        return serve_http_apart(listeners, supervisor)
    if config.sql.http:
        raise StartupError(
            "sql.http: a query takes time and memory that a node has not: say http.workers: 1, so that HTTP has a "
            "process of its own, or have `sandq http` answer SQL"
        )
    # FastAPI takes its time: who does not serve HTTP by itself does not pay for it.
    from sandq.server.http.backups import target_of
    from sandq.server.http.connections import serve_http
    from sandq.server.http.serve import HttpSettings

    origins = frozenset(config.http.allowed_origins)
    settings = HttpSettings(
        names=frozenset(names),
        origins=origins,
        servers=(server,),
        version=sandq.__version__,
        gateway_secret=gateway_secret,
        nodes_tls=inside,
        backup=target_of(config.backup),
        quotas=quotas,
        requires_tls=config.tls.http == REQUIRE,
    )
    observe, port = metrics.http_requests.observe, None if tls is None else tls.http_port
    return serve_http(listeners, settings, limits, node, observe, memory.http, port, config.tls.client_name)
