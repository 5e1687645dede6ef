"""A producer: messages go into batches, batches to their partitions' leaders, receipts tell the outcome."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import anyio
import anyio.abc

from sandq.client.options import again
from sandq.client.producer.batches import MESSAGE_OVERHEAD_BYTES, Batch, Receipt, Receipts, failure_of
from sandq.client.producer.partition_producer import PartitionProducer
from sandq.client.producer.partitioner import Router
from sandq.client.producer.validation import Headers, Lot, MessageValidation, Value, refuse_later, time_of
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import fresh_topic
from sandq.model.errors import ClosedError, InvalidRequest, SandqError, UnknownPartition
from sandq.model.times import Duration, Instant

log = logging.getLogger("sandq.client")

_PRODUCER_ID_BITS = 63


class Producer:
    """Sends messages to one topic; made by `client.producer(topic)` and used as an async context manager.

    Resource handling: leaving the block sends what is left and waits until all of it is stored or has
    failed; what failed and was not raised through a receipt is raised then. When the block is left by
    cancellation, what is not confirmed yet is given up with a warning: it may or may not be stored.

    Error handling: `send` raises at once what is wrong with the message itself. What goes wrong later is raised by
    its receipt: retriable errors only after `delivery_timeout`, and then the message says whether the outcome is
    unknown. However often a message is sent again after lost answers, it is stored once.

    Messages of one partition are stored in the order of their `send`, except that those without a time, those with an
    instant and those with a delay travel in batches apart, and so do those with a ttl and those with a unique key (for
    each `on_conflict`). In a compacted topic a message is a write to its key, and one whose value is None deletes it.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: anyio.abc.TaskGroup,
        topic: str,
        *,
        linger_s: float,
        keep_failures: bool = True,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._tasks = tasks
        self._options = replace(cluster.options, linger_s=linger_s)
        self.checks = MessageValidation(cluster.limits)
        self._batch_bytes = min(self._options.batch_bytes, self.checks.batch_bytes // 2)
        self._producer_id = random.getrandbits(_PRODUCER_ID_BITS) | 1
        self._router = Router(topic, self._is_stuck)
        self._partition_producers: dict[int, PartitionProducer] = {}
        self._busy: dict[PartitionProducer, None] = {}
        self._buffered_bytes = 0
        self._outstanding = 0  # batches that are not done
        self._keep_failures = keep_failures
        self._failed: list[Batch] = []
        self._wake = Signal()
        self._room = Signal()
        self._idle = Signal()
        self._scope = anyio.CancelScope()
        self._is_open = False
        self._entered = False

    async def __aenter__(self) -> Producer:
        if self._entered:
            raise ClosedError("a producer is entered once; make another one with client.producer(topic)")
        self._entered = True
        self._cluster.check_open()
        self._router.update(await self._cluster.topic(self.topic))
        self._cluster.on_change[self._wake.set] = None
        self._tasks.start_soon(self._run)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._room.set()
        try:
            if error is None or isinstance(error, Exception):
                await self._drain()
        finally:
            self._stop()
        failure = self._failure()
        if failure is not None:
            if error is None:
                raise failure
            log.warning("topic %s: %s", self.topic, failure)
            error.add_note(f"Besides: {failure.message}")

    async def send(
        self,
        value: Value | None,
        *,
        key: Value | None = None,
        headers: Headers | None = None,
        deliver_at: Instant | None = None,
        delay: Duration | None = None,
        partition: int | None = None,
        ttl: Duration | None = None,
        unique_key: Value | None = None,
        on_conflict: str = "reject",
        **later: object,
    ) -> Receipt:
        """Put a message into the next batch; waits only while the buffer is full.

        `deliver_at` is an instant, `delay` is counted from the moment the broker stores the message;
        without both it is delivered at once. `ttl`: so long after its delivery time a message that nobody
        holds is dead. Messages of one key go to one partition; without key and partition, to any.

        `unique_key` (1 to 1,024 bytes) is unique among the topic's pending messages, and for its `dedup_window`
        after. When it is taken, `on_conflict` decides: "reject" (the receipt raises DuplicateKey), "replace" (the
        pending message is cancelled; one that is not pending any more stays), or "ignore" (nothing is stored, the
        receipt gives the id of the message that has the key). It chooses the partition; a `key`, if any, must equal it.
        """
        if later:
            refuse_later(later)
        if self._buffered_bytes >= self._options.buffer_bytes or not self._is_open:
            await self.wait_for_room()
        message = self.checks.message(
            value, key, headers, deliver_at, delay, partition, ttl, unique_key, on_conflict
        )  # fmt: skip
        try:
            batch, position, sealed = self.add(*message)
        except UnknownPartition:
            await self._look_for_more()
            batch, position, sealed = self.add(*message)
        if sealed:
            await anyio.lowlevel.checkpoint()  # so that a loop of sends lets the batches leave
        return Receipt(batch, position)

    async def send_many(
        self,
        messages: Iterable[Value | Mapping[str, Any]],
        *,
        key: Value | None = None,
        headers: Headers | None = None,
        deliver_at: Instant | None = None,
        delay: Duration | None = None,
        partition: int | None = None,
        ttl: Duration | None = None,
        unique_key: Value | None = None,
        on_conflict: str = "reject",
        **later: object,
    ) -> Receipts:
        """Send many: each is a value, or a mapping of `send`'s arguments ("value", "key", ...).

        The options given here hold for values and for what a mapping does not name. A mistake in one
        raises at once, naming its place; those before it are sent all the same.
        """
        common = {
            "key": key,
            "headers": headers,
            "deliver_at": deliver_at,
            "delay": delay,
            "partition": partition,
            "ttl": ttl,
            "unique_key": unique_key,
            "on_conflict": on_conflict,
        }
        refuse_later(later)
        checks = self.checks
        if partition is not None and type(partition) is int and partition >= self._router.partitions:
            await self._look_for_more()
        lot, time = time_of(deliver_at, delay)
        key_bytes, packed = checks.key(key), checks.headers(headers)
        extras: tuple[Lot, int | None, bytes | None] | None = None  # of what is no mapping
        receipts = Receipts()
        place = 0
        try:
            for place, message in enumerate(messages, getattr(messages, "first_place", 0)):  # noqa: B007 - named below
                if isinstance(message, Mapping):
                    receipt = await self._send_mapping(message, common)
                    receipts.append(receipt)
                    continue
                if self._buffered_bytes >= self._options.buffer_bytes or not self._is_open:
                    await self.wait_for_room()
                data = checks.value(message)
                if extras is None:
                    extras = checks.extras(ttl, unique_key, on_conflict, key_bytes)
                    lot |= extras[0]
                batch, position, sealed = self.add(data, key_bytes, packed, lot, time, partition, *extras[1:])
                receipts.add(batch, position)
                if sealed:
                    await anyio.lowlevel.checkpoint()
        except (InvalidRequest, UnknownPartition) as error:
            raise again(error, f"message {place} of send_many: {error.message}") from None
        return receipts

    async def flush(self) -> None:
        """Send what is buffered and wait until all of it is stored; raises what failed and was not raised yet."""
        self.check_open()
        await self._drain()
        failure = self._failure()
        if failure is not None:
            raise failure

    # Below: how.

    async def _look_for_more(self) -> None:
        """Partitions may have been added."""
        known = self._cluster.record(self.topic)
        if known is None or len(known.partitions) <= self._router.partitions:
            known = await fresh_topic(self._cluster, self.topic)
        self._router.update(known)

    async def _send_mapping(self, message: Mapping[str, Any], common: Mapping[str, Any]) -> Receipt:
        if "value" not in message:
            raise InvalidRequest('a message given as a mapping needs a "value"')
        given = {name: value for name, value in message.items() if value is not None and name != "value"}
        if "delay" in given or "deliver_at" in given:
            common = {**common, "delay": None, "deliver_at": None}
        return await self.send(message["value"], **{**common, **given})

    def check_open(self) -> None:
        """ClosedError outside of its block."""
        if not self._is_open:
            raise ClosedError(
                f"the producer of topic {self.topic!r} is closed"
                if self._entered
                else "a producer is used as `async with client.producer(topic) as producer:`"
            )

    async def wait_for_room(self) -> None:
        """Until the buffer takes more; ClosedError when the producer was left."""
        self.check_open()
        while self._buffered_bytes >= self._options.buffer_bytes:
            self._seal_all()
            await self._room.wait()
            self.check_open()

    def _is_stuck(self, partition: int) -> bool:
        partition_producer = self._partition_producers.get(partition)
        return partition_producer is not None and partition_producer.stuck

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        lot: Lot,
        time: int,
        partition: int | None,
        ttl_ms: int | None,
        unique_key: bytes | None,
        expected: bytes | None = None,
    ) -> tuple[Batch, int, bool]:
        """Put a message (`validation.Ready`, and the version that is expected of its key) into its batch: the batch,
        its position, and whether a batch was sealed."""
        if not key if self._router.is_compacted else value is None:
            self._check_write(key, value)
        place = self._router.sticky.get(lot) if key is None and unique_key is None and partition is None else None
        if place is None:
            place = self._router.place(key, unique_key, lot, partition)
        partition_producer = self._partition_producers.get(place)
        if partition_producer is None:
            partition_producer = self._partition_producers[place] = PartitionProducer(
                self._cluster, self._options, self.topic, place, self._producer_id, self._on_done, self._wake.set
            )
        size = MESSAGE_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers is not None:
            size += len(headers)
        if unique_key is not None:
            size += len(unique_key)
        sealed = False
        batch = partition_producer.open.get(lot)
        if batch is not None and batch.size_bytes + size > self._batch_bytes:
            self._seal(partition_producer, lot)
            batch, sealed = None, True
        if batch is None:
            batch = partition_producer.open[lot] = Batch(lot, place, anyio.current_time())
            self._busy[partition_producer] = None
            self._outstanding += 1
            self._schedule(place)
        position = len(batch.values)
        batch.values.append(value)
        batch.keys.append(key)
        batch.headers.append(headers)
        if lot:
            batch.add_more(time, ttl_ms, unique_key, expected)
        batch.size_bytes += size
        self._buffered_bytes += size
        if position + 1 >= self._options.batch_messages:
            self._seal(partition_producer, lot)
            sealed = True
        return batch, position, sealed

    def _check_write(self, key: bytes | None, value: bytes | None) -> None:
        record = self._cluster.record(self.topic)
        if record is not None:
            self._router.update(record)  # the topic may have been made anew, as one of another kind
        self._router.check(key, value)

    def _schedule(self, partition: int) -> None:
        """A batch was opened: see that it is sealed. Without a linger that is when the connection sends next."""
        connection = self._cluster.leader(self.topic, partition) if not self._options.linger_s else None
        if connection is None:
            self._wake.set()
        else:
            connection.flush_soon(self._seal_all)

    def _seal(self, partition_producer: PartitionProducer, lot: Lot) -> None:
        partition_producer.seal(lot)
        self._router.sealed(lot, partition_producer.partition)
        partition_producer.pump(anyio.current_time())

    def _seal_all(self) -> None:
        for partition_producer in list(self._busy):
            for lot in list(partition_producer.open):
                self._seal(partition_producer, lot)

    def _on_done(self, partition_producer: PartitionProducer, batch: Batch) -> None:
        self._outstanding -= 1
        self._buffered_bytes -= batch.size_bytes
        if self._keep_failures and batch.failures:
            self._failed.append(batch)
        self._room.set()
        if not self._outstanding:
            self._idle.set()
        if partition_producer.idle:
            self._busy.pop(partition_producer, None)
        else:
            partition_producer.pump(anyio.current_time())

    async def _drain(self) -> None:
        self._seal_all()
        while self._outstanding:
            await self._idle.wait()
            self._seal_all()

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    due_at = self._tick(anyio.current_time())
                    await self._wake.wait(due_at - anyio.current_time())
        finally:
            if self._is_open:  # the client was closed first
                self._is_open = False
                self._room.set()
                self._give_up()

    def _tick(self, now: float) -> float:
        """Seal, send and expire what is due; when to look again."""
        record = self._cluster.record(self.topic)
        if record is not None:
            self._router.update(record)
        due_at = math.inf
        for partition_producer in list(self._busy):
            for lot in [
                lot for lot, batch in partition_producer.open.items() if batch.opened_at + self._options.linger_s <= now
            ]:
                self._seal(partition_producer, lot)
            partition_producer.expire(now)
            partition_producer.pump(now)
            due_at = min(due_at, partition_producer.next_time(now))
        return due_at

    def _stop(self) -> None:
        """End the task; give up what is not done (after cancellation)."""
        self._scope.cancel()
        self._cluster.on_change.pop(self._wake.set, None)
        if self._outstanding:
            self._give_up()
            self._failed.clear()

    def _give_up(self) -> None:
        messages = sum(partition_producer.unconfirmed for partition_producer in self._busy)
        if messages:
            log.warning("topic %s: %d messages were not confirmed; they may be stored", self.topic, messages)
        for partition_producer in list(self._busy):
            partition_producer.abandon(_given_up)

    def _failure(self) -> SandqError | None:
        """One error for all that failed and was not raised yet."""
        failed, self._failed = self._failed, []
        return failure_of(self.topic, failed)


def _given_up(batch: Batch) -> SandqError:
    maybe = "it may have been stored" if batch.unknown else "it was not sent"
    return ClosedError(f"the producer was left before the message was confirmed: {maybe}")
