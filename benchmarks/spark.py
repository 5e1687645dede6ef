"""Measure Spark on one machine with the brokers: reading, writing, streams, scheduling from files, archiving; and the
same work with the plain Python client. Where several processes share the work, the details have the CPU time of Spark's
JVM and of its Python workers; the row's own CPU time is that of the broker."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import sandq.sync
from benchmarks.cluster import Cluster, cluster
from benchmarks.process import cpu_s, data_directory, own_cpu_s, running, started_by
from benchmarks.result import Goal, Measured, Row, Setting
from benchmarks.wire import Flow, Wire, drive
from demo.node import Node
from sandq.model.batch import Column, encode
from sandq.protocol.requests import Produce
from sandq.protocol.requests_admin import TopicCreate

TOPIC = "rows"
PARTITIONS = 2
VALUE = bytes(range(100))
SIZE = 1000
"""Messages per stored batch."""
COUNT = 1_000_000
QUICK = 20_000
WARM = 3
"""Runs before the measured one: the JVM compiles code that runs often."""
READ = Goal(1_000_000, "rows/s")
WRITE = Goal(500_000, "rows/s")
STREAM = Goal(300_000, "rows/s")
SCHEDULE = Goal(60, "s", at_least=False)
ARCHIVE = Goal(30, "s", at_least=False)
ARCHIVE_COUNT = 300_000
ARCHIVE_COLD = Goal(10, "s", at_least=False)
AHEAD_MS = 86_400_000


def read(setting: Setting) -> Measured:
    """Read a batch into no sink: all columns, and only two."""
    count = setting.count(COUNT, QUICK)
    with running(setting.where, setting.name) as node, _spark() as spark:
        _fill(node, count)

        def once(**options: str) -> None:
            frame = spark.read.format("sandq").options(**_servers(node), **options).option("subscribe", TOPIC).load()
            frame.write.format("noop").mode("overwrite").save()

        taken_s, used_s, stages = _warm(once, node, setting)
        few_s, _, _ = _warm(lambda: once(columns="key,value"), node, setting)
        plain_s, _ = _timed(lambda: _read_plain(node), node)
        pages_s, _ = _timed(lambda: _read_pages(node), node)
    details = {
        "two columns, rows/s": count / few_s,
        "client.fetch, rows/s": count / plain_s,
        "client.page, rows/s": count / pages_s,
    }
    return Measured(count, count / taken_s, used_s / count * 1e6, details={**details, **stages})


def write(setting: Setting) -> Measured:
    """Write a batch of rows without keys, with two tasks."""
    count = setting.count(COUNT, QUICK)
    with running(setting.where, setting.name) as node, _spark() as spark:
        Wire(node.port).call(TopicCreate(TOPIC, "timer", PARTITIONS, 1, {}).frame)
        rows = spark.range(0, count, 1, PARTITIONS).selectExpr(f"repeat('x', {len(VALUE)}) as value")

        def once() -> None:
            rows.write.format("sandq").mode("append").options(**_servers(node), topic=TOPIC).save()

        taken_s, used_s, stages = _warm(once, node, setting)
    return Measured(count, count / taken_s, used_s / count * 1e6, details=stages)


def stream(setting: Setting) -> Measured:
    """Stream all due messages into Parquet as one micro-batch, including the stream's start and end."""
    count = setting.count(COUNT, QUICK)
    runs = itertools.count()
    with running(setting.where, setting.name) as node, _spark() as spark, data_directory(setting.where) as place:
        _fill(node, count)

        def once() -> None:
            run = next(runs)
            frame = spark.readStream.format("sandq").options(**_servers(node), subscribe=TOPIC, holdName="none").load()
            query = (
                frame.writeStream.format("parquet")
                .options(path=f"{place}/{run}", checkpointLocation=f"{place}/checkpoint-{run}")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert sum(progress.numInputRows for progress in query.recentProgress) == count

        taken_s, used_s, stages = _warm(once, node, setting)
    return Measured(count, count / taken_s, used_s / count * 1e6, details=stages)


def archive_cold(setting: Setting) -> Measured:
    """Run the job as the first work of a new Spark session, as a command does. The start of Spark is reported
    separately."""
    from sandq.spark import jobs

    count = setting.count(ARCHIVE_COUNT, QUICK)
    with running(setting.where, setting.name) as node, data_directory(setting.where) as place:
        _fill(node, count)
        began_s = time.perf_counter()
        with _spark() as spark:
            spark.range(1).count()
            started_s = time.perf_counter() - began_s
            found: list[Any] = []
            taken_s, used_s, stages = _staged(
                lambda: found.append(jobs.archive(spark, [TOPIC], f"{place}/archive", servers=[node.address])), node
            )
            again_s, _ = _timed(lambda: jobs.archive(spark, [TOPIC], f"{place}/archive", servers=[node.address]), node)
        assert found[0].messages == count
    details = {"Spark's start, s": started_s, "again without news, s": again_s, **stages}
    return Measured(count, taken_s, used_s / count * 1e6, details=details)


def archive(setting: Setting) -> Measured:
    """Run the job, and `client.fetch` into one Parquet file for each partition."""
    from sandq.spark import jobs

    count = setting.count(COUNT, QUICK)
    with running(setting.where, setting.name) as node, _spark() as spark, data_directory(setting.where) as place:
        _fill(node, count)
        jobs.archive(spark, [TOPIC], f"{place}/warm", servers=[node.address], hold="warm", batch_messages=10_000)
        found: list[Any] = []
        taken_s, used_s = _timed(
            lambda: found.append(jobs.archive(spark, [TOPIC], f"{place}/archive", servers=[node.address])), node
        )
        assert found[0].messages == count
        plain_s, _ = _timed(lambda: _archive_plain(node, place), node)
    return Measured(count, taken_s, used_s / count * 1e6, details={"client.fetch and PyArrow, s": plain_s})


def schedule(setting: Setting) -> Measured:
    """Run the job onto three replicas, and `send_many` of the same rows."""
    from sandq.spark import jobs

    count = setting.count(COUNT, QUICK)
    start_ms = int(time.time() * 1000) + AHEAD_MS
    with cluster(setting) as nodes, _spark() as spark, data_directory(setting.where) as place:
        nodes.form(TOPIC, PARTITIONS)
        rows = spark.range(0, count, 1, 4).selectExpr(
            "cast(id as string) as user",
            "lpad(cast(id as string), 100, 'x') as body",
            f"timestamp_millis({start_ms} + id % 3600000) as send_at",
        )
        rows.write.parquet(f"{place}/rows")
        mapping = {"value": "body", "key": "user", "deliver_at": "send_at"}
        options: dict[str, Any] = {"servers": nodes.addresses}
        before_s, began_s = nodes.cpu_s(), time.perf_counter()
        told = jobs.schedule(spark, TOPIC, [f"{place}/rows"], mapping, **options)
        taken_s, used_s = time.perf_counter() - began_s, nodes.cpu_s() - before_s
        assert told.sent == count
        plain_s = _schedule_plain(nodes, f"{place}/rows")
    return Measured(
        count,
        taken_s,
        used_s / count * 1e6,
        details={"checking, s": told.check_s, "sending, s": told.send_s, "PyArrow and send_many, s": plain_s},
    )


# ------------------------------------------------------------------------------------------------ parts


@contextmanager
def _spark() -> Iterator[Any]:
    from sandq.spark import jobs

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with jobs.session(master="local[2]") as spark:
        yield spark


def _servers(node: Node) -> dict[str, str]:
    return {"sandq.bootstrap.servers": node.address}


def _fill(node: Node, count: int) -> None:
    """Store due messages in closed partitions."""
    wire = Wire(node.port)
    wire.call(TopicCreate(TOPIC, "timer", PARTITIONS, 1, {}).frame)
    batch = encode({Column.VALUE: [VALUE] * SIZE})
    for partition in range(PARTITIONS):
        frames = [Produce(TOPIC, partition, 0, 0, 0, 0, batch).frame(n + 1) for n in range(count // SIZE // PARTITIONS)]
        drive([Flow(wire, frames, 16)])
    with sandq.sync.connect(node.address) as client:
        until_s = time.monotonic() + 30
        while sum(client.measure(TOPIC, partition).messages for partition in range(PARTITIONS)) < count:
            assert time.monotonic() < until_s, "the partitions were not closed in time"
            time.sleep(0.1)


def _timed(work: Callable[[], object], node: Node) -> tuple[float, float]:
    """Return the duration of `work`, and the node's CPU time, in seconds."""
    assert node.pid is not None
    before_s, began_s = cpu_s(node.pid), time.perf_counter()
    work()
    return time.perf_counter() - began_s, cpu_s(node.pid) - before_s


def _staged(work: Callable[[], object], node: Node) -> tuple[float, float, dict[str, float]]:
    """Return the duration of `work`, the node's CPU time, and the CPU time of Spark's JVM and of its Python workers, in
    seconds."""
    before = _spark_cpu_s()
    taken_s, used_s = _timed(work, node)
    java_s, python_s = (after - begun for after, begun in zip(_spark_cpu_s(), before, strict=True))
    return taken_s, used_s, {"JVM, CPU s": java_s, "Python workers, CPU s": python_s}


def _warm(work: Callable[[], object], node: Node, setting: Setting) -> tuple[float, float, dict[str, float]]:
    for _ in range(setting.count(WARM, 1)):
        work()
    return _staged(work, node)


def _spark_cpu_s() -> tuple[float, float]:
    """Return CPU seconds of the JVM, and of its living Python processes."""
    java = [pid for pid in started_by(os.getpid()) if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    own_s, all_s = sum(map(own_cpu_s, java)), sum(map(cpu_s, java))
    return own_s, all_s - own_s


def _read_plain(node: Node) -> None:
    with sandq.sync.connect(node.address) as client:
        for partition in range(PARTITIONS):
            for message in client.fetch(TOPIC, partition):
                assert message.value


def _read_pages(node: Node) -> None:
    with sandq.sync.connect(node.address) as client:
        for partition in range(PARTITIONS):
            start = None
            while True:
                reply = client.page(TOPIC, partition, start)
                if reply.next is None:
                    break
                start = sandq.offset_text(reply.next)


def _archive_plain(node: Node, place: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.string()), ("due", pa.int64())])

    def write(writer: Any, rows: Sequence[Any]) -> None:
        cells = zip(*((row.key, row.value, row.offset, row.deliver_at_ms) for row in rows), strict=True)
        writer.write_batch(pa.record_batch([pa.array(cell) for cell in map(list, cells)], schema=schema))

    schema = schema.set(0, pa.field("key", pa.null()))
    with sandq.sync.connect(node.address) as client:
        for partition in range(PARTITIONS):
            with pq.ParquetWriter(place / f"plain-{partition}.parquet", schema, compression="zstd") as writer:
                rows: list[Any] = []
                for message in client.fetch(TOPIC, partition):
                    rows.append(message)
                    if len(rows) == 100_000:
                        write(writer, rows)
                        rows = []
                if rows:
                    write(writer, rows)


def _schedule_plain(nodes: Cluster, path: str) -> float:
    import pyarrow.parquet as pq

    began_s = time.perf_counter()
    with sandq.sync.connect(*nodes.addresses) as client, client.producer(TOPIC) as producer:
        for batch in pq.ParquetDataset(path).read().to_batches(max_chunksize=100_000):
            columns = [batch.column(name).to_pylist() for name in ("body", "user", "send_at")]
            messages = [
                {"value": body, "key": user, "deliver_at": at.replace(tzinfo=UTC)}
                for body, user, at in zip(*columns, strict=True)
            ]
            producer.send_many(messages)
    return time.perf_counter() - began_s


ROWS = (
    Row(
        "spark_read",
        "spark",
        "a batch of 100 B values in batches of 1,000 to Spark's noop sink",
        read,
        "rows/s",
        READ,
        "spark",
    ),
    Row("spark_write", "spark", "a batch of 100 B values onto one node", write, "rows/s", WRITE, "spark"),
    Row(
        "spark_stream",
        "spark",
        "a stream of 100 B values into Parquet, with its start and end",
        stream,
        "rows/s",
        STREAM,
        "spark",
    ),
    Row(
        "spark_archive_cold",
        "spark",
        "300,000 of 100 B to Parquet by the job, as the first thing that Spark does",
        archive_cold,
        "s",
        ARCHIVE_COLD,
        "spark",
    ),
    Row("spark_archive", "spark", "a topic of 100 B values to Parquet", archive, "s", ARCHIVE, "spark"),
    Row(
        "spark_schedule",
        "spark",
        "100 B values with keys and times from Parquet onto three replicas",
        schedule,
        "s",
        SCHEDULE,
        "spark",
    ),
)
