"""Rows cut into chunks, the batches that the sink sends: the same rows in the same order give the same chunks.

Neither time nor the way in which Arrow happened to slice the rows matters. Rows are gathered into *blocks*, by number
and bytes alone; whatever else is decided (what goes where, what is full) is decided once a block.

    record batches -> blocks -> by target (`partitioner`) -> lines -> chunks, numbered 1, 2, 3, ... in a topic partition

Each chunk carries a checksum of all before it in its topic partition, its *chain*. That is for attempts whose rows came
in another order: a broker compares the last five chunks of a producer only, and by their chains all others as well.
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
"""A chunk has at most so many; a larger row is one of its own."""
WAITING_BYTES: Final = 64 << 20
"""When more wait for their chunks to be full, over all targets, chunks are sent that are not."""
_CRC: Final = slice(4, 8)


class Chunk(NamedTuple):
    """A batch for a topic partition."""

    topic: str
    partition: int
    number: int
    """In its topic partition, from 1 on."""
    rows: int
    chain: int
    """Of the chunks before it, as `sequence_of` takes it."""
    on_conflict: int
    ignorable: bool
    """Whether writing all of it again, under any name, stores nothing twice: its rows have unique keys."""
    data: bytes
    """The batch."""


class Line:
    """Rows in order, as record batches with a column of sizes."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._batches: deque[tuple[Any, int]] = deque()  # and their bytes

    def add(self, batch: Any) -> None:
        if batch.num_rows:
            size = pc.sum(batch.column(SIZE)).as_py()
            self._batches.append((batch, size))
            self.rows += batch.num_rows
            self.bytes += size

    def fits(self, most_rows: int, most_bytes: int) -> int:
        """How many of the first rows are within both; one at least."""
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
        """The first rows, taken out: one or more record batches."""
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
    """The rows of record batches in order, as record batches that do not depend on how those were cut."""
    line = Line()
    for batch in batches:
        line.add(batch)
        while line.rows > BLOCK_ROWS or line.bytes > BLOCK_BYTES:
            yield _one(line.take(line.fits(BLOCK_ROWS, BLOCK_BYTES)))
    while line.rows:
        yield _one(line.take(line.fits(BLOCK_ROWS, BLOCK_BYTES)))


def _one(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class Chunker:
    """The rows of one task on their way into chunks."""

    def __init__(self, on_conflict: int, batch_bytes: int) -> None:
        """`on_conflict`: of rows with a unique key. `batch_bytes`: what the broker takes as a batch."""
        self._on_conflict = on_conflict
        self._most_bytes = min(CHUNK_BYTES, batch_bytes // 2)
        self._lines: dict[Target, Line] = {}
        self._places: dict[tuple[str, int], _Place] = {}
        self._bytes = 0

    def add(self, target: Target, rows: Any) -> None:
        """Rows for a target, in order."""
        line = self._lines.setdefault(target, Line())
        self._bytes -= line.bytes
        line.add(rows)
        self._bytes += line.bytes

    def full(self) -> Iterator[Chunk]:
        """What is to be sent now; to be asked for after each block."""
        for target, line in self._lines.items():
            while line.rows > CHUNK_ROWS or line.bytes > self._most_bytes:
                yield self._cut(target, line)
        if self._bytes > WAITING_BYTES:
            for target, line in self._lines.items():
                if line.rows:
                    yield self._cut(target, line)

    def rest(self) -> Iterator[Chunk]:
        """What is left, at the end of the rows; after `full`."""
        for target, line in self._lines.items():
            while line.rows:
                yield self._cut(target, line)

    def _cut(self, target: Target, line: Line) -> Chunk:
        place = self._places.setdefault((target.topic, target.partition), _Place())
        count = line.fits(CHUNK_ROWS, self._most_bytes)
        self._bytes -= line.bytes
        rows = line.take(count)
        self._bytes += line.bytes
        data = encode_rows(rows, relative=target.relative)
        place.number += 1
        chain = place.chain & MAX_CHAIN
        place.chain = xxhash.xxh3_64_intdigest(data[_CRC], seed=place.chain)
        unique = [batch.column("unique_key").null_count for batch in rows if "unique_key" in batch.schema.names]
        has_unique = sum(unique) < count if unique else False
        ignorable = bool(unique) and not any(unique) and self._on_conflict == IGNORE
        on_conflict = self._on_conflict if has_unique else REJECT
        return Chunk(target.topic, target.partition, place.number, count, chain, on_conflict, ignorable, data)


class _Place:
    """What was cut for a topic partition."""

    def __init__(self) -> None:
        self.number = 0
        self.chain = 0
        """Of the checksums of all its chunks."""
