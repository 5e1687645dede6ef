"""An embedded broker with two APIs: for blocking tests, and for tests in an event loop (trio or asyncio)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Unpack

import anyio
import anyio.lowlevel
import anyio.to_thread
import sniffio

import sandq
import sandq.sync
from sandq.client.admin.settings import TopicSettings
from sandq.client.arguments import suggesting
from sandq.model.errors import InvalidRequest
from sandq.model.names import TIMER
from sandq.model.times import Duration, Instant, duration_ms, instant_ms
from sandq.testing.loops import others_blocked
from sandq.testing.node import EmbeddedNode, Options, State
from sandq.testing.silence import Silence

START = "2030-01-01T00:00:00Z"
"""Default start of virtual time."""
PATIENCE_S = 0.1
_POLL_S = 0.001


class _BrokerBase:
    """The methods that do not wait."""

    def __init__(self, node: EmbeddedNode, patience_s: float) -> None:
        self._node = node
        self._patience_s = patience_s

    @property
    def address(self) -> str:
        """Address for clients: `sandq.connect(b.address)`, `sandq.sync.connect(b.address)`, `sandctl --server`."""
        serving = self._node.serving
        return f"{serving.client_host}:{serving.client_port}"

    @property
    def http(self) -> str:
        """URL of the HTTP API. Raises InvalidRequest unless the broker was made with `broker(http=True)`."""
        address = self._node.serving.http
        if address is None:
            raise InvalidRequest("this broker serves no HTTP: make it with sandq.testing.broker(http=True)")
        return f"http://{address.host}:{address.port}"

    def now_ms(self) -> int:
        """Return virtual time, in epoch milliseconds."""
        return self._node.clock.ms

    def now(self) -> datetime:
        """Return virtual time, in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self._node.clock.ms)

    def _until_ms(self, to: Instant) -> int:
        at_ms = instant_ms(to)
        if at_ms < self.now_ms():
            raise InvalidRequest(f"virtual time does not go back: it is {self.now().isoformat()} now")
        return at_ms


@suggesting
class Broker(_BrokerBase):
    """For tests without an event loop. Its methods may be called from any thread."""

    def advance(self, duration: Duration) -> None:
        """Move virtual time forward, step by step to each instant at which something is due.

        At each step, due messages are delivered, and consumers settle them. Returns when no work is left up to the new
        time. If a consumer holds a message, `advance` waits for it (`patience`); if the consumer does not settle it,
        the lease expires at its virtual time. `advance(0)` does the work that is due now.
        """
        self.advance_to(self.now_ms() + duration_ms(duration))

    def advance_to(self, instant: Instant) -> None:
        """Like `advance`, to an instant. Raises InvalidRequest if it is in the past."""
        until_ms = self._until_ms(instant)
        _refuse_loops("advance")
        silence = Silence()
        self._node.call(self._node.wait_for_clients, silence)
        while self._node.call(self._node.go_on, until_ms):
            self._node.call(self._node.wait_for_clients, silence)

    def client(self, token: str | None = None) -> sandq.sync.Client:
        """Return a new client of this broker: `with b.client() as client:`. Without a `token`, the client has full
        access."""
        if token is None and self._node.is_authenticating:
            token = self._node.call(self._node.own_token)
        return sandq.sync.connect(self.address, token=token)

    def token(self, name: str, *grants: str) -> str:
        """Create a token with these grants, for `broker(authentication=True)`. `revoke_token` deletes it.

        If there is a token of this name, its text is replaced.
        """
        _refuse_loops("token")
        return self._node.call(self._node.give_token, name, grants)

    def revoke_token(self, name: str) -> None:
        """Delete a token, and close the connections that use it. Raises NotFound."""
        _refuse_loops("revoke_token")
        self._node.call(self._node.revoke_token, name)

    def create_topic(
        self, name: str, *, kind: str = TIMER, partitions: int = 1, **settings: Unpack[TopicSettings]
    ) -> None:
        """Create a topic without a client; `settings` as for `client.admin.create_topic`."""
        _refuse_loops("create_topic")
        self._node.call(self._node.create_topic, name, kind, partitions, settings)

    def wait_for_consumers(self, topic: str, group: str, count: int = 1) -> None:
        """Wait until a group has this many consumers, because consumers in other threads subscribe with a delay.

        Raises TimedOut after 10 s of real time.
        """
        _refuse_loops("wait_for_consumers")
        self._node.call(self._node.wait_for_consumers, topic, group, count)

    def messages(self, topic: str, state: str | None = None) -> list[sandq.StoredMessage]:
        """Return the messages of a topic in delivery order, with their values.

        `state`: delayed, ready, leased, waiting or acked; None for any of these.
        """
        _refuse_loops("messages")
        with self.client() as client:
            return list(client.messages(topic).list(state=state, values=True))

    def pending(self, topic: str) -> list[sandq.StoredMessage]:
        """Return the messages that no consumer has received yet: delayed and ready messages."""
        return [message for message in self.messages(topic) if message.state in ("delayed", "ready")]

    def for_async(self) -> AsyncBroker:
        """Return the same broker, for an event loop."""
        return AsyncBroker(self._node, self._patience_s)

    def dead(self, topic: str, group: str) -> list[sandq.DeadLetter]:
        """Return the dead letters of a group."""
        _refuse_loops("dead")
        with self.client() as client:
            return list(client.dead(topic, group).list())


@suggesting
class AsyncBroker(_BrokerBase):
    """For tests in an event loop, trio or asyncio. It has the methods of `Broker`, which must be awaited."""

    async def advance(self, duration: Duration) -> None:
        """Like `Broker.advance`. When it returns, consumers in this event loop have nothing more to do."""
        await self.advance_to(self.now_ms() + duration_ms(duration))

    async def advance_to(self, instant: Instant) -> None:
        """Like `advance`, to an instant. Raises InvalidRequest if it is in the past."""
        until_ms = self._until_ms(instant)
        node = self._node
        silence = Silence()
        await self._wait_for_clients(silence)
        while await self._call(node.go_on, until_ms):
            await self._wait_for_clients(silence)

    async def _wait_for_clients(self, silence: Silence) -> None:
        last: State | None = None
        silence.begin(anyio.current_time())
        while True:
            await others_blocked()
            state: State = await self._call(self._node.state)
            waited_s = silence.update(anyio.current_time(), is_settled=self._node.is_settled(state))
            if state != last:
                last = state
                silence.end()
                continue
            # No task of this loop is ready. A consumer that still holds a message sleeps, works in a thread, or keeps
            # the message.
            if self._node.is_settled(state) or waited_s >= self._patience_s:
                self._node.give_up(state)
                return
            await anyio.sleep(_POLL_S)

    async def _call(self, work: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(self._node.call, work, *arguments)

    def client(self, token: str | None = None) -> contextlib.AbstractAsyncContextManager[sandq.Client]:
        """Return a new client of this broker: `async with b.client() as client:`. Without a token it has full
        access."""
        if token is None and self._node.is_authenticating:
            return sandq.connect(self.address, token=self._own_token)
        return sandq.connect(self.address, token=token)

    async def _own_token(self) -> str:
        found: str = await self._call(self._node.own_token)
        return found

    async def token(self, name: str, *grants: str) -> str:
        """Like `Broker.token`."""
        found: str = await self._call(self._node.give_token, name, grants)
        return found

    async def revoke_token(self, name: str) -> None:
        """Like `Broker.revoke_token`."""
        await self._call(self._node.revoke_token, name)

    async def create_topic(
        self, name: str, *, kind: str = TIMER, partitions: int = 1, **settings: Unpack[TopicSettings]
    ) -> None:
        """Create a topic without a client; `settings` as for `client.admin.create_topic`."""
        await self._call(self._node.create_topic, name, kind, partitions, settings)

    async def wait_for_consumers(self, topic: str, group: str, count: int = 1) -> None:
        """Like `Broker.wait_for_consumers`. Not needed for consumers that are tasks of this event loop."""
        await self._call(self._node.wait_for_consumers, topic, group, count)

    async def messages(self, topic: str, state: str | None = None) -> list[sandq.StoredMessage]:
        """Like `Broker.messages`."""
        async with self.client() as client:
            return [message async for message in client.messages(topic).list(state=state, values=True)]

    async def pending(self, topic: str) -> list[sandq.StoredMessage]:
        """Like `Broker.pending`."""
        return [message for message in await self.messages(topic) if message.state in ("delayed", "ready")]

    async def dead(self, topic: str, group: str) -> list[sandq.DeadLetter]:
        """Like `Broker.dead`."""
        async with self.client() as client:
            return [letter async for letter in client.dead(topic, group).list()]


class Starting:
    """The result of `broker()`: `with` returns a `Broker`, `async with` an `AsyncBroker`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._node: EmbeddedNode | None = None

    def _start(self) -> EmbeddedNode:
        if self._node is not None:
            raise InvalidRequest("a broker is started once: call sandq.testing.broker() again")
        self._node = EmbeddedNode(self._options)
        self._node.start()
        return self._node

    def _stop(self) -> None:
        if self._node is not None:
            self._node.stop()

    def __enter__(self) -> Broker:
        return Broker(self._start(), self._options.patience_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    async def __aenter__(self) -> AsyncBroker:
        await anyio.lowlevel.checkpoint()
        # Shielded, because `__aexit__` is not called if this is cancelled while the node starts.
        with anyio.CancelScope(shield=True):
            node = await anyio.to_thread.run_sync(self._start)
        return AsyncBroker(node, self._options.patience_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._stop)


def broker(
    *,
    start: Instant = START,
    patience: Duration = PATIENCE_S,
    http: bool = False,
    settings: Mapping[str, str] | None = None,
    authentication: bool = False,
) -> Starting:
    """Make an empty broker for `with` or `async with`. It is in memory, and listens on a free port of 127.0.0.1.

    `start`: start of virtual time. `patience`: how long `advance` waits, in real time, for consumers that hold a
    message without visible activity. `http`: serve the HTTP API, too. `settings`: settings of the node, with their
    names as environment variables: `{"LIMITS__MESSAGE_BYTES": "1024"}`. `authentication`: every client needs a token,
    which `b.token` creates.
    """
    patience_s = duration_ms(patience) / 1000
    return Starting(Options(instant_ms(start), patience_s, http, dict(settings or {}), authentication))


def _refuse_loops(method: str) -> None:
    """Raise InvalidRequest inside an event loop, which a blocking call would stop."""
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return
    raise InvalidRequest(
        f"{method} blocks, and this is {library}: use `async with sandq.testing.broker() as b:`, "
        f"or the fixture async_sandq_broker, and await b.{method}(...)"
    )
