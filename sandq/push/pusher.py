"""Run a pump for each pushed group, for the partitions that this node leads.

Each node knows all pushes from the metadata, and the partitions that it leads, so nodes need no coordination. If a node
fails, the new leaders of its partitions continue. Messages that the failed node had leased are redelivered, as with any
consumer.
"""

from __future__ import annotations

import math
import resource
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from sandq.broker.broker import Broker
from sandq.broker.event_loop import Signal
from sandq.broker.stats.histogram import SECONDS, Histogram
from sandq.client import Client, connect_with
from sandq.client.options import Options
from sandq.client.tls import ClientTls
from sandq.model.errors import SandqError, StartupError
from sandq.model.health import ERROR_CHARS, PUSH_STARTING, PushState
from sandq.model.logger import get_logger
from sandq.model.push import shown
from sandq.model.push_targets import PushRules
from sandq.push.hosts import Hosts
from sandq.push.http_client import HttpClient, Resolve
from sandq.push.pump import GRACE_S, MessagePump, Pump, PumpParts, PushCounts, UrlPump

log = get_logger("sandq.push")

CLIENT_NAME: Final = "sandq-push"
COMPARE_S: Final = 30.0
"""Maximum interval between two comparisons of the wanted pumps with the running ones, in seconds."""

SETTLE_S: Final = 5.0
"""When the node stops: time for acks after the grace time of requests, in seconds."""

CALLBACK_S: Final = 10.0
"""If the broker refuses to settle a message with its callback for this long, in seconds, it is settled without it."""

FILES_PART: Final = 16
"""The node sends at most one push request at a time per this many files that the process may open.

A request uses one file, and the node needs the other files. So a limit of 1,024 files allows 64 requests.
"""
REQUESTS_LEAST: Final = 16

Pushed = tuple[str, str]
"""Topic and group."""


class Pusher:
    """The pushes of one node."""

    def __init__(
        self,
        *,
        broker: Broker,
        node: str,
        server: str,
        rules: PushRules,
        version: str,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
        grace_s: float = GRACE_S,
        nodes_tls: ClientTls | None = None,
        gateway_secret: Callable[[], bytes] | None = None,
    ) -> None:
        """`server`: the client port of this node. `gateway_secret`: proves to the node that this client is a part of
        it.

        `nodes_tls`: TLS for the connection to the node. `tls`: TLS for receivers; None trusts the authorities of the
        machine. `grace_s`: time in seconds that the node has to stop; it also limits the requests.
        """
        self._options = Options(
            starts_alone=True, tls=nodes_tls, gateway_secret=gateway_secret, then_timeout_s=CALLBACK_S
        )
        self._broker = broker
        self._node = node
        self._server = server
        self._rules = rules
        self._agent = f"sandq/{version}"
        self._tls = tls
        self._resolve = resolve
        self.grace_s = min(grace_s, GRACE_S)
        self._changed = Signal()
        self._ending = False
        self._slots = trio.CapacityLimiter(_most_requests())
        self._hosts = Hosts()
        self._pumps: dict[Pushed, Pump] = {}
        self.counts: dict[Pushed, PushCounts] = {}
        self.durations = Histogram(SECONDS)
        """Durations of requests, in seconds."""

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Return the pushed groups of a topic, with the state of their pumps on this node."""
        found = []
        for (name, group), push in sorted(self._broker.metadata.pushes.items()):
            if name == topic:
                pump = self._pumps.get((name, group))
                here = None if pump is None else pump.row()
                found.append({"group": group, **shown(push), "node": self._node, "here": here})
        return found

    def doing(self) -> Mapping[Pushed, str]:
        """Return the state of each pump, for metrics."""
        return {pushed: str(pump.doing) for pushed, pump in self._pumps.items()}

    def states(self) -> dict[str, dict[str, PushState]]:
        """Return the push states by topic and group; "starting" for a group without a pump on this node.

        If messages have their own URLs, the time of the last error is left out: some hosts of many always fail, so
        there is nothing to report."""
        found: dict[str, dict[str, PushState]] = {}
        for pushed, push in self._broker.metadata.pushes.items():
            topic, group = pushed
            pump, counts = self._pumps.get(pushed), self.counts.get(pushed)
            doing = PUSH_STARTING if pump is None else str(pump.doing)
            error, error_ms = (None, None) if counts is None else (counts.last_error, counts.last_error_ms)
            if push["url"] is None:
                error_ms = None
            found.setdefault(topic, {})[group] = PushState(doing, error and error[:ERROR_CHARS], error_ms)
        return found

    def end(self) -> None:
        """Start no more requests. `run` returns once the requests in progress are done."""
        self._ending = True
        self._changed.set()

    async def run(self) -> None:
        """Run until `end` was called. The node must be a member of its cluster, and serve clients."""
        metadata = self._broker.metadata_host
        metadata.listen(on_status=self._changed.set)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_leaders)
            while not (self._ending or self._wanted()):
                await self._wait()
            if not self._ending:  # a node without pushes does not open a client
                await self._push()
            nursery.cancel_scope.cancel()

    async def _push(self) -> None:
        http = HttpClient(self._rules, self._tls, self._resolve)
        try:
            async with connect_with(self._options, (self._server,), CLIENT_NAME) as client:
                await self._reconcile(client, http)
        finally:
            http.close()

    async def _watch_leaders(self) -> None:
        while True:
            self._changed.set()  # also before the first wait, which does not notice earlier changes
            await self._broker.routes.changed()

    async def _wait(self) -> None:
        with trio.move_on_after(COMPARE_S):
            await self._changed.wait()

    def _wanted(self) -> dict[Pushed, list[int]]:
        """Return the pushed groups with the partitions of each that this node leads."""
        topics, found = self._broker.catalog.topics, {}
        for pushed in self._broker.metadata.pushes:
            topic = topics.get(pushed[0])
            led = [] if topic is None else list(topic.led())
            if led:
                found[pushed] = led
        return found

    async def _reconcile(self, client: Client, http: HttpClient) -> None:
        async with trio.open_nursery() as nursery:
            while not self._ending:
                self._compare(client, http, nursery)
                await self._wait()
            for pump in self._pumps.values():
                pump.end()

    def _compare(self, client: Client, http: HttpClient, nursery: trio.Nursery) -> None:
        wanted, pushes = self._wanted(), self._broker.metadata.pushes
        for pushed, pump in list(self._pumps.items()):
            if pushed not in wanted or pushes[pushed] != pump.push:
                pump.end()
                del self._pumps[pushed]
        for pushed in self.counts.keys() - pushes.keys():
            if not self.counts[pushed].in_flight:
                del self.counts[pushed]
        for pushed, led in wanted.items():
            if pushed not in self._pumps:
                counts = self.counts.setdefault(pushed, PushCounts())
                now_ms, observe = self._broker.clock.now_ms, self.durations.observe
                try:
                    parts = PumpParts(
                        topic=pushed[0],
                        group=pushed[1],
                        push=pushes[pushed],
                        client=client,
                        http=http,
                        counts=counts,
                        now_ms=now_ms,
                        observe=observe,
                        agent=self._agent,
                        slots=self._slots,
                        grace_s=self.grace_s,
                    )
                    is_by_message = pushes[pushed]["url"] is None
                    pump = MessagePump(self._hosts, **parts) if is_by_message else UrlPump(**parts)
                except SandqError as error:  # a node of another version accepted a setting that is invalid here
                    log.error("a group cannot be pushed", topic=pushed[0], group=pushed[1], error=error.message)
                    continue
                self._pumps[pushed] = pump
                nursery.start_soon(self._run_pump, pushed, pump)
            self._pumps[pushed].lead(led)

    async def _run_pump(self, pushed: Pushed, pump: Pump) -> None:
        """Run a pump; an unexpected error ends only this pump, and the next comparison starts a new one."""
        try:
            await pump.run()
        except Exception:
            log.exception("a push failed with an unexpected error", topic=pushed[0], group=pushed[1])
            if self._pumps.get(pushed) is pump:
                del self._pumps[pushed]


def _most_requests() -> float:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if files == resource.RLIM_INFINITY else max(files // FILES_PART, REQUESTS_LEAST)


def tls_of(ca_file: object) -> ssl.SSLContext | None:
    """Return a context that trusts the authorities of a file; None without a file. Raises StartupError."""
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"push.ca_file {ca_file}: {error.strerror or error}") from None


@asynccontextmanager
async def pushing(pusher: Pusher) -> AsyncIterator[None]:
    """Push inside the block; at its end, requests in progress are finished, within limits."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pusher.run)
        try:
            yield
        finally:
            pusher.end()
            nursery.cancel_scope.shield = True
            nursery.cancel_scope.deadline = trio.current_time() + pusher.grace_s + SETTLE_S
