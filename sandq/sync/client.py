"""`connect` of the blocking face, and the thread behind it.

The async client runs under asyncio in a daemon thread: 62 us CPU a call against 79 us under trio, and it is there
without a further package. A client that was not closed does not keep the process: at exit it is closed like others,
for a moment at most; one that was forgotten is closed when it is collected.
"""

from __future__ import annotations

import atexit
import logging
import os
import ssl
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar

import anyio

from sandq.client.arguments import suggesting
from sandq.client.client import CLIENT_NAME
from sandq.client.client import Client as AsyncClient
from sandq.client.client import connect as async_connect
from sandq.client.consumer.chosen import Partitions, Topics
from sandq.client.consumer.end_rules import Types
from sandq.client.consumer.threaded import Message
from sandq.client.consumer.worker import CONCURRENCY, GRACE, ThreadHandler, check_options, is_async
from sandq.client.options import DEFAULTS, Token
from sandq.client.portal import Portal, Pump
from sandq.client.positions import Start
from sandq.client.producer.validation import Value
from sandq.model.errors import InvalidRequest
from sandq.model.times import Duration, duration_ms
from sandq.sync.keys import Keys
from sandq.sync.producer import Producer, Receipts, sending
from sandq.sync.subscription import Subscription
from sandq.sync.wrappers import Admin, Blocks, DeadLetters, Leases, Messages, Schedules, Wrapper, blocking, iterating

log = logging.getLogger("sandq.client")

T = TypeVar("T")

_EXIT_S: Final = 2.0
"""At the end of the process an open client has so long to send what is queued."""
_LEAVE_S: Final = 5.0
"""For producers and subscriptions that are still open when the client is closed."""
_CLOSE_S: Final = 10.0
"""`run` that was interrupted: beyond its grace time, for acks to be confirmed and the subscription to be left."""


@suggesting
class Client(Wrapper[AsyncClient]):
    """A connection to a cluster; made by `connect`. It may be used by any number of threads of one process.

    A process that was forked off cannot use it: ForkedError. It is not to be used from inside an event loop: a call
    would stop that loop while it waits; `sandq.connect` is for there.
    """

    def __init__(self, inner: AsyncClient, portal: Portal, thread: _Thread) -> None:
        super().__init__(inner, portal)
        self._thread = thread
        self.name = inner.name
        self.admin = Admin(inner.admin, portal)

    def __enter__(self) -> Client:
        self._portal.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._portal.is_foreign:
            self._thread.close(at_once=error is not None and not isinstance(error, Exception))

    def close(self) -> None:
        """End it, as leaving its `with` block does: what is queued is sent. Closing twice is once."""
        if self._portal.is_foreign:
            self._portal.check()
        self._thread.close()

    @property
    def cluster_uuid(self) -> str:
        """Which cluster this is; it never changes."""
        return self._inner.cluster_uuid

    @property
    def limits(self) -> Mapping[str, int]:
        """What a node accepts, as it says: `message_bytes`, `key_bytes`, ..."""
        return self._inner.limits

    @property
    def certificate_ends(self) -> Mapping[str, float]:
        """When the certificates end of nodes that it is connected to by TLS: node id -> epoch seconds."""
        return self._portal.do(lambda: self._inner.certificate_ends)

    def call(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Wait for `work(client)`, done with the async client behind this one, in its event loop."""
        return self._portal.call(lambda: work(self._inner))

    produce = blocking(AsyncClient.produce)

    send = sending(AsyncClient.send)

    def produce_many(self, topic: str, messages: Iterable[Value | Mapping[str, Any]]) -> Receipts:
        """Store several messages, as `produce` stores one: each is a value, or a mapping of its arguments ("value"
        or "json", "key", ...). `receipts.wait()` gives their offsets, or raises what failed first."""
        sent = self._portal.call(partial(self._inner.produce_many, topic, list(messages)))
        return Receipts(self._portal, [sent])

    def producer(self, topic: str, *, linger: Duration | None = None) -> Producer:
        """`with client.producer(topic) as producer:`. Batches wait for `linger` to fill; None: for a moment."""
        inner = self._portal.do(lambda: self._inner.producer(topic, linger=linger))
        return Producer(inner, self._portal, self._thread.blocks)

    def subscribe(
        self,
        topic: Topics,
        *,
        group: str,
        credit: int | None = None,
        lease: Duration | None = None,
        start: Start = "earliest",
        auto_extend: bool = True,
        consumer_id: str | None = None,
        partitions: Partitions | None = None,
    ) -> Subscription:
        """`with client.subscribe(topic, group="workers") as subscription: for message in subscription:`.

        The arguments are those of `sandq.Client.subscribe`.
        """
        inner = self._portal.do(
            lambda: self._inner.subscribe(
                topic,
                group=group,
                credit=credit,
                lease=lease,
                start=start,
                auto_extend=auto_extend,
                consumer_id=consumer_id,
                partitions=partitions,
            )
        )
        return Subscription(inner, self._portal, self._thread.blocks)

    def run(
        self,
        topic: Topics,
        group: str,
        handler: ThreadHandler,
        *,
        concurrency: int = CONCURRENCY,
        credit: int | None = None,
        lease: Duration | None = None,
        start: Start = "earliest",
        grace: Duration = GRACE,
        retry_on: Types | None = None,
        dead_on: Types = (),
        timeout: Duration | None = None,
        consumer_id: str | None = None,
        partitions: Partitions | None = None,
    ) -> NoReturn:
        """Call `handler(message)` in worker threads for every message, `concurrency` of them at a time, for ever.

        As `sandq.Client.run`, with a plain function. Ctrl-C, or a signal handler that raises (`sys.exit()`), ends it:
        nothing more is begun, running handlers have `grace` to end, then that exception goes on. A second one leaves
        at once. A thread that does not end in time is left to itself, and its message given back.
        """
        check_options(handler, concurrency)
        if is_async(handler):
            raise InvalidRequest(f"handler: a plain function is expected; {handler!r} is for sandq.connect's client")
        self._portal.call(
            lambda: self._inner.run(
                topic,
                group,
                handler,
                concurrency=concurrency,
                credit=credit,
                lease=lease,
                start=start,
                grace=grace,
                retry_on=retry_on,
                dead_on=dead_on,
                timeout=timeout,
                consumer_id=consumer_id,
                partitions=partitions,
            ),
            patience_s=duration_ms(grace) / 1000 + _CLOSE_S,
        )
        raise AssertionError("run returned")

    def kv(self, topic: str) -> Keys:
        """The keys of a compacted topic: put, get, delete, cas, scan, watch."""
        self._portal.check()
        return Keys(self._inner.kv(topic), self._portal, self._thread.blocks)

    def messages(self, topic: str) -> Messages:
        """The stored messages of a topic: get, list, cancel, move, why."""
        self._portal.check()
        return Messages(self._inner.messages(topic), self._portal)

    def schedules(self, topic: str) -> Schedules:
        """The schedules of a topic, messages that recur: create, get, list, update, pause, resume, trigger, delete."""
        self._portal.check()
        return Schedules(self._inner.schedules(topic), self._portal)

    def dead(self, topic: str, group: str) -> DeadLetters:
        """The dead letters of a group: list, counts, redrive, purge, and these two by ids."""
        self._portal.check()
        return DeadLetters(self._inner.dead(topic, group), self._portal)

    def leases(self, topic: str, group: str) -> Leases:
        """Leasing and settling without a subscription: take what is ready now, ack it by its token."""
        self._portal.check()
        return Leases(self._inner.leases(topic, group), self._portal)

    def processing(self, message: Message, *, group: str | None = None) -> AbstractContextManager[None]:
        """As `sandq.Client.processing`, in this thread."""
        return self._inner.processing(message, group=group)

    fetch = iterating(AsyncClient.fetch)
    page = blocking(AsyncClient.page)
    measure = blocking(AsyncClient.measure)


def connect(
    *servers: str,
    name: str = CLIENT_NAME,
    timeout: Duration = DEFAULTS.timeout_s,
    delivery_timeout: Duration = DEFAULTS.delivery_timeout_s,
    tls: bool | ssl.SSLContext | None = None,
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    token: Token | None = None,
    insecure: bool = False,
    tracing: bool | str = False,
) -> Client:
    """`with sandq.sync.connect() as client:`; or keep it, and `close()` it.

    `servers`: "host:port", any node of the cluster or several to try (none: the one on this machine); the others are
    found from there. `timeout` bounds connecting and the answer to a request, `delivery_timeout` how long a produce or
    a queued ack is tried. ConnectionLost when no server can be reached at first; later the client reconnects by itself.
    `tls`, `ca`, `cert`, `key`, `token`, `insecure`, `tracing`: as of `sandq.connect`.
    """
    open_client = partial(
        async_connect,
        *servers,
        name=name,
        timeout=timeout,
        delivery_timeout=delivery_timeout,
        tls=tls,
        ca=ca,
        cert=cert,
        key=key,
        token=token,
        insecure=insecure,
        tracing=tracing,
    )
    thread = _Thread(open_client)
    inner, pump = thread.start()
    portal = Portal(pump)
    # Not of the client: its messages, producers, ... need the thread as well, and all of them have the bridge.
    weakref.finalize(portal, thread.stop).atexit = False
    return Client(inner, portal, thread)


class _Thread:
    """The thread in which the async client lives."""

    def __init__(self, open_client: Callable[[], AbstractAsyncContextManager[AsyncClient]]) -> None:
        self._open_client = open_client
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="sandq-client", daemon=True)
        self._ready: Future[tuple[AsyncClient, Pump]] = Future()
        self._pump: Pump | None = None
        self._scope: anyio.CancelScope | None = None
        self._at_once = False
        self.blocks = Blocks()

    def start(self) -> tuple[AsyncClient, Pump]:
        """Raises what connecting raises."""
        _threads.add(self)
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:
            self.stop(at_once=True)
            raise

    def stop(self, at_once: bool = False) -> None:
        """Ask it to end; `at_once` gives what is queued a moment only."""
        if os.getpid() != self._pid:
            return
        self._at_once = self._at_once or at_once
        if self._pump is not None:
            self._pump.soon(self._end)

    def close(self, *, at_once: bool = False, timeout_s: float | None = None) -> None:
        """Ask it to end, and wait for it."""
        self.stop(at_once)
        if os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _end(self) -> None:
        assert self._pump is not None and self._scope is not None
        if self._at_once:
            self._scope.cancel()
        else:
            self._pump.stop()

    def _run(self) -> None:
        try:
            anyio.run(self._main, backend="asyncio")
        except BaseException as error:
            if self._ready.done():
                log.error("the client of sandq.sync ended: %s", error, exc_info=error)
            else:
                self._ready.set_exception(error)

    async def _main(self) -> None:
        with anyio.CancelScope() as self._scope:
            self._pump = pump = Pump()
            if self._at_once:
                return  # whoever started it has gone already
            async with (
                self._open_client() as client,
                anyio.create_task_group() as tasks,
            ):
                await tasks.start(pump.run)
                self._ready.set_result((client, pump))
                await pump.ended.wait()
                with anyio.move_on_after(_LEAVE_S):
                    await self.blocks.leave()


_threads: weakref.WeakSet[_Thread] = weakref.WeakSet()


def _close_all() -> None:
    for thread in list(_threads):
        thread.close(timeout_s=_EXIT_S)


atexit.register(_close_all)
