"""Serve HTTP from a separate gateway process, which is a client of the cluster, on asyncio (uvloop)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sandq.broker.memory_budget import HTTP_SHARE, Account
from sandq.client import Client
from sandq.model.errors import SandqError, StartupError
from sandq.model.limits import Limits
from sandq.server.http.bounds import Deadlines
from sandq.server.http.connections import serve_http
from sandq.server.http.node_link import CATCH_UP_S
from sandq.server.http.serve import HttpSettings
from sandq.server.http.tls_listener import TlsListener
from sandq.server.metrics.catalog import HTTP
from sandq.server.metrics.http_requests import HttpRequests
from sandq.server.metrics.own_process import OwnProcess
from sandq.server.metrics.text import Exposition

POLL_S: Final = 0.5
"""Interval between two checks of the cluster, in seconds."""
STALE_S: Final = 2.0
"""Age at which the result of a check is too old to count, in seconds."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for each address of a host. Raise StartupError."""
    found: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            name = (str(address[0]), found[0].getsockname()[1] if found and port == 0 else port)
            found.append(socket.create_server(name, family=family, dualstack_ipv6=False))
    except OSError as error:
        for listener in found:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            why = f"{host}:{port} is in use by another process: stop it, or use another port (--listen)"
            raise StartupError(why) from None
        raise StartupError(f"cannot listen on {host}:{port} (--listen): {error.strerror or error}") from None
    return found


class GatewayState:
    """The health of a gateway: alive while it answers, and ready while the cluster answers it."""

    def __init__(self, requests: HttpRequests) -> None:
        self._requests = requests
        self._registry = CollectorRegistry()
        OwnProcess(registry=self._registry)
        self._reason: str | None = "the cluster has not answered yet"
        self._reported_s = 0.0
        self._checked = anyio.Event()
        """Set at the next check."""

    async def run(self, client: Client) -> None:
        """Check the cluster regularly, until cancelled."""
        while True:
            with anyio.move_on_after(STALE_S):
                try:
                    waiting = (await client.admin.cluster())["waiting"]
                except SandqError as error:
                    waiting = error.message
                self._reason, self._reported_s = waiting, anyio.current_time()
                self._checked.set()
                self._checked = anyio.Event()
            await anyio.sleep(POLL_S)

    def failure(self) -> str | None:
        """Return None: a gateway stores nothing."""
        return None

    def stalled(self) -> str | None:
        """Return None: a gateway that answers is not stalled."""
        return None

    def silent(self) -> str | None:
        """Return None: if this process hangs, it does not answer the health check at all."""
        return None

    def ready(self) -> str | None:
        """Return why the cluster cannot be used; None if it can."""
        if self._reason is None and self._is_stale():
            return "no node of the cluster answers"
        return self._reason

    async def catch_up(self) -> None:
        """Wait for a check that is overdue, for up to `CATCH_UP_S`."""
        if self._reason is None and self._is_stale():
            with anyio.move_on_after(CATCH_UP_S):
                await self._checked.wait()

    def _is_stale(self) -> bool:
        return anyio.current_time() - self._reported_s > STALE_S

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a format of Prometheus, and their content type."""
        return await anyio.to_thread.run_sync(self._text, accept)

    def _text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a format of Prometheus, and their content type."""
        encode, content_type = choose_encoder(accept)
        out = Exposition(HTTP, openmetrics=content_type.startswith("application/openmetrics-text"))
        self._requests.write(out)
        return out.text(encode(self._registry)), content_type


async def serve_standalone(
    listeners: list[socket.socket],
    settings: HttpSettings,
    limits: Limits,
    deadlines: Deadlines,
    stop: anyio.Event,
    on_ready: Callable[[], None],
    tls: TlsListener | None = None,
) -> None:
    """Serve on these listeners until `stop` is set and the requests in progress are done. Close the listeners."""
    requests = HttpRequests()
    state = GatewayState(requests)
    account = Account(limits.memory_bytes * HTTP_SHARE)
    serving = serve_http(listeners, settings, limits, deadlines, state, requests.observe, account, tls)
    async with serving as running, anyio.create_task_group() as watching:
        watching.start_soon(state.run, running.client)
        on_ready()
        await stop.wait()
        watching.cancel_scope.cancel()
