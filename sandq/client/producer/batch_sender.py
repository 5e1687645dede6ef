"""Send numbered batches to one partition, in order, and retry each until it is confirmed or its time is over.

    waiting --pump--> in flight --reply--> done
       ^                   |
       +----- returned <---+   a retriable error: once no batch is in flight, returned batches go first, in order

At most `in_flight_batches` batches are in flight. While there are returned batches, no new batch is sent. So the
batches of a partition reach the broker in the order of their numbers. A retry has the epoch and number of the first
attempt, by which the broker recognizes it and stores the batch only once. `NumberedBatch.unknown`: a reply was lost, so
the batch may be stored.

Subclasses number the batches, and handle the remaining batches after one has failed. `PartitionProducer` sends the
remaining batches in a new epoch. The Spark sink stops at the first error; it compares its batches with the batches that
an earlier attempt stored.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Final, Generic, TypeVar

import anyio

from sandq.client.options import Options
from sandq.client.producer.validation import OnConflict
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.client.transport.on_behalf import OURSELVES
from sandq.model.errors import (
    BELONGS_TO,
    ConnectionLost,
    OutOfSequence,
    Overloaded,
    ProtocolError,
    QuotaExceeded,
    SandqError,
    StorageFailed,
    TimedOut,
    Unavailable,
    UnknownPartition,
)
from sandq.model.offsets import unpack
from sandq.model.sequence import RESENT
from sandq.protocol.frames import Frame
from sandq.protocol.replies import Offsets
from sandq.protocol.requests import Produce

log = logging.getLogger("sandq.client")

NEVER: Final = -math.inf
_QUIET: Final = (Overloaded, TimedOut, OutOfSequence)
"""Errors that do not indicate a change of the leader."""


class NumberedBatch(ABC):
    """A batch with its number and its outcome. It is *done* once it has offsets or an error."""

    __slots__ = (
        "asker",
        "data",
        "epoch",
        "error",
        "event",
        "offsets",
        "on_conflict",
        "opened_at",
        "returned_with",
        "sent_at",
        "sequence",
        "unknown",
    )

    def __init__(self, opened_at: float, on_conflict: OnConflict) -> None:
        """`opened_at`: start of the batch's delivery time. `on_conflict`: what to do if a unique key is taken."""
        self.opened_at = opened_at
        self.on_conflict = on_conflict
        self.asker = OURSELVES  # the caller of all its messages
        self.data: bytes | None = None  # set once encoded; empty when done
        self.epoch = self.sequence = 0  # 0 until numbered
        self.sent_at = NEVER  # time of the first attempt with this number
        self.returned_with: SandqError | None = None  # the error that caused the last retry
        self.unknown = False  # true if a reply was lost, so that the batch may be stored
        self.offsets: Offsets | None = None
        self.error: SandqError | None = None
        self.event: anyio.Event | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of messages in the batch."""

    @property
    def done(self) -> bool:
        return self.offsets is not None or self.error is not None

    @property
    def refused(self) -> bool:
        """True if the last reply of the broker says that earlier batches are missing."""
        return isinstance(self.returned_with, OutOfSequence)

    def order(self) -> tuple[int, int]:
        """Return the sort key of sent batches of a partition."""
        return self.epoch, self.sequence

    def wire_sequence(self) -> int:
        """Return the sequence for the next attempt (`model.sequence`)."""
        return self.sequence | RESENT if self.unknown else self.sequence

    def may_retry(self, error: SandqError) -> bool:
        """Return whether to retry the batch after this error. If not, the error is its outcome."""
        return error.retriable or isinstance(error, UnknownPartition)

    def finish(self, offsets: Offsets | None, error: SandqError | None) -> None:
        """Set the batch's offsets or its error, and wake the waiting tasks."""
        self.offsets, self.error = offsets, error
        if self.event is not None:
            self.event.set()

    async def wait(self) -> None:
        """Wait until it is done."""
        if not self.done:
            if self.event is None:
                self.event = anyio.Event()
            await self.event.wait()


B = TypeVar("B", bound=NumberedBatch)


class BatchSender(Generic[B]):
    """Sends the batches of one producer to one partition; see the module's docstring.

    The sender has no task. Its owner adds batches with `add`, and calls `expire` and `pump` after `on_change`, after a
    change of the cluster, and at `next_time`.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: Options,
        topic: str,
        partition: int,
        producer_id: int,
        on_change: Callable[[], None],
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        """`on_change` is called when `next_time` changed or when `pump` has something to do."""
        self.topic = topic
        self.partition = partition
        self.producer_id = producer_id
        self.options = options
        self.on_change = on_change
        self.clock = clock
        self.last_error: SandqError | None = None
        self.waiting: deque[B] = deque()  # numbered batches, which were sent before, come first
        self.returned: list[B] = []
        self.in_flight: dict[B, tuple[Connection, int]] = {}
        """Batches in flight, in the order of their numbers: the connection and the request id."""
        self._leader_check_at = math.inf  # if no reply comes before this time, check for a new leader
        self._has_reply = False  # whether a reply came since the last check
        self.cluster = cluster
        self._failures = 0  # consecutive failures
        self._topic_number = 0  # number of the topic that last had this partition
        self._resume_at = NEVER

    def add(self, batch: B) -> None:
        """Queue the next batch."""
        self.waiting.append(batch)

    def pump(self, now: float) -> None:
        """Send the batches that may be sent now."""
        self._follow(now)
        if self.is_interrupted:
            if self.in_flight:
                return
            self.expire(now)
            self.requeue()
        if not self.waiting or now < self._resume_at:
            return
        missing = self.cluster.missing(self.topic) or self._gone()
        if missing is not None:
            self.cluster.refresh(self.topic)  # the topic may have been created since
            waiting, self.waiting = self.waiting, deque()
            for batch in waiting:
                self.fail(batch, missing.again())
            return
        connection = self.cluster.leader(self.topic, self.partition)
        while connection is not None and self.waiting and self.may_send(self.waiting[0]):
            self.send(connection, self.waiting.popleft(), now)

    def _gone(self) -> UnknownPartition | None:
        """Return an error if the topic was recreated with fewer partitions, so that this partition no longer exists."""
        record = self.cluster.record(self.topic)
        if record is None:
            return None
        if self.partition < len(record.partitions):
            self._topic_number = record.number
            return None
        if not self._topic_number or record.number <= self._topic_number:  # sent by a node that lags behind
            return None
        return UnknownPartition(f"{self.where}: the topic was recreated with {len(record.partitions)} partitions")

    def next_time(self, now: float) -> float:
        """Return the next time at which work is due without an event: the end of a pause, a deadline, a leader
        check."""
        times = [self.deadline(batch) for batch in self._heads()]
        if self.in_flight:
            times.append(self._leader_check_at)
        if self.waiting and self._resume_at > now:
            times.append(self._resume_at)
        return min(times, default=math.inf)

    def expire(self, now: float) -> None:
        """Fail the batches whose delivery time is over."""
        while late := [batch for batch in self._heads() if self.deadline(batch) <= now]:
            for batch in late:
                if not batch.done:
                    self.give_up(batch)

    def abandon(self, error: Callable[[B], SandqError]) -> None:
        """Fail all unfinished batches."""
        for connection, request_id in self.in_flight.values():
            connection.forget(request_id)
        for batch in self.in_flight:
            batch.unknown = True
        left = [*self.in_flight, *self.returned, *self.waiting]
        self.in_flight.clear()
        self.returned.clear()
        self.waiting.clear()
        for batch in left:
            if not batch.done:
                self.fail(batch, error(batch))

    # Subclasses may override these.

    @property
    def is_interrupted(self) -> bool:
        """True if nothing is sent until all batches in flight are answered and `requeue` was called."""
        return bool(self.returned)

    def requeue(self) -> None:
        """Put the returned batches back at the front of the queue, in order. No batch may be in flight."""
        self.waiting.extendleft(reversed(self.take_numbered()))

    def may_send(self, batch: B) -> bool:
        """Return whether a batch may be sent in addition to the batches in flight.

        All batches in flight must have the same epoch, and their numbers must span at most `in_flight_batches`: the
        broker remembers only that many replies per producer and partition.
        """
        oldest = next(iter(self.in_flight), None)
        if oldest is None:
            return True
        epoch, number = self.number_of(batch)
        return epoch == oldest.epoch and number - oldest.sequence < self.options.in_flight_batches

    def number_of(self, batch: B) -> tuple[int, int]:
        """Return the epoch and the number with which a batch is sent now."""
        return batch.order()

    def deadline(self, batch: B) -> float:
        """Return the time at which a batch's delivery time is over."""
        return batch.opened_at + self.options.delivery_timeout_s

    def give_up(self, batch: B) -> None:
        """Fail a batch whose delivery time is over."""
        batch.unknown = batch.unknown or batch in self.in_flight
        self.remove(batch)
        self.fail(batch, self.expired(batch, self.options.delivery_timeout_s))

    def expired(self, batch: B, limit_s: float) -> SandqError:
        """Return the error of a batch that was not confirmed in time."""
        last = self.last_error
        if batch.unknown:
            text = f"not confirmed in {limit_s:g} s; the outcome is unknown: it may have been stored"
            if last is None or not isinstance(last, (TimedOut, ConnectionLost)):
                last = TimedOut(last.message if last else "no answer")
        else:
            text = f"not stored in {limit_s:g} s"
            last = last or Unavailable("the partition has no leader that can be reached")
        return last.again(f"{text} ({self.where}; last: {last.message})")

    def fail(self, batch: B, error: SandqError) -> None:
        """Finish a batch with an error. The batch must be removed from all queues."""
        self.settle(batch, None, error)

    def settle(self, batch: B, offsets: Offsets | None, error: SandqError | None) -> None:
        """Finish a batch. It must be removed from all queues."""
        batch.data = b""
        batch.finish(offsets, error)
        self.on_change()

    # Subclasses call these.

    @property
    def where(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}"

    def send(self, connection: Connection, batch: B, now: float) -> None:
        """Send a batch that was taken out of `waiting`."""
        assert batch.data is not None
        request = Produce(
            self.topic,
            self.partition,
            self.producer_id,
            batch.epoch,
            batch.wire_sequence(),
            batch.on_conflict,
            batch.data,
        )
        if batch.sent_at == NEVER:
            batch.sent_at = now
        request_id = connection.request(request.frame, lambda reply: self._answered(batch, reply), batch.asker)
        if not self.in_flight:
            self._leader_check_at, self._has_reply = now + self.options.standstill_s, False
        self.in_flight[batch] = (connection, request_id)

    def take_numbered(self) -> list[B]:
        """Remove and return the returned batches and the numbered batches in `waiting`, in order. No batch may be in
        flight."""
        batches, self.returned = self.returned, []
        while self.waiting and self.waiting[0].sequence:
            batches.append(self.waiting.popleft())
        return sorted(batches, key=lambda batch: batch.order())

    def numbered(self) -> list[B]:
        """Return all unfinished batches with a number. There are only a few."""
        return [*self.in_flight, *self.returned, *takewhile(lambda batch: batch.sequence, self.waiting)]

    def remove(self, batch: B) -> None:
        """Remove a batch from its queue; drop the callback of its request if it is in flight."""
        if batch in self.in_flight:
            connection, request_id = self.in_flight.pop(batch)
            connection.forget(request_id)
        elif batch in self.returned:
            self.returned.remove(batch)
        elif batch in self.waiting:
            self.waiting.remove(batch)

    # Private methods.

    def _heads(self) -> list[B]:
        """Return the batches whose deadline may come next: all numbered batches, and the oldest batch without a
        number."""
        unsent = next((batch for batch in self.waiting if not batch.sequence), None)
        return [batch for batch in (*self.numbered(), unsent) if batch is not None and not batch.done]

    def _follow(self, now: float) -> None:
        """If a node has been silent for too long, take back its batches, and send them to a new leader."""
        if not self.in_flight or now < self._leader_check_at:
            return
        if self._has_reply:
            self._leader_check_at, self._has_reply = now + self.options.standstill_s, False
            return
        self._leader_check_at = now + self.options.leader_check_s
        connection, _ = next(iter(self.in_flight.values()))
        if self.cluster.successor(self.topic, self.partition, connection.hello.node_id) is None:
            return
        error = TimedOut(f"{connection.address} does not respond, and another node leads now")
        for batch in [batch for batch, (where, _) in self.in_flight.items() if where is connection]:
            self.remove(batch)
            self._return_for_retry(batch, error)

    def _answered(self, batch: B, reply: Frame | SandqError) -> None:
        connection, request_id = self.in_flight.pop(batch)
        self._has_reply = True
        if not isinstance(reply, SandqError):
            try:
                offsets = Offsets.parse(reply)
                if offsets.messages != len(batch):
                    raise ProtocolError(f"{offsets.messages} offsets for a batch of {len(batch)} messages")
            except ProtocolError as error:
                batch.unknown = True
                self.fail(batch, error)
                raise
            self._failures = 0
            if log.isEnabledFor(logging.DEBUG):
                where = f"request {request_id} of {len(batch)} messages to {connection.hello.node_id}"
                log.debug("%s: %s is stored by entry %d", self.where, where, unpack(offsets.base).index)
            self.settle(batch, offsets, None)
        elif batch.may_retry(reply) and not self._is_final(batch, reply):
            self._return_for_retry(batch, reply)
        else:
            # If a node's log failed during the write, the log may nevertheless contain the batch.
            batch.unknown = batch.unknown or isinstance(reply, StorageFailed)
            self.cluster.forget_if_unknown(self.topic, reply)
            if BELONGS_TO in reply.details:
                self.cluster.refresh(self.topic)  # the topic was recreated: later messages go to the right partition
            self.fail(batch, reply.again())

    def _is_final(self, batch: B, error: SandqError) -> bool:
        """Return whether a quota error is final because this client does not wait for quotas.

        A batch that may be stored already is retried nevertheless, until its outcome is known.
        """
        return isinstance(error, QuotaExceeded) and not self.options.waits_for_quota and not batch.unknown

    def _return_for_retry(self, batch: B, error: SandqError) -> None:
        log.debug("topic %s partition %d: %s; retrying", self.topic, self.partition, error)
        self.last_error = batch.returned_with = error
        batch.unknown = batch.unknown or isinstance(error, (TimedOut, ConnectionLost))
        if not self.returned:
            self._resume_at = self.clock() + self.options.pause_s(self._failures, error)
            self._failures += 1
        self.returned.append(batch)
        if not isinstance(error, _QUIET):
            self.cluster.refresh(self.topic)
        self.on_change()
