"""`connect` and the client: what everything else of a program is reached from."""

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
"""What a program is called that gives itself no name."""


@suggesting
class Client:
    """A connection to a cluster; made by `connect`. It may be used by any number of tasks of one event loop."""

    def __init__(self, cluster: Cluster, tasks: anyio.abc.TaskGroup, name: str) -> None:
        self.name = name
        self.admin = Admin(cluster)
        self._cluster = cluster
        self._tasks = tasks
        self._batcher = RequestBatcher(cluster, tasks)
        self._producers: dict[str, Producer] = {}  # of `produce`, by topic
        self._stack = AsyncExitStack()
        self._is_open = True

    @property
    def cluster_uuid(self) -> str:
        """Which cluster this is; it never changes."""
        return self._cluster.cluster_uuid

    @property
    def limits(self) -> Mapping[str, int]:
        """What a node accepts, as it says: `message_bytes`, `key_bytes`, ..."""
        return self._cluster.limits

    @property
    def certificate_ends(self) -> Mapping[str, float]:
        """When the certificates end of nodes that it is connected to by TLS: node id -> epoch seconds."""
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
        """Store one message; its offset (26 characters), which is its id, once it is safe. Calls at the same time
        share batches.

        `sandq.SendOptions` describes the options; for many messages use `producer`. Retriable errors are raised
        after `delivery_timeout`; the message then says whether the outcome is unknown. However often it is sent again
        after lost answers, it is stored once. DuplicateKey: a message has the `unique_key`.

        `timeout`: wait no longer, where `delivery_timeout` is too long (a web request). TimedOut then says that the
        message may be stored, now or in a moment; with a `unique_key` it can be produced again without doubling it.
        """
        timeout_s = None if timeout is None else seconds_of("timeout", timeout)
        with anyio.move_on_after(math.inf if timeout_s is None else timeout_s):
            receipt = await self.send(topic, value, json=json, **options)
            return await receipt
        raise TimedOut(
            f"topic {topic!r}: not confirmed in {timeout_s:g} s; the outcome is unknown: the message may be stored, "
            "now or in a moment; produced again it may come twice, unless it has a unique_key",
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
        """Have one message stored as `produce` does, and do not wait for it: `await receipt` gives its offset, or
        raises; `receipt.outcome` then says what `on_conflict` did. The arguments are those of `produce`."""
        producer = await self._producer_of(topic)
        return await producer.send(value, json=json, **options)

    async def produce_many(self, topic: str, messages: Iterable[Value | Mapping[str, Any]]) -> Receipts:
        """Store several messages, as `produce` stores one: each is a value, or a mapping of its arguments ("value"
        or "json", "key", ...). `await receipts` gives their offsets, or raises what failed first; each of them can be
        awaited."""
        return await (await self._producer_of(topic)).send_many(messages)

    def producer(self, topic: str, *, linger: Duration | None = None) -> Producer:
        """`async with client.producer(topic) as producer:`. Batches wait for `linger` to fill; None: for a moment."""
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
        """`async with client.subscribe(topic, group="workers") as subscription: async for message in
        subscription:`.

        `topic`: its name, a list of several, or `sandq.pattern("orders.*")`: topics that come later are joined, and
        those that are deleted are left, and so are those that refuse it (`subscription.refused`). A message tells its
        `topic`.

        `credit`: messages held and not settled at most, shared out among the nodes that lead partitions
        (each gets at least one); None: 10, and more while they are settled quickly; 10,000 for who iterates over
        `subscription.batches()`. `lease`: how long a message is held (None: the topic's setting); `auto_extend`
        renews it as long as the message is not settled. `start` of a group that is new: "earliest", "latest", an
        instant, or the offset to begin with (in its partition; the others begin at its time).

        `consumer_id`: a name of this worker that lasts, of letters, digits, ".", "_" and "-". Started again after a
        crash it gets what it held at once, five times as the same attempt, instead of when the leases run out; what it
        did before can settle nothing any more (LeaseLost). One process has it at a time: an earlier one that is still
        there ends with ConsumerFenced. `partitions`: numbers of those to take messages of; None: all.
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
        """Call `handler(message)` for every message, `concurrency` of them at a time, until this is cancelled.

        When the handler returns the message is acked, when it raises it is nacked with the error (type and message; the
        traceback is logged, "sandq.client"). `Retry` names the delay, `Dead` gives the message up. What it settled
        itself is left alone. The lease is extended for as long as it works; `message.is_held` tells it whether that
        still goes well.

        `dead_on`: a class of exceptions, or a tuple of them, after which the message is dead at once; `retry_on`: those
        after which it comes again, all others then being of `dead_on`. What is of both is dead; a group of exceptions
        is when all in it are. What is no `Exception` is retried. `timeout`: how long the handler may work on a message:
        then it is cancelled, and the message nacked ("took longer than 30s"), whatever `retry_on` and `dead_on` say. A
        worker thread cannot be cancelled: it goes on, what it does with the message counts no more, and it has its
        place among the `concurrency` until it ends.

        An async function runs in the event loop; a plain one in a worker thread, with a message that may be settled
        there (that of `sandq.sync`). `credit`: messages held at most; None: as many as are worked on, and those
        that will be begun in a moment; none waits here for long while another consumer is idle. `lease`, `start`,
        `consumer_id` and `partitions` are those of `subscribe`.

        Cancelled, it begins nothing more and gives running handlers `grace` to end. Their acks are confirmed; those
        that take longer are cancelled (a thread is left to itself), and their messages given back without counting the
        attempt. Raises what cannot get better (UnknownTopic: the topic was deleted; ConsumerFenced), ClosedError when
        the client is closed, and what is no Exception and came out of a handler (SystemExit).
        """
        self._check_open()
        check_options(handler, concurrency)
        rules, timeout_s = EndRules(retry_on, dead_on), timeout_s_of(timeout)
        options = {"credit": credit, "lease": lease, "start": start, "auto_extend": True, "worked_on": concurrency}
        options["handlers"] = concurrency
        subscription = self._subscribe(topic, group, consumer_id=consumer_id, partitions=partitions, **options)
        await Runner(subscription, handler, concurrency, grace, rules, timeout_s).run()

    def processing(self, message: Delivered, *, group: str | None = None) -> AbstractContextManager[None]:
        """`with client.processing(message):` makes a span for a message that is handled in the block, when the client
        traces (`connect(tracing=True)`); `run` does it by itself."""
        return processing(self._cluster.options.tracing, message, group)

    def kv(self, topic: str) -> Keys:
        """The keys of a compacted topic: put, get, delete, cas, scan, watch."""
        self._check_open()
        return Keys(self._cluster, self._tasks, self._batcher, self._producer_of, check_name("topic", topic))

    def messages(self, topic: str) -> Messages:
        """The stored messages of a topic: get, list, cancel, move, why."""
        self._check_open()
        return Messages(self._cluster, self._batcher, check_name("topic", topic))

    def schedules(self, topic: str) -> Schedules:
        """The schedules of a topic, messages that recur: create, get, list, update, pause, resume, trigger, delete."""
        self._check_open()
        return Schedules(self._cluster, check_name("topic", topic))

    def dead(self, topic: str, group: str) -> DeadLetters:
        """The dead letters of a group: list, counts, redrive, purge, and these two by ids."""
        self._check_open()
        return DeadLetters(self._cluster, self.admin, check_name("topic", topic), check_name("group", group))

    def leases(self, topic: str, group: str) -> Leases:
        """Leasing and settling without a subscription: take what is ready now, ack it by its token."""
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
        """`async for message in client.fetch("orders", 0, start, end):` the log of a partition, read without a lease.

        `start` and `end` (which is not included) are instants or offsets; None is the beginning, and all that is
        closed: where nothing can come to lie any more. `pending`: what is not closed as well, as it stands when it is
        read; messages may be added, moved and cancelled there meanwhile.
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
        """The first messages that `fetch` would give, as they are stored: for who makes columns of them, not rows.
        To go on, ask again from `next`."""
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
        """How many messages `fetch` would give, about, without reading them; or, with a `limit`, where so many of them
        end: `next`. That may be after fewer, to be asked on from there."""
        self._check_open()
        check_limit(limit)
        stretch = Stretch.of(check_name("topic", topic), partition, start, end, pending)
        return await measure(self._cluster, stretch, limit)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError("the client is closed")

    async def _producer_of(self, topic: str) -> Producer:
        self._check_open()
        producer = self._producers.get(topic)
        if producer is None:
            new = Producer(self._cluster, self._tasks, check_name("topic", topic), linger_s=0.0, keep_failures=False)
            await used_topic(self._cluster, topic)  # the one place where entering a producer waits
            producer = self._producers.get(topic)  # another task may have been first
            if producer is None:
                producer = await self._stack.enter_async_context(new)
                self._producers[topic] = producer
        elif self._cluster.record(topic) is None:
            await used_topic(self._cluster, topic)  # it was deleted, and may be made anew
        return producer

    async def _close(self, timeout_s: float) -> None:
        """Stop taking work; let what is queued be done, if there is time."""
        self._is_open = False
        with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s):
            await self._stack.aclose()
            for connection in self._cluster.connections():
                await connection.drain()
        self._cluster.close()


def cluster_of(client: Client) -> Cluster:
    """What a client knows of its cluster, and its connections: for requests that none of its methods sends."""
    return client._cluster


async def producer_of(client: Client, topic: str) -> Producer:
    """Return the producer of a topic that `client.produce` uses. Raises what finding the topic raises."""
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
    """`async with sandq.connect() as client:`, under trio or asyncio.

    `servers`: "host:port", any node of the cluster or several to try (none: the one on this machine); the others are
    found from there. `timeout` bounds connecting and the answer to a request, `delivery_timeout` how long a produce or
    a queued ack is tried. ConnectionLost when no server can be reached at first; later the client reconnects by itself,
    for as long as it is open. Everything that it runs ends with the block.

    `tls=True` speaks TLS, and so does who names a file (PEM): `ca`, whom to trust (none: whom the machine does), `cert`
    and `key`, who the client is. They are read again when they change. `tls` may be an `ssl.SSLContext` of your own.
    What is not said, the environment says: SANDQ_TLS=1, SANDQ_CA, SANDQ_CERT, SANDQ_KEY; `tls=False` speaks none.
    `token`: says who this is, text or a function (plain or async) that gives it for each connection; None: what the
    environment says (`SANDQ_TOKEN`, or a file, `SANDQ_TOKEN_FILE`). It is not sent in the clear to another machine
    unless `insecure`. Unauthenticated: no node lets this client in.

    `tracing=True` makes spans of OpenTelemetry (the extra `otel`): where a message is produced, and, with `run` or
    `processing`, where it is handled, in a trace of its own that is linked with the first; "parent": in that one.
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
    """`connect` with every option."""
    if not isinstance(name, str) or not 1 <= len(name) <= 255:
        raise InvalidRequest("name: text of 1 to 255 characters is expected")
    addresses = [parse_server(server) for server in servers or (DEFAULT_SERVER,)]
    cluster = Cluster(addresses, name, options)
    failure: BaseException | None = None
    async with anyio.create_task_group() as outer:
        background = _Background()
        try:
            # Shielded like what it starts: a start that is cancelled would wait for a task that nobody can end.
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
            failure = error  # raised below: as it is, not within the task group's ExceptionGroup
        finally:
            cluster.close()
            background.scope.cancel()
    with anyio.CancelScope(shield=True):
        await cluster.aclose()
    if failure is not None:
        raise failure


class _Background:
    """The client's tasks. Cancelling the caller does not reach them: its acks can still be sent while it leaves."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope(shield=True)

    async def run(self, *, task_status: anyio.abc.TaskStatus[anyio.abc.TaskGroup]) -> None:
        with self.scope:
            async with anyio.create_task_group() as tasks:
                task_status.started(tasks)
                await anyio.sleep_forever()
