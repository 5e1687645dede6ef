"""HTTP of a node: the settings of its HTTP process."""

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
"""By address of a socket that listens on all addresses: the address at which this node connects to the socket."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeHttp:
    """State of the HTTP process, and the means to control it from the node."""

    status: HttpProcess
    quotas: QuotaMeters
    """Counts the use of this node by each identity. The HTTP process adds the use of HTTP."""
    supervisor: Supervisor | None
    """None: the node does not serve HTTP."""


def own_server(started: Started) -> Address:
    """Return the address at which this node connects to its own client port."""
    host, port = started.client.address
    return Address(_REACHED.get(host, host), port)


def http_of(context: Context) -> NodeHttp:
    """Create the HTTP state of a node. Its supervisor does not run yet."""
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
