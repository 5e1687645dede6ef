"""`connect`, and the client that it returns: the entry point of the library."""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, NoReturn, Unpack

import anyio
import anyio.abc

from sandq.client.admin.admin import Admin
from sandq.client.admin.dead_letters import DeadLetters
from sandq.client.arguments import suggesting
from sandq.client.consumer.chosen import Partitions, Topics
from sandq.client.consumer.end_rules import EndRules, Types
from sandq.client.consumer.lease_api import Leases
from sandq.client.consumer.subscription import Subscription
from sandq.client.consumer.worker import CONCURRENCY, GRACE, Handler, Runner, check_options, timeout_s_of
from sandq.client.kv.keys import Keys
from sandq.client.messages.fetch import Fetched, Stretch, measure, read_page
from sandq.client.messages.messages import Messages, check_limit
from sandq.client.options import DEFAULTS, Options, Token, parse_server
from sandq.client.positions import Point, Start
from sandq.client.producer.batches import Receipt, Receipts
from sandq.client.producer.producer import Producer
from sandq.client.producer.send_options import SendOptions, takes_send_options
from sandq.client.producer.validation import Value
from sandq.client.schedules.schedules import Schedules
from sandq.client.timeouts import seconds_of, timed_read
from sandq.client.tls import tls_of
from sandq.client.tracing import Delivered, processing, tracing_of
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.credentials import token_or_environment
from sandq.client.transport.request_batcher import RequestBatcher
from sandq.client.transport.requests import used_topic
from sandq.model.errors import ClosedError, InvalidRequest, TimedOut
from sandq.model.json_values import MISSING
from sandq.model.names import check_name
from sandq.model.ports import DEFAULT_SERVER
from sandq.model.times import Duration, duration_ms
from sandq.protocol.requests_log import FetchReply, MeasureReply

CLIENT_NAME: Final = "sandq-python"
"""The client name of a program that does not set one."""


@suggesting
class Client:
    """A connection to a cluster. Created by `connect`; may be used by any number of tasks of one event loop."""

    def __init__(self, cluster: Cluster, tasks: anyio.abc.TaskGroup, name: str) -> None:
        self.name = name
        self.admin = Admin(cluster)
        self._cluster = cluster
        self._tasks = tasks
        self._batcher = RequestBatcher(cluster, tasks)
        self._producers: dict[str, Producer] = {}  # used by `produce`, by topic
        self._stack = AsyncExitStack()
        self._is_open = True

    @property
    def cluster_uuid(self) -> str:
        """The UUID of the cluster; it never changes."""
        return self._cluster.cluster_uuid

    @property
    def limits(self) -> Mapping[str, int]:
        """The limits that a node reports, such as `message_bytes` and `key_bytes`."""
        return self._cluster.limits

    @property
    def certificate_ends(self) -> Mapping[str, float]:
        """Expiry of the certificates of nodes that are connected by TLS: node id -> epoch seconds."""
        found = {one.hello.node_id: one.certificate_ends_s for one in self._cluster.connections()}
        return {node: ends_s for node, ends_s in found.items() if ends_s is not None}

    @takes_send_options
    async def produce(
        self,
        /,
        topic: str,
        value: Value | None = MISSING,
        *,
        json: Any = MISSING,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> str:
        """Store one message, and return its offset (26 characters), which is its id, once it is safely stored.

        `sandq.SendOptions` describes the options. Concurrent calls share batches; for many messages use `producer`.
        Retriable errors are raised after `delivery_timeout`; the text then says whether the outcome is unknown. The
        message is stored once, even if it is retried after lost replies. Raises DuplicateKey if another message has the
        `unique_key`.

        `timeout`: maximum time to wait, if `delivery_timeout` is too long (for example in a web request). After
        TimedOut the message may be stored, now or later. With a `unique_key` it can be produced again without
        duplicating it.
        """
        timeout_s = None if timeout is None else seconds_of("timeout", timeout)
        with anyio.move_on_after(math.inf if timeout_s is None else timeout_s):
            receipt = await self.send(topic, value, json=json, **options)
            return await receipt
        raise TimedOut(
            f"topic {topic!r}: not confirmed in {timeout_s:g} s; the outcome is unknown: the message may be stored, "
            "now or in a moment; if it is produced again, it may be delivered twice, unless it has a unique_key",
            topic=topic,
        )

    @takes_send_options
    async def send(
        self,
        /,
        topic: str,
        value: Value | None = MISSING,
        *,
        json: Any = MISSING,
        **options: Unpack[SendOptions],
    ) -> Receipt:
        """Store one message like `produce`, without waiting for it.

        `await receipt` returns the offset or raises the error. Afterwards, `receipt.outcome` says what `on_conflict`
        did. The arguments are those of `produce`.
        """
        producer = await self._producer_of(topic)
        return await producer.send(value, json=json, **options)

    async def produce_many(self, topic: str, messages: Iterable[Value | Mapping[str, Any]]) -> Receipts:
        """Store several messages like `produce`: each is a value, or a mapping of its arguments ("value" or "json",
        "key", ...).

        `await receipts` returns their offsets, or raises the first error. Each receipt can also be awaited.
        """
        return await (await self._producer_of(topic)).send_many(messages)

    def producer(self, topic: str, *, linger: Duration | None = None) -> Producer:
        """Create a producer: `async with client.producer(topic) as producer:`. `linger`: how long batches wait to
        fill."""
        self._check_open()
        linger_s = self._cluster.options.linger_s if linger is None else duration_ms(linger) / 1000
        return Producer(self._cluster, self._tasks, check_name("topic", topic), linger_s=linger_s)

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

        Use it as `async with client.subscribe(topic, group="workers") as subscription: async for message in
        subscription:`.

        `topic`: a name, a list of names, or `sandq.pattern("orders.*")`. With a pattern, new topics are joined, and
        deleted topics are left. Topics that refuse the subscription are skipped (`subscription.refused`). Each message
        has its `topic`.

        `credit`: maximum number of held, unsettled messages, shared among the nodes that lead partitions (at least one
        per node). None: 10, and more while messages are settled quickly; 10,000 with `subscription.batches()`. `lease`:
        how long a message is held (None: the topic's setting). `auto_extend`: extend leases until their messages are
        settled. `start`: where a new group begins: "earliest", "latest", an instant, or an offset (it applies to its
        own partition; other partitions begin at its time).

        `consumer_id`: a permanent name of this worker: letters, digits, ".", "_" and "-". After a crash, a worker with
        the same name gets its held messages back immediately (up to five times as the same attempt). Without it, the
        messages come back when their leases end. The former process can no longer settle anything (LeaseLost). Only one
        process may have the name: an earlier process that still runs fails with ConsumerFenced. `partitions`: numbers
        of the partitions to consume; None for all.
        """
        options = {"credit": credit, "lease": lease, "start": start, "auto_extend": auto_extend}
        return self._subscribe(topic, group, consumer_id=consumer_id, partitions=partitions, **options)

    def _subscribe(self, topic: Topics, group: str, **options: Any) -> Subscription:
        self._check_open()
        return Subscription(self._cluster, self._tasks, self.name, topic, group, **options)

    async def run(
        self,
        topic: Topics,
        group: str,
        handler: Handler,
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
        """Call `handler(message)` for every message, `concurrency` of them at a time, until this call is cancelled.

        If the handler returns, the message is acked. If it raises, the message is nacked with the error (type and
        message); the traceback is logged ("sandq.client"). `Retry` sets the delay; `Dead` makes the message dead. If
        the handler has settled the message itself, nothing else happens to it. The lease is extended while the handler
        works; `message.is_held` tells the handler whether the lease is still held.

        `dead_on`: an exception class or a tuple of classes. If the handler raises one of them, the message is dead
        immediately. `retry_on`: if it is given, only these exceptions lead to a retry; after all others the message is
        dead. `dead_on` takes precedence. An exception group makes the message dead if all its exceptions do. An
        exception that is no `Exception` leads to a retry.

        `timeout`: how long the handler may work on a message. After that, the handler is cancelled and the message is
        nacked ("took longer than 30s"), independent of `retry_on` and `dead_on`. A worker thread cannot be cancelled:
        it continues without effect on the message, and counts against `concurrency` until it ends.

        An async handler runs in the event loop. A plain function runs in a worker thread; it gets a message of
        `sandq.sync`, which can be settled in that thread. `credit`: maximum number of held messages. None: as many as
        are being processed or will be started soon, so that no message waits long in this process while another
        consumer is idle. `lease`, `start`, `consumer_id` and `partitions`: see `subscribe`.

        When cancelled, `run` starts no more handlers and gives running handlers `grace` to end. Their acks are
        confirmed. Handlers that take longer are cancelled (a thread continues on its own), and their messages are given
        back without counting the attempt. Raises permanent errors (UnknownTopic if the topic was deleted;
        ConsumerFenced), ClosedError if the client is closed, and exceptions of a handler that are no Exception
        (SystemExit).
        """
        self._check_open()
        check_options(handler, concurrency)
        rules, timeout_s = EndRules(retry_on, dead_on), timeout_s_of(timeout)
        options = {"credit": credit, "lease": lease, "start": start, "auto_extend": True, "worked_on": concurrency}
        options["handlers"] = concurrency
        subscription = self._subscribe(topic, group, consumer_id=consumer_id, partitions=partitions, **options)
        await Runner(subscription, handler, concurrency, grace, rules, timeout_s).run()

    def processing(self, message: Delivered, *, group: str | None = None) -> AbstractContextManager[None]:
        """Make a span for a message that is handled in the block: `with client.processing(message):`.

        Without tracing (`connect(tracing=True)`), it has no effect. `run` makes these spans automatically.
        """
        return processing(self._cluster.options.tracing, message, group)

    def kv(self, topic: str) -> Keys:
        """Return the keys of a compacted topic: put, get, delete, cas, scan, watch."""
        self._check_open()
        return Keys(self._cluster, self._tasks, self._batcher, self._producer_of, check_name("topic", topic))

    def messages(self, topic: str) -> Messages:
        """Return the stored messages of a topic: get, list, cancel, move, why."""
        self._check_open()
        return Messages(self._cluster, self._batcher, check_name("topic", topic))

    def schedules(self, topic: str) -> Schedules:
        """Return the schedules of a topic: create, get, list, update, pause, resume, trigger, delete recurring
        messages."""
        self._check_open()
        return Schedules(self._cluster, check_name("topic", topic))

    def dead(self, topic: str, group: str) -> DeadLetters:
        """Return the dead letters of a group: list, counts, redrive, purge, redrive_ids, purge_ids."""
        self._check_open()
        return DeadLetters(self._cluster, self.admin, check_name("topic", topic), check_name("group", group))

    def leases(self, topic: str, group: str) -> Leases:
        """Return an object for leasing without a subscription: take ready messages, and settle them by their tokens."""
        self._check_open()
        return Leases(self._cluster, self.name, check_name("topic", topic), check_name("group", group))

    def fetch(
        self,
        topic: str,
        partition: int,
        start: Point | None = None,
        end: Point | None = None,
        *,
        limit: int | None = None,
        pending: bool = False,
        timeout: Duration | None = None,
    ) -> Fetched:
        """Read the log of a partition without a lease: `async for message in client.fetch("orders", 0, start, end):`.

        `start` and `end` (excluded) are instants or offsets. None for `start` is the beginning. None for `end` is the
        end of the closed part, to which no message can be added. `pending`: also read the part that is not closed, in
        its current state; messages in it may still be added, moved and cancelled.
        """
        self._check_open()
        check_limit(limit)
        stretch = Stretch.of(check_name("topic", topic), partition, start, end, pending)
        return Fetched(self._cluster, stretch, limit, timeout)

    @timed_read
    async def page(
        self,
        topic: str,
        partition: int,
        start: Point | None = None,
        end: Point | None = None,
        *,
        pending: bool = False,
        timeout: Duration | None = None,
    ) -> FetchReply:
        """Return the first messages that `fetch` would return, in their stored form, for callers that build columns
        from them.

        To continue, call `page` again with `next` as `start`.
        """
        self._check_open()
        return await read_page(self._cluster, Stretch.of(check_name("topic", topic), partition, start, end, pending))

    @timed_read
    async def measure(
        self,
        topic: str,
        partition: int,
        start: Point | None = None,
        end: Point | None = None,
        *,
        limit: int | None = None,
        pending: bool = False,
        timeout: Duration | None = None,
    ) -> MeasureReply:
        """Return the approximate number of messages that `fetch` would return, without reading them.

        With a `limit`, `next` is the position after at most that many messages. If fewer were counted, continue from
        `next`.
        """
        self._check_open()
        check_limit(limit)
        stretch = Stretch.of(check_name("topic", topic), partition, start, end, pending)
        return await measure(self._cluster, stretch, limit)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError("the client is closed")
        self._cluster.check_usable()

    async def _producer_of(self, topic: str) -> Producer:
        self._check_open()
        producer = self._producers.get(topic)
        if producer is None:
            new = Producer(self._cluster, self._tasks, check_name("topic", topic), linger_s=0.0, keep_failures=False)
            await used_topic(self._cluster, topic)  # so that entering the producer need not wait
            producer = self._producers.get(topic)  # another task may have created it
            if producer is None:
                producer = await self._stack.enter_async_context(new)
                self._producers[topic] = producer
        elif self._cluster.record(topic) is None:
            await used_topic(self._cluster, topic)  # the topic was deleted, and may be created again
        return producer

    async def _close(self, timeout_s: float) -> None:
        """Refuse new calls. Finish the queued work, within `timeout_s`."""
        self._is_open = False
        with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s):
            await self._stack.aclose()
            for connection in self._cluster.connections():
                await connection.drain()
        self._cluster.close()


def cluster_of(client: Client) -> Cluster:
    """Return a client's view of its cluster, with its connections. For requests for which the client has no method."""
    return client._cluster


async def producer_of(client: Client, topic: str) -> Producer:
    """Return the producer of a topic that `client.produce` uses. Raises the errors of looking up the topic."""
    return await client._producer_of(topic)


@asynccontextmanager
async def connect(
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
) -> AsyncIterator[Client]:
    """Connect to a cluster, under trio or asyncio: `async with sandq.connect() as client:`.

    `servers`: "host:port" of one or more nodes (default: a node on this machine); these name the other nodes. `timeout`
    limits connecting and each request; `delivery_timeout` limits how long a produce or a queued ack is retried. Raises
    ConnectionLost if no server can be reached at first. Later, the client reconnects automatically as long as it is
    open. All its tasks end with the block.

    `tls=True`, or any of these PEM files, turns TLS on. `ca`: the trusted authorities (default: those of the machine).
    `cert` and `key`: the client's certificate. Changed files are read again. `tls` may be an `ssl.SSLContext`. Omitted
    arguments are read from the environment: SANDQ_TLS=1, SANDQ_CA, SANDQ_CERT, SANDQ_KEY. `tls=False` turns TLS off.

    `token`: text, or a function (plain or async) that returns it for each connection. None: `SANDQ_TOKEN`, or the file
    `SANDQ_TOKEN_FILE`. The token is sent unencrypted to another machine only if `insecure` is set. Raises
    Unauthenticated if no node accepts this client.

    `tracing=True` makes OpenTelemetry spans (requires the extra `otel`): where a message is produced, and, with `run`
    or `processing`, where it is handled. The second span is in a trace of its own that is linked to the first.
    `tracing="parent"`: both spans are in the same trace.
    """
    timeout_s = seconds_of("timeout", timeout)
    options = Options(
        connect_timeout_s=timeout_s,
        timeout_s=timeout_s,
        delivery_timeout_s=seconds_of("delivery_timeout", delivery_timeout),
        tls=tls_of(tls, ca, cert, key, os.environ),
        token=token_or_environment(token),
        insecure=insecure,
        tracing=tracing_of(tracing),
    )
    async with connect_with(options, servers, name) as client:
        yield client


@asynccontextmanager
async def connect_with(options: Options, servers: tuple[str, ...], name: str) -> AsyncIterator[Client]:
    """Connect with all options; see `connect`."""
    if not isinstance(name, str) or not 1 <= len(name) <= 255:
        raise InvalidRequest("name: text of 1 to 255 characters is expected")
    addresses = [parse_server(server) for server in servers or (DEFAULT_SERVER,)]
    cluster = Cluster(addresses, name, options)
    failure: BaseException | None = None
    async with anyio.create_task_group() as outer:
        background = _Background()
        try:
            # Shielded like the task that it starts: a cancelled start would wait for ever for a task that is not
            # cancelled.
            with anyio.CancelScope(shield=True):
                tasks = await outer.start(background.run)
            await cluster.start(tasks)
            client = Client(cluster, tasks, name)
            try:
                yield client
            except anyio.get_cancelled_exc_class():
                await client._close(options.cancel_timeout_s)
                raise
            except BaseException:
                await client._close(options.close_timeout_s)
                raise
            else:
                await client._close(options.close_timeout_s)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            failure = error  # raised below, without the task group's ExceptionGroup
        finally:
            cluster.close()
            background.scope.cancel()
    with anyio.CancelScope(shield=True):
        await cluster.aclose()
    if failure is not None:
        raise failure


class _Background:
    """The client's tasks. Cancelling the caller does not cancel them, so that acks can still be sent while the caller
    leaves the block."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope(shield=True)

    async def run(self, *, task_status: anyio.abc.TaskStatus[anyio.abc.TaskGroup]) -> None:
        with self.scope:
            async with anyio.create_task_group() as tasks:
                task_status.started(tasks)
                await anyio.sleep_forever()
