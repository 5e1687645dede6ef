"""The state of each message that a subscription holds of one partition, by lease; nothing is sent here."""

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
from sandq.client.options import again
from sandq.model.errors import InvalidRequest, LeaseLost, SandqError


class HeldMessages:
    """What one subscription holds of one partition."""

    def __init__(
        self, topic: str, partition: int, group_number: int, finished_leases: int, on_held_again: Callable[[], None]
    ) -> None:
        """`finished_leases`: how many leases are remembered after their end. `on_held_again`: called when messages
        that were being settled are held again, so that their lease has to be extended."""
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
        """The lease of a token that was just pushed; one that had ended comes back."""
        lease = self.leases.get(token) or self._finished.pop(token, None)
        if lease is None:
            lease = Lease(self.group_number, self.partition, token, attempt, expires_at)
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
            while len(self._finished) > self._finished_leases:
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
        self._on_held_again()

    def begin(self, chunk: Chunk, position: int, settling: int) -> bool:
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
        """ClosedError once the subscription was left. Of any thread."""
        if self._closed is not None:
            raise again(self._closed)

    def _unlapse(self, chunk: Chunk, count: int) -> None:
        chunk.unsettled += count
        chunk.lease.unsettled += count
        chunk.lease.chunks[chunk] = None
        self.leases[chunk.lease.token] = chunk.lease

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

    @property
    def is_closed(self) -> bool:
        """Whether the subscription was left."""
        return self._closed is not None

    def close(self, error: SandqError) -> None:
        """The subscription was left: nothing can be settled any more."""
        self._closed = error


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
