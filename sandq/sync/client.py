"""`connect` of the blocking client, and its background thread.

The async client runs under asyncio in a daemon thread. asyncio needs no additional package, and a call costs 62 us CPU
instead of 79 us under trio. An open client does not keep the process alive: when the process exits, the client is
closed within a short time. A client without references is closed when it is garbage-collected.
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
from typing import Any, Final, TypeVar

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
"""Maximum time in seconds for an open client to send queued requests at the end of the process."""
_LEAVE_S: Final = 5.0
"""Maximum time in seconds for leaving the open producers and subscriptions when the client is closed."""
_CLOSE_S: Final = 10.0
"""Maximum time in seconds for an interrupted `run`, after its grace time, to confirm acks and leave the
subscription."""


@suggesting
class Client(Wrapper[AsyncClient]):
    """A connection to a cluster. Created by `connect`; may be used by any number of threads of one process.

    In a forked process, it raises ForkedError. Do not use it inside an event loop, which each call would block: use
    `sandq.connect` instead.
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
        """Close the client like leaving its `with` block: send queued requests first. Closing twice has no effect."""
        if self._portal.is_foreign:
            self._portal.check()
        self._thread.close()

    @property
    def cluster_uuid(self) -> str:
        """The UUID of the cluster; it never changes."""
        return self._inner.cluster_uuid

    @property
    def limits(self) -> Mapping[str, int]:
        """The limits that a node reports, such as `message_bytes` and `key_bytes`."""
        return self._inner.limits

    @property
    def certificate_ends(self) -> Mapping[str, float]:
        """Expiry of the certificates of nodes that are connected by TLS: node id -> epoch seconds."""
        return self._portal.do(lambda: self._inner.certificate_ends)

    def call(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Run `work(client)` with the underlying async client, in its event loop, and wait for the result."""
        return self._portal.call(lambda: work(self._inner))

    produce = blocking(AsyncClient.produce)

    send = sending(AsyncClient.send)

    def produce_many(self, topic: str, messages: Iterable[Value | Mapping[str, Any]]) -> Receipts:
        """Store several messages like `produce`: each is a value, or a mapping of its arguments ("value" or "json",
        "key", ...).

        `receipts.wait()` returns their offsets, or raises the first error.
        """
        sent = self._portal.call(partial(self._inner.produce_many, topic, list(messages)))
        return Receipts(self._portal, [sent])

    def producer(self, topic: str, *, linger: Duration | None = None) -> Producer:
        """Create a producer: `with client.producer(topic) as producer:`. `linger`: how long batches wait to fill."""
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
        """Subscribe a consumer group to topics.

        Use it as `with client.subscribe(topic, group="workers") as subscription: for message in subscription:`. The
        arguments are those of `sandq.Client.subscribe`.
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
    ) -> None:
        """Call `handler(message)` in worker threads for every message, up to `concurrency` at a time, until
        interrupted.

        Like `sandq.Client.run`, with a plain function. Ctrl-C, or a signal handler that raises (`sys.exit()`), ends it:
        no more handlers are started, running handlers have `grace` to end, then the exception is raised. A second
        interruption ends it immediately. A thread that does not end in time continues on its own, and its message is
        given back. Returns if another thread closes the client.
        """
        check_options(handler, concurrency)
        if is_async(handler):
            raise InvalidRequest(f"handler: a plain function is expected; {handler!r} is for sandq.connect's client")
        self._portal.run(
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

    def kv(self, topic: str) -> Keys:
        """Return the keys of a compacted topic: put, get, delete, cas, scan, watch."""
        self._portal.check()
        return Keys(self._inner.kv(topic), self._portal, self._thread.blocks)

    def messages(self, topic: str) -> Messages:
        """Return the stored messages of a topic: get, list, cancel, move, why."""
        self._portal.check()
        return Messages(self._inner.messages(topic), self._portal)

    def schedules(self, topic: str) -> Schedules:
        """Return the schedules of a topic: create, get, list, update, pause, resume, trigger, delete recurring
        messages."""
        self._portal.check()
        return Schedules(self._inner.schedules(topic), self._portal)

    def dead(self, topic: str, group: str) -> DeadLetters:
        """Return the dead letters of a group: list, counts, redrive, purge, redrive_ids, purge_ids."""
        self._portal.check()
        return DeadLetters(self._inner.dead(topic, group), self._portal)

    def leases(self, topic: str, group: str) -> Leases:
        """Return an object for leasing without a subscription: take ready messages, and settle them by their tokens."""
        self._portal.check()
        return Leases(self._inner.leases(topic, group), self._portal)

    def processing(self, message: Message, *, group: str | None = None) -> AbstractContextManager[None]:
        """Like `sandq.Client.processing`, in this thread."""
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
    """Connect to a cluster: `with sandq.sync.connect() as client:`; or keep the client, and `close()` it.

    `servers`: "host:port" of one or more nodes (default: a node on this machine); these name the other nodes. `timeout`
    limits connecting and each request; `delivery_timeout` limits how long a produce or a queued ack is retried. Raises
    ConnectionLost if no server can be reached at first; later the client reconnects automatically. `tls`, `ca`, `cert`,
    `key`, `token`, `insecure`, `tracing`: as for `sandq.connect`.
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
    return opened(open_client)


def opened(open_client: Callable[[], AbstractAsyncContextManager[AsyncClient]]) -> Client:
    """Return a blocking client of an async one, which is opened in the background thread. Raises the errors of
    opening."""
    thread = _Thread(open_client)
    inner, pump = thread.start()
    portal = Portal(pump)
    # Attach it to the portal, not to the client: messages and producers also need the thread, and refer to the portal.
    weakref.finalize(portal, thread.stop).atexit = False
    return Client(inner, portal, thread)


class _Thread:
    """The thread in which the async client runs."""

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
        """Start the thread and wait for the connection. Raises the errors of connecting."""
        _threads.add(self)
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:
            self.stop(at_once=True)
            raise

    def stop(self, at_once: bool = False) -> None:
        """Ask the thread to end. `at_once`: allow queued requests only a short time."""
        if os.getpid() != self._pid:
            return
        self._at_once = self._at_once or at_once
        if self._pump is not None:
            self._pump.soon(self._end)

    def close(self, *, at_once: bool = False, timeout_s: float | None = None) -> None:
        """Ask the thread to end, and wait for it."""
        self.stop(at_once)
        if os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _end(self) -> None:
        assert self._pump is not None and self._scope is not None
        self._pump.is_closing = True
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
                return  # the starting thread was interrupted
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
