"""Track, by lease, the state of each message that a subscription holds of one partition. This module sends nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import anyio

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
    Lease,
)
from sandq.client.messages.log_page import Span, positions_of
from sandq.model.errors import InvalidRequest, LeaseLost, SandqError


class HeldMessages:
    """The messages that one subscription holds of one partition."""

    def __init__(
        self, topic: str, partition: int, group_number: int, finished_leases: int, on_held_again: Callable[[], None]
    ) -> None:
        """`finished_leases`: number of leases to remember after their end.

        `on_held_again` is called if the broker refused to settle messages. Their lease must then be extended again.
        """
        self.topic = topic
        self.partition = partition
        self.group_number = group_number
        self.leases: dict[int, Lease] = {}
        self._finished: OrderedDict[int, Lease] = OrderedDict()
        self._finished_leases = finished_leases
        self._on_held_again = on_held_again
        self._closed: SandqError | None = None

    # Leases.

    def lease(self, token: int, attempt: int, expires_at: float) -> Lease:
        """Return the lease of a token that a node pushed; a finished lease becomes active again."""
        lease = self.leases.get(token) or self._finished.pop(token, None)
        if lease is None:
            lease = Lease(self.group_number, self.partition, token, attempt, expires_at)
        lease.expires_at = max(lease.expires_at, expires_at)
        self.leases[token] = lease
        return lease

    def deliver(self, chunk: Chunk) -> int:
        """Add a delivered chunk. Its new messages are held from now on. Return their number."""
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
        """Remember a lease whose messages are all settled for a while, because the broker may push it again."""
        if lease.unsettled == 0 and self.leases.pop(lease.token, None) is not None:
            self._finished[lease.token] = lease
            while len(self._finished) > self._finished_leases:
                self._finished.popitem(last=False)

    def cut(self) -> None:
        """Mark all leases to be checked for duplicates: the connection was lost, and the broker may push them again."""
        for lease in (*self.leases.values(), *self._finished.values()):
            lease.recheck = True

    def lapse(self, lease: Lease) -> None:
        """Drop the held messages of a lease whose deadline has passed: other consumers may lease them."""
        lease.lapsed, lease.blocked = True, not lease.extending
        self._drop_held(lease, LAPSED)

    def lose(self, lease: Lease) -> None:
        """Drop the held messages of a lease that the broker reported as over."""
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
        """Count messages of a chunk as settled. Finish their lease if none of its messages remains."""
        chunk.unsettled -= count
        lease = chunk.lease
        lease.unsettled -= count
        if not chunk.unsettled:
            lease.chunks.pop(chunk, None)
            self._finish(lease)

    def hold_again(self, chunk: Chunk, spans: list[Span]) -> None:
        """Hold messages again that the broker refused to settle.

        A message that no task awaits can still be settled, but its lease is no longer extended.
        """
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
        self._on_held_again()

    def begin(self, chunk: Chunk, position: int, settling: int) -> bool:
        """Begin to settle a message. Return False if it was already settled in this way, or if its lease is known to be
        lost."""
        self.check_open()
        state = chunk.state[position]
        if chunk.errors and state in (HELD, LAPSED):
            chunk.errors.pop(position, None)  # the error of a refused ack
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
        """Raise the error that settling a message would raise. Changes nothing; may be called from any thread."""
        self.check_open()
        state = chunk.state[position]
        if state in SETTLED and state not in (settling, SETTLED_BY[settling]):
            raise settled_otherwise(state, settling)

    def begin_from(self, chunk: Chunk, start: int, settling: int) -> list[tuple[int, int]]:
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
        """Raise ClosedError if the subscription was left. May be called from any thread."""
        if self._closed is not None:
            raise self._closed.again()

    def _unlapse(self, chunk: Chunk, count: int) -> None:
        chunk.unsettled += count
        chunk.lease.unsettled += count
        chunk.lease.chunks[chunk] = None
        self.leases[chunk.lease.token] = chunk.lease

    async def confirmed(self, chunk: Chunk, position: int) -> None:
        """Wait for the reply to the ack or nack of a message. If the broker refused it, raise the error."""
        while chunk.state[position] in SETTLING:
            event = chunk.events.get(position)
            if event is None:
                event = chunk.events[position] = anyio.Event()
            await event.wait()
        self._raise_failed(chunk, position)

    async def confirmed_from(self, chunk: Chunk, start: int) -> None:
        """Wait until all messages from position `start` on are settled. Raises LeaseLost if one of them was lost."""
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
            raise (chunk.errors.get(position) or self.lost_error(chunk.lease)).again()
        if chunk.was_refused(position):
            raise chunk.errors[position].again()

    def lost_error(self, lease: Lease) -> LeaseLost:
        return LeaseLost(
            f"topic {self.topic!r} partition {self.partition}: the lease is not held any more",
            lease=lease.text,
        )

    @property
    def is_closed(self) -> bool:
        """True if the subscription was left."""
        return self._closed is not None

    def close(self, error: SandqError) -> None:
        """Refuse all settling from now on with this error, because the subscription was left."""
        self._closed = error


def settled_before() -> InvalidRequest:
    """Return the error for an ack or nack that sends messages, if its message was already settled."""
    return InvalidRequest("it was settled before, so nothing is sent: settle it once, with the messages to send")


def settled_otherwise(state: int, settling: int) -> InvalidRequest:
    """Return the error for acking a message that was nacked, or the reverse."""
    return InvalidRequest(f"the message was {_STATE_TEXTS[state]} already, it cannot be {_STATE_TEXTS[settling]}")


_STATE_TEXTS: Final = {
    **dict.fromkeys((ACKING, ACKED), "acked"),
    **dict.fromkeys((NACKING, NACKED), "nacked"),
    **dict.fromkeys((REJECTING, REJECTED), "given up"),
}
