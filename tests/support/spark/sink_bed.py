"""Provide rows, small chunks, and a partition that a test controls completely, for tests of the sink.

There are no sockets, and the test moves the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from sandq.client.options import Options
from sandq.client.producer.validation import MessageValidation
from sandq.client.transport.connection import Build, OnReply
from sandq.client.transport.on_behalf import OURSELVES
from sandq.model.batch import Batch, Column
from sandq.model.errors import ConnectionLost, SandqError
from sandq.model.sequence import is_resent, number_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.log.appends import Stored
from sandq.protocol.frames import FrameReader, Type
from sandq.protocol.replies import Partition, TopicRecord
from sandq.protocol.requests import IGNORE, OnBehalf, Produce
from sandq.spark.sink import chunks as chunks_module
from sandq.spark.sink.chunks import Chunk, Chunker, blocks
from sandq.spark.sink.columns import Columns, RowErrors
from sandq.spark.sink.identity import Identity
from sandq.spark.sink.partition_sender import PROBE_NUMBER, PartitionSender
from sandq.spark.sink.partitioner import Router
from tests.support.partition.bench import Bench

LOSE_ANSWER = "lose answer"
"""The chunk is stored, and the connection breaks before the answer."""
LOSE_REQUEST = "lose request"
"""The connection breaks before the request is read."""
Fate = str | SandqError


def record(partitions: int = 1, *, kind: str = "timer", initial: int | None = None, name: str = "t") -> TopicRecord:
    rows = [Partition(place, 1 + place, "n") for place in range(partitions)]
    return TopicRecord(name, 1, kind, rows, initial or partitions, 1, {})


def small_chunks(patch: pytest.MonkeyPatch, rows: int = 64) -> None:
    """Make chunks and blocks so small that a few rows fill them."""
    patch.setattr(chunks_module, "CHUNK_ROWS", rows)
    patch.setattr(chunks_module, "BLOCK_ROWS", rows)


def cut(
    batches: Iterable[Any],
    *,
    topics: Sequence[TopicRecord] = (record(),),
    topic: str | None = "t",
    partition: int = 0,
    on_conflict: int = IGNORE,
) -> list[Chunk]:
    """Return all chunks of a task with these rows (pyarrow.RecordBatch), in the order in which they are sent."""
    errors = RowErrors(partition)
    found: list[Chunk] = []
    first = 0
    columns: Columns | None = None
    router = Router(topic, {one.name: one for one in topics}.__getitem__, partition, errors)
    chunker = Chunker(on_conflict, MessageValidation({}).batch_bytes)
    normal = []
    for batch in batches:
        columns = columns or Columns(batch.schema.names, MessageValidation({}), errors)
        normal.append(columns.read(batch, first))
        first += batch.num_rows
    first = 0
    for block in blocks(normal):
        for target, part in router.split(block, first):
            chunker.add(target, part)
        found += chunker.full()
        first += block.num_rows
    return [*found, *chunker.rest()]


def table(values: Iterable[int | str], **columns: Any) -> Any:
    """Return a record batch with a column `value`, and others."""
    return pa.record_batch({"value": pa.array([str(value).encode() for value in values]), **columns})


def values_of(chunks: Iterable[Chunk]) -> list[bytes | None]:
    return [value for chunk in chunks for value in Batch.parse(chunk.data).values()]


CHANGE_S = 0.05
"""Seconds between two simulated changes of the cluster, on trio's autojump clock."""


class FakeCluster:
    """Replaces the cluster, and the connection to the leader, for a partition sender.

    `serve` reads and answers requests in order, once no other task can run."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.options = Options(back_off_first_s=0.001, back_off_max_s=0.002)
        self.seen: list[tuple[int, int, bool]] = []
        """Epoch, number, and whether it is a repetition, of each chunk that the broker read."""
        self.questions = 0
        self.fates: dict[int, Fate] = {}
        """Result of each request by its number, counted from 0. Without an entry, the chunk is stored and answered."""
        self.leaderless = 0
        """Number of remaining calls for which there is no leader."""
        self.refreshed = 0
        self._requests: deque[tuple[int, Produce]] = deque()
        self._waiting: dict[int, OnReply] = {}
        self._last_id = 0
        self._read = 0
        self._came = trio.Event()

    # Interface of the cluster and of the connection.

    def check_open(self) -> None:
        pass

    def missing(self, topic: str) -> None:
        return None

    def record(self, topic: str) -> None:
        return None

    def forget_if_unknown(self, topic: str, error: SandqError) -> None:
        pass

    def error_summary(self) -> str:
        return ": it is a test"

    def leader(self, topic: str, partition: int) -> FakeCluster | None:
        if self.leaderless:
            self.leaderless -= 1
            return None
        return self

    async def wait_for_change(self) -> None:
        await trio.sleep(CHANGE_S)

    def refresh(self, topic: str) -> None:
        self.refreshed += 1

    def request(self, build: Build, on_reply: OnReply, asker: OnBehalf = OURSELVES) -> int:
        self._last_id += 1
        (frame,) = FrameReader().feed(build(self._last_id))
        self._requests.append((self._last_id, Produce.parse(frame)))
        self._waiting[self._last_id] = on_reply
        self._came.set()
        return self._last_id

    def forget(self, request_id: int) -> None:
        self._waiting.pop(request_id, None)

    # The broker.

    async def serve(self) -> None:
        while True:
            await self._came.wait()
            self._came = trio.Event()
            await trio.testing.wait_all_tasks_blocked()
            while self._requests:
                self._answer(*self._requests.popleft())

    def _answer(self, request_id: int, produce: Produce) -> None:
        fate: Fate | None = None
        if number_of(produce.sequence) == PROBE_NUMBER:
            self.questions += 1
        else:
            fate = self.fates.get(self._read)
            self._read += 1
        if fate == LOSE_REQUEST:
            self._cut()
            return
        reply = fate if isinstance(fate, SandqError) else self._apply(request_id, produce)
        if fate == LOSE_ANSWER:
            self._cut()
            return
        on_reply = self._waiting.pop(request_id, None)
        if on_reply is not None:
            on_reply(reply)

    def _cut(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._requests.clear()
        for on_reply in waiting.values():
            on_reply(ConnectionLost("cut"))

    def _apply(self, request_id: int, produce: Produce) -> Any:
        number = number_of(produce.sequence)
        if number != PROBE_NUMBER:
            self.seen.append((produce.epoch, number, is_resent(produce.sequence)))
        split = Batch.parse(produce.batch).bytes_column(Column.UNIQUE_KEY) is not None
        append = c.Append(
            produce.batch, produce.producer_id, produce.epoch, produce.sequence, produce.on_conflict, split
        )
        (result,) = self.bench.apply(0, append)
        if isinstance(result, SandqError):
            return result
        if isinstance(result, Stored):
            return [Type.REPLY, request_id, result.offsets, [[*row] for row in result.refused] or None]
        return [Type.REPLY, request_id, list(result), None]

    def store(self, batch: bytes, producer_id: int, epoch: int, sequence: int) -> None:
        """Append values as another attempt of the task, or as another producer."""
        self.bench.apply(0, c.Append(batch, producer_id, epoch, sequence))

    def stored(self) -> list[int]:
        """Return the values in the log, in order."""
        entries = [rows.log_entry(key, value) for key, value in self.bench.rows(rows.LOG)]
        messages = self.bench.read([rows.Range(entry.first, entry.length) for entry in entries])
        return [int(message.fields[Column.VALUE]) for message in messages]


async def write(
    cluster: FakeCluster,
    chunks: Sequence[Chunk],
    *,
    identity: Identity = Identity("test", 0),  # noqa: B008  # it is frozen
    again: bool = False,
    at_once: int = 3,
) -> PartitionSender:
    """Send the chunks of one attempt of a task through a partition sender, several chunks at a time."""
    parts = [list(chunks[place : place + at_once]) for place in range(0, len(chunks), at_once)]
    partition_sender = PartitionSender(cluster, "t", 0, identity, again=again)  # type: ignore[arg-type]
    for part in parts:
        await partition_sender.deliver(part)
    await partition_sender.finish()
    return partition_sender
