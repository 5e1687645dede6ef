"""Serve the HTTP of a node (ADR 50), in a process that the node starts: `python -m sandq.server.http`.

The process listens on sockets that the node has bound, and sends all requests to the node's client port. The node
reports its health through a pipe, and tells the process when to stop. If the pipe closes, the node has ended, and the
process ends at once. In `sandq.testing`, a thread takes the place of the process (`thread`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import structlog

from sandq import __version__
from sandq.broker.memory_budget import HTTP_SHARE, Account
from sandq.model.config_backup import BackupSection
from sandq.model.config_sql import SqlSection
from sandq.model.config_tls import OFF, TlsSection
from sandq.model.errors import Unavailable
from sandq.model.logger import get_logger
from sandq.server import logs, process_tuning
from sandq.server.http.backups import target_of
from sandq.server.http.connections import serve_http
from sandq.server.http.node_link import CATCH_UP_S, STALE_S, STARTING, Begin, NodeInput, encode
from sandq.server.http.nodes_tls import nodes_tls
from sandq.server.http.serve import HttpSettings, RunningApp
from sandq.server.http.tls_listener import TlsListener
from sandq.server.line_writer import LineWriter
from sandq.server.metrics.http_requests import HttpRequests
from sandq.server.process_tuning import collect_rarely, give_back_heap
from sandq.server.quota_meters import QuotaMeters
from sandq.tls.certificates import Certificates

log = get_logger("sandq.http")

METRICS_S: Final = 10.0
"""Maximum time for the node to return its metrics, in seconds."""
EXIT_FAILED: Final = 1
EXIT_OTHER_VERSION: Final = 4

Send = Callable[[bytes], object]


class ReportedNode:
    """The health of the node, as it last reported it. A report that is too old counts as a hung node."""

    def __init__(
        self,
        send: Send,
        requests: HttpRequests,
        account: Account,
        quotas: QuotaMeters,
        stale_s: float = STALE_S,
        gateway_secret: bytes = b"",
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send`: sends bytes to the node: the counts of `requests` and `quotas`, and the bytes that `account`
        holds."""
        self._now_s = now_s
        self._send = send
        self._requests = requests
        self._account = account
        self._quotas = quotas
        self._stale_s = stale_s
        self._health: tuple[str | None, str | None, str | None] = (None, None, STARTING)
        self._reported_s = now_s()
        """Time of the last report, in seconds."""
        self._reported = anyio.Event()
        """Set at the next report."""
        self._asking = anyio.Lock()
        self._request_number = 0
        self._metrics: tuple[bytes, str] | None = None
        self._answered = anyio.Event()
        self.stop = anyio.Event()
        """Set when the process must finish its requests and end."""
        self.gone = anyio.Event()
        """Set when the node has ended, or has given up this thread."""
        self.gateway_secret = gateway_secret
        """The secret with which this process proves to nodes that it is a gateway."""

    def on_message(self, message: Mapping[str, Any], body: bytes) -> None:
        """Handle a message from the node."""
        match message:
            case {"health": [failure, stalled, ready]}:
                self._health, self._reported_s = (failure, stalled, ready), self._now_s()
                self._reported.set()
                self._reported = anyio.Event()
                self._report()
            case {"metrics": number, "content_type": content_type} if number == self._request_number:
                self._metrics = body, content_type
                self._answered.set()
            case {"gateway_secret": digits}:
                self.gateway_secret = bytes.fromhex(digits)
            case {"stop": _}:
                self.stop.set()
            case {"gone": _}:
                self.gone.set()

    def failure(self) -> str | None:
        """Return why the node cannot store anything any more; None if it can."""
        return self._health[0]

    def stalled(self) -> str | None:
        """Return what is stalled in the node; None if nothing is."""
        return self.silent() or self._health[1]

    def ready(self) -> str | None:
        """Return why the node is not ready; None if it is."""
        return self.silent() or self._health[2]

    def silent(self) -> str | None:
        """Return an error if the node has not reported for too long, because its process hangs.

        None while the node starts: it cannot report while it recovers its storage."""
        if self._health[2] == STARTING or self._now_s() - self._reported_s <= self._stale_s:
            return None
        return f"the node has not reported its state for {self._stale_s:g} s"

    async def catch_up(self) -> None:
        """Wait for a report that is overdue, for up to `CATCH_UP_S`: after the machine was suspended, the report is
        about to arrive."""
        if self.silent() is not None:
            with anyio.move_on_after(CATCH_UP_S):
                await self._reported.wait()

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a format of Prometheus, and their content type. Raise Unavailable."""
        async with self._asking:
            self._request_number += 1
            self._metrics, self._answered = None, anyio.Event()
            self._report()
            self._send(encode({"metrics": self._request_number, "accept": accept}))
            with anyio.move_on_after(METRICS_S):
                await self._answered.wait()
            if self._metrics is None:
                raise Unavailable(f"the node has not returned its metrics within {METRICS_S:g} s; ask again")
            return self._metrics

    def _report(self) -> None:
        """Report the counts since the last report to the node."""
        report = {
            "requests": self._requests.take(),
            "identities": self._quotas.take_counts(),
            "held_bytes": self._account.bytes,
        }
        self._send(encode({"report": report}))


def main(node: NodeInput) -> None:
    """Serve until the node sends `stop`, and end this process."""
    output = LineWriter(_own_output())
    begin = Begin.of(node.first()["begin"])
    logs.set_up(begin.log_format, begin.log_level, begin.node)
    structlog.contextvars.bind_contextvars(process="http")
    if begin.version == __version__:
        process_tuning.raise_file_limit()
        give_back_heap()
        collect_rarely()
    code = run(begin, node, lambda data: output.write(data.decode()))
    logs.finish()
    os._exit(code)  # a normal exit would wait for the thread that reads the input


def run(begin: Begin, node: NodeInput, send: Send, on_running: Callable[[RunningApp], object] | None = None) -> int:
    """Serve until the node sends `stop`, and return the exit code. `send`: sends bytes to the node."""
    if begin.version != __version__:
        log.error("another version of sandq is installed by now: restart the node", version=__version__)
        return EXIT_OTHER_VERSION
    try:
        serving = partial(_serve, begin, node, send, on_running)
        anyio.run(serving, backend="asyncio", backend_options={"use_uvloop": True})
    except Exception:
        log.exception("the HTTP process ends with an unexpected error")
        return EXIT_FAILED
    return 0


async def _serve(begin: Begin, node: NodeInput, send: Send, on_running: Callable[[RunningApp], object] | None) -> None:
    """Serve HTTP with the settings of `begin`, until the node orders the end or has ended itself.

    `node`: the messages of the node. `send`: sends a message to the node."""
    requests, account = HttpRequests(), Account(begin.limits.memory_bytes * HTTP_SHARE)
    quotas = QuotaMeters(anyio.current_time)
    reports = ReportedNode(send, requests, account, quotas, begin.stale_s, bytes.fromhex(begin.gateway_secret))
    loop = asyncio.get_running_loop()

    def deliver(message: Mapping[str, Any], body: bytes) -> None:
        """Pass a message of the node to the event loop. Called in the reading thread."""
        with suppress(RuntimeError):  # the loop has ended, and the process is about to
            loop.call_soon_threadsafe(reports.on_message, message, body)

    node.deliver_to(deliver)
    tls, certificates = None, None
    if begin.tls is not None:
        section = TlsSection(**begin.tls)  # type: ignore[arg-type]
        certificates = Certificates(section)
        tls = TlsListener(section, certificates) if section.http != OFF else None
    requires_tls = tls is not None and tls.requires_tls
    settings = replace(
        _settings(begin, certificates, requires_tls=requires_tls),
        gateway_secret=lambda: reports.gateway_secret,
        quotas=quotas,
    )
    listeners = [socket.socket(fileno=descriptor) for descriptor in begin.listeners]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_with_node, reports, tasks.cancel_scope)
        serving = serve_http(
            listeners, settings, begin.limits, begin.deadlines, reports, requests.observe, account, tls
        )
        async with serving as running:
            if certificates is not None and tls is None:
                tasks.start_soon(certificates.follow)
            if on_running is not None:
                on_running(running)
            send(encode({"serves": True}))
            await reports.stop.wait()
        tasks.cancel_scope.cancel()


async def _end_with_node(node: ReportedNode, scope: anyio.CancelScope) -> None:
    """Cancel a scope when the node is gone."""
    await node.gone.wait()
    scope.cancel()


def _settings(begin: Begin, certificates: Certificates | None, *, requires_tls: bool) -> HttpSettings:
    """Return the settings of the application."""
    own = {"own_hosts": begin.own_hosts, "own_names": begin.own_names}
    inside = None if certificates is None else nodes_tls(certificates, begin.own_hosts, begin.own_names)
    return HttpSettings(
        names=frozenset(begin.names),
        origins=frozenset(begin.origins),
        servers=begin.servers,
        version=begin.version,
        timeout_s=begin.timeout_s,
        starts_alone=True,
        nodes_tls=inside,
        backup=None if begin.backup is None else target_of(BackupSection(**begin.backup)),
        sql=None if begin.sql is None else SqlSection.model_construct(**begin.sql),
        requires_tls=requires_tls,
        sql_tls=None if inside is None else {"section": begin.tls, **own},
    )


def _own_output() -> int:
    """Return a descriptor of standard output for messages to the node; other output then goes to standard error."""
    own = os.dup(1)
    with suppress(OSError):  # there is no standard error
        os.dup2(2, 1)
    return own
