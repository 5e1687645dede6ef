"""One partition's way from a producer to its leader: order, retries, deadlines.

    waiting --pump--> flying --answer--> done
       ^                 |
       +---- returned <--+   a retriable error: once nothing flies, what came back goes first, in order

At most `in_flight_batches` fly. While something has come back nothing new is sent, so batches of a
partition reach the broker in the order of their sequence numbers, each with the id, epoch and sequence it
had the first time.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable

import anyio

from sandq.client.batching import Batch
from sandq.client.checks import Lot, on_conflict_of
from sandq.client.cluster import Cluster
from sandq.client.connection import Connection
from sandq.client.options import Options, again
from sandq.model.errors import (
    ConnectionLost,
    ProtocolError,
    SandqError,
    StorageFailed,
    TimedOut,
    Unavailable,
    UnknownPartition,
)
from sandq.protocol.frames import Frame
from sandq.protocol.replies import Offsets
from sandq.protocol.requests import Produce

log = logging.getLogger("sandq.client")


class Lane:
    """The batches of one producer for one partition."""

    def __init__(
        self,
        cluster: Cluster,
        options: Options,
        topic: str,
        partition: int,
        producer_id: int,
        on_answer: Callable[[Lane, Batch], None],
    ) -> None:
        self.partition = partition
        self.open: dict[Lot, Batch] = {}
        self._cluster = cluster
        self._topic = topic
        self._producer_id = producer_id
        self._epoch = 1
        self._sequence = 0
        self._options = options
        self._on_answer = on_answer  # also when the batch comes back, and is not done
        self._waiting: deque[Batch] = deque()
        self._returned: list[Batch] = []
        self._flying: dict[Batch, tuple[Connection, int]] = {}  # in the order of their sequence; where and request id
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
        return sum(len(batch) for place in places for batch in place)

    def seal(self, lot: Lot) -> None:
        """Close the open batch of a lot: it is next to be sent."""
        batch = self.open.pop(lot)
        batch.seal()
        self._waiting.append(batch)

    def pump(self, now: float) -> None:
        """Send what may be sent now."""
        if self._returned:
            if self._flying:
                return
            self._waiting.extendleft(sorted(self._returned, key=Batch.order, reverse=True))
            self._returned.clear()
        if not self._waiting or now < self._resume_at:
            return
        missing = self._cluster.missing(self._topic)
        if missing is not None:
            self._cluster.refresh(self._topic)  # somebody may have made it since
            self._fail_all(missing)
            return
        connection = self._cluster.leader(self._topic, self.partition)
        while connection is not None and self._waiting and len(self._flying) < self._options.in_flight_batches:
            self._send(connection, self._waiting.popleft())

    def next_time(self, now: float) -> float:
        """When something is due without any event: a linger, a pause, a deadline."""
        options = self._options
        times = [batch.opened_at + options.linger_s for batch in self.open.values()]
        times += [batch.opened_at + options.delivery_timeout_s for batch in self._heads()]
        if self._waiting and self._resume_at > now:
            times.append(self._resume_at)
        return min(times, default=math.inf)

    def expire(self, now: float) -> None:
        """Fail what has been tried for too long."""
        limit_s = self._options.delivery_timeout_s
        while late := [batch for batch in self._heads() if batch.opened_at + limit_s <= now]:
            for batch in late:
                if batch in self._flying:
                    connection, request_id = self._flying.pop(batch)
                    connection.forget(request_id)
                    batch.unknown = True
                elif batch in self._returned:
                    self._returned.remove(batch)
                else:
                    self._waiting.remove(batch)
                self._fail(batch, self._expired(batch, limit_s))

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
            self._fail(batch, error(batch))

    def _heads(self) -> list[Batch]:
        """The oldest of each place where a batch can be."""
        heads = [next(iter(self._flying), None), self._returned[0] if self._returned else None]
        heads.append(self._waiting[0] if self._waiting else None)
        return [batch for batch in heads if batch is not None]

    def _send(self, connection: Connection, batch: Batch) -> None:
        if not batch.sequence:
            self._sequence += 1
            batch.epoch, batch.sequence = self._epoch, self._sequence
        assert batch.data is not None
        request = Produce(
            self._topic,
            self.partition,
            self._producer_id,
            batch.epoch,
            batch.sequence,
            on_conflict_of(batch.lot),
            batch.data,
        )
        request_id = connection.request(request.frame, lambda reply: self._answered(batch, reply))
        self._flying[batch] = (connection, request_id)

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
            batch.finish(offsets, None)
            self._on_answer(self, batch)
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
        if not self._returned:
            self._resume_at = anyio.current_time() + self._options.back_off_s(self._failures)
            self._failures += 1
        self._returned.append(batch)
        if error.code not in ("OVERLOADED", "TIMED_OUT"):
            self._cluster.refresh(self._topic)
        self._on_answer(self, batch)

    def _fail(self, batch: Batch, error: SandqError) -> None:
        if batch.sequence:
            # Its number will never arrive: what was not sent yet counts anew, or the broker would wait for
            # it.
            self._epoch += 1
            self._sequence = 0
        batch.finish(None, error)
        self._on_answer(self, batch)

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
        return again(last, f"{text} (topic {self._topic!r}, partition {self.partition}; last: {last.message})")
