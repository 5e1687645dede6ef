"""Checks of `sandq doctor` on the addresses of a node: whether they are free, in use, or open to other machines."""

from __future__ import annotations

import errno
import http.client
import json
import socket
from functools import partial
from typing import Any, NamedTuple

from sandq.model.config import NodeConfig
from sandq.model.config_schema import Address
from sandq.model.config_tls import OFF
from sandq.tools.doctor.check import Check, failed, ok, warning

REPLY_S = 2.0
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Node(NamedTuple):
    """A sandq node that replies at an address."""

    id: str
    store_uuid: str


def check_exposed(config: NodeConfig) -> list[Check]:
    """Return a warning for each port that gives other machines full access, or exposes data on the network."""
    found = [warning("security", port, "turn on what is missing: docs/security.md") for port in config.exposed]
    return found or [ok("security", "nothing is open to other machines without TLS and authentication")]


def check_ports(config: NodeConfig, own_store: str | None, is_running: bool = False) -> list[Check]:
    """Check the addresses. `own_store`: the store UUID in the data directory; None if there is none yet.

    `is_running`: whether a process uses the data directory.
    """
    listen, cluster = config.listen, config.cluster
    ask_client, ask_http = partial(node_at_client_port, config=config), partial(node_at_http_port, config=config)
    checks = [_check_served("client", listen.client, own_store, is_running, ask_client)]
    if listen.http is not None:
        checks.append(_check_served("http", listen.http, own_store, is_running, ask_http))
    else:
        checks.append(ok("port http", "none: not served"))
    runs = is_running or "which is running" in checks[0].found
    used = {"peer": bool(cluster.peers) or cluster.membership != "static", "gossip": cluster.membership == "gossip"}
    for name, is_used in used.items():
        if is_used:
            checks.append(_check_internal(name, getattr(listen, name), runs))
        else:
            checks.append(ok(f"port {name}", f"not used with membership: {cluster.membership}"))
    if listen.sql is not None:
        checks.append(_check_internal("sql", listen.sql, runs))
    return checks


def _check_served(name: str, address: Address, own_store: str | None, is_running: bool, ask: Any) -> Check:
    subject = f"port {name}"
    if not address.port:
        return ok(subject, f"any free port of {address.host}")
    refused = bind_error(address)
    if refused is None:
        return ok(subject, f"{address} is free")
    if refused.errno != errno.EADDRINUSE:
        return failed(subject, f"{address}: {refused.strerror}", f"name another address in listen.{name}")
    todo = f"stop it, or name another port in listen.{name}"
    node: Node | None = ask(address)
    if node is None and is_running:
        return warning(
            subject,
            f"{address} is in use, probably by the node that is running: it did not say so in {REPLY_S:g} s",
            "check again when the node is less busy; if it stays so, find the process that uses the port",
        )
    if node is None:
        return failed(
            subject, f"{address} is in use by another program", f"stop it, or name another port in listen.{name}"
        )
    if node.store_uuid == own_store:
        return ok(subject, f"{address} is served by this node, {node.id}, which is running")
    return failed(
        subject,
        f"{address} is in use by sandq node {node.id}, whose data is in another directory",
        todo,
    )


def _check_internal(name: str, address: Address, runs: bool) -> Check:
    """Check a port for other nodes, or of another process. Do not query the port, because that requires a secret."""
    subject = f"port {name}"
    if not address.port:
        return ok(subject, f"any free port of {address.host}")
    refused = bind_error(address)
    if refused is None and name == "gossip":
        refused = bind_error(address, socket.SOCK_DGRAM)
    if refused is None:
        return ok(subject, f"{address} is free")
    if runs and refused.errno == errno.EADDRINUSE:
        return ok(subject, f"{address} is in use, as expected while this node runs")
    return failed(subject, f"{address}: {refused.strerror}", f"name another address in listen.{name}")


def bind_error(address: Address, kind: int = socket.SOCK_STREAM) -> OSError | None:
    """Return the error of binding to the address. None if binding succeeds. The socket never listens."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=kind, flags=socket.AI_PASSIVE)
        for family, of_kind, protocol, _, target in found:
            with socket.socket(family, of_kind, protocol) as trial:
                if kind == socket.SOCK_STREAM:  # for datagrams, this option would allow two sockets on one port
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(target)
    except OSError as error:
        return error
    return None


def node_at_client_port(address: Address, config: NodeConfig | None = None) -> Node | None:
    """Return the node that replies to sandq's protocol at an address. Uses TLS if the configuration does."""
    import anyio

    from sandq.client import connect_with
    from sandq.client.options import Options
    from sandq.model.errors import SandqError
    from sandq.node.tls import own_hosts, own_names
    from sandq.server.http.nodes_tls import nodes_tls
    from sandq.tls.certificates import Certificates

    async def ask() -> Node | None:
        options = Options(connect_timeout_s=REPLY_S, timeout_s=REPLY_S, tls=tls)
        with anyio.move_on_after(2 * REPLY_S):
            async with connect_with(options, (str(_reached(address)),), "sandq-doctor") as client:
                return _node(await client.admin.cluster())
        return None

    try:
        tls = None
        if config is not None and config.tls.client != OFF:
            tls = nodes_tls(Certificates(config.tls), own_hosts(config), own_names(config))
        return anyio.run(ask, backend="trio")
    except (SandqError, OSError):
        return None


def node_at_http_port(address: Address, config: NodeConfig | None = None) -> Node | None:
    """Return the node whose HTTP API replies at an address. Uses TLS if the configuration does."""
    host, port = _reached(address)
    connection = http.client.HTTPConnection(host, port, timeout=REPLY_S)
    if config is not None and config.tls.http != OFF:
        from sandq.model.errors import StartupError
        from sandq.tls.certificates import Certificates

        try:
            context = Certificates(config.tls).loaded.inside
        except StartupError:
            return None
        context.check_hostname = False  # the address need not be in the certificate; the caller compares the store UUID
        connection = http.client.HTTPSConnection(host, port, timeout=REPLY_S, context=context)
    try:
        connection.request("GET", "/cluster")
        return _node(json.loads(connection.getresponse().read(1 << 20)))
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _reached(address: Address) -> Address:
    return Address(_LOOPBACK_OF.get(address.host, address.host), address.port)


def _node(found: Any) -> Node | None:
    if isinstance(found, dict) and isinstance(found.get("node"), str) and isinstance(found.get("store_uuid"), str):
        return Node(found["node"], found["store_uuid"])
    return None
