"""A single delivered message, and the methods that settle it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import Any

from sandq.client.arguments import suggesting
from sandq.client.consumer.deliveries import DeliveredChunk
from sandq.client.consumer.lease import HELD, LOST, SETTLED, Extension
from sandq.client.consumer.nack_change import NackTerms, dead_terms, not_begun_terms, retry_terms
from sandq.client.consumer.outgoing import Outgoing
from sandq.client.messages.log_page import LogMessage
from sandq.client.producer.validation import Headers
from sandq.model.errors import InvalidRequest
from sandq.model.pauses import GROUP, KEY, LIMIT, TENANT
from sandq.model.times import Duration, duration_ms


class HeldMessage(LogMessage[DeliveredChunk]):
    """The attributes of a delivered message, common to the async and the blocking client."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._piece.consumer.topic

    @property
    def partition(self) -> int:
        """Number of its partition."""
        return self._piece.consumer.partition

    @property
    def attempt(self) -> int:
        """Number of the attempt: 1 for the first delivery to this group."""
        return self._piece.lease.attempt

    @property
    def lease_token(self) -> str:
        """The lease in the form of HTTP and sandctl: group number, partition, token."""
        return self._piece.lease.text

    @property
    def is_held(self) -> bool:
        """True if the message is neither settled nor lost, as far as this client knows. Useful in long handlers."""
        return self._piece.state[self._position] == HELD

    @property
    def is_settled(self) -> bool:
        """True if this client has acked, nacked or rejected the message. The broker may not have replied yet."""
        return self._piece.state[self._position] in SETTLED

    @property
    def is_lost(self) -> bool:
        """True if the broker has reported that the lease is over: settling the message has no effect."""
        return self._piece.state[self._position] == LOST

    def __repr__(self) -> str:
        return (
            f"<Message {self.offset} topic={self.topic!r} partition={self.partition} "
            f"attempt={self.attempt} bytes={len(self.value)}>"
        )


@suggesting
class Message(HeldMessage):
    """One delivered message, held under a lease until it is settled, or the lease ends.

    `ack`, `nack`, `dead` and `extend` need not be awaited: they are queued and sent within about a millisecond, many in
    one frame. Awaiting the result waits for the broker's reply, and raises LeaseLost if the lease was lost. If no task
    awaits a failure, it is logged as a warning ("sandq.client").
    """

    __slots__ = ()

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> Settlement:
        """Ack the message: this group does not get it again. Acking twice has the effect of one ack.

        `then`: messages to send together with the ack, at most 100 and 1 MiB. Once the ack is confirmed, each of them
        is stored exactly once, even after failures. If the lease was lost or one of them is refused, none is sent and
        nothing is acked. Raises InvalidRequest for a message that could not be produced.
        """
        consumer = self._piece.consumer
        if then:
            consumer.settle_then(self._piece, self._position, consumer.then_rows(then))
        else:
            consumer.ack(self._piece, self._position)
        return Settlement(self._piece, self._position)

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
    ) -> Settlement:
        """Nack the message: it is retried after `delay`, or `delay_ms` whole milliseconds, or is dead after the last
        attempt.

        Without a delay the topic's back-off applies. `count=False` is a snooze: the attempt does not count, unless the
        message was snoozed `max_snoozes` times (a setting). `priority` (only in priority and fair topics) and `headers`
        change the message for this group; {} removes the headers.

        `if_dead`: messages to send, as `then` of `ack`, if this nack makes the message dead. Not together with changes.
        """
        consumer = self._piece.consumer
        terms = retry_terms(delay, delay_ms, error, count, consumer.nack_change(priority, headers))
        return self._nack(terms, if_dead)

    def give_back(self, *, delay: Duration | None = None, error: str | BaseException | None = None) -> Settlement:
        """Give the message back without beginning it: it is ready again after `delay` (by default immediately).

        Neither the attempt nor a snooze counts. `error`: why it waits, for `why`.
        """
        return self._nack(not_begun_terms(delay, error), None)

    def dead(self, error: str | BaseException | None = None, *, then: Sequence[Outgoing] | None = None) -> Settlement:
        """Make the message dead for this group immediately, even if attempts remain.

        Its dead letter has the `error` and the reason "rejected". `then`: messages to send together with it, as in
        `ack`.
        """
        return self._nack(dead_terms(error), then)

    def _nack(self, terms: NackTerms, then: Sequence[Outgoing] | None) -> Settlement:
        """Nack the message; `then`: messages to send if it is dead."""
        consumer = self._piece.consumer
        if then:
            terms.end_fields()
            consumer.settle_then(self._piece, self._position, consumer.then_rows(then), terms)
        else:
            consumer.nack(self._piece, self._position, terms)
        return Settlement(self._piece, self._position)

    def extend(self, lease: Duration) -> Extension:
        """Extend the lease of the message until `lease` from now. Other messages of the same lease are extended,
        too."""
        return self._piece.consumer.extend(self._piece.lease, extension_ms(lease))

    async def pause_tenant(self, *, for_: Duration) -> int:
        """Pause the tenant of the message in its group, with the tenants below it, for at most an hour. Only in fair
        topics.

        The group gets no messages of the tenant from any partition meanwhile; the message itself stays leased. Returns
        the end of the pause in epoch ms: a pause that ends later stays as it is. Raises LeaseLost. Raises TimedOut if
        the leaders of some partitions do not answer, and InvalidRequest if partitions refuse the pause, because too
        many tenants are paused there: the error says in how many partitions the pause holds. Repeating the call is
        safe.
        """
        return await self._piece.consumer.pause(self._piece, self._position, TENANT, duration_ms(for_))

    async def pause_key(self, *, for_: Duration) -> int:
        """Pause the key of the message in its group, in the partition of the message. Only in topics with `ordering:
        key` or `max_in_flight_per_key`."""
        return await self._piece.consumer.pause(self._piece, self._position, KEY, duration_ms(for_))

    async def pause_group(self, *, for_: Duration) -> int:
        """Pause the group of the message in all partitions, as `pause_tenant` does."""
        return await self._piece.consumer.pause(self._piece, self._position, GROUP, duration_ms(for_))

    async def pause_limit(self, *, for_: Duration) -> int:
        """Pause the named limit of the group of the message, for at most an hour. No group that uses the limit gets
        messages meanwhile, in any topic.

        For example, after a response that says that the shared quota is used up. The message itself stays leased.
        Returns the end of the pause in epoch ms: a pause that ends later stays as it is. Raises LeaseLost; also
        InvalidRequest if the group uses no named limit. Raises TimedOut if partitions do not confirm the pause in time:
        the error says how many have confirmed it. Repeating the call is safe.
        """
        return await self._piece.consumer.pause(self._piece, self._position, LIMIT, duration_ms(for_))


class Settlement:
    """The result of `ack`, `nack` and `dead`: it may be ignored, or awaited to wait for the broker's confirmation."""

    __slots__ = ("_chunk", "_position")

    def __init__(self, chunk: DeliveredChunk, position: int) -> None:
        self._chunk = chunk
        self._position = position

    def __await__(self) -> Generator[Any, Any, None]:
        return self._chunk.consumer.held.confirmed(self._chunk, self._position).__await__()


def extension_ms(lease: Duration) -> int:
    """Return the duration of an extension in ms. Raises InvalidRequest."""
    lease_ms = duration_ms(lease)
    if not lease_ms:
        raise InvalidRequest("extend: the duration must be greater than 0")
    return lease_ms


def lease_ms_of(lease: Duration | None) -> int | None:
    """Return a subscription's lease duration in ms; None for the topic's setting. Raises InvalidRequest."""
    if lease is None:
        return None
    lease_ms = duration_ms(lease)
    if not lease_ms:
        raise InvalidRequest(f"lease: {timedelta(0)} is too short")
    return lease_ms
