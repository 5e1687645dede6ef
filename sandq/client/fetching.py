"""`client.fetch`: reading a partition's log without a lease; nothing changes by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sandq.client.calls import call_leader, fresh_topic
from sandq.client.chunks import positions_of
from sandq.client.cluster import Cluster
from sandq.client.pieces import LogPiece
from sandq.client.points import Point, offset_of
from sandq.client.stored import FetchedMessage
from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest, ProtocolError, UnknownPartition
from sandq.protocol.fields import PARTITION_MAX
from sandq.protocol.replies_messages import FetchReply, Piece
from sandq.protocol.requests_messages import Fetch

_MAX_MESSAGES = 10_000
_MAX_BYTES = 4 * 1024 * 1024


class Fetched:
    """An async iterator over the messages of one partition, from one point up to, without, another.

    It ends at `end`, or where the partition is not closed yet: what comes to lie there later is not waited for.
    One task iterates.
    """

    def __init__(
        self, cluster: Cluster, topic: str, partition: int, start: Point | None, end: Point | None, limit: int | None
    ) -> None:
        if type(partition) is not int or not 0 <= partition <= PARTITION_MAX:
            raise InvalidRequest(f"partition: an int within 0..{PARTITION_MAX} is expected, not {partition!r}")
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._next = offset_of(start, offset_model.FIRST)
        self._end = offset_of(end, None)
        self._left = limit
        self._pieces: deque[Piece] = deque()
        self._rows: deque[FetchedMessage] = deque()

    def __aiter__(self) -> Fetched:
        return self

    async def __anext__(self) -> FetchedMessage:
        if self._left is not None and self._left <= 0:
            raise StopAsyncIteration
        while not self._rows:
            if self._pieces:
                self._rows.extend(self._cut(self._pieces.popleft()))
            elif self._next is None:
                raise StopAsyncIteration
            else:
                await self._read()
        if self._left is not None:
            self._left -= 1
        return self._rows.popleft()

    async def _read(self) -> None:
        record = await self._cluster.topic(self._topic)
        if self._partition >= len(record.partitions):
            record = await fresh_topic(self._cluster, self._topic)
        if self._partition >= len(record.partitions):
            last = len(record.partitions) - 1
            raise UnknownPartition(f"topic {self._topic!r} has partitions 0..{last}, there is no {self._partition}")
        assert self._next is not None
        most = _MAX_MESSAGES if self._left is None else min(self._left, _MAX_MESSAGES)
        request = Fetch(self._topic, self._partition, self._next, self._end, most, _MAX_BYTES)
        reply = FetchReply.parse(await call_leader(self._cluster, self._topic, self._partition, request.frame))
        if reply.next is not None and reply.next <= self._next:
            raise ProtocolError("FETCH reply: next does not lie behind the start")
        self._next = reply.next
        self._pieces.extend(reply.pieces)

    def _cut(self, piece: Piece) -> list[FetchedMessage]:
        found, positions = open_piece("FETCH reply", piece)
        values = found.values()
        return [
            FetchedMessage(found, position, values[position] or b"", self._topic, self._partition)
            for position in positions
        ]


def open_piece(what: str, piece: Piece) -> tuple[LogPiece, Sequence[int]]:
    """A piece of a reply, and the positions of the messages that it is about; ProtocolError when it is malformed."""
    try:
        found = LogPiece(piece.offsets, piece.ids, piece.created_ms, piece.batch)
    except InvalidRequest as error:
        raise ProtocolError(f"{what}: {error.message}") from None
    if piece.live is None:
        return found, range(found.count)
    spans = [(first, first + count) for first, count in piece.live]
    if spans and spans[-1][1] > found.count:
        raise ProtocolError(f"{what}: live names positions beyond {found.count}")
    return found, positions_of(spans)
