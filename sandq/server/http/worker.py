"""HTTP in a process that its node starts and watches (ADR 25): `python -m sandq.server.http`.

It listens on sockets that the node has bound, asks everything of the node's client port, and learns by its standard
input how the node is, when to end, and that the node is no more: then it ends at once, whatever it does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
import structlog

from sandq import __version__
from sandq.broker.memory_budget import HTTP_SHARE, Account
from sandq.model.config_backup import BackupSection
from sandq.model.config_sql import SqlSection
from sandq.model.config_tls import OFF, TlsSection
from sandq.model.errors import Unavailable
from sandq.server import logs, open_files
from sandq.server.collector import collect_rarely
from sandq.server.heap import give_back_heap
from sandq.server.http.backups import target_of
from sandq.server.http.fast_connections import serve_http_fast
from sandq.server.http.nodes_tls import nodes_tls
from sandq.server.http.serve import HttpSettings
from sandq.server.http.tls_door import TlsDoor
from sandq.server.http.worker_pipe import STALE_S, Begin, NodeInput, encode
from sandq.server.line_writer import LineWriter
from sandq.server.metrics.http_requests import HttpRequests
from sandq.tls.certificates import Certificates

log = structlog.get_logger("sandq.http")

METRICS_S: Final = 10.0
"""For the node to make them."""
EXIT_FAILED: Final = 1
EXIT_OTHER_VERSION: Final = 4

Say = Callable[[bytes], object]


class NodeAfar:
    """How the node is, as it says; what it said too long ago is not believed any more."""

    def __init__(
        self,
        say: Say,
        requests: HttpRequests,
        account: Account,
        stale_s: float = STALE_S,
        gateway_secret: bytes = b"",
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`say`: sends it a message. It is told of what the requests came to, and of what the account holds."""
        self._now_s = now_s
        self._say = say
        self._requests = requests
        self._account = account
        self._stale_s = stale_s
        self._health: tuple[str | None, str | None, str | None] = (None, None, "the node has not said yet how it is")
        self._told_s = now_s()
        """When it said so last; at first, since when it is waited for."""
        self._asking = anyio.Lock()
        self._asked = 0
        self._metrics: tuple[bytes, str] | None = None
        self._answered = anyio.Event()
        self.stop = anyio.Event()
        """Set when the node wants an end."""
        self.gateway_secret = gateway_secret
        """What proves to nodes that this process may say for whom it asks."""

    def on_message(self, message: Mapping[str, Any], body: bytes) -> None:
        """The node says something."""
        match message:
            case {"health": [failure, stalled, ready]}:
                self._health, self._told_s = (failure, stalled, ready), self._now_s()
                self._report()
            case {"metrics": number, "content_type": content_type} if number == self._asked:
                self._metrics = body, content_type
                self._answered.set()
            case {"gateway_secret": digits}:
                self.gateway_secret = bytes.fromhex(digits)
            case {"stop": _}:
                self.stop.set()

    def failure(self) -> str | None:
        """Why it cannot store anything any more."""
        return self._health[0]

    def stalled(self) -> str | None:
        """What stands still there."""
        return self.silent() or self._health[1]

    def ready(self) -> str | None:
        """Why it is not ready to work; None when it is."""
        return self.silent() or self._health[2]

    def silent(self) -> str | None:
        """That nothing is heard of it: its process hangs."""
        if self._now_s() - self._told_s <= self._stale_s:
            return None
        return f"the node has not said for {self._stale_s:g} s how it is"

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type. Raises Unavailable."""
        async with self._asking:
            self._asked += 1
            self._metrics, self._answered = None, anyio.Event()
            self._report()
            self._say(encode({"metrics": self._asked, "accept": accept}))
            with anyio.move_on_after(METRICS_S):
                await self._answered.wait()
            if self._metrics is None:
                raise Unavailable(f"the node has not told its metrics within {METRICS_S:g} s; ask again")
            return self._metrics

    def _report(self) -> None:
        report = {"requests": self._requests.take(), "held_bytes": self._account.bytes}
        self._say(encode({"report": report}))


def main(told: NodeInput) -> None:
    """Serve until the node says that it is enough, and end this process."""
    said = LineWriter(_own_output())
    begin = Begin.of(told.first()["begin"])
    logs.set_up(begin.log_format, begin.log_level, begin.node)
    structlog.contextvars.bind_contextvars(process="http")
    code = 0
    if begin.version != __version__:
        log.error("another version of sandq is installed by now: restart the node", version=__version__)
        code = EXIT_OTHER_VERSION
    else:
        open_files.raise_limit()
        give_back_heap()
        try:
            anyio.run(_serve, begin, told, said, backend="asyncio", backend_options={"use_uvloop": True})
        except Exception:
            log.exception("the HTTP process ends with an unexpected error")
            code = EXIT_FAILED
    logs.finish()
    os._exit(code)  # the thread that reads what the node says would not let go of its file


async def _serve(begin: Begin, told: NodeInput, said: LineWriter) -> None:
    requests, account = HttpRequests(), Account(begin.limits.memory_bytes * HTTP_SHARE)
    node = NodeAfar(
        lambda data: said.write(data.decode()), requests, account, begin.stale_s, bytes.fromhex(begin.gateway_secret)
    )
    loop = asyncio.get_running_loop()

    def hand_on(message: Mapping[str, Any], body: bytes) -> None:
        with suppress(RuntimeError):  # the loop has ended, and so does this process
            loop.call_soon_threadsafe(node.on_message, message, body)

    told.hand_on(hand_on)
    names, origins = frozenset(begin.names), frozenset(begin.origins)
    door, inside, certificates = None, None, None
    if begin.tls is not None:
        section = TlsSection(**begin.tls)  # type: ignore[arg-type]
        certificates = Certificates(section)
        door = TlsDoor(section, certificates) if section.http != OFF else None
        own = begin.own_hosts, begin.own_names
        inside = nodes_tls(certificates, *own)
    settings = HttpSettings(
        names=names,
        origins=origins,
        servers=begin.servers,
        version=begin.version,
        timeout_s=begin.timeout_s,
        starts_alone=True,
        gateway_secret=lambda: node.gateway_secret,
        nodes_tls=inside,
        backup=None if begin.backup is None else target_of(BackupSection(**begin.backup)),
        sql=None if begin.sql is None else SqlSection.model_construct(**begin.sql),
        requires_tls=door is not None and door.requires_tls,
        sql_tls=None
        if inside is None
        else {"section": begin.tls, "own_hosts": begin.own_hosts, "own_names": begin.own_names},
    )
    listeners = [socket.socket(fileno=descriptor) for descriptor in begin.listeners]
    serving = serve_http_fast(listeners, settings, begin.limits, begin.deadlines, node, requests.observe, account, door)
    async with serving, anyio.create_task_group() as tasks:
        if certificates is not None and door is None:
            tasks.start_soon(certificates.follow)
        collect_rarely()
        said.write(encode({"serves": True}).decode())
        await node.stop.wait()
        tasks.cancel_scope.cancel()


def _own_output() -> int:
    """Standard output for what is said to the node alone: what anything else prints there goes to standard error."""
    own = os.dup(1)
    with suppress(OSError):  # there is none
        os.dup2(2, 1)
    return own
