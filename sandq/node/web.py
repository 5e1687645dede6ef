"""The HTTP of a node: what its process is ordered to do."""

from __future__ import annotations

import dataclasses

import sandq
from sandq.model.config_schema import Address
from sandq.node.context import Context
from sandq.node.started import Started
from sandq.node.tls import own_hosts, own_names
from sandq.server import logs
from sandq.server.http.node_link import Begin
from sandq.server.http.supervisor import Supervisor
from sandq.server.metrics.http_requests import HttpProcess
from sandq.server.quota_meters import QuotaMeters

_REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address by which this node itself connects to a socket that listens on all addresses."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeHttp:
    """The HTTP process of a node, as the node sees it."""

    status: HttpProcess
    quotas: QuotaMeters
    """Counts what identities take of this node; the process adds what they take of HTTP."""
    supervisor: Supervisor | None
    """None: the node serves no HTTP."""


def own_server(started: Started) -> Address:
    """Return where this node itself finds its client port."""
    host, port = started.client.address
    return Address(_REACHED.get(host, host), port)


def http_of(context: Context) -> NodeHttp:
    """Return the HTTP of a node; its supervisor does not run yet."""
    started, config, keys = context.started, context.config, context.gateway_keys
    status, quotas = HttpProcess(), QuotaMeters()
    if started.http is None:
        return NodeHttp(status=status, quotas=quotas, supervisor=None)
    log_format, log_level = logs.as_set_up()
    names = {name.lower() for name in (config.node.advertise_host, *config.http.allowed_hosts) if name}
    begin = Begin(
        version=sandq.__version__,
        node=config.node.id,
        servers=(str(own_server(started)),),
        names=tuple(names),
        origins=tuple(config.http.allowed_origins),
        limits=config.limits,
        listeners=started.http.descriptors,
        log_format=log_format,
        log_level=log_level,
        gateway_secret=keys.first.hex(),
        tls=config.tls.model_dump(mode="json", exclude_none=True) if config.tls.is_on else None,
        own_hosts=own_hosts(config),
        own_names=own_names(config),
        backup=None if config.backup.url is None else config.backup.model_dump(mode="json", exclude_none=True),
        sql=config.sql.model_dump(mode="json") if config.sql.http else None,
    )
    supervisor = Supervisor(
        begin=begin, port=started.http, status=status, quotas=quotas, gateway_secret=lambda: keys.first
    )
    return NodeHttp(status=status, quotas=quotas, supervisor=supervisor)
