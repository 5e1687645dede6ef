"""Streams through Spark deliver each message in exactly one micro-batch, across restarts and failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import window

from sandq.spark.jobs.archive import START_ATTEMPTS
from sandq.testing import Broker
from tests.support.spark.session_helpers import fill, reading, suppress_late, values
from tests.support.waiting import PATIENCE_S


class Run:
    """A query that writes Parquet. Each run of the query ends when it has read all available messages."""

    def __init__(self, spark: Any, node: Broker, place: Path, **options: Any) -> None:
        self._spark, self._node, self._options = spark, node, options
        self.out, self.checkpoint = str(place / "out"), str(place / "checkpoint")

    def once(self, **options: Any) -> list[Any]:
        """Run the query and return its progress, one row per micro-batch. If the source starts too late, try again."""
        for _ in range(START_ATTEMPTS - 1):
            with suppress_late():
                return self._once(**options)
        return self._once(**options)

    def _once(self, **options: Any) -> list[Any]:
        frame = reading(self._spark.readStream, self._node, **self._options, **options).load()
        query = (
            frame.writeStream.format("parquet")
            .option("path", self.out)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(PATIENCE_S)
            return [progress for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()

    def got(self) -> list[int]:
        return values(self._spark.read.parquet(self.out))


def test_a_stream_goes_on_from_its_checkpoint(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t", partitions=2)
    for begin in range(0, 500, 50):
        fill(node, "t", range(begin, begin + 50))
        node.advance("1s")
    fill(node, "t", range(500, 600), delay="1h")
    node.advance("1m")
    run = Run(spark, node, tmp_path, subscribe="t", maxOffsetsPerTrigger=200)
    batches = run.once()
    assert run.got() == [*range(500)]
    told = [json.loads(batch.sources[0].latestOffset) for batch in batches]
    assert [sum(one["lag"]["t"][n]["messages"] for n in "01") for one in told] == [
        500 - sum(batch.numInputRows for batch in batches[: number + 1]) for number in range(len(batches))
    ]
    assert told[0]["source"] == f"sandq at {node.address}: t"
    assert 3 <= len(batches) <= 7 and max(batch.numInputRows for batch in batches) <= 202
    assert run.once() == []
    node.advance("2h")
    fill(node, "t", range(600, 700))
    node.advance("1m")
    run.once()
    assert run.got() == [*range(700)]


def test_a_limit_leaves_nothing_behind_the_watermark(spark: Any, node: Broker, tmp_path: Path) -> None:
    """One partition has messages during ten seconds, the other one only in the last of these seconds."""
    node.create_topic("t", partitions=2)
    begin = node.now()
    with node.client() as client, client.producer("t") as producer:
        for number in range(200):
            producer.send(b"%d" % number, partition=0, deliver_at=begin + timedelta(milliseconds=50 * number))
            at = begin + timedelta(seconds=9, milliseconds=5 * number)
            producer.send(b"%d" % number, partition=1, deliver_at=at)
    node.advance("1m")
    counts: dict[Any, int] = {}

    def note(frame: Any, number: int) -> None:
        counts.update({row.window.start: row["count"] for row in frame.collect()})

    rows = reading(spark.readStream, node, subscribe="t", maxOffsetsPerTrigger=60).load()
    windows = rows.withWatermark("deliver_at", "1 second").groupBy(window("deliver_at", "1 second")).count()
    query = (
        windows.writeStream.outputMode("update")
        .foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE_S)
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
    finally:
        query.stop()
    dropped = [operator.numRowsDroppedByWatermark for batch in batches for operator in batch.stateOperators]
    assert sum(counts.values()) == 400 and not any(dropped)
    assert len(batches) >= 5, "the limit must hold messages back"


def test_an_idle_stream_makes_no_micro_batches(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t", partitions=2)
    fill(node, "t", range(10))
    node.advance("1m")
    numbers: list[int] = []
    frame = reading(spark.readStream, node, subscribe="t").load()
    query = (
        frame.writeStream.foreachBatch(lambda rows, number: numbers.append(number))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        query.processAllAvailable()
        assert numbers == [0]
        node.advance("1h")
        query.processAllAvailable()
        node.advance("1h")
        query.processAllAvailable()
        assert numbers == [0]
        fill(node, "t", range(10, 20))
        node.advance("1m")
        query.processAllAvailable()
        assert numbers == [0, 1]
    finally:
        query.stop()


def test_a_failed_first_batch_loses_nothing(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t", partitions=2)
    fill(node, "t", range(100))
    node.advance("1m")
    out = str(tmp_path / "out")
    fails = [True]

    def write(frame: Any, number: int) -> None:
        if fails:
            fails.clear()
            raise RuntimeError("the first batch fails")
        frame.write.mode("append").parquet(out)

    def run() -> None:
        query = (
            reading(spark.readStream, node, subscribe="t")
            .load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)

    with pytest.raises(StreamingQueryException, match="the first batch fails"):
        run()
    fill(node, "t", range(100, 150))
    node.advance("1m")
    run()
    assert values(spark.read.parquet(out)) == [*range(150)]


def test_messages_that_a_stream_has_not_read_are_not_trimmed(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t", delete_on_ack=False, retain="1h")
    run = Run(spark, node, tmp_path, subscribe="t", holdTtl="1d")
    run.once()
    # The hold also protects messages that become due after a run that found none.
    for first in (0, 100):
        fill(node, "t", range(first, first + 100))
        node.advance("5h")
        run.once()
    assert run.got() == [*range(200)]


@pytest.mark.parametrize("fail", [True, False])
def test_stream_after_trim_reports_lost_messages(spark: Any, node: Broker, tmp_path: Path, fail: bool) -> None:
    node.create_topic("t", delete_on_ack=False, retain="1h")
    fill(node, "t", range(100))
    node.advance("1m")
    run = Run(spark, node, tmp_path, subscribe="t", holdName="none")
    run.once()
    fill(node, "t", range(100, 200))
    node.advance("5h")
    fill(node, "t", range(200, 300))
    node.advance("1m")
    if fail:
        with pytest.raises(StreamingQueryException, match="were trimmed before they were read"):
            run.once()
    run.once(failOnDataLoss="false")
    assert run.got() == [*range(100), *range(200, 300)]


def test_a_topic_changes_under_a_stream(spark: Any, node: Broker, tmp_path: Path) -> None:
    """Changes of the topic during a run of the stream.

    Added partitions are read from their beginning. If unread messages are trimmed, the stream ends with an error."""
    node.create_topic("t", partitions=1, delete_on_ack=False, retain="1h")
    got: list[tuple[int, int]] = []
    meanwhile: list[Callable[[], None]] = []

    def note(frame: Any, number: int) -> None:
        got.extend((row.partition, int(row.value)) for row in frame.select("partition", "value").collect())
        if meanwhile:
            meanwhile.pop()()

    def raised() -> None:
        with node.client() as client:
            client.admin.update_topic("t", partitions=3)
            with client.producer("t") as producer:
                for number in range(100, 200):
                    producer.send(b"%d" % number, partition=number % 3)
        node.advance("1m")

    def trimmed() -> None:
        fill(node, "t", range(300, 310))
        node.advance("5h")
        fill(node, "t", range(310, 320))
        node.advance("1m")

    fill(node, "t", range(100))
    node.advance("1m")
    meanwhile.append(raised)
    query = (
        reading(spark.readStream, node, subscribe="t", holdName="none")
        .load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        query.processAllAvailable()
        assert sorted(value for _, value in got) == [*range(200)]
        assert {partition for partition, value in got if value >= 100} == {0, 1, 2}
        meanwhile.append(trimmed)
        fill(node, "t", range(200, 210))
        node.advance("1m")
        with pytest.raises(StreamingQueryException, match=r"HistoryGone: topic 't', partition \d: .* were trimmed"):
            query.processAllAvailable()
            query.awaitTermination(PATIENCE_S)
        assert sorted(value for _, value in got) == [*range(210)], "no message is skipped"
    finally:
        query.stop()


def test_a_stream_of_a_compacted_topic_is_its_changelog(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("kv", kind="compacted", partitions=2)
    with node.client() as client:
        keys = client.kv("kv")
        for round_ in range(3):
            keys.put_many({f"k{n}": str(100 * round_ + n) for n in range(20)})
        keys.delete("k7")
    node.advance("1m")
    latest = reading(spark.read, node, subscribe="kv", view="latest", columns="value,key").load()
    assert {bytes(row.key): int(row.value) for row in latest.collect()} == {
        f"k{n}".encode(): 200 + n for n in range(20) if n != 7
    }
    run = Run(spark, node, tmp_path, subscribe="kv")
    run.once()
    rows = spark.read.parquet(run.out).orderBy("offset").collect()
    last: dict[bytes, bytes | None] = {bytes(row.key): row.value for row in rows}
    assert len(rows) == 61 and last[b"k7"] is None and last[b"k3"] == b"203"


def test_invalid_options_are_rejected(spark: Any, node: Broker, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException, PySparkException

    with pytest.raises(AnalysisException, match="exactly one of subscribe, subscribePattern and assign"):
        spark.read.format("sandq").option("subscibe", "t").load()
    with pytest.raises(PySparkException, match="'nothing'"):
        reading(spark.read, node, subscribe="nothing").load().count()
    with pytest.raises(StreamingQueryException, match="a stream has no end"):
        Run(spark, node, tmp_path, subscribe="t", endingTimestamp="2030-01-01T00:00:00Z").once()


def test_stream_from_before_a_clock_reset_fails(spark: Any, node: Broker, tmp_path: Path) -> None:
    """The position of the stream is invalid after the reset. A new stream reads each message once."""
    node.create_topic("t", delete_on_ack=False)
    fill(node, "t", range(10))
    node.advance("1m")
    run = Run(spark, node, tmp_path, subscribe="t", holdName="none")
    run.once()
    clock = node._node.clock
    right_ms, clock.ms = clock.ms, clock.ms + 3_600_000
    fill(node, "t", range(10, 20))
    run.once()
    clock.ms = right_ms
    with node.client() as client:
        assert client.admin.reset_clock("t", 0)["outcome"] == "begun"
    node.advance("1m")
    fill(node, "t", range(20, 30))
    node.advance("1m")
    with pytest.raises(StreamingQueryException, match="clock was set back"):
        run.once()
    before = run.got()
    assert before == [*range(len(before))]
    anew = Run(spark, node, tmp_path / "anew", subscribe="t", holdName="none")
    anew.once()
    assert anew.got() == [*range(30)]
