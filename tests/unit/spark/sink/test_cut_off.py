"""Rows that are cut off on their way to a writer: nothing is sent that the next attempt would not send as well.

To the writer such rows come to a normal end. The stream of Spark's worker, which is faked here, shows it: after
rows that came to their end it has a mark, after others it has nothing.
"""

from __future__ import annotations

import inspect
import io
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the extra sandq[spark] is not installed: make spark")

import pyspark.worker
from pyspark import SparkFiles
from pyspark.serializers import SpecialLengths, read_int, write_int
from pyspark.sql.types import BinaryType, StructField, StructType

from sandq.client.producer.validation import MessageValidation
from sandq.errors import Unavailable
from sandq.protocol.replies import TopicRecord
from sandq.spark.sink import chunks as chunks_module
from sandq.spark.sink import writers
from sandq.spark.sink.chunks import Chunk
from sandq.spark.sink.ending import check_ended
from sandq.spark.sink.identity import BATCH_ID, QUERY_ID, Identity
from sandq.spark.sink.options import parse_sink_options
from sandq.spark.sink.sender import Written
from tests.support.spark.sink_bed import record, small_chunks, table, values_of

OPTIONS = {"topic": "t"}
SCHEMA = StructType([StructField("value", BinaryType())])


class FakeClient:
    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class FakeSender:
    """A replacement of `Sender` that records all chunks as sent."""

    sent: list[Chunk]

    def __init__(self, client: FakeClient, identity: Identity, *, again: bool = False) -> None:
        FakeSender.sent = []
        self.checks = MessageValidation({})

    def topic(self, name: str) -> TopicRecord:
        return record(3, name=name)

    def send(self, chunk: Chunk) -> None:
        self.sent.append(chunk)

    def finish(self) -> Written:
        return Written(sum(chunk.rows for chunk in self.sent), len(self.sent))

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(writers, "connect", lambda *servers, name: FakeClient())
    monkeypatch.setattr(writers, "Sender", FakeSender)


class FakeTask:
    """The attributes of the task context that a writer uses."""

    def partitionId(self) -> int:
        return 0

    def attemptNumber(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> str | None:
        return {QUERY_ID: "query", BATCH_ID: "3"}.get(name)


def stream(*, ended: bool) -> io.BufferedReader:
    """Return the bytes that a worker has not read yet after its last row."""
    said = io.BytesIO()
    if ended:
        write_int(SpecialLengths.END_OF_STREAM, said)
    return io.BufferedReader(io.BytesIO(said.getvalue()))


def as_a_worker(infile: Any, work: Callable[[], Any]) -> Any:
    """Spark's worker: the stream is a local variable of its main function, and `work` runs below that."""
    return work()


def sliced(rng: random.Random, batch: Any) -> Iterator[Any]:
    start = 0
    while start < batch.num_rows:
        size = rng.randrange(1, 60)
        yield batch.slice(start, size)
        start += size


def written(rows: Iterable[Any], ended: Callable[[], None] = lambda: None) -> list[Chunk]:
    """Return the chunks that a task with these rows sends, whether it fails or not."""
    batches = iter(rows)
    with suppress(Unavailable):
        writers.write_rows(batches, ("value", "key"), parse_sink_options(OPTIONS), Identity("test", 0), ended)
    return FakeSender.sent


def cut_off() -> None:
    raise Unavailable("cut off")


def test_spark_worker_has_the_expected_variable() -> None:
    """This test fails if a release of Spark renames the stream."""
    assert "infile" in inspect.unwrap(pyspark.worker.main).__code__.co_varnames


def test_end_mark_is_left_for_the_worker() -> None:
    infile = stream(ended=True)
    for _ in range(2):
        as_a_worker(infile, check_ended)
    assert read_int(infile) == SpecialLengths.END_OF_STREAM
    with pytest.raises(Unavailable, match="rows of this task were cut off") as caught:
        as_a_worker(infile, check_ended)
    assert caught.value.retriable


def test_innermost_stream_is_found_at_any_depth() -> None:
    def rows() -> Iterator[int]:
        yield 1
        check_ended()

    def user(infile: str) -> list[int]:  # another variable of that name in a function between
        return [*rows()]

    assert as_a_worker(stream(ended=True), lambda: user("a path")) == [1]
    with pytest.raises(Unavailable):
        as_a_worker(stream(ended=False), lambda: user("a path"))


@pytest.mark.parametrize("make", [writers.batch_writer, writers.stream_writer])
@pytest.mark.parametrize("count", [0, 10, 150])
def test_both_writers_check_for_the_mark(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any], count: int) -> None:
    small_chunks(monkeypatch)
    monkeypatch.setattr(writers, "_context", FakeTask)
    writer = make(OPTIONS, SCHEMA, False)
    rows = [table(range(count))]
    committed = as_a_worker(stream(ended=True), lambda: writer.write(iter(rows)))
    assert committed.written.rows == count and values_of(FakeSender.sent) == [b"%d" % number for number in range(count)]
    with pytest.raises(Unavailable, match="rows of this task were cut off"):
        as_a_worker(stream(ended=False), lambda: writer.write(iter(rows)))
    # Each block of 64 rows goes to another partition. No block fills a chunk before the end of its rows.
    assert FakeSender.sent == []


@pytest.mark.parametrize("seed", range(12))
def test_chunks_of_truncated_rows_are_a_prefix_of_all_chunks(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Rows may be cut off anywhere. A chunk may be full by its rows, its bytes, or all pending bytes."""
    rng = random.Random(seed)
    small_chunks(monkeypatch, rng.choice([16, 40]))
    monkeypatch.setattr(chunks_module, "BLOCK_ROWS", rng.choice([24, 64]))
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", rng.choice([700, 1 << 20]))
    monkeypatch.setattr(chunks_module, "WAITING_BYTES", rng.choice([1500, 1 << 20]))
    count = 400
    keys = [rng.choice([None, f"k{rng.randrange(20)}"]) for _ in range(count)]
    whole = table((f"{number} ".ljust(rng.randrange(5, 60)) for number in range(count)), key=pa.array(keys))
    all_sent = list(written(sliced(rng, whole)))
    assert sum(chunk.rows for chunk in all_sent) == count
    some_sent = 0
    for stop in sorted(rng.sample(range(1, count), 40)):
        sent = written(sliced(rng, whole.slice(0, stop)), cut_off)
        some_sent += bool(sent)
        assert sent == all_sent[: len(sent)], f"seed {seed}, cut off after {stop} rows"
    assert some_sent, f"seed {seed}: full chunks are sent meanwhile"
