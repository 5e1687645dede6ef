"""Splits rows into chunks, the batches that the sink sends: the same rows in the same order give the same chunks.

Neither time nor the sizes of Spark's record batches influence the chunks. Rows are first collected into *blocks*, whose
limits depend only on the number and the bytes of rows. All later decisions (the partition of a row, which chunks are
full) are made once per block.

    record batches -> blocks -> by target (`partitioner`) -> row queues -> chunks, numbered from 1 per topic partition

Each chunk has a checksum of all chunks before it in its topic partition, its *chain*. It detects attempts whose rows
came in a different order: a broker compares only the last five chunks of a producer, and with their chains it compares
all chunks before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from sandq.model.sequence import MAX_CHAIN
from sandq.protocol.requests import IGNORE, REJECT
from sandq.spark.sink.columns import SIZE
from sandq.spark.sink.encoding import encode_rows
from sandq.spark.sink.partitioner import Target

BLOCK_ROWS: Final = 8192
BLOCK_BYTES: Final = 8 << 20
CHUNK_ROWS: Final = 16_384
CHUNK_BYTES: Final = 4 << 20
"""Maximum bytes of a chunk; a larger row is a chunk by itself."""
WAITING_BYTES: Final = 64 << 20
"""Maximum bytes of queued rows over all targets; with more, chunks are sent before they are full."""
_CRC: Final = slice(4, 8)


class Chunk(NamedTuple):
    """A batch for a topic partition."""

    topic: str
    partition: int
    number: int
    """Number in its topic partition, from 1."""
    rows: int
    chain: int
    """Checksum of the chunks before it, for `sequence_of`."""
    on_conflict: int
    ignorable: bool
    """True if the chunk may be written again by any producer without duplicates, because all rows have unique keys."""
    data: bytes
    """The encoded batch."""


class RowQueue:
    """A queue of rows: record batches with a column of sizes."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._batches: deque[tuple[Any, int]] = deque()  # (record batch, its bytes)

    def add(self, batch: Any) -> None:
        if batch.num_rows:
            size = pc.sum(batch.column(SIZE)).as_py()
            self._batches.append((batch, size))
            self.rows += batch.num_rows
            self.bytes += size

    def fits(self, most_rows: int, most_bytes: int) -> int:
        """Return the number of rows at the front that fit both limits; at least 1."""
        found = 0
        for batch, size in self._batches:
            rows = batch.num_rows
            if rows <= most_rows and size <= most_bytes:
                found += rows
                most_rows -= rows
                most_bytes -= size
                continue
            sums = pc.cumulative_sum(batch.column(SIZE).slice(0, most_rows))
            found += pc.sum(pc.less_equal(sums, most_bytes)).as_py() or 0
            break
        return max(found, 1)

    def take(self, count: int) -> list[Any]:
        """Remove the first `count` rows and return them as record batches."""
        taken = []
        while count:
            batch, size = self._batches.popleft()
            rest = batch.slice(count)
            if rest.num_rows:
                batch = batch.slice(0, count)
                rest_size = pc.sum(rest.column(SIZE)).as_py()
                self._batches.appendleft((rest, rest_size))
                size -= rest_size
            taken.append(batch)
            count -= batch.num_rows
            self.rows -= batch.num_rows
            self.bytes -= size
        return taken


def blocks(batches: Iterable[Any]) -> Iterator[Any]:
    """Return the rows in their order, as blocks that do not depend on the sizes of the given record batches."""
    queue = RowQueue()
    for batch in batches:
        queue.add(batch)
        while queue.rows > BLOCK_ROWS or queue.bytes > BLOCK_BYTES:
            yield _joined(queue.take(queue.fits(BLOCK_ROWS, BLOCK_BYTES)))
    while queue.rows:
        yield _joined(queue.take(queue.fits(BLOCK_ROWS, BLOCK_BYTES)))


def _joined(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class Chunker:
    """Splits the rows of one task into chunks."""

    def __init__(self, on_conflict: int, batch_bytes: int) -> None:
        """`on_conflict` is for rows with a unique key. `batch_bytes`: largest batch that the broker accepts."""
        self._on_conflict = on_conflict
        self._most_bytes = min(CHUNK_BYTES, batch_bytes // 2)
        self._queues: dict[Target, RowQueue] = {}
        self._chains: dict[tuple[str, int], _Chain] = {}
        self._bytes = 0

    def add(self, target: Target, rows: Any) -> None:
        """Queue rows for a target."""
        queue = self._queues.setdefault(target, RowQueue())
        self._bytes -= queue.bytes
        queue.add(rows)
        self._bytes += queue.bytes

    def full(self) -> Iterator[Chunk]:
        """Return the chunks to send now. Call it after each block."""
        for target, queue in self._queues.items():
            while queue.rows > CHUNK_ROWS or queue.bytes > self._most_bytes:
                yield self._cut(target, queue)
        if self._bytes > WAITING_BYTES:
            for target, queue in self._queues.items():
                if queue.rows:
                    yield self._cut(target, queue)

    def rest(self) -> Iterator[Chunk]:
        """Return the chunks of all queued rows. Call it after the last `full`."""
        for target, queue in self._queues.items():
            while queue.rows:
                yield self._cut(target, queue)

    def _cut(self, target: Target, queue: RowQueue) -> Chunk:
        position = self._chains.setdefault((target.topic, target.partition), _Chain())
        count = queue.fits(CHUNK_ROWS, self._most_bytes)
        self._bytes -= queue.bytes
        rows = queue.take(count)
        self._bytes += queue.bytes
        data = encode_rows(rows, relative=target.relative)
        position.number += 1
        chain = position.chain & MAX_CHAIN
        position.chain = xxhash.xxh3_64_intdigest(data[_CRC], seed=position.chain)
        unique = [batch.column("unique_key").null_count for batch in rows if "unique_key" in batch.schema.names]
        has_unique = sum(unique) < count if unique else False
        ignorable = bool(unique) and not any(unique) and self._on_conflict == IGNORE
        on_conflict = self._on_conflict if has_unique else REJECT
        return Chunk(target.topic, target.partition, position.number, count, chain, on_conflict, ignorable, data)


class _Chain:
    """Number of chunks of a topic partition so far, and the checksum of all of them."""

    def __init__(self) -> None:
        self.number = 0
        self.chain = 0
