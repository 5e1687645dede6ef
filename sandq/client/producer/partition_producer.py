"""One partition's way from a producer to its leader: order, retries, deadlines.

    waiting --pump--> flying --answer--> done
       ^                 |
       +---- returned <--+   a retriable error: once nothing flies, what came back goes first, in order

At most `in_flight_batches` fly. While something has come back nothing new is sent, so batches of a partition reach the
broker in the order of their numbers. A batch sent again has the epoch and number that it had the first time, by which
the broker knows it: it is stored once. `Batch.unknown` says that an answer was lost, so that it may be stored.

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

import logging
import math
from collections import deque
from collections.abc import Callable
from itertools import takewhile

import anyio

from sandq.client.options import Options, again
from sandq.client.producer.batches import Batch
from sandq.client.producer.validation import Lot, on_conflict_of
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.model.errors import (
    AlreadyStored,
    ConnectionLost,
    OutOfSequence,
    ProtocolError,
    SandqError,
    StorageFailed,
    TimedOut,
    Unavailable,
    UnknownPartition,
)
from sandq.model.limits import FIXED
from sandq.model.sequence import RESENT
from sandq.protocol.frames import Frame
from sandq.protocol.replies import Offsets
from sandq.protocol.requests import Produce

log = logging.getLogger("sandq.client")

RETRY_S = FIXED.producer_retry_ms / 1000
"""A batch that may be stored is not sent again so long after it was first: the broker counts on it."""
_QUIET = ("OVERLOADED", "TIMED_OUT", "OUT_OF_SEQUENCE")
"""Errors that tell nothing about who leads."""


class PartitionProducer:
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
        self.partition = partition
        self.open: dict[Lot, Batch] = {}
        self._cluster = cluster
        self._topic = topic
        self._producer_id = producer_id
        self._epoch = 1
        self._sequence = 0
        self._options = options
        self._on_done = on_done  # a batch has offsets or an error
        self._on_change = on_change  # `next_time` says something else, or there is something to pump
        self._clock = clock
        self._waiting: deque[Batch] = deque()  # those with a number first: they were sent before
        self._returned: list[Batch] = []
        self._flying: dict[Batch, tuple[Connection, int]] = {}  # in the order of their sequence; where and request id
        self._given_up = False  # whether some are done, and may still be in their place
        self._gap: tuple[int, int] | None = None  # what was sent behind this one of its epoch cannot be stored
        self._failures = 0  # in a row
        self._resume_at = -math.inf
        self._last_error: SandqError | None = None

    @property
    def idle(self) -> bool:
        return not (self.open or self._waiting or self._returned or self._flying)

    @property
    def stuck(self) -> bool:
        """Whether something had to be tried again, or waits for a leader."""
        return bool(self._returned) or len(self._waiting) > self._options.in_flight_batches

    @property
    def unconfirmed(self) -> int:
        """Messages without an outcome."""
        places = (self._flying, self._returned, self._waiting, self.open.values())
        return sum(len(batch) for place in places for batch in place if not batch.done)

    def seal(self, lot: Lot) -> None:
        """Close the open batch of a lot: it is next to be sent."""
        batch = self.open.pop(lot)
        batch.seal()
        self._waiting.append(batch)

    def pump(self, now: float) -> None:
        """Send what may be sent now."""
        if self._returned or self._gap is not None:
            if self._flying:
                return
            self.expire(now)
            self._line_up()
        if not self._waiting or now < self._resume_at:
            return
        missing = self._cluster.missing(self._topic)
        if missing is not None:
            self._cluster.refresh(self._topic)  # somebody may have made it since
            self._fail_all(missing)
            return
        connection = self._cluster.leader(self._topic, self.partition)
        while connection is not None and self._waiting and self._may_send(self._waiting[0]):
            self._send(connection, self._waiting.popleft(), now)

    def next_time(self, now: float) -> float:
        """When something is due without any event: a linger, a pause, a deadline."""
        times = [batch.opened_at + self._options.linger_s for batch in self.open.values()]
        times += [self._deadline(batch) for batch in self._heads()]
        if self._waiting and self._resume_at > now:
            times.append(self._resume_at)
        return min(times, default=math.inf)

    def expire(self, now: float) -> None:
        """Fail what has been tried for too long."""
        while late := [batch for batch in self._heads() if self._deadline(batch) <= now]:
            for batch in late:
                if not batch.done:
                    self._give_up(batch)
        self._drop_given_up()

    def abandon(self, error: Callable[[Batch], SandqError]) -> None:
        """Fail everything that is not done: the producer is left without waiting."""
        for connection, request_id in self._flying.values():
            connection.forget(request_id)
        for batch in self._flying:
            batch.unknown = True
        left = [*self._flying, *self._returned, *self._waiting, *self.open.values()]
        self._flying.clear()
        self._returned.clear()
        self._waiting.clear()
        self.open.clear()
        for batch in left:
            if not batch.done:
                self._fail(batch, error(batch))

    # What is sent.

    def _may_send(self, batch: Batch) -> bool:
        """Whether what flies is of the same epoch, and of the last few numbers: so many answers the broker keeps."""
        oldest = next(iter(self._flying), None)
        if oldest is None:
            return True
        epoch, number = batch.order() if batch.sequence else (self._epoch, self._sequence + 1)
        return epoch == oldest.epoch and number - oldest.sequence < self._options.in_flight_batches

    def _send(self, connection: Connection, batch: Batch, now: float) -> None:
        if not batch.sequence:
            self._sequence += 1
            batch.epoch, batch.sequence, batch.sent_at = self._epoch, self._sequence, now
        assert batch.data is not None
        request = Produce(
            self._topic,
            self.partition,
            self._producer_id,
            batch.epoch,
            batch.sequence | RESENT if batch.unknown else batch.sequence,
            on_conflict_of(batch.lot),
            batch.data,
        )
        request_id = connection.request(request.frame, lambda reply: self._answered(batch, reply))
        self._flying[batch] = (connection, request_id)

    def _line_up(self) -> None:
        """Nothing flies: what came back goes first, in its order; what stands behind a gap is numbered anew."""
        line = sorted(self._returned, key=Batch.order)
        self._returned.clear()
        while self._waiting and self._waiting[0].sequence:
            line.append(self._waiting.popleft())
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
        self._waiting.extendleft(batch for batch in reversed(line) if batch.sequence or not batch.done)
        for batch in forgotten:
            self._fail(batch, self._forgotten(batch))

    def _is_behind_gap(self, batch: Batch) -> bool:
        gap = self._gap
        return gap is not None and batch.epoch == gap[0] and batch.sequence > gap[1]

    def _begin_epoch(self, after: int) -> None:
        if self._epoch == after:
            self._epoch += 1
            self._sequence = 0

    # What is answered.

    def _answered(self, batch: Batch, reply: Frame | SandqError) -> None:
        del self._flying[batch]
        if not isinstance(reply, SandqError):
            try:
                offsets = Offsets.parse(reply)
                if offsets.messages != len(batch):
                    raise ProtocolError(f"{offsets.messages} offsets for a batch of {len(batch)} messages")
            except ProtocolError as error:
                batch.unknown = True
                self._fail(batch, error)
                raise
            self._failures = 0
            self._finish(batch, offsets, None)
        elif reply.retriable or isinstance(reply, UnknownPartition):
            self._come_back(batch, reply)
        else:
            # A log that failed in mid-write may hold the batch all the same.
            batch.unknown = batch.unknown or isinstance(reply, StorageFailed)
            self._fail(batch, again(reply))

    def _come_back(self, batch: Batch, error: SandqError) -> None:
        log.debug("topic %s partition %d: %s; trying again", self._topic, self.partition, error)
        self._last_error = error
        batch.unknown = batch.unknown or isinstance(error, (TimedOut, ConnectionLost))
        batch.refused = isinstance(error, OutOfSequence)
        if not self._returned:
            self._resume_at = self._clock() + self._options.back_off_s(self._failures)
            self._failures += 1
        self._returned.append(batch)
        if error.code not in _QUIET:
            self._cluster.refresh(self._topic)
        self._on_change()

    # What ends.

    def _sent(self) -> list[Batch]:
        """What has a number: a few."""
        again = takewhile(lambda batch: batch.sequence, self._waiting)
        return [*self._flying, *self._returned, *again]

    def _heads(self) -> list[Batch]:
        """Those whose time may be over next: what was sent, and the oldest that was not."""
        unsent = next((batch for batch in self._waiting if not batch.sequence), None)
        return [batch for batch in (*self._sent(), unsent) if batch is not None and not batch.done]

    def _deadline(self, batch: Batch) -> float:
        due = batch.opened_at + self._options.delivery_timeout_s
        return min(due, batch.sent_at + RETRY_S) if batch.unknown else due

    def _give_up(self, batch: Batch) -> None:
        batch.unknown = batch.unknown or batch in self._flying
        error = self._expired(batch, self._deadline(batch) - batch.opened_at)
        if batch.unknown:
            batch.finish(None, error)
            self._given_up = True
            self._drop_given_up()
            self._on_done(self, batch)
            return
        (self._returned if batch in self._returned else self._waiting).remove(batch)
        self._fail(batch, error)

    def _drop_given_up(self) -> None:
        """What was given up keeps its place while something is behind it, and while it may be sent again."""
        if not self._given_up:
            return
        self._given_up = is_needed = False
        for batch in sorted(self._sent(), key=Batch.order, reverse=True):
            if not batch.done:
                is_needed = True
            elif is_needed and self._clock() < batch.sent_at + RETRY_S:
                self._given_up = True
            else:
                self._leave(batch)

    def _leave(self, batch: Batch) -> None:
        """Take a batch that was given up out of its place."""
        if batch in self._flying:
            connection, request_id = self._flying.pop(batch)
            connection.forget(request_id)
        elif batch in self._returned:
            self._returned.remove(batch)
        elif batch in self._waiting:
            self._waiting.remove(batch)
        self._begin_epoch(after=batch.epoch)
        batch.data = b""

    def _fail(self, batch: Batch, error: SandqError) -> None:
        if batch.sequence and not isinstance(error, AlreadyStored):
            # Its number will never arrive: the broker would wait for it.
            self._begin_epoch(after=batch.epoch)
            if not batch.unknown and self._gap is None:
                self._gap = batch.order()
        self._finish(batch, None, error)

    def _finish(self, batch: Batch, offsets: Offsets | None, error: SandqError | None) -> None:
        """A batch has left its place for good."""
        batch.data = b""
        if batch.done:
            self._on_change()
            return
        batch.finish(offsets, error)
        self._drop_given_up()
        self._on_done(self, batch)

    def _fail_all(self, error: SandqError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._fail(batch, again(error))

    def _expired(self, batch: Batch, limit_s: float) -> SandqError:
        last = self._last_error
        if batch.unknown:
            text = f"not confirmed in {limit_s:g} s; the outcome is unknown: it may have been stored"
            if last is None or not isinstance(last, (TimedOut, ConnectionLost)):
                last = TimedOut(last.message if last else "no answer")
        else:
            text = f"not stored in {limit_s:g} s"
            last = last or Unavailable("the partition has no leader that can be reached")
        return again(last, f"{text} ({self._where}; last: {last.message})")

    def _forgotten(self, batch: Batch) -> SandqError:
        said = self._last_error.message if self._last_error else ""
        return TimedOut(
            f"an answer was lost, and the outcome is unknown: it may have been stored ({self._where}; {said})"
        )

    @property
    def _where(self) -> str:
        return f"topic {self._topic!r}, partition {self.partition}"
