"""A node in its own thread. The steps of virtual time run in this thread, too."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio
import trio.testing

from sandq.broker.broker import Broker
from sandq.broker.reads.fan_out import call_all
from sandq.model.caller import NODE
from sandq.model.config import load_config
from sandq.model.errors import ClosedError, SandqError, TimedOut
from sandq.model.features import KNOWN
from sandq.model.principals import TOKEN, TOKEN_BYTES, principal_of, token_hash, token_text
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.partition import commands as c
from sandq.protocol.requests_access import IdentityDelete, IdentityPut
from sandq.protocol.requests_admin import TopicCreate
from sandq.server.http.launch import Process
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from sandq.testing.quiet import quiet_logs
from sandq.testing.silence import Silence
from sandq.testing.virtual_time import VirtualClock, VirtualTimers

if TYPE_CHECKING:
    from sandq.server.http.thread import ThreadLaunch

T = TypeVar("T")

SEGMENT_BYTES = 256 * 1024
STOP_S = 10.0
"""Timeout for the thread to end, in seconds."""
LEVEL_S = 10.0
"""Timeout for the node to reach its feature level, in seconds."""
CONSUMERS_S = 10.0
OWN_TOKEN = "sandq-testing"
QUIET_S = 0.01
"""Waiting time after all messages are settled, in seconds of real time.

A handler may ack first and produce afterwards. After this time without traffic, the handler is considered finished.
"""
_POLL_S = 0.001


class State(NamedTuple):
    """Counters that show whether there is activity between a node and its clients."""

    received: int
    sent: int
    leased: int
    """Number of messages that consumers hold, over all groups."""
    http: int
    """Number of HTTP requests in progress, without requests that wait for an event."""


class Options(NamedTuple):
    start_ms: int
    patience_s: float
    http: bool
    environ: dict[str, str]
    authentication: bool = False


class EmbeddedNode:
    """A node in its own thread. Other threads may call the methods, except methods that run on the node's loop."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.clock = VirtualClock(options.start_ms)
        self.serving: Serving
        self._timers = VirtualTimers(self.clock)
        self._http: ThreadLaunch | None = None
        self._gate = trio.Lock()
        self._token: trio.lowlevel.TrioToken
        self._stop = trio.Event()
        self._given_up = 0
        """Number of held messages for which the node no longer waits."""
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="sandq-testing", daemon=True)
        self._pid = os.getpid()
        self._failure: BaseException | None = None
        self._own_token: str | None = None

    # -- from outside ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node; return once it serves."""
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise

    def stop(self) -> None:
        """Stop the node; return once its threads have ended."""
        if os.getpid() != self._pid:
            return  # a forked child does not have the thread
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            raise TimedOut(f"the broker of the test did not stop in {STOP_S:g} s")
        if self._failure is not None:
            raise self._failure

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a function on the node's event loop, and wait for the result. Raises ClosedError once the node has
        stopped."""
        try:
            return trio.from_thread.run(work, *arguments, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise ClosedError("this broker was stopped: its block has ended") from None

    # -- its thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with quiet_logs():
                trio.run(self._main)
        except BaseException as error:
            if self._started.done():
                self._failure = error
                return
            leaf: BaseException = error
            while isinstance(leaf, BaseExceptionGroup):
                leaf = leaf.exceptions[0]
            self._started.set_exception(leaf if isinstance(leaf, SandqError) else error)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        settings = {
            # Nothing is written to this directory, because the files are in memory.
            "NODE__DATA_DIR": tempfile.gettempdir(),
            "LISTEN__CLIENT": "127.0.0.1:0",
            "LISTEN__HTTP": "127.0.0.1:0" if self._options.http else "none",
            "AUDIT__ENABLED": "false",
            # The node stays alone.
            "CLUSTER__MEMBERSHIP": "static",
            "STORAGE__SEGMENT_BYTES": str(SEGMENT_BYTES),
            # Leases begin exactly when their messages are due, so that their ends are round numbers.
            "DELIVERY__LEASE_AHEAD": "0s",
            "SECURITY__AUTHENTICATION": "require" if self._options.authentication else "off",
            **self._options.environ,
        }
        config = load_config(None, {f"SANDQ_{name}": value for name, value in settings.items()})
        async with run_node(
            config,
            files=MemoryFiles(),
            launch=self._launch_http,
            stores=lambda path, create: MemoryStores(),
            clock=self.clock,
            timers=lambda clock: self._timers,
            gate=self._settled,
        ) as serving:
            self.serving = serving
            await self._until_at_level()
            self._started.set_result(None)
            await self._stop.wait()

    async def _launch_http(self, descriptors: Sequence[int]) -> Process:
        # FastAPI takes time to load, so it is imported only if HTTP is used.
        from sandq.server.http.thread import ThreadLaunch

        self._http = self._http or ThreadLaunch()
        return await self._http(descriptors)

    async def _until_at_level(self) -> None:
        """Wait until the node has reached its feature level, which happens shortly after it serves."""
        with trio.move_on_after(LEVEL_S):
            while True:
                if self.broker.node_log.feature_level == KNOWN.highest:
                    return
                await trio.sleep(_POLL_S)

    @property
    def broker(self) -> Broker:
        return self.serving.broker

    @property
    def is_authenticating(self) -> bool:
        """True if every client needs a token."""
        return self._options.authentication

    async def _settled(self) -> None:
        """Wait until all work before a client's request is done, so that the result does not depend on timing."""
        if self._started.done():  # the HTTP API connects earlier
            async with self._gate:
                await self._idle()

    async def _idle(self) -> None:
        """Wait until nothing is in progress in the node."""
        broker = self.broker
        while True:
            await trio.testing.wait_all_tasks_blocked()
            busy, before = broker.is_busy(), self._applied()
            await broker.drain()
            await trio.testing.wait_all_tasks_blocked()
            # The node is quiet if nothing was in progress, all queued commands are applied, and they caused no more
            # work.
            is_quiet = not (busy or broker.is_busy() or self._timers.is_due() or self._fires() or self._sends())
            if is_quiet and before == self._applied():
                return

    def _fires(self) -> bool:
        """Return whether a schedule will fire next, while a thread plans its next occurrence."""
        now_ms = self.clock.now_ms()
        statuses = [one.raft_group.status for topic in self.broker.topics() for one in topic.led().values()]
        return any([status.schedule_ms is not None and status.schedule_ms <= now_ms for status in statuses])

    def _sends(self) -> bool:
        """Return whether a partition sends something to another partition."""
        leaders = [one for topic in self.broker.topics() for one in topic.led().values()]
        return any([leader.raft_group.status.outbox is not None for leader in leaders])

    def _applied(self) -> int:
        return sum([host.status.applied_index for host in self.broker.node_log.hosts.values()])

    async def state(self) -> State:
        """Wait until nothing is in progress in the node; return the counters."""
        await self._idle()
        clients = self.serving.metrics.clients
        leased = sum(
            group.leased
            for topic in self.broker.topics()
            for leader in topic.partitions.values()
            for group in leader.raft_group.status.groups
        )
        self._given_up = min(self._given_up, leased)
        http = 0 if self._http is None else self._http.requests_in_progress
        return State(clients.received_bytes, clients.sent_bytes, leased, http)

    def is_settled(self, state: State) -> bool:
        """Return whether all messages are settled (except given-up ones), and all HTTP requests have a reply."""
        return state.leased <= self._given_up and not state.http

    def give_up(self, state: State) -> None:
        """Stop waiting for the messages that are held now: the consumer holds them on purpose, or ignores them."""
        self._given_up = state.leased

    async def go_on(self, until_ms: int) -> bool:
        """Advance to the next instant at which the node sends something to a client.

        Return False if there is no such instant up to `until_ms`. The time is then `until_ms`.
        """
        before = await self.state()
        while True:
            next_ms = self._timers.next_ms()
            if next_ms is None or next_ms > until_ms:
                self.clock.ms = max(self.clock.ms, until_ms)
                await self._update_time()
                return False
            self.clock.ms = max(self.clock.ms, next_ms)
            self._timers.wake()
            after = await self.state()
            if after.sent != before.sent:
                return True
            before = after

    async def _update_time(self) -> None:
        """Send the time to partitions without activity, so that due messages are shown as ready."""
        late = [
            leader.raft_group
            for topic in self.broker.topics()
            for leader in topic.partitions.values()
            if leader.raft_group.status.now_ms < self.clock.ms
        ]
        await call_all([(host, c.Clock()) for host in late])
        await self._idle()

    async def wait_for_clients(self, silence: Silence) -> None:
        """Wait until the clients have settled their messages, or have been silent for long enough."""
        silence.begin(trio.current_time())
        last = await self.state()
        while True:
            await trio.sleep(_POLL_S)
            state = await self.state()
            waited_s = silence.update(trio.current_time(), is_settled=self.is_settled(state))
            if state != last:
                last = state
                silence.end()
            elif waited_s >= (QUIET_S if self.is_settled(state) else self._options.patience_s):
                self.give_up(state)
                return

    async def wait_for_consumers(self, topic: str, group: str, count: int) -> None:
        """Wait until a group has this many consumers, in real time. Raises TimedOut."""
        found = 0
        with trio.move_on_after(CONSUMERS_S):
            while True:
                known = {opened.record.name: opened for opened in self.broker.topics()}.get(topic)
                found = max([d.consumers(group) for d in known.partitions.values()]) if known is not None else 0
                if found >= count:
                    return
                await trio.sleep(_POLL_S)
        raise TimedOut(
            f"topic {topic!r}, group {group!r}: {found} of {count} consumers have subscribed in {CONSUMERS_S:g} s"
        )

    async def create_topic(self, name: str, kind: str, partitions: int, settings: dict[str, Any]) -> None:
        await self.broker.administration.topics.create_topic(TopicCreate(name, kind, partitions, 1, settings), NODE)
        await self._idle()

    async def give_token(self, name: str, grants: Sequence[str]) -> str:
        """Create a token with these grants, or replace the token of this name. Return its text."""
        text = token_text(secrets.token_bytes(TOKEN_BYTES))
        principal = principal_of(TOKEN, name)
        is_new = principal not in self.broker.metadata.identities
        changes = {"grants": list(grants), "secret_hash": token_hash(text)}
        await self.serving.identities.put(IdentityPut(principal, is_new, changes), NODE)
        return text

    async def own_token(self) -> str:
        """Return a token with full access, for clients to which the test gives no token."""
        if self._own_token is None:
            self._own_token = await self.give_token(OWN_TOKEN, ["admin"])
        return self._own_token

    async def revoke_token(self, name: str) -> None:
        """Delete a token. Raises NotFound."""
        await self.serving.identities.delete(IdentityDelete(principal_of(TOKEN, name)), NODE)
