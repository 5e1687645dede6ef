"""One producer's batches for one partition: open batches, numbers, deadlines. `BatchSender` sends them.

A number that will never come leaves a gap, behind which the broker takes nothing: a new epoch begins, with number 1. It
begins only when nothing of the old one flies, for its first batch fences what is left of that. What then becomes of the
others that were sent behind the gap:

* Every sending of the batch that is missing was refused: no batch behind it can have been stored. They are sent in the
  new epoch, as if for the first time.
* It may be stored, and its time is over: its caller is told so, but it keeps its place, and is sent again, as long as
  there are others behind it. They are stored behind it or not at all; nobody could tell which otherwise.

OUT_OF_SEQUENCE for the oldest of all means that the broker has forgotten the producer. If every sending of that batch
was refused, so was all behind it: a new epoch. If not, nobody knows whether it is stored: it fails, and says so.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from sandq.client.options import Options
from sandq.client.producer.batch_sender import NEVER, BatchSender
from sandq.client.producer.batches import Batch
from sandq.client.producer.validation import Lot
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.model.errors import AlreadyStored, SandqError, TimedOut
from sandq.model.limits import FIXED
from sandq.protocol.replies import Offsets

RETRY_S = FIXED.producer_retry_ms / 1000
"""A batch that may be stored is not sent again so long after it was first: the broker counts on it."""


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
        self.open: dict[Lot, Batch] = {}
        self._epoch = 1
        self._sequence = 0
        self._on_done = on_done  # a batch has offsets or an error
        self._given_up = False  # whether some are done, and may still be in their place
        self._gap: tuple[int, int] | None = None  # what was sent behind this one of its epoch cannot be stored

    @property
    def idle(self) -> bool:
        return not (self.open or self.waiting or self.returned or self.flying)

    @property
    def stuck(self) -> bool:
        """Whether something had to be tried again, or waits for a leader."""
        return bool(self.returned) or len(self.waiting) > self.options.in_flight_batches

    @property
    def unconfirmed(self) -> int:
        """Messages without an outcome."""
        places = (self.flying, self.returned, self.waiting, self.open.values())
        return sum(len(batch) for place in places for batch in place if not batch.done)

    def seal(self, lot: Lot) -> None:
        """Close the open batch of a lot: it is next to be sent."""
        batch = self.open.pop(lot)
        batch.seal()
        self.add(batch)

    def next_time(self, now: float) -> float:
        """When something is due without any event: a linger, a pause, a deadline."""
        lingers = [batch.opened_at + self.options.linger_s for batch in self.open.values()]
        return min([super().next_time(now), *lingers])

    def expire(self, now: float) -> None:
        """Fail what has been tried for too long."""
        super().expire(now)
        self._drop_given_up()

    def abandon(self, error: Callable[[Batch], SandqError]) -> None:
        """Fail everything that is not done: the producer is left without waiting."""
        self.waiting.extend(self.open.values())
        self.open.clear()
        super().abandon(error)

    # What is sent.

    def place_of(self, batch: Batch) -> tuple[int, int]:
        return batch.order() if batch.sequence else (self._epoch, self._sequence + 1)

    def send(self, connection: Connection, batch: Batch, now: float) -> None:
        if not batch.sequence:
            self._sequence += 1
            batch.epoch, batch.sequence, batch.sent_at = self._epoch, self._sequence, NEVER
        super().send(connection, batch, now)

    @property
    def is_interrupted(self) -> bool:
        return bool(self.returned) or self._gap is not None

    def line_up(self) -> None:
        """Put what came back first, in its order; number anew what stands behind a gap. Nothing flies."""
        line = self.take_numbered()
        forgotten = []
        while line and line[0].refused and line[0].unknown and not self._is_behind_gap(line[0]):
            forgotten.append(line.pop(0))
        if line and line[0].refused:
            self._gap = (line[0].epoch, line[0].sequence - 1)
        for batch in line:
            if self._is_behind_gap(batch):
                self._begin_epoch(after=batch.epoch)
                batch.epoch = batch.sequence = 0
                batch.unknown = False
        self._gap = None
        self.waiting.extendleft(batch for batch in reversed(line) if batch.sequence or not batch.done)
        for batch in forgotten:
            self.fail(batch, self._forgotten())

    def _is_behind_gap(self, batch: Batch) -> bool:
        gap = self._gap
        return gap is not None and batch.epoch == gap[0] and batch.sequence > gap[1]

    def _begin_epoch(self, after: int) -> None:
        if self._epoch == after:
            self._epoch += 1
            self._sequence = 0

    # What ends.

    def deadline(self, batch: Batch) -> float:
        due = super().deadline(batch)
        return min(due, batch.sent_at + RETRY_S) if batch.unknown else due

    def give_up(self, batch: Batch) -> None:
        batch.unknown = batch.unknown or batch in self.flying
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
        """What was given up keeps its place while something is behind it, and while it may be sent again."""
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
            # Its number will never arrive: the broker would wait for it.
            self._begin_epoch(after=batch.epoch)
            if not batch.unknown and self._gap is None:
                self._gap = batch.order()
        super().fail(batch, error)

    def settle(self, batch: Batch, offsets: Offsets | None, error: SandqError | None) -> None:
        batch.data = b""
        if batch.done:  # it was given up, and has kept its place
            self.on_change()
            return
        batch.finish(offsets, error)
        self._drop_given_up()
        self._on_done(self, batch)

    def _forgotten(self) -> SandqError:
        said = self.last_error.message if self.last_error else ""
        return TimedOut(
            f"an answer was lost, and the outcome is unknown: it may have been stored ({self.where}; {said})"
        )
