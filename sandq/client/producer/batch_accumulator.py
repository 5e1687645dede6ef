"""Accumulate messages into batches: choose a message's batch, open and fill it, and seal it once it is full or due.

A batch is sealed when it is full, when its linger is over, and, without a linger, when the connection to its leader
sends next. It then goes to `PartitionProducer`, which sends it. No task in here: the producer's calls `tick`.
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
from sandq.client.producer.validation import Lot, Rank
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.on_behalf import OURSELVES, asker
from sandq.model.errors import SandqError

_PRODUCER_ID_BITS = 63


class BatchAccumulator:
    """The open batches of a producer for all partitions of its topic, and what is not done of those that are sealed."""

    def __init__(
        self,
        cluster: Cluster,
        options: Options,
        topic: str,
        most_bytes: int,
        wake: Callable[[], None],
        on_done: Callable[[Batch], None],
    ) -> None:
        """`most_bytes`: of a batch, beside those of the options. `wake`: `tick` is to be called. `on_done(batch)`: it
        has offsets or an error, and counts no more."""
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
        """Of all messages that have no outcome yet."""
        self.outstanding = 0
        """Batches that are not done."""

    @property
    def unconfirmed(self) -> int:
        """Messages without an outcome."""
        return sum(partition_producer.unconfirmed for partition_producer in self._busy)

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
        rank: Rank | None = None,
        expected: bytes | None = None,
    ) -> tuple[Batch, int, bool]:
        """Put a message (`validation.Ready`, and the version that is expected of its key) into its batch: the batch,
        its position, and whether a batch was sealed."""
        partitioner = self.partitioner
        size = MESSAGE_OVERHEAD_BYTES
        place = None
        if not key if partitioner.is_compacted else value is None:
            self._check_write(key, value)
        if rank is not None or partitioner.is_fair:
            place = self._ranked_place(key, unique_key, lot, partition, rank)
            size += 0 if rank is None or rank[1] is None else len(rank[1])
        elif key is None and unique_key is None and partition is None:
            place = partitioner.sticky.get(lot)
        if place is None:
            place = partitioner.place(key, unique_key, lot, partition)
        partition_producer = self._partition_producers.get(place)
        if partition_producer is None:
            partition_producer = self._partition_producers[place] = PartitionProducer(
                self._cluster, self._options, self._topic, place, self._producer_id, self._on_batch_done, self._wake
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
        batch = partition_producer.open.get(lot)
        if batch is not None and batch.size_bytes + size > self._batch_bytes:
            self._seal(partition_producer, lot)
            batch, sealed = None, True
        if batch is None:
            batch = partition_producer.open[lot] = Batch(lot, place, anyio.current_time())
            batch.asker = asker()
            self._busy[partition_producer] = None
            self.outstanding += 1
            self._schedule(place)
        elif batch.asker is not OURSELVES and batch.asker != asker():
            batch.asker = OURSELVES  # it is of several
        position = len(batch.values)
        batch.values.append(value)
        batch.keys.append(key)
        batch.headers.append(headers)
        if lot:
            batch.add_more(time, ttl_ms, unique_key, rank, expected)
        batch.size_bytes += size
        self.buffered_bytes += size
        if position + 1 >= self._options.batch_messages:
            self._seal(partition_producer, lot)
            sealed = True
        return batch, position, sealed

    def seal_all(self) -> None:
        """Seal all open batches, and send what may be sent."""
        for partition_producer in list(self._busy):
            for lot in list(partition_producer.open):
                self._seal(partition_producer, lot)

    def look(self) -> None:
        """Go by what is known of the topic now."""
        record = self._cluster.record(self._topic)
        if record is not None:
            self.partitioner.update(record)

    def tick(self, now: float) -> float:
        """Seal, send and expire what is due; when to look again."""
        self.look()
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

    def abandon(self, error: Callable[[Batch], SandqError]) -> None:
        """Fail everything that is not done: the producer is left without waiting."""
        for partition_producer in list(self._busy):
            partition_producer.abandon(error)

    def _is_stuck(self, partition: int) -> bool:
        partition_producer = self._partition_producers.get(partition)
        return partition_producer is not None and partition_producer.stuck

    def _check_write(self, key: bytes | None, value: bytes | None) -> None:
        self.look()  # the topic may have been made anew, as one of another kind
        self.partitioner.check(key, value)

    def _ranked_place(
        self, key: bytes | None, unique_key: bytes | None, lot: Lot, partition: int | None, rank: Rank | None
    ) -> int:
        """The partition of a message that has a rank, or goes to a fair topic."""
        if rank is not None and not self.partitioner.takes(rank):
            self._cluster.refresh(self._topic)  # it may have been made anew, as one of another kind
            self.partitioner.check_rank(rank)
        if self.partitioner.is_fair:
            return self.partitioner.place_of_tenant(None if rank is None else rank[1], partition)
        return self.partitioner.place(key, unique_key, lot, partition)

    def _schedule(self, partition: int) -> None:
        """A batch was opened: see that it is sealed. Without a linger that is when the connection sends next."""
        connection = self._cluster.leader(self._topic, partition) if not self._options.linger_s else None
        if connection is None:
            self._wake()
        else:
            connection.flush_soon(self.seal_all)

    def _seal(self, partition_producer: PartitionProducer, lot: Lot) -> None:
        partition_producer.seal(lot)
        self.partitioner.sealed(lot, partition_producer.partition)
        partition_producer.pump(anyio.current_time())

    def _on_batch_done(self, partition_producer: PartitionProducer, batch: Batch) -> None:
        self.outstanding -= 1
        self.buffered_bytes -= batch.size_bytes
        self._on_done(batch)
        if partition_producer.idle:
            self._busy.pop(partition_producer, None)
        else:
            partition_producer.pump(anyio.current_time())
