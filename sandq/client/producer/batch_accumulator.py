"""Accumulate messages into batches: choose the batch of a message, open and fill batches, and seal a batch once it is
full or due.

A batch is sealed when it is full or when its linger time is over. Without a linger time it is sealed when the
connection to its leader sends next. `PartitionProducer` then sends it. While a batch could not be sent, because others
are in flight, it grows instead: so the batches of a slow broker are few and large. This module has no task: the
producer's task calls `tick`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import anyio

from sandq.client.options import Options
from sandq.client.producer.batches import MESSAGE_OVERHEAD_BYTES, Batch
from sandq.client.producer.partition_producer import PartitionProducer
from sandq.client.producer.partitioner import Partitioner
from sandq.client.producer.validation import Rank, Traits, replaces
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.on_behalf import OURSELVES, asker
from sandq.model.errors import SandqError
from sandq.model.retries import MessageRules

_PRODUCER_ID_BITS = 63


class BatchAccumulator:
    """The open batches of a producer for all partitions of its topic, and counters of its unfinished batches."""

    def __init__(
        self,
        cluster: Cluster,
        options: Options,
        topic: str,
        most_bytes: int,
        wake: Callable[[], None],
        on_done: Callable[[Batch], None],
    ) -> None:
        """`most_bytes`: limit of the size of a batch, in addition to the option `batch_bytes`.

        `wake` asks for a call of `tick`. `on_done(batch)` is called when a batch has offsets or an error.
        """
        self._cluster = cluster
        self._options = options
        self._topic = topic
        self._batch_bytes = min(options.batch_bytes, most_bytes)
        self._wake = wake
        self._on_done = on_done
        self._producer_id = random.getrandbits(_PRODUCER_ID_BITS) | 1
        self.partitioner = Partitioner(topic, self._is_stuck)
        self._partition_producers: dict[int, PartitionProducer] = {}
        self._busy: dict[PartitionProducer, None] = {}
        self.buffered_bytes = 0
        """Total size of all messages without an outcome, in bytes."""
        self.outstanding = 0
        """Number of batches that are not done."""

    @property
    def unconfirmed(self) -> int:
        """Number of messages without an outcome."""
        return sum(partition_producer.unconfirmed for partition_producer in self._busy)

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        traits: Traits,
        time: int,
        partition: int | None,
        ttl_ms: int | None,
        unique_key: bytes | None,
        rank: Rank | None = None,
        rules: MessageRules | None = None,
        expected: bytes | None = None,
    ) -> tuple[Batch, int, bool]:
        """Add a message to its batch. Return (batch, position in the batch, whether any batch was sealed).

        The arguments are the fields of `validation.Ready`. `expected`: version that the message's key must have.
        """
        partitioner = self.partitioner
        size = MESSAGE_OVERHEAD_BYTES
        number = None
        # A write to a compacted topic needs a key. A message of any other topic needs a value.
        if not key if partitioner.is_compacted else value is None:
            self._check_write(key, value)
        if rank is not None or partitioner.is_fair:
            number = self._ranked_partition(key, unique_key, traits, partition, rank)
            size += 0 if rank is None or rank[1] is None else len(rank[1])
        elif key is None and unique_key is None and partition is None:
            number = partitioner.sticky.get(traits)
        if number is None:
            number = partitioner.partition_of(key, unique_key, traits, partition)
        partition_producer = self._partition_producers.get(number)
        if partition_producer is None:
            partition_producer = self._partition_producers[number] = PartitionProducer(
                self._cluster, self._options, self._topic, number, self._producer_id, self._on_batch_done, self._wake
            )
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers is not None:
            size += len(headers)
        if unique_key is not None:
            size += len(unique_key)
        sealed = False
        batch = partition_producer.open.get(traits)
        if batch is not None and batch.size_bytes + size > self._batch_bytes:
            self._seal(partition_producer, traits)
            batch, sealed = None, True
        if batch is None:
            for other, one in list(partition_producer.open.items()):
                # If it has grown: its messages must not wait for more than the linger time behind later ones. If
                # messages replace each other: the batches must arrive in the order of the calls.
                if one.has_grown or (replaces(other) and replaces(traits)):
                    self._seal(partition_producer, other)
                    sealed = True
            batch = partition_producer.open[traits] = Batch(traits, number, anyio.current_time())
            batch.asker = asker()
            self._busy[partition_producer] = None
            self.outstanding += 1
            self._schedule(number)
        elif batch.asker is not OURSELVES and batch.asker != asker():
            batch.asker = OURSELVES  # its messages have several callers
        position = len(batch.values)
        batch.values.append(value)
        batch.keys.append(key)
        batch.headers.append(headers)
        if traits:
            batch.add_more(time, ttl_ms, unique_key, rank, rules, expected)
        batch.size_bytes += size
        self.buffered_bytes += size
        if position + 1 >= self._options.batch_messages:
            self._seal(partition_producer, traits)
            sealed = True
        return batch, position, sealed

    def seal_all(self) -> None:
        """Seal all open batches, and send as many as allowed."""
        for partition_producer in list(self._busy):
            for traits in list(partition_producer.open):
                self._seal(partition_producer, traits)

    def update_topic(self) -> None:
        """Update the partitioner with the last known record of the topic."""
        record = self._cluster.record(self._topic)
        if record is not None:
            self.partitioner.update(record)

    def tick(self, now: float) -> float:
        """Seal, send and expire the batches that are due. Return the time of the next call."""
        self.update_topic()
        due_at = math.inf
        for partition_producer in list(self._busy):
            self._seal_due(partition_producer, now)
            partition_producer.expire(now)
            partition_producer.pump(now)
            due_at = min(due_at, partition_producer.next_time(now))
        return due_at

    def abandon(self, error: Callable[[Batch], SandqError]) -> None:
        """Fail all unfinished batches, because the producer's block was left without waiting for them."""
        for partition_producer in list(self._busy):
            partition_producer.abandon(error)

    def _is_stuck(self, partition: int) -> bool:
        partition_producer = self._partition_producers.get(partition)
        return partition_producer is not None and partition_producer.stuck

    def _check_write(self, key: bytes | None, value: bytes | None) -> None:
        self.update_topic()  # the topic may have been recreated as another kind
        self.partitioner.check(key, value)

    def _ranked_partition(
        self, key: bytes | None, unique_key: bytes | None, traits: Traits, partition: int | None, rank: Rank | None
    ) -> int:
        """Return the partition of a message that has a rank, or that goes to a fair topic."""
        if rank is not None and not self.partitioner.takes(rank):
            self._cluster.refresh(self._topic)  # the topic may have been recreated as another kind
            self.partitioner.check_rank(rank)
        if self.partitioner.is_fair:
            return self.partitioner.partition_of_tenant(None if rank is None else rank[1], partition)
        return self.partitioner.partition_of(key, unique_key, traits, partition)

    def _schedule(self, partition: int) -> None:
        """Make sure that a new batch will be sealed. Without a linger time, the connection seals the batch before its
        next send."""
        connection = self._cluster.leader(self._topic, partition) if not self._options.linger_s else None
        if connection is None:
            self._wake()
        else:
            connection.flush_soon(self._seal_all_due)

    def _seal_all_due(self) -> None:
        """Seal all open batches whose linger time is over, except for those that grow."""
        now = anyio.current_time()
        for partition_producer in list(self._busy):
            self._seal_due(partition_producer, now)

    def _seal_due(self, partition_producer: PartitionProducer, now: float) -> None:
        """Seal the open batches of a partition whose linger time is over, except for those that grow."""
        for traits, batch in list(partition_producer.open.items()):
            if batch.opened_at + self._options.linger_s > now:
                continue
            if partition_producer.grows(batch, now):
                batch.has_grown = True
                self.partitioner.move_on(traits, partition_producer.partition)
            else:
                self._seal(partition_producer, traits)

    def _seal(self, partition_producer: PartitionProducer, traits: Traits) -> None:
        partition_producer.seal(traits)
        self.partitioner.move_on(traits, partition_producer.partition)
        partition_producer.pump(anyio.current_time())

    def _on_batch_done(self, partition_producer: PartitionProducer, batch: Batch) -> None:
        self.outstanding -= 1
        self.buffered_bytes -= batch.size_bytes
        self._on_done(batch)
        if partition_producer.idle:
            self._busy.pop(partition_producer, None)
        else:
            now = anyio.current_time()
            self._seal_due(partition_producer, now)
            partition_producer.pump(now)
