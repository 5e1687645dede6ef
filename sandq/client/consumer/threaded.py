"""Messages for use outside of the client's thread: for plain functions as handlers, and for `sandq.sync`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandq.client.arguments import suggesting
from sandq.client.consumer.deliveries import DeliveredChunk
from sandq.client.consumer.held_messages import settled_before, settled_otherwise
from sandq.client.consumer.lease import ACKING, NACKING, REJECTING, Extension
from sandq.client.consumer.message import HeldMessage, Settlement, extension_ms
from sandq.client.consumer.message_batch import BatchSettlement, HeldBatch
from sandq.client.consumer.nack_change import NackTerms, dead_terms, not_begun_terms, retry_terms
from sandq.client.consumer.outgoing import Outgoing
from sandq.client.portal import Confirmation, Portal
from sandq.client.producer.validation import Headers
from sandq.model.pauses import GROUP, KEY, LIMIT, TENANT
from sandq.model.times import Duration, duration_ms

_OPEN: Final = 0


@suggesting
class Message(HeldMessage):
    """One delivered message, held under a lease until it is settled, or the lease ends.

    `ack`, `nack`, `dead` and `extend` only queue their request, and may be called from any thread.
    `message.ack().wait()` waits for the broker's reply, and raises LeaseLost if the lease was lost. If nothing waits
    for a failure, it is logged as a warning ("sandq.client").
    """

    __slots__ = ("_asked", "_portal")

    def __init__(self, portal: Portal, piece: DeliveredChunk, position: int, value: bytes) -> None:
        super().__init__(piece, position, value)
        self._portal = portal
        self._asked = _OPEN  # state that this object has queued; the chunk's state may not show it yet

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> Confirmation[None]:
        """Ack the message: this group does not get it again. Acking twice has the effect of one ack.

        `then`: messages to send together with the ack, at most 100 and 1 MiB. Once the ack is confirmed, each of them
        is stored exactly once, even after failures. If the lease was lost or one of them is refused, none is sent and
        nothing is acked. Raises InvalidRequest for a message that could not be produced.
        """
        if not then:
            self._ask(ACKING)
            return Confirmation(self._portal, self._ack)
        return self._settle_then(ACKING, then, None)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        error: str | BaseException | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        count: bool = True,
        if_dead: Sequence[Outgoing] | None = None,
    ) -> Confirmation[None]:
        """Nack the message: it is retried after `delay`, or `delay_ms` whole milliseconds, or is dead after the last
        attempt.

        Without a delay the topic's back-off applies. `count=False` is a snooze: the attempt does not count, unless the
        message was snoozed `max_snoozes` times (a setting). `priority` (only in priority and fair topics) and `headers`
        change the message for this group; {} removes the headers.

        `if_dead`: messages to send, as `then` of `ack`, if this nack makes the message dead. Not together with changes.
        """
        change = self._piece.consumer.nack_change(priority, headers)
        return self._nack(NACKING, retry_terms(delay, delay_ms, error, count, change), if_dead)

    def give_back(
        self, *, delay: Duration | None = None, error: str | BaseException | None = None
    ) -> Confirmation[None]:
        """Give the message back without beginning it: it is ready again after `delay` (by default immediately).

        Neither the attempt nor a snooze counts. `error`: why it waits, for `why`.
        """
        return self._nack(NACKING, not_begun_terms(delay, error))

    def dead(
        self, error: str | BaseException | None = None, *, then: Sequence[Outgoing] | None = None
    ) -> Confirmation[None]:
        """Make the message dead for this group immediately, even if attempts remain.

        Its dead letter has the `error` and the reason "rejected". `then`: messages to send together with it, as in
        `ack`.
        """
        return self._nack(REJECTING, dead_terms(error), then)

    def extend(self, lease: Duration) -> Confirmation[int]:
        """Extend the lease of the message until `lease` from now. `wait()` of the result returns the new deadline in
        epoch ms.

        Other messages of the same lease are extended, too.
        """
        return extension_of(self._portal, self._piece, lease)

    def pause_tenant(self, *, for_: Duration) -> int:
        """Pause the tenant of the message in its group, with the tenants below it, for at most an hour. Only in fair
        topics.

        The group gets no messages of the tenant from any partition meanwhile; the message itself stays leased. Returns
        the end of the pause in epoch ms: a pause that ends later stays as it is. Raises LeaseLost. Raises TimedOut if
        the leaders of some partitions do not answer, and InvalidRequest if partitions refuse the pause, because too
        many tenants are paused there: the error says in how many partitions the pause holds. Repeating the call is
        safe.
        """
        return self._pause(TENANT, for_)

    def pause_key(self, *, for_: Duration) -> int:
        """Pause the key of the message in its group, in the partition of the message. Only in topics with `ordering:
        key` or `max_in_flight_per_key`."""
        return self._pause(KEY, for_)

    def pause_group(self, *, for_: Duration) -> int:
        """Pause the group of the message in all partitions, as `pause_tenant` does."""
        return self._pause(GROUP, for_)

    def pause_limit(self, *, for_: Duration) -> int:
        """Pause the named limit of the group of the message, for at most an hour. No group that uses the limit gets
        messages meanwhile, in any topic.

        For example, after a response that says that the shared quota is used up. The message itself stays leased.
        Returns the end of the pause in epoch ms: a pause that ends later stays as it is. Raises LeaseLost; also
        InvalidRequest if the group uses no named limit. Raises TimedOut if partitions do not confirm the pause in time:
        the error says how many have confirmed it. Repeating the call is safe.
        """
        return self._pause(LIMIT, for_)

    def _pause(self, part: str, for_: Duration) -> int:
        chunk, position, for_ms = self._piece, self._position, duration_ms(for_)
        return self._portal.call(lambda: chunk.consumer.pause(chunk, position, part, for_ms))

    def _ack(self) -> Settlement:
        chunk, position = self._piece, self._position
        chunk.consumer.ack(chunk, position)
        return Settlement(chunk, position)

    def _settle_then(self, settling: int, then: Sequence[Outgoing], terms: NackTerms | None) -> Confirmation[None]:
        """Settle the message with messages to send; `terms`: as in `PartitionConsumer.settle_then`."""
        chunk, position = self._piece, self._position
        rows = chunk.consumer.then_rows(then)
        if self._asked == settling and not chunk.was_refused(position):
            raise settled_before()
        self._ask(settling)

        def begin() -> Settlement:
            chunk.consumer.settle_then(chunk, position, rows, terms)
            return Settlement(chunk, position)

        return Confirmation(self._portal, begin)

    def _nack(self, settling: int, terms: NackTerms, then: Sequence[Outgoing] | None = None) -> Confirmation[None]:
        if then:
            terms.end_fields()
            return self._settle_then(settling, then, terms)
        chunk, position = self._piece, self._position
        self._ask(settling)

        def begin() -> Settlement:
            chunk.consumer.nack(chunk, position, terms)
            return Settlement(chunk, position)

        return Confirmation(self._portal, begin)

    def _ask(self, settling: int) -> None:
        """Raise immediately if this settling is known to be wrong. The event loop checks it again."""
        if self._portal.is_foreign:
            self._portal.check()
        if self._asked == _OPEN or self._piece.was_refused(self._position):
            self._piece.consumer.held.check(self._piece, self._position, settling)
            self._asked = settling
        elif self._asked != settling:
            raise settled_otherwise(self._asked, settling)


@suggesting
class MessageBatch(HeldBatch):
    """Messages of one partition that arrived together, under one lease.

    Message objects exist only once `messages` is used. Settling the whole batch is one item of a request. `ack`, `nack`
    and `dead` apply to the messages that are not settled yet. They are queued; `batch.ack().wait()` waits for the
    broker's reply.
    """

    __slots__ = ("_portal",)

    def __init__(self, portal: Portal, chunk: DeliveredChunk, start: int) -> None:
        super().__init__(chunk, start)
        self._portal = portal

    @property
    def messages(self) -> list[Message]:
        """One object per message, for its other attributes, or to settle some messages in a different way."""
        return [Message(self._portal, self._chunk, *row) for row in self._rows()]

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> Confirmation[None]:
        """Ack the whole batch.

        `then`: messages to send together with the ack, at most 100 and 1 MiB. If a message of the batch was lost, or
        one of `then` is refused, nothing is acked and nothing is sent. Otherwise all messages that are not settled yet
        are acked, and each of `then` is stored exactly once.
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
        """Nack the whole batch: it is retried after `delay`, or `delay_ms` whole milliseconds, or is dead after the
        last attempt.

        Without a delay the topic's back-off applies. `priority`, `headers` and `count` apply to all messages, as in
        `Message.nack`.
        """
        change = self._chunk.consumer.nack_change(priority, headers)
        return self._nack(retry_terms(delay, delay_ms, error, count, change))

    def give_back(
        self, *, delay: Duration | None = None, error: str | BaseException | None = None
    ) -> Confirmation[None]:
        """Give the whole batch back without beginning it, as `Message.give_back` does."""
        return self._nack(not_begun_terms(delay, error))

    def dead(self, error: str | BaseException | None = None) -> Confirmation[None]:
        """Make the whole batch dead for this group immediately, as `Message.dead` does."""
        return self._nack(dead_terms(error))

    def _nack(self, terms: NackTerms) -> Confirmation[None]:
        chunk, start = self._chunk, self._start
        chunk.consumer.held.check_open()

        def begin() -> BatchSettlement:
            chunk.consumer.nack_from(chunk, start, terms)
            return BatchSettlement(chunk, start)

        return Confirmation(self._portal, begin)

    def extend(self, lease: Duration) -> Confirmation[int]:
        """Extend the lease of the batch until `lease` from now. Other messages of the same lease are extended, too."""
        return extension_of(self._portal, self._chunk, lease)


def extension_of(portal: Portal, chunk: DeliveredChunk, lease: Duration) -> Confirmation[int]:
    """Extend the lease of a chunk."""
    lease_ms = extension_ms(lease)
    partition_consumer = chunk.consumer
    partition_consumer.held.check_open()

    def begin() -> Extension:
        return partition_consumer.extend(chunk.lease, lease_ms)

    return Confirmation(portal, begin)
