"""Serves the application with Hypercorn, beside the client port and through it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from hypercorn.config import Config

from sandq.broker.memory_budget import ADDRESS_SHARE, Account
from sandq.client import connect_with
from sandq.client.options import Options
from sandq.model.limits import Limits
from sandq.server.http.app import create_app
from sandq.server.http.connections import HttpServer
from sandq.server.http.gateway import Gateway, Node
from sandq.server.http.guards import BODY_COPIES, BODY_SHARE, Observe, Rules

GATEWAY_S = 10.0
"""A request that the cluster does not answer for so long is answered as TIMED_OUT or UNAVAILABLE."""
READ_S = 120
"""A connection on which nothing is said for so long is closed: more than a lease may wait."""
IDLE_S = 75
"""The same between requests."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """For whom, and what is behind it. `names`: by which this node may be called, beside addresses."""

    names: frozenset[str]
    origins: frozenset[str]
    client_address: str
    version: str


@asynccontextmanager
async def serve_http(
    listeners: list[trio.SocketListener],
    settings: HttpSettings,
    limits: Limits,
    node: Node,
    observe: Observe,
    account: Account,
) -> AsyncIterator[None]:
    """Serves inside the block. The client port must be served already: what is asked here is asked there."""
    options = Options(timeout_s=GATEWAY_S, delivery_timeout_s=GATEWAY_S, connect_timeout_s=GATEWAY_S)
    names = settings.names | {"localhost"}
    fits = int(BODY_SHARE * ADDRESS_SHARE * account.share_bytes) // BODY_COPIES
    body = (limits.http_body_bytes, "limits.http_body_bytes"), (fits, "limits.memory_bytes")
    rules = Rules(names, settings.origins, limits.http_requests, limits.http_waiting, *min(body))
    ending = trio.Event()
    async with connect_with(options, (settings.client_address,), "sandq-http") as client:
        app = create_app(Gateway(client, node, settings.version, ending), rules, observe, account)
        async with trio.open_nursery() as nursery:
            server = HttpServer(app, _config(), limits.http_connections, account)
            nursery.start_soon(server.serve, listeners, ending)
            try:
                yield
            finally:
                ending.set()


def _config() -> Config:
    config = Config()
    config.errorlog = logging.getLogger("sandq.http.server")
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.keep_alive_timeout = IDLE_S
    config.read_timeout = READ_S
    return config
