"""Serves the application with Hypercorn, beside the client port and through it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from sandq.client.client import connect_with
from sandq.client.options import Options
from sandq.model.limits import Limits

from .app import create_app
from .gateway import Gateway, Node
from .guards import Observe, Rules

GATEWAY_S = 10.0
"""A request that the cluster does not answer for so long is answered as TIMED_OUT or UNAVAILABLE."""
READ_S = 120
"""A connection on which nothing is said for so long is closed: more than a lease may wait."""
IDLE_S = 75
"""The same between requests."""
GRACE_S = 3.0
"""Requests under way when the node stops have so long."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """For whom, and what is behind it. `names`: by which this node may be called, beside addresses."""

    names: frozenset[str]
    origins: frozenset[str]
    client_address: str
    version: str


@asynccontextmanager
async def serve_http(
    listeners: list[trio.SocketListener], settings: HttpSettings, limits: Limits, node: Node, observe: Observe
) -> AsyncIterator[None]:
    """Serves inside the block. The client port must be served already: what is asked here is asked there."""
    options = Options(timeout_s=GATEWAY_S, delivery_timeout_s=GATEWAY_S, connect_timeout_s=GATEWAY_S)
    rules = Rules(settings.names | {"localhost"}, settings.origins, limits.http_requests, limits.http_body_bytes)
    ending = trio.Event()
    async with connect_with(options, (settings.client_address,), "sandq-http") as client:
        app = create_app(Gateway(client, node, settings.version, ending), rules, observe)
        async with trio.open_nursery() as nursery:
            config = _config(listeners)
            try:
                await nursery.start(_serve, app, config, ending)
                yield
            finally:
                ending.set()


async def _serve(app: object, config: Config, ending: trio.Event, *, task_status: trio.TaskStatus[list[str]]) -> None:
    await serve(app, config, shutdown_trigger=ending.wait, task_status=task_status, mode="asgi")  # type: ignore[arg-type]


def _config(listeners: list[trio.SocketListener]) -> Config:
    """Hypercorn takes sockets over by their numbers: with our own, a port in use is told as everywhere else."""
    config = Config()
    config.bind = [f"fd://{listener.socket.detach()}" for listener in listeners]
    config.errorlog = logging.getLogger("sandq.http.server")
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.keep_alive_timeout = IDLE_S
    config.read_timeout = READ_S
    config.graceful_timeout = GRACE_S
    return config
