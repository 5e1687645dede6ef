"""What a consumer gets, one by one, and what it says about it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import Any

from sandq.client.arguments import suggesting
from sandq.client.consumer.deliveries import DeliveredChunk
from sandq.client.consumer.lease import HELD, LOST, SETTLED, Extension
from sandq.client.consumer.nack_change import dead_terms, retry_terms
from sandq.client.consumer.outgoing import Outgoing
from sandq.client.messages.log_page import LogMessage
from sandq.client.producer.validation import Headers
from sandq.model.errors import InvalidRequest
from sandq.model.times import Duration, duration_ms


class HeldMessage(LogMessage[DeliveredChunk]):
    """What every delivered message tells, whatever the face of the client that it came through."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._piece.consumer.topic

    @property
    def partition(self) -> int:
        """Where in the topic it lies."""
        return self._piece.consumer.partition

    @property
    def attempt(self) -> int:
        """1 for the first delivery to this group."""
        return self._piece.lease.attempt

    @property
    def lease_token(self) -> str:
        """The lease, as HTTP and sandctl name it: group number, partition, token."""
        return self._piece.lease.text

    @property
    def is_held(self) -> bool:
        """Whether it is neither settled nor lost, as far as this client knows: a long handler may ask now and then."""
        return self._piece.state[self._position] == HELD

    @property
    def is_settled(self) -> bool:
        """Whether it was acked, nacked or given up here (the broker may not have answered yet)."""
        return self._piece.state[self._position] in SETTLED

    @property
    def is_lost(self) -> bool:
        """Whether the broker said that the lease is over: what is done with the message now does not count."""
        return self._piece.state[self._position] == LOST

    def __repr__(self) -> str:
        return (
            f"<Message {self.offset} topic={self.topic!r} partition={self.partition} "
            f"attempt={self.attempt} bytes={len(self.value)}>"
        )


@suggesting
class Message(HeldMessage):
    """One delivered message, held under a lease until it is settled, or the lease ends.

    `ack`, `nack`, `dead` and `extend` take effect without being awaited: they are queued and leave within about a
    millisecond, many in one frame. Awaiting what they return waits for the broker's answer and raises
    LeaseLost when the lease was not held any more. A failure that nobody awaits is logged as a warning
    ("sandq.client").
    """

    __slots__ = ()

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> Settlement:
        """Done with it: this group gets it no more. Acking twice is once.

        `then`: messages that are sent with it (100 and 1 MiB at most), as one promise: once this is confirmed each of
        them arrives exactly once, whatever fails; when the lease was lost, or one is refused, none is sent and nothing
        is acked. Raises InvalidRequest for a message that could not be produced.
        """
        consumer = self._piece.consumer
        if then:
            consumer.ack_then(self._piece, self._position, consumer.then_rows(then))
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
    ) -> Settlement:
        """Not done: it comes back after `delay`, or `delay_ms` whole milliseconds (None: the topic's
        back-off), or is dead at the last attempt.

        `count=False`, a snooze: the attempt is not counted, unless it was snoozed `max_snoozes` times (a setting).
        For this group it has from then on another `priority` (in a topic of the kind priority or fair), or other
        `headers` in place of those it had ({}: none), where they are given.
        """
        consumer = self._piece.consumer
        terms = retry_terms(delay, delay_ms, error, count, consumer.nack_change(priority, headers))
        consumer.nack(self._piece, self._position, terms)
        return Settlement(self._piece, self._position)

    def dead(self, error: str | BaseException | None = None) -> Settlement:
        """It cannot be done: for this group it is dead at once, whatever attempts are left; its dead letter says
        `error`, with the reason "rejected"."""
        self._piece.consumer.nack(self._piece, self._position, dead_terms(error))
        return Settlement(self._piece, self._position)

    def extend(self, lease: Duration) -> Extension:
        """Hold it until `lease` from now. The lease may cover other messages: they are extended with it."""
        return self._piece.consumer.extend(self._piece.lease, extension_ms(lease))


class Settlement:
    """What `ack`, `nack` and `dead` return: nothing to do, or `await` it to know that the broker did it."""

    __slots__ = ("_chunk", "_position")

    def __init__(self, chunk: DeliveredChunk, position: int) -> None:
        self._chunk = chunk
        self._position = position

    def __await__(self) -> Generator[Any, Any, None]:
        return self._chunk.consumer.held.confirmed(self._chunk, self._position).__await__()


def extension_ms(lease: Duration) -> int:
    """How long a lease is to be extended for."""
    lease_ms = duration_ms(lease)
    if not lease_ms:
        raise InvalidRequest("extend: a lease cannot be extended by nothing")
    return lease_ms


def lease_ms_of(lease: Duration | None) -> int | None:
    """The lease of a subscription; None is the topic's."""
    if lease is None:
        return None
    lease_ms = duration_ms(lease)
    if not lease_ms:
        raise InvalidRequest(f"lease: {timedelta(0)} is too short")
    return lease_ms
