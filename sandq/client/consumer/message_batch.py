"""Messages by the batch: what `subscription.batches()` gives."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

from sandq.client.arguments import suggesting
from sandq.client.consumer.deliveries import DeliveredChunk
from sandq.client.consumer.lease import OF_HELD, Extension
from sandq.client.consumer.message import Message, extension_ms
from sandq.client.consumer.nack_change import dead_terms, retry_terms
from sandq.client.consumer.outgoing import Outgoing
from sandq.client.messages.log_page import positions_of, text_of_tenant
from sandq.client.producer.validation import Headers
from sandq.model.times import Duration


class HeldBatch:
    """What every batch tells, whatever the face of the client that it came through."""

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
        """Of every message, in their order."""
        if self._values is None:
            values = self._chunk.values()
            if None in values:
                values = [value or b"" for value in values]
            self._values = self._of_ours(values)
        return self._values

    @property
    def deleted(self) -> list[bool]:
        """Of every message, whether it says that its key was deleted; its value is b"" then."""
        return self._of_ours([value is None for value in self._chunk.values()])

    @property
    def keys(self) -> list[bytes | None]:
        """Of every message; None where there is none."""
        keys = self._chunk.keys()
        return self._of_ours(keys) if keys else [None] * len(self)

    @property
    def priorities(self) -> list[int]:
        """Of every message; 0 where it names none."""
        priorities = self._chunk.priorities()
        return [priority or 0 for priority in self._of_ours(priorities)] if priorities else [0] * len(self)

    @property
    def tenants(self) -> list[str | None]:
        """Of every message; None where it names none: "default"."""
        tenants = self._chunk.tenants()
        return [text_of_tenant(name) for name in self._of_ours(tenants)] if tenants else [None] * len(self)

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._chunk.consumer.topic

    @property
    def partition(self) -> int:
        """The one partition that all of it is from."""
        return self._chunk.consumer.partition

    @property
    def attempt(self) -> int:
        """1 for the first delivery to this group."""
        return self._chunk.lease.attempt

    @property
    def lease_token(self) -> str:
        """The lease, as HTTP and sandctl name it: group number, partition, token."""
        return self._chunk.lease.text

    def __repr__(self) -> str:
        return f"<MessageBatch of {len(self)} topic={self.topic!r} partition={self.partition} attempt={self.attempt}>"

    def _rows(self) -> Iterator[tuple[int, bytes]]:
        """Position and value of every message."""
        positions = range(self._chunk.count) if self._positions is None else self._positions
        return zip(positions, self.values, strict=True)

    def _of_ours(self, column: Any) -> list[Any]:
        if self._positions is None:
            return list(column)
        return [column[position] for position in self._positions]


@suggesting
class MessageBatch(HeldBatch):
    """Messages of one partition that came together, under one lease. There is no object for each of them until
    `messages` is asked for, and settling all of them is one item of a request.

    `ack`, `nack` and `dead` are about what of the batch is not settled yet; they are queued, and awaiting what they
    return waits for the broker's answer, as with a message.
    """

    __slots__ = ()

    @property
    def messages(self) -> list[Message]:
        """An object for each message, for what the batch does not tell, or to settle some in another way."""
        return [Message(self._chunk, *row) for row in self._rows()]

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> BatchSettlement:
        """Done with all of it.

        `then`: messages that are sent with it (100 and 1 MiB at most), as with a message: all of the batch that is not
        settled yet is acked and each of these arrives exactly once, or, when one of it was lost, or one of these is
        refused, nothing is acked and none is sent.
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
        """Not done: all of it comes back after `delay`, or `delay_ms` whole milliseconds (None: the topic's
        back-off), or is dead at the last attempt.

        `priority`, `headers` and `count` as with a message: they are about all of it.
        """
        consumer = self._chunk.consumer
        terms = retry_terms(delay, delay_ms, error, count, consumer.nack_change(priority, headers))
        consumer.nack_from(self._chunk, self._start, terms)
        return BatchSettlement(self._chunk, self._start)

    def dead(self, error: str | BaseException | None = None) -> BatchSettlement:
        """It cannot be done: all of it is dead for this group at once, as with a message."""
        self._chunk.consumer.nack_from(self._chunk, self._start, dead_terms(error))
        return BatchSettlement(self._chunk, self._start)

    def extend(self, lease: Duration) -> Extension:
        """Hold it until `lease` from now, and what else came under the same lease."""
        return self._chunk.consumer.extend(self._chunk.lease, extension_ms(lease))


class BatchSettlement:
    """What a batch's `ack`, `nack` and `dead` return: nothing to do, or `await` it to know that the broker did it for
    every message. LeaseLost: one or more were not held any more."""

    __slots__ = ("_chunk", "_start")

    def __init__(self, chunk: DeliveredChunk, start: int) -> None:
        self._chunk = chunk
        self._start = start

    def __await__(self) -> Generator[Any, Any, None]:
        return self._chunk.consumer.held.confirmed_from(self._chunk, self._start).__await__()
