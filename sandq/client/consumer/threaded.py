"""Messages for code that runs in another thread than the client: handlers that are plain functions, `sandq.sync`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandq.client.arguments import suggesting
from sandq.client.consumer.deliveries import DeliveredChunk
from sandq.client.consumer.held_messages import acked_before, settled_otherwise
from sandq.client.consumer.lease import ACKING, NACKING, REJECTING, Extension
from sandq.client.consumer.message import HeldMessage, Settlement, extension_ms
from sandq.client.consumer.message_batch import BatchSettlement, HeldBatch
from sandq.client.consumer.nack_change import NackTerms, dead_terms, retry_terms
from sandq.client.consumer.outgoing import Outgoing
from sandq.client.portal import Confirmation, Portal
from sandq.client.producer.validation import Headers
from sandq.model.times import Duration

_OPEN: Final = 0


@suggesting
class Message(HeldMessage):
    """One delivered message, held under a lease until it is settled, or the lease ends.

    `ack`, `nack`, `dead` and `extend` only queue what they ask for, and may be called from any thread;
    `message.ack().wait()` waits for the broker's answer, and raises LeaseLost when the lease was not held any more. A
    failure that nobody waits for is logged as a warning ("sandq.client").
    """

    __slots__ = ("_asked", "_portal")

    def __init__(self, portal: Portal, piece: DeliveredChunk, position: int, value: bytes) -> None:
        super().__init__(piece, position, value)
        self._portal = portal
        self._asked = _OPEN  # what was queued through this object: the state of the chunk may not show it yet

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> Confirmation[None]:
        """Done with it: this group gets it no more. Acking twice is once.

        `then`: messages that are sent with it (100 and 1 MiB at most), as one promise: once this is confirmed each of
        them arrives exactly once, whatever fails; when the lease was lost, or one is refused, none is sent and nothing
        is acked. Raises InvalidRequest for a message that could not be produced.
        """
        if not then:
            self._ask(ACKING)
            return Confirmation(self._portal, self._ack)
        chunk, position = self._piece, self._position
        rows = chunk.consumer.then_rows(then)
        if self._asked == ACKING and not chunk.was_refused(position):
            raise acked_before()
        self._ask(ACKING)

        def begin() -> Settlement:
            chunk.consumer.ack_then(chunk, position, rows)
            return Settlement(chunk, position)

        return Confirmation(self._portal, begin)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        error: str | BaseException | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        count: bool = True,
    ) -> Confirmation[None]:
        """Not done: it comes back after `delay`, or `delay_ms` whole milliseconds (None: the topic's
        back-off), or is dead at the last attempt.

        `count=False`, a snooze: the attempt is not counted, unless it was snoozed `max_snoozes` times (a setting).
        For this group it has from then on another `priority` (in a topic of the kind priority or fair), or other
        `headers` in place of those it had ({}: none), where they are given.
        """
        change = self._piece.consumer.nack_change(priority, headers)
        return self._nack(NACKING, retry_terms(delay, delay_ms, error, count, change))

    def dead(self, error: str | BaseException | None = None) -> Confirmation[None]:
        """It cannot be done: for this group it is dead at once, whatever attempts are left; its dead letter says
        `error`, with the reason "rejected"."""
        return self._nack(REJECTING, dead_terms(error))

    def extend(self, lease: Duration) -> Confirmation[int]:
        """Hold it until `lease` from now; waiting gives the new deadline, epoch milliseconds.

        The lease may cover other messages: they are extended with it.
        """
        return extension_of(self._portal, self._piece, lease)

    def _ack(self) -> Settlement:
        chunk, position = self._piece, self._position
        chunk.consumer.ack(chunk, position)
        return Settlement(chunk, position)

    def _nack(self, settling: int, terms: NackTerms) -> Confirmation[None]:
        chunk, position = self._piece, self._position
        self._ask(settling)

        def begin() -> Settlement:
            chunk.consumer.nack(chunk, position, terms)
            return Settlement(chunk, position)

        return Confirmation(self._portal, begin)

    def _ask(self, settling: int) -> None:
        """Refuse at once what is known to be wrong; the loop has the last word."""
        if self._portal.is_foreign:
            self._portal.check()
        if self._asked == _OPEN or self._piece.was_refused(self._position):
            self._piece.consumer.held.check(self._piece, self._position, settling)
            self._asked = settling
        elif self._asked != settling:
            raise settled_otherwise(self._asked, settling)


@suggesting
class MessageBatch(HeldBatch):
    """Messages of one partition that came together, under one lease. There is no object for each of them until
    `messages` is asked for, and settling all of them is one item of a request.

    `ack`, `nack` and `dead` are about what of the batch is not settled yet; they are queued, and `batch.ack().wait()`
    waits for the broker's answer.
    """

    __slots__ = ("_portal",)

    def __init__(self, portal: Portal, chunk: DeliveredChunk, start: int) -> None:
        super().__init__(chunk, start)
        self._portal = portal

    @property
    def messages(self) -> list[Message]:
        """An object for each message, for what the batch does not tell, or to settle some in another way."""
        return [Message(self._portal, self._chunk, *row) for row in self._rows()]

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> Confirmation[None]:
        """Done with all of it.

        `then`: messages that are sent with it (100 and 1 MiB at most), as with a message: all of the batch that is not
        settled yet is acked and each of these arrives exactly once, or, when one of it was lost, or one of these is
        refused, nothing is acked and none is sent.
        """
        chunk, start = self._chunk, self._start
        consumer = chunk.consumer
        consumer.held.check_open()
        rows = consumer.then_rows(then) if then else None

        def begin() -> BatchSettlement:
            if rows is None:
                consumer.ack_from(chunk, start)
            else:
                consumer.ack_then_from(chunk, start, rows)
            return BatchSettlement(chunk, start)

        return Confirmation(self._portal, begin)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        error: str | BaseException | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        count: bool = True,
    ) -> Confirmation[None]:
        """Not done: all of it comes back after `delay`, or `delay_ms` whole milliseconds (None: the topic's
        back-off), or is dead at the last attempt.

        `priority`, `headers` and `count` as with a message: they are about all of it.
        """
        change = self._chunk.consumer.nack_change(priority, headers)
        return self._nack(retry_terms(delay, delay_ms, error, count, change))

    def dead(self, error: str | BaseException | None = None) -> Confirmation[None]:
        """It cannot be done: all of it is dead for this group at once, as with a message."""
        return self._nack(dead_terms(error))

    def _nack(self, terms: NackTerms) -> Confirmation[None]:
        chunk, start = self._chunk, self._start
        chunk.consumer.held.check_open()

        def begin() -> BatchSettlement:
            chunk.consumer.nack_from(chunk, start, terms)
            return BatchSettlement(chunk, start)

        return Confirmation(self._portal, begin)

    def extend(self, lease: Duration) -> Confirmation[int]:
        """Hold it until `lease` from now, and what else came under the same lease."""
        return extension_of(self._portal, self._chunk, lease)


def extension_of(portal: Portal, chunk: DeliveredChunk, lease: Duration) -> Confirmation[int]:
    """Extend the lease of a chunk."""
    lease_ms = extension_ms(lease)
    partition_consumer = chunk.consumer
    partition_consumer.held.check_open()

    def begin() -> Extension:
        return partition_consumer.extend(chunk.lease, lease_ms)

    return Confirmation(portal, begin)
