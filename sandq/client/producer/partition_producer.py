"""One producer's batches for one partition: open batches, numbers, deadlines. `BatchSender` sends them.

If a numbered batch is given up, its number leaves a gap, and the broker rejects all batches after the gap. So the
producer begins a new epoch with number 1. It waits until no batch of the old epoch is in flight, because the first
batch of a new epoch fences the old epoch. Batches that were sent after the gap are handled as follows:

* If every attempt of the missing batch was rejected, no batch behind it can have been stored. They are sent in the new
  epoch, as if for the first time.
* If the missing batch may be stored and its time is over, its caller gets an error that says so. But the batch keeps
  its position and is retried as long as there are batches behind it. These are stored behind it or not at all;
  otherwise their outcome could not be determined.

OUT_OF_SEQUENCE for the oldest batch means that the broker has forgotten the producer. If all attempts of that batch
were rejected, all later batches were rejected, too, and a new epoch begins. Otherwise it is unknown whether the batch
is stored, and it fails with an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from sandq.client.options import Options
from sandq.client.producer.batch_sender import NEVER, BatchSender
from sandq.client.producer.batches import Batch
from sandq.client.producer.validation import Traits
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.model.errors import AlreadyStored, SandqError, TimedOut
from sandq.model.limits import FIXED
from sandq.protocol.replies import Offsets

RETRY_S = FIXED.producer_retry_ms / 1000
"""A batch that may be stored is not retried later than this time after its first attempt, in seconds. The broker relies
on this."""


GROWS_S: Final = 1.0
"""Time after its first message for which a batch may grow, in seconds. The delivery time of all its messages begins
with the first one."""


class PartitionProducer(BatchSender[Batch]):
    """The batches of one producer for one partition."""

    def __init__(
        self,
        cluster: Cluster,
        options: Options,
        topic: str,
        partition: int,
        producer_id: int,
        on_done: Callable[[PartitionProducer, Batch], None],
        on_change: Callable[[], None],
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        super().__init__(cluster, options, topic, partition, producer_id, on_change, clock)
        self.open: dict[Traits, Batch] = {}
        self._epoch = 1
        self._sequence = 0
        self._on_done = on_done  # called when a batch has offsets or an error
        self._given_up = False  # whether failed batches may be in the queue, to fill their numbers
        self._gap: tuple[int, int] | None = None
        """(epoch, number) of a batch that will never arrive. Later batches of the epoch cannot be stored."""

    @property
    def idle(self) -> bool:
        return not (self.open or self.waiting or self.returned or self.in_flight)

    @property
    def stuck(self) -> bool:
        """True if a new batch would have to wait: for a leader, or for the answers to earlier batches."""
        if self.is_interrupted or self.waiting:
            return True
        oldest = next(iter(self.in_flight), None)
        if oldest is None:
            return False
        return self._epoch != oldest.epoch or self._sequence + 1 - oldest.sequence >= self.options.in_flight_batches

    def grows(self, batch: Batch, now: float) -> bool:
        """Return whether an open batch whose linger time is over takes further messages for up to `GROWS_S`: it could
        not be sent now, because as many batches as allowed are in flight."""
        if now >= batch.opened_at + GROWS_S or not self.in_flight or self.is_interrupted:
            return False
        return self.stuck

    @property
    def unconfirmed(self) -> int:
        """Number of messages without an outcome."""
        queues = (self.in_flight, self.returned, self.waiting, self.open.values())
        return sum(len(batch) for queue in queues for batch in queue if not batch.done)

    def seal(self, traits: Traits) -> None:
        """Seal the open batch of these traits, and queue it."""
        batch = self.open.pop(traits)
        batch.seal()
        self.add(batch)

    def next_time(self, now: float) -> float:
        """Return the next time at which work is due without an event: the end of a linger time or a pause, or a
        deadline."""
        ends = [batch.opened_at + self.options.linger_s for batch in self.open.values()]
        if any(end <= now for end in ends):
            ends = [
                batch.opened_at + GROWS_S if end <= now and self.grows(batch, now) else end
                for batch, end in zip(self.open.values(), ends, strict=True)
            ]
        return min([super().next_time(now), *ends])

    def expire(self, now: float) -> None:
        """Fail the batches whose delivery time is over."""
        super().expire(now)
        self._drop_given_up()

    def abandon(self, error: Callable[[Batch], SandqError]) -> None:
        """Fail all unfinished batches, because the producer's block was left without waiting for them."""
        self.waiting.extend(self.open.values())
        self.open.clear()
        super().abandon(error)

    # Numbering and sending.

    def number_of(self, batch: Batch) -> tuple[int, int]:
        return batch.order() if batch.sequence else (self._epoch, self._sequence + 1)

    def send(self, connection: Connection, batch: Batch, now: float) -> None:
        if not batch.sequence:
            self._sequence += 1
            batch.epoch, batch.sequence, batch.sent_at = self._epoch, self._sequence, NEVER
        super().send(connection, batch, now)

    @property
    def is_interrupted(self) -> bool:
        return bool(self.returned) or self._gap is not None

    def requeue(self) -> None:
        """Put the returned batches at the front of the queue, in order. Batches after a gap get new numbers. No batch
        may be in flight."""
        batches = self.take_numbered()
        forgotten = []
        while batches and batches[0].refused and batches[0].unknown and not self._is_behind_gap(batches[0]):
            forgotten.append(batches.pop(0))
        if batches and batches[0].refused:
            self._gap = (batches[0].epoch, batches[0].sequence - 1)
        for batch in batches:
            if self._is_behind_gap(batch):
                self._begin_epoch(after=batch.epoch)
                batch.epoch = batch.sequence = 0
                batch.unknown = False
        self._gap = None
        self.waiting.extendleft(batch for batch in reversed(batches) if batch.sequence or not batch.done)
        for batch in forgotten:
            self.fail(batch, self._forgotten())

    def _is_behind_gap(self, batch: Batch) -> bool:
        gap = self._gap
        return gap is not None and batch.epoch == gap[0] and batch.sequence > gap[1]

    def _begin_epoch(self, after: int) -> None:
        if self._epoch == after:
            self._epoch += 1
            self._sequence = 0

    # Finishing.

    def deadline(self, batch: Batch) -> float:
        due = super().deadline(batch)
        return min(due, batch.sent_at + RETRY_S) if batch.unknown else due

    def give_up(self, batch: Batch) -> None:
        batch.unknown = batch.unknown or batch in self.in_flight
        error = self.expired(batch, self.deadline(batch) - batch.opened_at)
        if batch.unknown:
            batch.finish(None, error)
            self._given_up = True
            self._drop_given_up()
            self._on_done(self, batch)
            return
        self.remove(batch)
        self.fail(batch, error)

    def _drop_given_up(self) -> None:
        """Remove failed batches that are not needed to fill their number, or that may no longer be retried.

        A failed batch is needed as long as unfinished batches with later numbers exist.
        """
        if not self._given_up:
            return
        self._given_up = is_needed = False
        for batch in sorted(self.numbered(), key=Batch.order, reverse=True):
            if not batch.done:
                is_needed = True
            elif is_needed and self.clock() < batch.sent_at + RETRY_S:
                self._given_up = True
            else:
                self.remove(batch)
                self._begin_epoch(after=batch.epoch)
                batch.data = b""

    def fail(self, batch: Batch, error: SandqError) -> None:
        if batch.sequence and not isinstance(error, AlreadyStored):
            # The broker would wait for this number, which will never arrive.
            self._begin_epoch(after=batch.epoch)
            if not batch.unknown and self._gap is None:
                self._gap = batch.order()
        super().fail(batch, error)

    def settle(self, batch: Batch, offsets: Offsets | None, error: SandqError | None) -> None:
        batch.data = b""
        if batch.done:  # the batch failed before, and kept its position
            self.on_change()
            return
        batch.finish(offsets, error)
        self._drop_given_up()
        self._on_done(self, batch)

    def _forgotten(self) -> SandqError:
        last = self.last_error.message if self.last_error else ""
        return TimedOut(f"a reply was lost, and the outcome is unknown: it may have been stored ({self.where}; {last})")
