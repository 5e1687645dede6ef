"""A consumer: a subscription of a group to a topic, over all nodes that lead its partitions."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, TypeVar

import anyio
import anyio.abc

from sandq.client.consumer.chosen_partitions import Partitions, chosen_of, partitions_of
from sandq.client.consumer.lease import OF_HELD, Arrival, Chunk, Lease, positions_of
from sandq.client.consumer.message import Message, lease_ms_of
from sandq.client.consumer.message_batch import MessageBatch
from sandq.client.consumer.node_session import Session, closed
from sandq.client.consumer.partition_consumer import PartitionConsumer
from sandq.client.consumer.prefetch import STALE_S, Prefetch
from sandq.client.options import Options, again
from sandq.client.positions import Start, start_of
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.model.errors import ClosedError, ConsumerFenced, InvalidRequest, SandqError, Unavailable, UnknownPartition
from sandq.model.limits import DEFAULT
from sandq.model.names import check_name
from sandq.model.times import Duration

log = logging.getLogger("sandq.client")

T = TypeVar("T")

CREDIT: Final = 10
BATCH_CREDIT: Final = 10_000
"""Messages that may be held when the caller names no number: of who takes them one by one, and by the batch."""
YIELD_S: Final = 0.001
"""The iterator lets other tasks run at least this often, so that queued acks leave while the caller computes."""
_LEASE_DEFAULT_MS: Final = 30_000  # a topic record always tells; this is for one that does not
_EXTEND_PART: Final = 3  # extended when a third of the lease is left
_EPOCH_BITS: Final = 20  # of an epoch, that are random: two that come in one millisecond have different ones


class Subscription:
    """Messages of a topic for a consumer group; made by `client.subscribe`, an async context manager and
    iterator.

    Resource handling: entering waits until the nodes that lead partitions have accepted the subscription.
    Leaving waits (5 s at most; 1 s when cancelled) until queued acks are confirmed, then gives back
    whatever was not settled: it is delivered to others at once, and its attempt is not counted.

    Error handling: connections that break are made again for ever, held messages stay held; the iterator raises only
    what cannot get better (the topic was deleted), and ClosedError after the block was left.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: anyio.abc.TaskGroup,
        client_name: str,
        topic: str,
        group: str,
        *,
        credit: int | None,
        lease: Duration | None,
        start: Start,
        auto_extend: bool,
        worked_on: int = CREDIT,
        consumer_id: str | None = None,
        partitions: Partitions | None = None,
    ) -> None:
        """`credit`: messages held at most. None: `worked_on`, and more as long as they are settled quickly.
        `consumer_id`: one that lasts; None: one of this subscription alone. `partitions`: None is all."""
        if credit is not None and (type(credit) is not int or not 1 <= credit <= DEFAULT.credit_max):
            raise InvalidRequest(f"credit: an int within 1..{DEFAULT.credit_max} is expected, not {credit!r}")
        self.topic = topic
        self.group = check_name("group", group)
        self.consumer_id = consumer_id_of(client_name) if consumer_id is None else check_name("consumer", consumer_id)
        self.partitions = partitions_of(partitions)
        self._lasts = consumer_id is not None
        self._epoch = 0
        self.cluster = cluster
        self.lease_ms = lease_ms_of(lease)
        self.start = start_of(start)
        self._prefetch = Prefetch() if credit is None else None
        self._credit = worked_on if credit is None else credit
        self._auto_extend = auto_extend
        self._tasks = tasks
        self._partition_consumers: dict[tuple[int, int], PartitionConsumer] = {}
        self._sessions: dict[str, Session] = {}
        self._arrivals: deque[Arrival] = deque()
        self._arrived = Signal()
        self._quiet = Signal()
        self._changed = Signal()
        self._wake = Signal()
        self._scope = anyio.CancelScope()
        self._error: SandqError | None = None
        self._is_open = False
        self._is_stopped = False
        self._entered = False
        self._has_come = False
        self._waiting = 0
        self._yielded_at = 0.0
        self._due_at = -math.inf

    async def __aenter__(self) -> Subscription:
        if self._entered:
            raise ClosedError("a subscription is entered once; make another one with client.subscribe")
        self._entered = True
        self.cluster.check_open()
        try:
            chosen_of(await self.cluster.topic(self.topic), self.partitions)
        except UnknownPartition:
            chosen_of(await self.cluster.asked(self.topic), self.partitions)  # it may be new
        self._is_open = True
        self.cluster.on_change[self.wake] = None
        self._tasks.start_soon(self._run)
        try:
            await self._wait_until_ready()
        except BaseException:
            await self._leave(0.0)
            raise
        self._has_come = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        options = self.cluster.options
        by_caller = error is None or isinstance(error, Exception)
        await self._leave(options.close_timeout_s if by_caller else options.cancel_timeout_s)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        """The next message; several tasks may iterate over one subscription, each message goes to one of them."""
        message = self.take_ready()
        return message if message is not None else await self._next(self._take_message)

    def take_ready(self) -> Message | None:
        """The short way, for one after another: the next message, when nothing special is the matter."""
        return self.take_arrived() if time.monotonic() - self._yielded_at <= YIELD_S else None

    def take_arrived(self) -> Message | None:
        """The next message if it has come already; never waits."""
        while self._arrivals and self._is_open and self._error is None:
            message = self._take_message()
            if message is not None:
                return message
        return None

    @property
    def options(self) -> Options:
        """The named times of the client."""
        return self.cluster.options

    def batches(self) -> Batches:
        """`async for batch in subscription.batches():` messages by the batch, as they were pushed: many at little cost.

        Unless `credit` was given, up to 10,000 messages are held from now on.
        """
        if self._prefetch is not None:
            self._prefetch, self._credit = None, max(self._credit, BATCH_CREDIT)
            self._give_credit()
        return Batches(self)

    async def next_batch(self) -> MessageBatch:
        """The next batch, for `Batches`."""
        return await self._next(self._take_batch)

    async def next_arrivals(self) -> list[Arrival]:
        """All that has come, for who reads it elsewhere: another thread. What waits there cannot be given back."""
        self._prefetch = None
        return await self._next(self._take_all)

    async def flush(self) -> None:
        """Until every ack, nack and extension that is queued was answered, or cannot be any more."""
        while self._error is None and not all(
            partition_consumer.is_quiet for partition_consumer in self._partition_consumers.values()
        ):
            await self._quiet.wait()

    def stop(self) -> None:
        """Take nothing more: what has come and was not taken, and what still comes, is given back at once."""
        self._is_stopped, self._prefetch = True, None
        self._credit = 0
        self._give_credit()
        while self._arrivals:
            arrival = self._arrivals.popleft()
            self._give_back(arrival.chunk, arrival.position)

    def _give_back(self, chunk: Chunk, start: int) -> None:
        with suppress(ClosedError):  # it was left: then all is given back
            chunk.lease.owner.give_back_from(chunk, start)

    def check_open(self) -> None:
        """Raise what the iterator would: that it was left, or why it cannot go on. Of any thread."""
        if self._error is not None:
            raise again(self._error)
        if not self._is_open:
            raise closed(self.topic)

    async def _next(self, take: Callable[[], T | None]) -> T:
        while True:
            self.check_open()
            if self._arrivals:
                if time.monotonic() - self._yielded_at > YIELD_S:
                    await anyio.lowlevel.checkpoint()
                    self._yielded_at = time.monotonic()
                    continue
                found = take()
                if found is not None:
                    return found
                continue
            await self._wait_for_more()
            self._yielded_at = time.monotonic()

    async def _wait_for_more(self) -> None:
        self._waiting += 1
        try:
            for session in self._sessions.values():
                session.top_up()
            await self._arrived.wait()
        finally:
            self._waiting -= 1

    def _take_message(self) -> Message | None:
        message = self._arrivals[0].take(Message)
        if message is None:
            self._arrivals.popleft()
        return message

    def _take_batch(self) -> MessageBatch | None:
        arrival = self._arrivals.popleft()
        return None if arrival.is_empty() else MessageBatch(arrival.chunk, arrival.position)

    def _take_all(self) -> list[Arrival]:
        arrivals = list(self._arrivals)
        self._arrivals.clear()
        return arrivals

    # For sessions and partition consumers.

    @property
    def is_starved(self) -> bool:
        """Whether somebody waits for a message."""
        return self._waiting > 0 and not self._arrivals

    def partition_consumer(self, group_number: int, partition: int) -> PartitionConsumer:
        """Return the consumer of a partition, made when its first message comes."""
        partition_consumer = self._partition_consumers.get((group_number, partition))
        if partition_consumer is None:
            partition_consumer = PartitionConsumer(
                self.cluster, self.topic, partition, group_number, self._quiet, self.wake
            )
            self._partition_consumers[group_number, partition] = partition_consumer
        return partition_consumer

    def receive(self, chunk: Chunk) -> None:
        """Messages came: for the iterator."""
        if self._is_stopped:
            self._give_back(chunk, 0)
            return
        now = anyio.current_time()
        self._arrivals.append(Arrival(chunk, now))
        self._arrived.set()
        if self._prefetch is not None and now + STALE_S < self._due_at:
            self._wake.set()

    def freed(self, count: int) -> None:
        """So many messages are not held any more."""
        if self._prefetch is not None and self._prefetch.settled(count, anyio.current_time()):
            self._give_credit()

    def _give_credit(self) -> None:
        """Let each session have its share of what may be held now."""
        sessions = [session for session in self._sessions.values() if not session.is_retired]
        for session in sessions:
            session.target = self._share(len(sessions))
            session.top_up()

    def _share(self, sessions: int) -> int:
        extra = self._prefetch.extra if self._prefetch is not None else 0
        return min(math.ceil((self._credit + extra) / max(1, sessions)), DEFAULT.credit_max)

    def _return_stale(self, now: float) -> float:
        """Give back what waits although work has become slow; when to look again."""
        if self._prefetch is None or not self._arrivals:
            return math.inf
        stale_at = self._arrivals[0].since + STALE_S
        if now < stale_at:
            return stale_at
        prefetch, self._prefetch = self._prefetch, None  # what is given back was not settled
        self._give_credit()
        beyond = sum(session.held for session in self._sessions.values()) - self._credit
        while self._arrivals and beyond > 0:
            arrival = self._arrivals.pop()
            waiting = positions_of(arrival.chunk.spans(OF_HELD, arrival.position))
            if len(waiting) > beyond:
                self._arrivals.append(arrival)
            if waiting:
                self._give_back(arrival.chunk, waiting[-min(beyond, len(waiting))])
            beyond -= len(waiting)
        prefetch.stop()
        self._prefetch = prefetch
        return now + STALE_S if self._arrivals else math.inf

    def wake(self) -> None:
        """Something changed that the subscription's task looks after."""
        self._wake.set()
        self._changed.set()

    def watch(self, lease: Lease) -> None:
        """Something was delivered under this lease: be there when it has to be extended, or ends."""
        if self._extend_at(lease) < self._due_at:
            self._wake.set()

    def fail(self, error: SandqError) -> None:
        """It cannot go on: the iterator raises this."""
        if self._error is None:
            self._error = error
        self._arrived.set()
        self._changed.set()
        self._quiet.set()

    def epoch_on(self, connection: Connection) -> int | None:
        """By which nodes tell this process from an earlier one with the same consumer id; None: its id is its own."""
        if self._lasts and not self._epoch:
            self._epoch = (connection.node_ms() << _EPOCH_BITS) + secrets.randbits(_EPOCH_BITS)
        return self._epoch or None

    def outrank(self, error: ConsumerFenced) -> bool:
        """A node knows of a later process, it seems. Whoever comes last is that: while this one has only just come it
        takes a later epoch, and subscribes with that everywhere. Whether it did."""
        newest = error.details.get("epoch")
        if self._has_come or not self._is_open or type(newest) is not int:
            return False
        if newest >= self._epoch:
            self._epoch = newest + 1 + secrets.randbits(_EPOCH_BITS)
            self._arrivals.clear()
            for partition_consumer in self._partition_consumers.values():
                for lease in list(partition_consumer.leases.values()):
                    partition_consumer.lose(lease)  # it comes again, under another token
            for session in self._sessions.values():
                session.restart()
        return True

    def held_tokens(self) -> list[list[int]]:
        """The leases that need not be pushed again: everything of them has come."""
        return [
            list(lease.key)
            for partition_consumer in self._partition_consumers.values()
            for lease in partition_consumer.leases.values()
            if lease.complete or lease.superseded
        ]

    # The subscription's task: sessions where leaders are, leases kept alive.

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    now = anyio.current_time()
                    if self._error is None:
                        self._place_sessions()
                    self._due_at = self._tend(now)
                    await self._wake.wait(self._due_at - now)
        finally:
            if self._is_open:  # the client was closed first
                self.fail(closed(self.topic))
                self._give_up()

    def _place_sessions(self) -> None:
        """A session on every node that leads a partition, with its share of the credit."""
        missing = self.cluster.missing(self.topic)
        if missing is not None:
            self.fail(missing)
            return
        record = self.cluster.record(self.topic)
        if record is None:
            return
        if record.settings.get("max_attempts") == 1:
            self._prefetch = None  # should this process die, what it holds is dead: nothing that nobody works on
        try:
            wanted = chosen_of(record, self.partitions)
        except UnknownPartition as error:
            self.fail(error)
            return
        leaders = {row.leader for row in wanted if row.leader is not None}
        if any(row.leader is None for row in wanted):
            self.cluster.refresh(self.topic)
        for node_id in [node_id for node_id in self._sessions if node_id not in leaders]:
            if leaders and self._sessions[node_id].retire():
                del self._sessions[node_id]
        share = self._share(len(leaders))
        for node_id in sorted(leaders):
            session = self._sessions.get(node_id)
            if session is None:
                session = self._sessions[node_id] = Session(self, node_id, share)
                self._tasks.start_soon(session.run)
            elif session.target != share:
                session.target, session.is_retired = share, False
                session.top_up()

    def _tend(self, now: float) -> float:
        """Extend leases, let go of those that are over, send what had to wait, give back what waits too long; when to
        look again."""
        due_at = self._return_stale(now)
        for partition_consumer in self._partition_consumers.values():
            partition_consumer.poke()
            due_at = min(due_at, partition_consumer.next_time(now))
            for lease in list(partition_consumer.leases.values()):
                if lease.held and not lease.lost:  # also one that had lapsed, and was pushed again
                    due_at = min(due_at, self._tend_lease(partition_consumer, lease, now))
        return due_at

    def _tend_lease(self, partition_consumer: PartitionConsumer, lease: Lease, now: float) -> float:
        if now >= lease.expires_at:
            log.warning(
                "topic %s partition %d: a lease of %d messages ended before they were settled",
                self.topic, partition_consumer.partition, lease.held,
            )  # fmt: skip
            partition_consumer.lapse(lease)
            return math.inf
        if not self._auto_extend or lease.extending:
            return lease.expires_at
        extend_at = self._extend_at(lease)
        if now < extend_at:
            return extend_at
        partition_consumer.extend(lease, self._effective_lease_ms())
        return lease.expires_at

    def _extend_at(self, lease: Lease) -> float:
        """When something has to be done about a lease."""
        if not self._auto_extend:
            return lease.expires_at
        return lease.expires_at - self._effective_lease_ms() / 1000 / _EXTEND_PART

    def _effective_lease_ms(self) -> int:
        if self.lease_ms is not None:
            return self.lease_ms
        record = self.cluster.record(self.topic)
        lease_ms = record.settings.get("lease_ms") if record else None
        return lease_ms if type(lease_ms) is int and lease_ms > 0 else _LEASE_DEFAULT_MS

    # Entering and leaving.

    async def _wait_until_ready(self) -> None:
        timeout_s = self.cluster.options.timeout_s
        with anyio.move_on_after(timeout_s):
            while self._error is None:
                if self._sessions and all(session.ready for session in self._sessions.values()):
                    return
                await self._changed.wait()
        if self._error is not None:
            raise again(self._error)
        if not any(session.ready for session in self._sessions.values()):
            raise Unavailable(f"no node accepted a subscription to topic {self.topic!r} in {timeout_s:g} s")

    async def _leave(self, timeout_s: float) -> None:
        """Confirm what is queued, give back the rest, end the tasks."""
        self._is_open = False
        self._arrived.set()
        with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s):
            await self.flush()
            async with anyio.create_task_group() as leaving:
                for session in self._sessions.values():
                    leaving.start_soon(session.leave)
        self._scope.cancel()
        for session in self._sessions.values():
            session.scope.cancel()
        self.cluster.on_change.pop(self.wake, None)
        self._give_up()

    def _give_up(self) -> None:
        error = closed(self.topic)
        for partition_consumer in self._partition_consumers.values():
            partition_consumer.give_up_all(error)
        self._arrivals.clear()
        self._quiet.set()


def consumer_id_of(client_name: str) -> str:
    """A consumer id that nobody else has."""
    return f"{client_name[:200]}-{secrets.token_hex(8)}"


class Batches:
    """An async iterator over a subscription's messages by the batch; several tasks may share one."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> MessageBatch:
        return await self._subscription.next_batch()
