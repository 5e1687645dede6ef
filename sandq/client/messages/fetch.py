"""`client.fetch`, `page` and `measure`: read a partition's log without leasing or changing anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sandq.client.messages.log_page import LogPiece, positions_of
from sandq.client.messages.stored_message import FetchedMessage
from sandq.client.positions import Point, offset_of
from sandq.client.timeouts import within
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call_leader, fresh_topic
from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest, ProtocolError, UnknownPartition
from sandq.model.piece import Piece
from sandq.model.times import Duration
from sandq.protocol.fields import PARTITION_MAX
from sandq.protocol.requests_log import Fetch, FetchReply, Measure, MeasureReply

PAGE_MESSAGES = 10_000
PAGE_BYTES = 4 * 1024 * 1024
FIRST_PAGE_BYTES = 256 * 1024
"""Size of the first page of an iterator, in bytes. Each further page is twice as large, up to `PAGE_BYTES`.

So a caller that reads little, or stops early, uses little memory.
"""


class Stretch(NamedTuple):
    """A range of a partition's log, from `start` up to, but excluding, `end` (16 bytes each; None: no bound).

    `pending`: include the part that is not closed yet, in its current state.
    """

    topic: str
    partition: int
    start: bytes
    end: bytes | None
    pending: bool = False

    @classmethod
    def of(cls, topic: str, partition: int, start: Point | None, end: Point | None, pending: bool) -> Stretch:
        """Check the caller's arguments, and build a stretch from them. Raises InvalidRequest, InvalidTime."""
        if type(partition) is not int or not 0 <= partition <= PARTITION_MAX:
            raise InvalidRequest(f"partition: an int within 0..{PARTITION_MAX} is expected, not {partition!r}")
        first = offset_of(start, offset_model.FIRST)
        assert first is not None
        return cls(topic, partition, first, offset_of(end, None), pending)


async def read_page(
    cluster: Cluster, of: Stretch, most: int = PAGE_MESSAGES, max_bytes: int = PAGE_BYTES
) -> FetchReply:
    """Read the first messages of a stretch. Raises ProtocolError if the reply makes no progress."""
    await _check_partition(cluster, of)
    request = Fetch(of.topic, of.partition, of.start, of.end, most, max_bytes, of.pending)
    reply = FetchReply.parse(await call_leader(cluster, request))
    if reply.next is not None and reply.next <= of.start:
        raise ProtocolError("FETCH reply: next does not lie behind the start")
    return reply


async def measure(cluster: Cluster, of: Stretch, most: int | None) -> MeasureReply:
    """Count the messages of a stretch, and find the end of the first `most` of them."""
    await _check_partition(cluster, of)
    request = Measure(of.topic, of.partition, of.start, of.end, most, of.pending)
    reply = MeasureReply.parse(await call_leader(cluster, request))
    if reply.next is not None and reply.next <= of.start:
        raise ProtocolError("MEASURE reply: next does not lie behind the start")
    return reply


async def _check_partition(cluster: Cluster, of: Stretch) -> None:
    """Raise UnknownPartition if the topic has no such partition."""
    record = await cluster.topic(of.topic)
    if of.partition >= len(record.partitions):
        record = await fresh_topic(cluster, of.topic)
    if of.partition >= len(record.partitions):
        last = len(record.partitions) - 1
        raise UnknownPartition(f"topic {of.topic!r} has partitions 0..{last}, there is no {of.partition}")


class Fetched:
    """An async iterator over the messages of one partition in a range.

    It ends at the end of the range, or at the end of the closed part: it does not wait for later messages. Only one
    task may iterate.
    """

    def __init__(self, cluster: Cluster, stretch: Stretch, limit: int | None, timeout: Duration | None = None) -> None:
        """`timeout`: how long each step waits for the next page."""
        self._cluster = cluster
        self._stretch: Stretch | None = stretch
        self._topic, self._partition = stretch.topic, stretch.partition
        self._left = limit
        self._page_bytes = FIRST_PAGE_BYTES
        self._pieces: deque[Piece] = deque()
        self._rows: deque[FetchedMessage] = deque()
        self._read_page = within(read_page, timeout, "fetch")

    def __aiter__(self) -> Fetched:
        return self

    async def __anext__(self) -> FetchedMessage:
        if self._left is not None and self._left <= 0:
            raise StopAsyncIteration
        while not self._rows:
            if self._pieces:
                self._rows.extend(self._cut(self._pieces.popleft()))
            elif self._stretch is None:
                raise StopAsyncIteration
            else:
                await self._read(self._stretch)
        if self._left is not None:
            self._left -= 1
        return self._rows.popleft()

    async def _read(self, stretch: Stretch) -> None:
        most = PAGE_MESSAGES if self._left is None else min(self._left, PAGE_MESSAGES)
        reply = await self._read_page(self._cluster, stretch, most, self._page_bytes)
        self._page_bytes = min(2 * self._page_bytes, PAGE_BYTES)
        self._stretch = None if reply.next is None else stretch._replace(start=reply.next)
        self._pieces.extend(reply.pieces)

    def _cut(self, piece: Piece) -> list[FetchedMessage]:
        found, positions = open_piece("FETCH reply", piece)
        values = found.values()
        return [
            FetchedMessage(found, position, values[position] or b"", self._topic, self._partition)
            for position in positions
        ]


def open_piece(reply: str, piece: Piece) -> tuple[LogPiece, Sequence[int]]:
    """Return a piece of a reply, and the positions of its live messages. Raises ProtocolError if it is malformed."""
    try:
        found = LogPiece(piece.offsets, piece.ids, piece.created_ms, piece.batch)
    except InvalidRequest as error:
        raise ProtocolError(f"{reply}: {error.message}") from None
    if piece.live is None:
        return found, range(found.count)
    spans = [(first, first + count) for first, count in piece.live]
    if spans and spans[-1][1] > found.count:
        raise ProtocolError(f"{reply}: live names positions beyond {found.count}")
    return found, positions_of(spans)
