"""Tests of the writers that Spark calls: checks and messages of the driver, and the end of the rows of a task."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra sandq[spark] is not installed: make spark")

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from sandq.errors import InvalidRequest, InvalidSetting, Unavailable
from sandq.spark.sink import writers
from sandq.spark.sink.ending import check_ended
from sandq.spark.sink.refusals import RowRefused
from sandq.spark.sink.sender import Written
from sandq.spark.sink.writers import Committed, batch_writer, stream_writer
from sandq.testing import broker

SCHEMA = StructType([StructField("value", BinaryType()), StructField("deliver_at", TimestampType())])
OPTIONS = {"topic": "t"}


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_driver_rejects_invalid_options_and_schemas(make: Callable[..., Any]) -> None:
    make(OPTIONS, SCHEMA, False)
    with pytest.raises(InvalidSetting, match=r'never overwritten; use mode\("append"\)'):
        make(OPTIONS, SCHEMA, True)
    with pytest.raises(InvalidSetting, match="topics: no such option"):
        make({"topics": "t"}, SCHEMA, False)
    with pytest.raises(InvalidSetting, match="wrong: no such column"):
        make(OPTIONS, StructType([*SCHEMA, StructField("wrong", StringType())]), False)
    with pytest.raises(InvalidSetting, match="value: the type binary or string is expected, not bigint"):
        make(OPTIONS, StructType([StructField("value", LongType())]), False)


def test_write_id_is_refused_for_streams() -> None:
    batch_writer({**OPTIONS, "writeId": "w"}, SCHEMA, False)
    with pytest.raises(InvalidSetting, match="writeId: it is for batches"):
        stream_writer({**OPTIONS, "writeId": "w"}, SCHEMA, False)


def test_a_batch_has_a_name_of_its_own_unless_it_is_given_one() -> None:
    one, other = (batch_writer(OPTIONS, SCHEMA, False) for _ in range(2))
    assert one._name != other._name and pickle.loads(pickle.dumps(one))._name == one._name
    one, other = (batch_writer({**OPTIONS, "writeId": "w"}, SCHEMA, False) for _ in range(2))
    assert one._name == other._name


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_rows_without_a_task(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidRequest, match="no task is running here"):
        make(OPTIONS, SCHEMA, False).write(iter([]))


def test_driver_logs_the_result(caplog: pytest.LogCaptureFixture) -> None:
    messages = [
        pickle.loads(pickle.dumps(Committed(Written(rows, 3, already, again, {"t", topic}))))
        for rows, already, again, topic in ((10, 2, 0, "t"), (20, 0, 1, "u"))
    ]
    with caplog.at_level(logging.INFO, "sandq.spark"):
        batch_writer(OPTIONS, SCHEMA, False).commit(messages)
        stream_writer(OPTIONS, SCHEMA, False).commit(messages[:1], 7)
        batch_writer(OPTIONS, SCHEMA, False).abort([*messages, None])
        batch_writer({**OPTIONS, "writeId": "w"}, SCHEMA, False).abort([None])
        stream_writer(OPTIONS, SCHEMA, False).abort([None], 8)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == (
        "30 rows in 6 chunks by 2 tasks, to t, u; 2 chunks were stored by earlier attempts; 1 chunks were written "
        "again, because their rows had changed"
    )
    assert said[1].startswith("micro-batch 7: 10 rows in 3 chunks by 1 tasks, to t; 2 chunks")
    assert "1 tasks failed, and may have stored some of their rows" in said[2] and "stores these rows twice" in said[2]
    assert "to no topic; 1 tasks failed" in said[3] and "the same writeId stores the rest" in said[3]
    assert said[4].startswith("micro-batch 8 failed") and said[4].endswith("Its replay stores the rest")


class Task:
    """The information about its task that Spark gives a writer."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def partitionId(self) -> int:
        return self._partition

    def attemptNumber(self) -> int:
        return 0


def test_a_row_that_cannot_be_written_fails_the_write_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No attempt fails. The driver fails with the first error and ends the running tasks."""
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(writers, "check_ended", lambda: None)
    schema = StructType([StructField("value", BinaryType()), StructField("delay_ms", LongType())])

    def rows(*delays: int) -> Any:
        return pa.record_batch({"value": pa.array([b"x"] * len(delays)), "delay_ms": pa.array(delays, pa.int64())})

    with broker() as node:
        node.create_topic("t")
        options = {**OPTIONS, "sandq.bootstrap.servers": node.address}
        writer = pickle.loads(pickle.dumps(batch_writer(options, schema, False)))
        other = batch_writer(options, schema, False)

        def write(partition: int, batches: Iterator[Any], writer: Any = writer) -> Committed:
            monkeypatch.setattr(writers.TaskContext, "get", lambda: Task(partition))
            found: Committed = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(batches)))
            return found

        good = write(0, iter([rows(0, 0)]))
        assert good.refused is None and good.written.rows == 2
        bad = write(1, iter([rows(0), rows(5, -1)]))
        assert bad.refused is not None and "row 2 of Spark partition 1" in bad.refused

        def endless() -> Iterator[Any]:
            while True:
                yield rows(0)

        assert write(2, endless()).refused == bad.refused
        assert write(0, iter([rows(0)]), other).refused is None, "the write is a new write"
        with pytest.raises(RowRefused, match=r"row 2 of Spark partition 1 .*delay_ms: -1 is not within"):
            writer.commit([good, bad])


def worker(infile: Any) -> None:
    """Check the end of the rows like the main function of Spark's worker."""
    check_ended()


def test_rows_that_ended(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.BufferedReader(io.BytesIO(b"\xff\xff\xff\xfc"))  # type: ignore[arg-type]
    worker(stream)
    assert stream.read() == b"\xff\xff\xff\xfc", "the rest of the stream is left for the worker"
    with pytest.raises(Unavailable, match="rows of this task were cut off"):
        worker(stream)
    assert not caplog.records
    worker(None)
    assert "a writer cannot detect" in caplog.text
