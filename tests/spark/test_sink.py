"""The sink through Spark stores each row once, even if tasks fail and streams are restarted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandq.testing import Broker
from tests.support.waiting import PATIENCE_S


def writing(writer: Any, node: Broker, **options: str) -> Any:
    return writer.format("sandq").options(**{"sandq.bootstrap.servers": node.address, **options})


def write(frame: Any, node: Broker, **options: str) -> None:
    writing(frame.write, node, **options).mode("append").save()


def numbers(node: Broker, topic: str = "t") -> list[int]:
    with node.client() as client:
        return sorted(int((m.value or b"").split()[0]) for m in client.messages(topic).list(values=True))


ROWS = 24_000
"""Number of rows. They have twice the bytes that the sink buffers, so some are sent before the last rows arrive."""


def failing(node: Broker, failed: Path) -> Any:
    """Return the values of the numbers of ROWS rows, by a function that fails once at one of the last rows.

    It fails at the first attempt, after earlier rows are stored, and records that in a file. The values are large,
    because Spark transfers rows in parts of 64 KiB and record batches of 500 rows, and the sink sends parts of 16 MiB.
    """
    from pyspark.sql.functions import udf

    address = node.address

    def checked(number: int) -> str:
        import time

        from pyspark import TaskContext

        import sandq.sync

        if number != ROWS - 500 or TaskContext.get().attemptNumber():
            return f"{number} {'':2000}"
        with sandq.sync.connect(address, timeout=PATIENCE_S) as client:
            until_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < until_s:
                if sum(row["messages"] for row in client.admin.stats("t")):
                    failed.touch()
                    raise RuntimeError("this attempt fails")
                time.sleep(0.02)
        raise AssertionError("nothing was stored")

    return udf(checked, "string", useArrow=False)("id")


@contextmanager
def small_batches(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_rows_of_batch_with_failed_tasks_are_stored_once(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t", partitions=3)
    rows = spark.range(0, ROWS, numPartitions=1)
    frame = rows.select(failing(node, tmp_path / "failed").alias("value"), (rows.id % 100).cast("string").alias("key"))
    with small_batches(spark):
        write(frame, node, topic="t")
    assert (tmp_path / "failed").exists()
    assert numbers(node) == [*range(ROWS)]


def test_a_write_under_one_name(spark: Any, node: Broker) -> None:
    node.create_topic("t")
    frame = spark.range(1000).selectExpr("CAST(id AS STRING) AS value")
    write(frame, node, topic="t", writeId="w")
    write(frame, node, topic="t", writeId="w")
    assert numbers(node) == [*range(1000)]
    write(frame, node, topic="t")
    assert len(numbers(node)) == 2000
    with pytest.raises(Exception, match="the rows differ between attempts of a task"):
        write(frame.selectExpr("concat(value, ' ') AS value"), node, topic="t", writeId="w")


def test_all_columns_survive_writing_and_reading(spark: Any, node: Broker) -> None:
    node.create_topic("t", partitions=2)
    node.create_topic("u", partitions=2)
    write(
        spark.range(100).selectExpr(
            "CAST(id AS STRING) AS value",
            "concat('k', id) AS key",
            "map('n', CAST(id AS STRING)) AS headers",
            "CASE WHEN id % 2 = 0 THEN timestamp_millis(1000000000000 + id) END AS deliver_at",
            "CASE WHEN id % 2 = 1 THEN 0 END AS delay_ms",
            "60000 AS ttl_ms",
            "'t' AS topic",
        ),
        node,
    )
    options = {"sandq.bootstrap.servers": node.address, "subscribe": "t", "includeHeaders": "true"}
    node.advance("1m")
    read = spark.read.format("sandq").options(**options).load()
    assert {row.value: (row.key, row.headers[0].value) for row in read.collect()} == {
        b"%d" % n: (b"k%d" % n, b"%d" % n) for n in range(100)
    }
    write(read, node, topic="u", writeId="copy")
    with node.client() as client:
        found = {message.value: message for message in client.messages("u").list(values=True)}
    assert len(found) == 100
    assert (found[b"7"].key, found[b"7"].headers) == (b"k7", {"n": b"7"})


def test_priorities_and_tenants_survive_writing_and_reading(spark: Any, node: Broker) -> None:
    with node.client() as client:
        for topic in ("t", "u"):
            client.admin.create_topic(topic, kind="fair", partitions=3)
    write(
        spark.range(100).selectExpr(
            "CAST(id AS STRING) AS value",
            "CASE WHEN id % 3 > 0 THEN concat('tenant-', id % 3) END AS tenant",
            "CASE WHEN id % 2 > 0 THEN 50 - id END AS priority",
        ),
        node,
        topic="t",
    )
    node.advance("1m")
    options = {"sandq.bootstrap.servers": node.address, "subscribe": "t", "includeRank": "true"}
    read = spark.read.format("sandq").options(**options).load()
    assert {int(row.value): (row.tenant, row.priority) for row in read.collect()} == {
        n: (f"tenant-{n % 3}" if n % 3 else None, 50 - n if n % 2 else None) for n in range(100)
    }
    write(read, node, topic="u", writeId="copy")
    write(read, node, topic="u", writeId="copy")
    with node.client() as client:
        found = [(int(m.value or b""), m.tenant, m.priority) for m in client.messages("u").list(values=True)]
    assert sorted(n for n, _, _ in found) == [*range(100)]
    assert {(tenant, priority) for n, tenant, priority in found if n in (1, 2)} == {("tenant-1", 49), ("tenant-2", 0)}


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (("id AS value",), {}, "value: the type binary or string is expected, not bigint; cast it"),
        (("'x' AS value", "id AS place"), {}, "place: no such column; there are value, key"),
        (("'x' AS value", "id AS priority"), {}, "priority: 't' is a timer topic; only priority"),
        (("'x' AS value",), {"onconflict": "x"}, "onConflict: one of ignore, replace, reject is expected"),
        (("'x' AS value", "-1L AS delay_ms"), {}, r"RowRefused: .*row 0 of Spark partition 0 .*-1 is not within"),
        (("'x' AS value",), {"topic": "none"}, "RowRefused: .*none"),
    ],
)
def test_mistakes_are_named(
    spark: Any, node: Broker, columns: tuple[str, ...], options: dict[str, str], says: str
) -> None:
    node.create_topic("t")
    frame = spark.range(1).coalesce(1).selectExpr(*columns)
    with pytest.raises(Exception, match=says):
        write(frame, node, **{"topic": "t", **options})
    with pytest.raises(Exception, match=r"truncate|overwrite"):
        writing(spark.range(1).selectExpr("'x' AS value").write, node, topic="t").mode("overwrite").save()
    assert numbers(node) == []


def run(spark: Any, node: Broker, source: Path, checkpoint: Path, **options: str) -> None:
    """Run a stream over the files in `source`, one file per micro-batch, to its end."""
    rows = spark.readStream.schema("value STRING, key STRING").option("maxFilesPerTrigger", 1).parquet(str(source))
    stream = writing(rows.writeStream, node, topic="t", checkpointLocation=str(checkpoint), **options)
    query = stream.queryName("sink").trigger(availableNow=True).start()
    query.awaitTermination()


def test_restarted_stream_stores_rows_once(spark: Any, node: Broker, tmp_path: Path) -> None:
    """The last micro-batch was stored, but the checkpoint has no commit of it, so Spark repeats it."""
    node.create_topic("t", partitions=3)
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    files = 0

    def more() -> None:
        nonlocal files
        first, files = 2000 * files, files + 1
        rows = spark.range(first, first + 2000, numPartitions=1)
        rows.selectExpr("CAST(id AS STRING) AS value", "concat('k', id % 100) AS key").write.mode("append").parquet(
            str(source)
        )

    more()
    more()
    run(spark, node, source, checkpoint)
    assert numbers(node) == [*range(4000)]
    for path in (checkpoint / "commits").glob("*1*"):
        path.unlink()
    more()
    run(spark, node, source, checkpoint)
    assert numbers(node) == [*range(6000)], "micro-batch 1 was written again, and stored once"
    with pytest.raises(Exception, match="writeId: it is for batches"):
        run(spark, node, source, tmp_path / "other", writeId="w")


def test_rows_of_stream_with_failed_tasks_are_stored_once(spark: Any, node: Broker, tmp_path: Path) -> None:
    """The sink recognizes a repeated task by the same properties as a replay."""
    node.create_topic("t")
    source = str(tmp_path / "source")
    rows = spark.range(0, ROWS, numPartitions=1)
    rows.write.parquet(source)
    stream = spark.readStream.schema(rows.schema).parquet(source)
    frame = stream.select(failing(node, tmp_path / "failed").alias("value"))
    checkpoint = str(tmp_path / "checkpoint")
    with small_batches(spark):
        query = writing(frame.writeStream, node, topic="t", checkpointLocation=checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()
    assert (tmp_path / "failed").exists()
    assert numbers(node) == [*range(ROWS)]
