"""Chunks of delivered messages that wait for the iterator. Each chunk has its partition's consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import anyio

from sandq.client.consumer.lease import HELD, Chunk, Lease
from sandq.client.consumer.partition_consumer import PartitionConsumer
from sandq.model.errors import SandqError
from sandq.protocol.replies import Deliver

M = TypeVar("M")

REPORT_S: Final = 5.0
"""Maximum time to wait until the broker has stored that a message was begun, in seconds."""


class DeliveredChunk(Chunk):
    """A chunk with the consumer of its partition, which settles its messages and batches."""

    __slots__ = ("consumer",)

    def __init__(
        self, consumer: PartitionConsumer, lease: Lease, deliver: Deliver, on_free: Callable[[int], None]
    ) -> None:
        """`on_free`: as for `Chunk`."""
        super().__init__(lease, deliver, on_free)
        self.consumer = consumer


class Arrival:
    """A chunk that waits for the iterator, with its time of arrival and the iterator's position in it."""

    __slots__ = ("_values", "begin_first", "chunk", "position", "since")

    def __init__(self, chunk: DeliveredChunk, since: float) -> None:
        self.chunk = chunk
        self.since = since
        self.position = 0
        self.begin_first = chunk.lease.begin_first
        self._values: Sequence[bytes | None] | None = None  # decoded when the first single message is taken

    def take(self, make: Callable[[DeliveredChunk, int, bytes], M]) -> M | None:
        """Take the next held message, and return the result of `make` for it. None at the end."""
        chunk = self.chunk
        position = chunk.state.find(HELD, self.position)
        if position < 0:
            return None
        if self._values is None:
            self._values = chunk.values()
        self.position = chunk.taken = position + 1
        return make(chunk, position, self._values[position] or b"")

    def take_rest(self) -> bool:
        """Take all held messages, beginning at `position`; return whether there are any."""
        self.chunk.taken = self.chunk.count
        return self.chunk.state.find(HELD, self.position) >= 0

    @property
    def needs_report(self) -> bool:
        """True if the broker must store that the next message was begun before the iterator takes the message."""
        return self.begin_first and self.chunk.state.find(HELD, self.position) >= self.chunk.begun

    async def report(self, *, whole: bool) -> None:
        """Report the next message, or all messages if `whole`, as begun. Wait until the broker has stored the report.

        A message whose lease is lost is not held afterwards. If the report fails for another reason, or takes longer
        than `REPORT_S`, the message still counts as begun: the report only keeps the count of attempts correct, and
        must not delay messages of other partitions."""
        chunk = self.chunk
        stop = chunk.count if whole else chunk.state.find(HELD, self.position) + 1
        chunk.taken = max(chunk.taken, stop)
        with suppress(SandqError), anyio.move_on_after(REPORT_S) as scope:
            await chunk.consumer.report_begun(chunk.lease)
        # After a timeout the partition may have no leader: do not wait again for each of its messages.
        chunk.begun = chunk.count if scope.cancelled_caught else max(chunk.begun, stop)
