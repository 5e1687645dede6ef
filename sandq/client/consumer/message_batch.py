"""Batches of messages: the items of `subscription.batches()`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

from sandq.client.arguments import suggesting
from sandq.client.consumer.deliveries import DeliveredChunk
from sandq.client.consumer.lease import OF_HELD, Extension
from sandq.client.consumer.message import Message, extension_ms
from sandq.client.consumer.nack_change import dead_terms, not_begun_terms, retry_terms
from sandq.client.consumer.outgoing import Outgoing
from sandq.client.messages.log_page import positions_of, text_of_tenant
from sandq.client.producer.validation import Headers
from sandq.model.times import Duration


class HeldBatch:
    """The attributes of a batch, common to the async and the blocking client."""

    __slots__ = ("_chunk", "_positions", "_start", "_values")

    def __init__(self, chunk: DeliveredChunk, start: int) -> None:
        self._chunk = chunk
        self._start = start
        spans = chunk.spans(OF_HELD, start)
        self._positions = None if spans == [(0, chunk.count)] else positions_of(spans)
        self._values: list[bytes] | None = None

    def __len__(self) -> int:
        return self._chunk.count if self._positions is None else len(self._positions)

    @property
    def values(self) -> list[bytes]:
        """The value of each message, in order."""
        if self._values is None:
            values = self._chunk.values()
            if None in values:
                values = [value or b"" for value in values]
            self._values = self._of_ours(values)
        return self._values

    @property
    def deleted(self) -> list[bool]:
        """For each message: whether it is the deletion of its key. The value of a deletion is b""."""
        return self._of_ours([value is None for value in self._chunk.values()])

    @property
    def keys(self) -> list[bytes | None]:
        """The key of each message; None if it has none."""
        keys = self._chunk.keys()
        return self._of_ours(keys) if keys else [None] * len(self)

    @property
    def priorities(self) -> list[int]:
        """The priority of each message; 0 if it has none."""
        priorities = self._chunk.priorities()
        return [priority or 0 for priority in self._of_ours(priorities)] if priorities else [0] * len(self)

    @property
    def tenants(self) -> list[str | None]:
        """The tenant of each message; None if it has none, which means "default"."""
        tenants = self._chunk.tenants()
        return [text_of_tenant(name) for name in self._of_ours(tenants)] if tenants else [None] * len(self)

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._chunk.consumer.topic

    @property
    def partition(self) -> int:
        """Number of the partition of the whole batch."""
        return self._chunk.consumer.partition

    @property
    def attempt(self) -> int:
        """Number of the attempt: 1 for the first delivery to this group."""
        return self._chunk.lease.attempt

    @property
    def lease_token(self) -> str:
        """The lease in the form of HTTP and sandctl: group number, partition, token."""
        return self._chunk.lease.text

    def __repr__(self) -> str:
        return f"<MessageBatch of {len(self)} topic={self.topic!r} partition={self.partition} attempt={self.attempt}>"

    def _rows(self) -> Iterator[tuple[int, bytes]]:
        """Return position and value of every message."""
        positions = range(self._chunk.count) if self._positions is None else self._positions
        return zip(positions, self.values, strict=True)

    def _of_ours(self, column: Any) -> list[Any]:
        if self._positions is None:
            return list(column)
        return [column[position] for position in self._positions]


@suggesting
class MessageBatch(HeldBatch):
    """Messages of one partition that arrived together, under one lease.

    Message objects exist only once `messages` is used. Settling the whole batch is one item of a request. `ack`, `nack`
    and `dead` apply to the messages that are not settled yet. They are queued; awaiting the result waits for the
    broker's reply, as with a message.
    """

    __slots__ = ()

    @property
    def messages(self) -> list[Message]:
        """One object per message, for its other attributes, or to settle some messages in a different way."""
        return [Message(self._chunk, *row) for row in self._rows()]

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> BatchSettlement:
        """Ack the whole batch.

        `then`: messages to send together with the ack, at most 100 and 1 MiB. If a message of the batch was lost, or
        one of `then` is refused, nothing is acked and nothing is sent. Otherwise all messages that are not settled yet
        are acked, and each of `then` is stored exactly once.
        """
        consumer = self._chunk.consumer
        if then:
            consumer.ack_then_from(self._chunk, self._start, consumer.then_rows(then))
        else:
            consumer.ack_from(self._chunk, self._start)
        return BatchSettlement(self._chunk, self._start)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        error: str | BaseException | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        count: bool = True,
    ) -> BatchSettlement:
        """Nack the whole batch: it is retried after `delay`, or `delay_ms` whole milliseconds, or is dead after the
        last attempt.

        Without a delay the topic's back-off applies. `priority`, `headers` and `count` apply to all messages, as in
        `Message.nack`.
        """
        consumer = self._chunk.consumer
        terms = retry_terms(delay, delay_ms, error, count, consumer.nack_change(priority, headers))
        consumer.nack_from(self._chunk, self._start, terms)
        return BatchSettlement(self._chunk, self._start)

    def give_back(self, *, delay: Duration | None = None, error: str | BaseException | None = None) -> BatchSettlement:
        """Give the whole batch back without beginning it, as `Message.give_back` does."""
        self._chunk.consumer.nack_from(self._chunk, self._start, not_begun_terms(delay, error))
        return BatchSettlement(self._chunk, self._start)

    def dead(self, error: str | BaseException | None = None) -> BatchSettlement:
        """Make the whole batch dead for this group immediately, as `Message.dead` does."""
        self._chunk.consumer.nack_from(self._chunk, self._start, dead_terms(error))
        return BatchSettlement(self._chunk, self._start)

    def extend(self, lease: Duration) -> Extension:
        """Extend the lease of the batch until `lease` from now. Other messages of the same lease are extended, too."""
        return self._chunk.consumer.extend(self._chunk.lease, extension_ms(lease))


class BatchSettlement:
    """The result of a batch's `ack`, `nack` and `dead`: it may be ignored or awaited.

    Awaiting it waits until the broker has confirmed all messages. Raises LeaseLost if any message was lost.
    """

    __slots__ = ("_chunk", "_start")

    def __init__(self, chunk: DeliveredChunk, start: int) -> None:
        self._chunk = chunk
        self._start = start

    def __await__(self) -> Generator[Any, Any, None]:
        return self._chunk.consumer.held.confirmed_from(self._chunk, self._start).__await__()
