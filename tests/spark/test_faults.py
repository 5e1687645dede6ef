"""With three broker processes and Spark drivers, kills in the middle of work neither lose nor double a message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio

import sandq
from sandq.spark.jobs.archive import SLOW_START, START_ATTEMPTS, archived
from tests.support.processes.cluster import ClusterProcess
from tests.support.spark.session_helpers import values
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Start a cluster with the topics "a" and "b", which have a replica on each node."""
    place = tmp_path / "nodes"
    place.mkdir()
    made = ClusterProcess(place)

    async def create() -> None:
        async with made.connect() as client:
            await made.create(client, "a", partitions=2)
            await client.admin.create_topic("b", partitions=2, replicas=3)

    try:
        made.start()
        trio.run(create)
        yield made
    finally:
        made.close()


def servers(cluster: ClusterProcess) -> str:
    return ",".join(node.address for node in cluster.nodes.values())


def fill(cluster: ClusterProcess, count: int) -> None:
    async def main() -> None:
        async with cluster.connect() as client, client.producer("a") as producer:
            receipts = await producer.send_many([b"%d" % number for number in range(count)])
            await receipts

    trio.run(main)


def kill_leader(cluster: ClusterProcess, topic: str) -> str:
    """Kill the node that leads partition 0 with SIGKILL. Return its name."""

    async def main() -> str:
        async with cluster.connect() as client:
            return await cluster.leader(client, topic)

    name = trio.run(main)
    cluster.kill(name)
    return name


class Gate:
    """Stops each task after `after` rows until a test opens the gate."""

    def __init__(self, place: Path, after: int) -> None:
        self.place = place
        self._after = after
        place.mkdir()

    def through(self, rows: Any) -> Any:
        """Return an RDD that passes through the gate."""
        reached, opened, after, patience_s = self.place / "reached", self.place / "opened", self._after, PATIENCE_S

        def wait(part: Iterator[Any]) -> Iterator[Any]:
            for number, row in enumerate(part):
                yield row
                if number == after:
                    reached.touch()
                    until_s = time.monotonic() + patience_s
                    while not opened.exists() and time.monotonic() < until_s:
                        time.sleep(0.01)

        return rows.mapPartitions(wait)

    def wait(self) -> None:
        wait_until((self.place / "reached").exists)

    def open(self) -> None:
        (self.place / "opened").touch()


def together(work: Callable[[], Any], then: Callable[[], None]) -> Any:
    """Return `work()`, and run `then()` in another thread meanwhile. Spark's session works only in this thread."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(then)
        found = work()
        doing.result()
    return found


def test_a_broker_is_killed_during_a_read(spark: Any, cluster: ClusterProcess, tmp_path: Path) -> None:
    fill(cluster, 60_000)
    gate = Gate(tmp_path / "gate", after=100)
    frame = spark.read.format("sandq").options(**{"sandq.bootstrap.servers": servers(cluster), "subscribe": "a"}).load()

    def meanwhile() -> None:
        gate.wait()
        kill_leader(cluster, "a")
        gate.open()

    got = together(lambda: gate.through(frame.select("value").rdd).collect(), meanwhile)
    assert sorted(int(row.value) for row in got) == [*range(60_000)]


def test_a_broker_is_killed_during_a_write(spark: Any, cluster: ClusterProcess, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate", after=25_000)
    numbers = spark.sparkContext.parallelize(range(60_000), 2).map(lambda number: (str(number), str(number % 100)))
    frame = spark.createDataFrame(gate.through(numbers), "value string, key string")

    def write() -> None:
        options = {"sandq.bootstrap.servers": servers(cluster), "topic": "b"}
        frame.write.format("sandq").mode("append").options(**options).save()

    def meanwhile() -> None:
        gate.wait()
        kill_leader(cluster, "b")
        gate.open()

    together(write, meanwhile)
    assert stored(cluster, "b", 60_000) == [*range(60_000)]


def stored(cluster: ClusterProcess, topic: str, count: int) -> list[int]:
    """Wait until a topic has `count` messages, and return their numbers, sorted."""

    async def main() -> list[int]:
        async with cluster.connect() as client:
            with trio.fail_after(PATIENCE_S):
                while True:
                    found = [int(m.value) for part in (0, 1) async for m in client.fetch(topic, part)]
                    if len(found) >= count:
                        return sorted(found)
                    await trio.sleep(0.1)  # `fetch` returns messages only once their time is closed

    return trio.run(main)


PROGRAM = """
import sys, threading
from sandq.spark import jobs

servers, archive, checkpoint = sys.argv[1:]
with jobs.session() as spark:
    options = {"sandq.bootstrap.servers": servers}
    frame = spark.readStream.format("sandq").options(subscribe="a", maxOffsetsPerTrigger=10000, **options).load()
    query = (
        frame.writeStream.format("sandq").options(topic="b", checkpointLocation=checkpoint, **options)
        .trigger(availableNow=True).start()
    )
    try:
        jobs.archive(spark, ["a"], archive, servers=servers.split(","), batch_messages=10000)
        query.awaitTermination()
    except Exception as error:
        print(error, flush=True)  # which Spark cannot say any more once its session has ended
        raise
"""


def run_to_end(arguments: list[str]) -> None:
    """Run the program in this process, with the shared Spark session. A new JVM would need ten seconds of CPU time.

    If one of its sources starts too late for Spark, run it again."""
    for attempt in range(START_ATTEMPTS):
        try:
            with mock.patch.object(sys, "argv", ["-c", *arguments]):
                exec(PROGRAM, {})
            return
        except Exception as error:
            if SLOW_START not in str(error) or attempt + 1 == START_ATTEMPTS:
                raise


def run_until(command: list[str], log: Path, reached: Callable[[], object]) -> None:
    """Run a driver, and kill it with all its processes once `reached` returns a true value."""
    environ = {**os.environ, "PYTHONPATH": str(Path(sandq.__file__).parents[1])}
    with log.open("wb") as said:
        driver = subprocess.Popen(
            command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environ
        )
        try:
            wait_until(lambda: reached() or driver.poll() is not None)
            assert driver.poll() is None, log.read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def test_a_driver_is_killed_between_batches_and_commits(spark: Any, cluster: ClusterProcess, tmp_path: Path) -> None:
    fill(cluster, 30_000)
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    arguments = [servers(cluster), str(archive), str(checkpoint)]

    def has_begun() -> bool:
        return bool([*archive.glob("topic=a/*/*.parquet")]) and (checkpoint / "offsets" / "0").exists()

    # Kill the driver when both queries have begun. Both of them have much work left, so at least one is in the middle.
    run_until([sys.executable, "-c", PROGRAM, *arguments], tmp_path / "log", has_begun)
    last = Path("commits") / "2"
    assert not ((archive / "_checkpoint" / last).exists() and (checkpoint / last).exists())
    run_to_end(arguments)
    assert values(archived(spark, str(archive))) == [*range(30_000)]
    assert stored(cluster, "b", 30_000) == [*range(30_000)]
