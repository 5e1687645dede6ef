"""Keep what a subscription holds of one partition: leases, and the state of each message delivered under them.

`PartitionConsumer` knows the state of each message and who awaits it. What is to be sent to the partition's leader goes
through its `AckQueue` (acks and nacks) and its `LeaseExtensions`, with the next send.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio

from sandq.client.consumer.ack_queue import AckQueue
from sandq.client.consumer.lease import (
    ACKED,
    ACKING,
    HELD,
    LAPSED,
    LOST,
    NACKED,
    NACKING,
    OF_HELD,
    OF_OPEN,
    OF_SETTLING,
    REJECTED,
    REJECTING,
    SETTLED,
    SETTLED_BY,
    SETTLING,
    Chunk,
    Extension,
    Lease,
)
from sandq.client.consumer.lease_extension import LeaseExtensions
from sandq.client.consumer.nack_change import NOT_BEGUN, NackChange, NackTerms
from sandq.client.consumer.outgoing import Outgoing, rows_of
from sandq.client.messages.log_page import Span, positions_of
from sandq.client.options import again
from sandq.client.producer.validation import Headers
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.model.errors import InvalidRequest, LeaseLost, SandqError
from sandq.model.nack_ends import DEAD

log = logging.getLogger("sandq.client")


class PartitionConsumer:
    """One partition of one group, as one subscription sees it."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        group_number: int,
        on_quiet: Signal,
        wake: Callable[[], None],
        lease_ms: Callable[[], int],
    ) -> None:
        """`lease_ms()`: for how long messages are held."""
        self.topic = topic
        self.partition = partition
        self.group_number = group_number
        self.options = cluster.options
        self.leases: dict[int, Lease] = {}
        self._finished: OrderedDict[int, Lease] = OrderedDict()
        self._cluster = cluster
        self._quiet = on_quiet
        self.wake = wake
        self._lease_ms = lease_ms
        self._ack_queue = AckQueue(self)
        self._extensions = LeaseExtensions(self)
        self._failures = 0
        self._resume_at = -math.inf
        self._closed: SandqError | None = None

    # Leases.

    def lease(self, token: int, attempt: int, expires_at: float) -> Lease:
        """The lease of a token that was just pushed; one that had ended comes back."""
        lease = self.leases.get(token) or self._finished.pop(token, None)
        if lease is None:
            lease = Lease(self, token, attempt, expires_at)
        lease.expires_at = max(lease.expires_at, expires_at)
        self.leases[token] = lease
        return lease

    def deliver(self, chunk: Chunk) -> int:
        """Take a chunk in; how many messages are new, which are held from now on."""
        lease = chunk.lease
        lease.filter_seen(chunk)
        count = chunk.state.count(HELD)
        chunk.held = chunk.unsettled = count
        lease.held += count
        lease.unsettled += count
        if count:
            lease.chunks[chunk] = None
        else:
            self._finish(lease)
        return count

    def _finish(self, lease: Lease) -> None:
        """Nothing of the lease is left here; remember it for a while, for it may be pushed again."""
        if lease.unsettled == 0 and self.leases.pop(lease.token, None) is not None:
            self._finished[lease.token] = lease
            while len(self._finished) > self.options.finished_leases:
                self._finished.popitem(last=False)

    def cut(self) -> None:
        """The connection is gone: from now on look at what is pushed for what was pushed before."""
        for lease in (*self.leases.values(), *self._finished.values()):
            lease.recheck = True

    def lapse(self, lease: Lease) -> None:
        """Its deadline has passed: what is held of it is anybody's now."""
        lease.lapsed, lease.blocked = True, not lease.extending
        self._drop_held(lease, LAPSED)

    def lose(self, lease: Lease) -> None:
        """The broker said that the lease is over."""
        lease.lost = True
        self._drop_held(lease, LOST)

    def _drop_held(self, lease: Lease, state: int) -> None:
        for chunk in list(lease.chunks):
            count = chunk.held
            chunk.fill(chunk.spans(OF_HELD), state)
            self._leave_held(chunk, count)
            self.settled(chunk, count)

    def _leave_held(self, chunk: Chunk, count: int) -> None:
        if count:
            chunk.held -= count
            chunk.lease.held -= count
            chunk.on_free(count)

    def settled(self, chunk: Chunk, count: int) -> None:
        """So many messages of a chunk need nothing more."""
        chunk.unsettled -= count
        lease = chunk.lease
        lease.unsettled -= count
        if not chunk.unsettled:
            lease.chunks.pop(chunk, None)
            self._finish(lease)

    # What the methods of a message and of a batch do.

    def ack(self, chunk: Chunk, position: int) -> None:
        if self._begin(chunk, position, ACKING):
            self._ack_queue.ack_one(chunk, position)

    def then_rows(self, then: Sequence[Outgoing]) -> list[list[Any]]:
        """Messages that an ack is to send, checked. Of any thread: it only looks."""
        return rows_of(self._cluster, then)

    def ack_then(self, chunk: Chunk, position: int, then: list[list[Any]]) -> None:
        """Ack a message and send others."""
        if self._begin(chunk, position, ACKING):
            self._ack_queue.ack_then(chunk, [(position, position + 1)], then)
        elif chunk.state[position] != LOST:
            raise acked_before()

    def ack_then_from(self, chunk: Chunk, start: int, then: list[list[Any]]) -> None:
        """Ack all messages from position `start` on that are not settled yet, and send others; nothing of it when one
        of them is known to be lost."""
        self.check_open()
        if chunk.state.find(LOST, start) >= 0:
            return
        spans = self._begin_from(chunk, start, ACKING)
        if not spans:
            raise acked_before()
        self._ack_queue.ack_then(chunk, spans, then)

    def hold_again(self, chunk: Chunk, spans: list[Span]) -> None:
        """The broker refused to settle these: they are held as before. What nobody awaits may be settled still, but is
        not kept for who does not look: its lease runs out."""
        lease = chunk.lease
        for first, stop in spans:
            for position in range(first, stop):
                is_kept = chunk.is_awaited(position) and not (lease.lapsed or lease.lost)
                chunk.state[position] = HELD if is_kept else LOST if lease.lost else LAPSED
                if is_kept:
                    chunk.held += 1
                    lease.held += 1
                    chunk.on_free(-1)
                else:
                    lease.abandoned = True
                    self.settled(chunk, 1)
        self.wake()  # it is to be extended from now on

    def nack(self, chunk: Chunk, position: int, terms: NackTerms) -> None:
        if self._begin(chunk, position, _settling(terms)):
            self._ack_queue.nack(chunk, [(position, position + 1)], terms)

    def ack_from(self, chunk: Chunk, start: int) -> None:
        """Ack all messages from position `start` on that are not settled yet."""
        spans = self._begin_from(chunk, start, ACKING)
        if spans:
            self._ack_queue.ack(chunk, spans)

    def nack_from(self, chunk: Chunk, start: int, terms: NackTerms) -> None:
        """Nack all messages from position `start` on that are not settled yet."""
        spans = self._begin_from(chunk, start, _settling(terms))
        if spans:
            self._ack_queue.nack(chunk, spans, terms)

    def nack_change(self, priority: int | None, headers: Headers | None) -> NackChange | None:
        """What a nack changes of its messages, checked. Of any thread: it only looks."""
        return NackChange.of(self._cluster, self.topic, priority, headers)

    def give_back_from(self, chunk: Chunk, start: int) -> None:
        """From position `start` on nothing was begun: ready for others at once, the attempt not counted."""
        self.nack_from(chunk, start, NOT_BEGUN)

    def _begin(self, chunk: Chunk, position: int, settling: int) -> bool:
        """Whether a message is to be settled now: not when it was before, nor when its lease is known to be lost."""
        self.check_open()
        state = chunk.state[position]
        if chunk.errors and state in (HELD, LAPSED):
            chunk.errors.pop(position, None)  # of an ack that was refused
        if state == HELD:
            self._leave_held(chunk, 1)
        elif state == LAPSED:
            self._unlapse(chunk, 1)
        elif state == LOST:
            chunk.errors.setdefault(position, self.lost_error(chunk.lease))
            return False
        elif state in (settling, SETTLED_BY[settling]):
            return False
        else:
            raise settled_otherwise(state, settling)
        chunk.state[position] = settling
        return True

    def check(self, chunk: Chunk, position: int, settling: int) -> None:
        """Raise what settling a message so would raise. Of any thread: it only looks."""
        self.check_open()
        state = chunk.state[position]
        if state in SETTLED and state not in (settling, SETTLED_BY[settling]):
            raise settled_otherwise(state, settling)

    def _begin_from(self, chunk: Chunk, start: int, settling: int) -> list[tuple[int, int]]:
        self.check_open()
        spans = chunk.spans(OF_OPEN, start)
        if chunk.errors:
            for position in positions_of(spans):
                chunk.errors.pop(position, None)
        held, lapsed = chunk.state.count(HELD, start), chunk.state.count(LAPSED, start)
        chunk.fill(spans, settling)
        self._leave_held(chunk, held)
        if lapsed:
            self._unlapse(chunk, lapsed)
        return spans

    def check_open(self) -> None:
        """ClosedError once the subscription was left. Of any thread."""
        if self._closed is not None:
            raise again(self._closed)

    def _unlapse(self, chunk: Chunk, count: int) -> None:
        chunk.unsettled += count
        chunk.lease.unsettled += count
        chunk.lease.chunks[chunk] = None
        self.leases[chunk.lease.token] = chunk.lease

    def extend(self, lease: Lease, lease_ms: int) -> Extension:
        self.check_open()
        extension = self._extensions.add(lease, lease_ms)
        lease.asked_until = anyio.current_time() + lease_ms / 1000
        self.poke()
        return extension

    def report_begun(self, lease: Lease) -> Extension:
        """Extend a lease, so that the broker learns which of its messages were begun. The lease never ends earlier for
        that: other messages of it may be held for longer."""
        left_s = max(lease.expires_at, lease.asked_until) - anyio.current_time()
        return self.extend(lease, max(self._lease_ms(), int(left_s * 1000)))

    async def confirmed(self, chunk: Chunk, position: int) -> None:
        """Until the ack or nack of a message was answered; raises what the answer was, if not yes."""
        while chunk.state[position] in SETTLING:
            event = chunk.events.get(position)
            if event is None:
                event = chunk.events[position] = anyio.Event()
            await event.wait()
        self._raise_failed(chunk, position)

    async def confirmed_from(self, chunk: Chunk, start: int) -> None:
        """Until all messages from position `start` on are settled; LeaseLost when one was not held any more."""
        while OF_SETTLING.search(chunk.state, start):
            if chunk.answered is None:
                chunk.answered = anyio.Event()
            await chunk.answered.wait()
        self._raise_failed(chunk, chunk.state.find(LOST, start))
        for position in chunk.errors:
            if position >= start:
                self._raise_failed(chunk, position)

    def _raise_failed(self, chunk: Chunk, position: int) -> None:
        if position >= 0 and chunk.state[position] == LOST:
            raise again(chunk.errors.get(position) or self.lost_error(chunk.lease))
        if chunk.was_refused(position):
            raise again(chunk.errors[position])

    def lost_error(self, lease: Lease) -> LeaseLost:
        return LeaseLost(
            f"topic {self.topic!r} partition {self.partition}: the lease is not held any more",
            lease=lease.text,
        )

    # Sending.

    @property
    def is_closed(self) -> bool:
        """Whether the subscription was left."""
        return self._closed is not None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is queued or unanswered."""
        return not (self._queued or self._ack_queue.in_flight or self._extensions.in_flight)

    @property
    def _queued(self) -> bool:
        return self._ack_queue.queued or self._extensions.queued

    def tell_quiet(self) -> None:
        """Something was answered: whoever waits for the last answer may go on."""
        if self.is_quiet:
            self._quiet.set()

    def poke(self) -> None:
        """Something is queued, or the leader may be there again: have it sent."""
        if anyio.current_time() < self._resume_at:
            self.wake()
            return
        connection = self._cluster.leader(self.topic, self.partition)
        if connection is not None and self._queued:
            connection.flush_soon(self._flush)

    def next_time(self, now: float) -> float:
        """When `poke` is due without any event."""
        return self._resume_at if self._queued and self._resume_at > now else math.inf

    def _flush(self) -> None:
        connection = self._cluster.leader(self.topic, self.partition)
        if connection is not None:
            self._ack_queue.flush(connection)
            self._extensions.flush(connection)

    def pause(self, error: SandqError) -> None:
        """Nothing is sent for a while after a failure that may pass."""
        log.debug("topic %s partition %d: %s; trying again", self.topic, self.partition, error)
        self._resume_at = anyio.current_time() + self.options.back_off_s(self._failures)
        self._failures += 1
        if error.code not in ("OVERLOADED", "TIMED_OUT"):
            self._cluster.refresh(self.topic)
        self.wake()

    def went_well(self) -> None:
        """A request was answered: the next failure is a first one."""
        self._failures = 0

    def give_up_all(self, error: SandqError) -> None:
        """The subscription is over: what is still queued is not sent, and nothing can be queued any more."""
        self._closed = error
        self._ack_queue.give_up(error)
        self._extensions.give_up(error)


def acked_before() -> InvalidRequest:
    """The error about an ack that is to send messages, of what was acked already."""
    return InvalidRequest("it was acked before, and nothing is sent: ack it once, with what is to be sent")


def settled_otherwise(state: int, settling: int) -> InvalidRequest:
    """The error about acking what was nacked, or the other way round."""
    return InvalidRequest(f"the message was {_SAID[state]} already, it cannot be {_SAID[settling]}")


_SAID: Final = {
    **dict.fromkeys((ACKING, ACKED), "acked"),
    **dict.fromkeys((NACKING, NACKED), "nacked"),
    **dict.fromkeys((REJECTING, REJECTED), "given up"),
}


def _settling(terms: NackTerms) -> int:
    return REJECTING if terms.end == DEAD else NACKING
