"""Send numbered batches to one partition: in order, and again until each is confirmed or its time is over.

    waiting --pump--> flying --answer--> done
       ^                 |
       +---- returned <--+   an error that may pass: once nothing flies, what came back goes first, in order

At most `in_flight_batches` fly. While something has come back nothing new is sent, so batches of a partition reach the
broker in the order of their numbers. A batch that is sent again has the epoch and number that it had the first time, by
which the broker knows it: it is stored once. `NumberedBatch.unknown` says that an answer was lost, so that it may be
stored.

Each user decides how batches are numbered, and what becomes of the others once one has failed: `PartitionProducer`
goes on with them in a new epoch; the sink of Spark compares what an earlier attempt stored, and ends with the first
error.
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

from sandq.client.options import Options, again
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
"""Errors that tell nothing about who leads."""


class NumberedBatch(ABC):
    """A batch under its number, and what became of it: it is *done* once it has offsets or an error."""

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

    def __init__(self, opened_at: float, on_conflict: int) -> None:
        """`opened_at`: when its time begins. `on_conflict`: what is done about unique keys that are taken."""
        self.opened_at = opened_at
        self.on_conflict = on_conflict
        self.asker = OURSELVES  # on whose behalf all of it is
        self.data: bytes | None = None  # once encoded, until it is done
        self.epoch = self.sequence = 0  # once numbered
        self.sent_at = NEVER  # with these, for the first time
        self.returned_with: SandqError | None = None  # the last error that it is sent again after
        self.unknown = False  # whether it may have been stored although no answer came
        self.offsets: Offsets | None = None
        self.error: SandqError | None = None
        self.event: anyio.Event | None = None

    @abstractmethod
    def __len__(self) -> int:
        """The messages in it."""

    @property
    def done(self) -> bool:
        return self.offsets is not None or self.error is not None

    @property
    def refused(self) -> bool:
        """Whether its last answer was that others before it are missing."""
        return isinstance(self.returned_with, OutOfSequence)

    def order(self) -> tuple[int, int]:
        """Its place among the sent ones of its partition."""
        return self.epoch, self.sequence

    def wire_sequence(self) -> int:
        """The sequence that it is sent with now (`model.sequence`)."""
        return self.sequence | RESENT if self.unknown else self.sequence

    def may_pass(self, error: SandqError) -> bool:
        """Whether it is sent again after this error; otherwise the error is its outcome."""
        return error.retriable or isinstance(error, UnknownPartition)

    def finish(self, offsets: Offsets | None, error: SandqError | None) -> None:
        """Set its offsets or its error, and wake whoever waits for it."""
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

    It has no task: somebody calls `expire` and `pump` after `on_change`, after a change of the cluster, and at
    `next_time`. Numbered batches come in by `add`.
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
        """`on_change` is called when `next_time` says something else, or there is something to pump."""
        self.topic = topic
        self.partition = partition
        self.producer_id = producer_id
        self.options = options
        self.on_change = on_change
        self.clock = clock
        self.last_error: SandqError | None = None
        self.waiting: deque[B] = deque()  # those with a number first: they were sent before
        self.returned: list[B] = []
        self.flying: dict[B, tuple[Connection, int]] = {}  # in the order of their numbers; where, and request id
        self._look_at = math.inf  # without an answer until then: whether somebody else leads by now
        self._heard = False  # since it was looked last
        self.cluster = cluster
        self._failures = 0  # in a row
        self._topic_number = 0  # of the topic that had this partition
        self._resume_at = NEVER

    def add(self, batch: B) -> None:
        """Queue the next batch."""
        self.waiting.append(batch)

    def pump(self, now: float) -> None:
        """Send what may be sent now."""
        self._follow(now)
        if self.is_interrupted:
            if self.flying:
                return
            self.expire(now)
            self.line_up()
        if not self.waiting or now < self._resume_at:
            return
        missing = self.cluster.missing(self.topic) or self._gone()
        if missing is not None:
            self.cluster.refresh(self.topic)  # somebody may have made it since
            waiting, self.waiting = self.waiting, deque()
            for batch in waiting:
                self.fail(batch, again(missing))
            return
        connection = self.cluster.leader(self.topic, self.partition)
        while connection is not None and self.waiting and self.may_send(self.waiting[0]):
            self.send(connection, self.waiting.popleft(), now)

    def _gone(self) -> UnknownPartition | None:
        """The topic was made anew, with fewer partitions, and has not this one."""
        record = self.cluster.record(self.topic)
        if record is None:
            return None
        if self.partition < len(record.partitions):
            self._topic_number = record.number
            return None
        if not self._topic_number or record.number <= self._topic_number:  # who told of it may be behind
            return None
        return UnknownPartition(f"{self.where}: the topic was made anew, with {len(record.partitions)} partitions")

    def next_time(self, now: float) -> float:
        """When something is due without any event: the end of a pause, a deadline."""
        times = [self.deadline(batch) for batch in self._heads()]
        if self.flying:
            times.append(self._look_at)
        if self.waiting and self._resume_at > now:
            times.append(self._resume_at)
        return min(times, default=math.inf)

    def expire(self, now: float) -> None:
        """Fail what has been tried for too long."""
        while late := [batch for batch in self._heads() if self.deadline(batch) <= now]:
            for batch in late:
                if not batch.done:
                    self.give_up(batch)

    def abandon(self, error: Callable[[B], SandqError]) -> None:
        """Fail everything that is not done."""
        for connection, request_id in self.flying.values():
            connection.forget(request_id)
        for batch in self.flying:
            batch.unknown = True
        left = [*self.flying, *self.returned, *self.waiting]
        self.flying.clear()
        self.returned.clear()
        self.waiting.clear()
        for batch in left:
            if not batch.done:
                self.fail(batch, error(batch))

    # What a user may decide otherwise.

    @property
    def is_interrupted(self) -> bool:
        """Whether nothing is sent before all that flies is answered and `line_up` was called."""
        return bool(self.returned)

    def line_up(self) -> None:
        """Put what came back first, in its order. Nothing flies."""
        self.waiting.extendleft(reversed(self.take_numbered()))

    def may_send(self, batch: B) -> bool:
        """Whether what flies is of the same epoch, and of the last few numbers: so many answers the broker keeps."""
        oldest = next(iter(self.flying), None)
        if oldest is None:
            return True
        epoch, number = self.place_of(batch)
        return epoch == oldest.epoch and number - oldest.sequence < self.options.in_flight_batches

    def place_of(self, batch: B) -> tuple[int, int]:
        """The epoch and the number under which a batch is sent now."""
        return batch.order()

    def deadline(self, batch: B) -> float:
        """When a batch's time is over."""
        return batch.opened_at + self.options.delivery_timeout_s

    def give_up(self, batch: B) -> None:
        """Fail a batch whose time is over."""
        batch.unknown = batch.unknown or batch in self.flying
        self.remove(batch)
        self.fail(batch, self.expired(batch, self.options.delivery_timeout_s))

    def expired(self, batch: B, limit_s: float) -> SandqError:
        """The error of a batch that was not confirmed in time."""
        last = self.last_error
        if batch.unknown:
            text = f"not confirmed in {limit_s:g} s; the outcome is unknown: it may have been stored"
            if last is None or not isinstance(last, (TimedOut, ConnectionLost)):
                last = TimedOut(last.message if last else "no answer")
        else:
            text = f"not stored in {limit_s:g} s"
            last = last or Unavailable("the partition has no leader that can be reached")
        return again(last, f"{text} ({self.where}; last: {last.message})")

    def fail(self, batch: B, error: SandqError) -> None:
        """End a batch that is in no place any more with an error."""
        self.settle(batch, None, error)

    def settle(self, batch: B, offsets: Offsets | None, error: SandqError | None) -> None:
        """End a batch that is in no place any more."""
        batch.data = b""
        batch.finish(offsets, error)
        self.on_change()

    # What a user builds on.

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
        if not self.flying:
            self._look_at, self._heard = now + self.options.standstill_s, False
        self.flying[batch] = (connection, request_id)

    def take_numbered(self) -> list[B]:
        """Take out what came back and what waits with a number, in order. Nothing flies."""
        line, self.returned = self.returned, []
        while self.waiting and self.waiting[0].sequence:
            line.append(self.waiting.popleft())
        return sorted(line, key=lambda batch: batch.order())

    def numbered(self) -> list[B]:
        """Those with a number: a few."""
        return [*self.flying, *self.returned, *takewhile(lambda batch: batch.sequence, self.waiting)]

    def remove(self, batch: B) -> None:
        """Take a batch out of its place."""
        if batch in self.flying:
            connection, request_id = self.flying.pop(batch)
            connection.forget(request_id)
        elif batch in self.returned:
            self.returned.remove(batch)
        elif batch in self.waiting:
            self.waiting.remove(batch)

    # How.

    def _heads(self) -> list[B]:
        """Those whose time may be over next: what has a number, and the oldest that has none."""
        unsent = next((batch for batch in self.waiting if not batch.sequence), None)
        return [batch for batch in (*self.numbered(), unsent) if batch is not None and not batch.done]

    def _follow(self, now: float) -> None:
        """Send what a node says nothing about to who leads by now, under the same numbers."""
        if not self.flying or now < self._look_at:
            return
        if self._heard:
            self._look_at, self._heard = now + self.options.standstill_s, False
            return
        self._look_at = now + self.options.look_again_s
        connection, _ = next(iter(self.flying.values()))
        if self.cluster.successor(self.topic, self.partition, connection.hello.node_id) is None:
            return
        error = TimedOut(f"{connection.address} says nothing, and another node leads by now")
        for batch in [batch for batch, (where, _) in self.flying.items() if where is connection]:
            self.remove(batch)
            self._come_back(batch, error)

    def _answered(self, batch: B, reply: Frame | SandqError) -> None:
        connection, request_id = self.flying.pop(batch)
        self._heard = True
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
        elif batch.may_pass(reply) and not self._is_final(batch, reply):
            self._come_back(batch, reply)
        else:
            # A log that failed in mid-write may hold the batch all the same.
            batch.unknown = batch.unknown or isinstance(reply, StorageFailed)
            self.cluster.gone(self.topic, reply)
            if BELONGS_TO in reply.details:
                self.cluster.refresh(self.topic)  # it was made anew: what comes next goes where it belongs
            self.fail(batch, again(reply))

    def _is_final(self, batch: B, error: SandqError) -> bool:
        """Whether nobody waits for a quota; what may be stored already is asked for until that is known."""
        return isinstance(error, QuotaExceeded) and not self.options.waits_for_quota and not batch.unknown

    def _come_back(self, batch: B, error: SandqError) -> None:
        log.debug("topic %s partition %d: %s; trying again", self.topic, self.partition, error)
        self.last_error = batch.returned_with = error
        batch.unknown = batch.unknown or isinstance(error, (TimedOut, ConnectionLost))
        if not self.returned:
            self._resume_at = self.clock() + self.options.pause_s(self._failures, error)
            self._failures += 1
        self.returned.append(batch)
        if not isinstance(error, _QUIET):
            self.cluster.refresh(self.topic)
        self.on_change()
