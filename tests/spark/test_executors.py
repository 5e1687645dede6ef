"""Kills of drivers and executors, and repeated tasks, neither lose nor double a message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pyspark
import pytest

import sandq
from sandq.testing import Broker
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.long

ROWS = 20_000
STREAM = """
import pathlib, sys, time
from pyspark.sql import SparkSession
import sandq.spark.sink.writers as writers
from sandq.spark.datasource import SandqDataSource

address, source, checkpoint, marker = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)

class Halting(SandqDataSource):
    def streamWriter(self, schema, overwrite):
        import pathlib, time
        import sandq.spark.sink.writers as writers

        class Writer(writers.StreamWriter):
            def commit(self, messages, batchId):
                if batchId == 2 and marker:
                    pathlib.Path(marker).touch()
                    time.sleep(600)  # until it is killed
                super().commit(messages, batchId)

        made = super().streamWriter(schema, overwrite)
        return Writer(made._options, made._columns)

spark.dataSource.register(Halting)
rows = spark.readStream.schema("value STRING, key STRING").option("maxFilesPerTrigger", 1).parquet(source)
query = (
    rows.writeStream.format("sandq").options(topic="t", checkpointLocation=checkpoint)
    .option("sandq.bootstrap.servers", address).trigger(availableNow=True).start()
)
query.awaitTermination()
print("BATCHES", [progress.batchId for progress in query.recentProgress])
"""
KILLED = """
import os, pathlib, signal, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession

address, marker = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def values(part):
    # The first attempt at the last Spark partition ends its executor, in the middle.
    context = TaskContext.get()
    is_last = context.partitionId() == 3
    if is_last and context.attemptNumber():
        pathlib.Path(marker).touch()
    for place, number in enumerate(part):
        yield (str(number).ljust(2000),)
        if is_last and not context.attemptNumber() and place == 4900:
            java = os.getppid()
            while pathlib.Path(f"/proc/{java}/comm").read_text().strip() != "java":
                java = parent_of(java)
            os.kill(java, signal.SIGKILL)

numbers = spark.sparkContext.parallelize(range(ROWS), 4)
frame = spark.createDataFrame(numbers.mapPartitions(values), "value string")
frame.write.format("sandq").mode("append").options(topic="t").option("sandq.bootstrap.servers", address).save()

def where(part):
    import os, sandq
    yield sandq.__file__, os.environ["SPARK_EXECUTOR_DIRS"]

found = set()
while len({directory for _, directory in found}) < 2:  # another one has yet to come in the place of the killed one
    found |= set(spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect())
print("FILES", *sorted({file for file, _ in found}))
print("EXECUTORS", len({directory for _, directory in found}))

""".replace("ROWS", str(ROWS))

SPECULATIVE = """
import pathlib, sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession

address, marker = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def values(part):
    # Each attempt at the last Spark partition stands still near its end until the other one is there as well.
    context = TaskContext.get()
    is_last = context.partitionId() == 3
    mine, other = ("second", "first") if context.attemptNumber() else ("first", "second")
    for place, number in enumerate(part):
        yield (str(number).ljust(2000),)
        if is_last and place == 4900:
            pathlib.Path(marker, mine).touch()
            while not pathlib.Path(marker, other).exists():
                time.sleep(0.01)

numbers = spark.sparkContext.parallelize(range(ROWS), 4)
frame = spark.createDataFrame(numbers.mapPartitions(values), "value string")
frame.write.format("sandq").mode("append").options(topic="t").option("sandq.bootstrap.servers", address).save()
""".replace("ROWS", str(ROWS))


def environment(**more: str) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(sandq.__file__).parents[1]), "PYSPARK_PYTHON": sys.executable, **more}


def numbers(node: Broker) -> list[int]:
    with node.client() as client:
        return sorted(int(message.value or b"") for message in client.messages("t").list(values=True))


def test_a_driver_is_killed_between_a_write_and_its_commit(node: Broker, tmp_path: Path) -> None:
    """The driver is killed in its third micro-batch, after all rows of this micro-batch are stored."""
    import pyarrow as pa
    from pyarrow import parquet

    node.create_topic("t", partitions=3)
    source, reached = tmp_path / "source", tmp_path / "reached"
    source.mkdir()
    for number in range(5):
        rows = [{"value": str(n), "key": f"k{n % 50}"} for n in range(1000 * number, 1000 * number + 1000)]
        parquet.write_table(pa.Table.from_pylist(rows), source / f"{number}.parquet")
        os.utime(source / f"{number}.parquet", (1_700_000_000 + number,) * 2)  # Spark reads the oldest file first
    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, "-c", STREAM, node.address, str(source), str(checkpoint)]
    log = tmp_path / "log"
    with log.open("wb") as said:
        driver = subprocess.Popen(
            [*command, str(reached)], start_new_session=True, env=environment(), stdout=said, stderr=said
        )
        try:
            wait_until(lambda: reached.exists() or driver.poll() is not None)
            assert driver.poll() is None, log.read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert numbers(node) == [*range(3000)] and not (checkpoint / "commits" / "2").exists()
    done = subprocess.run([*command, ""], env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "BATCHES [2, 3, 4]" in done.stdout, "the third micro-batch was written again"
    assert numbers(node) == [*range(5000)]


@pytest.mark.parametrize("packaging", ["py-files", "archives"])
def test_an_executor_is_killed_during_a_write(node: Broker, tmp_path: Path, packaging: str) -> None:
    """Another executor repeats the task of the killed one. The package is sent to all executors with the program."""
    node.create_topic("t", partitions=2)
    package = tmp_path / "parts"
    package.mkdir()
    for name in ("sandq", "sandctl", "pyspark_sandq"):
        (package / name).symlink_to(ROOT / name)
    if packaging == "py-files":
        whole = tmp_path / "sandq.zip"
        subprocess.run([sys.executable, "-m", "zipfile", "-c", str(whole), *map(str, package.iterdir())], check=True)
        shipped = ["--py-files", str(whole)]
    else:
        whole = tmp_path / "parts.tar.gz"
        with tarfile.open(whole, "w:gz", dereference=True, compresslevel=1) as made:
            made.add(package, ".")
        shipped = ["--archives", f"{whole}#parts", "--conf", "spark.executorEnv.PYTHONPATH=./parts"]
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(tmp_path / "local"),
    }
    submit = str(Path(sys.executable).parent / "spark-submit")
    done = subprocess.run(
        [submit, "--master", "local-cluster[2,1,1024]", "--driver-memory", "512m"]
        + [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        + [*shipped, str(program), node.address, str(tmp_path / "second")],
        env=environment(SPARK_HOME=str(Path(pyspark.__file__).parent), SPARK_LOCAL_IP="127.0.0.1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "second").exists(), "the task was run again"
    assert "EXECUTORS 2" in done.stdout
    files = next(line for line in done.stdout.splitlines() if line.startswith("FILES")).split()[1:]
    assert all(("sandq.zip" if packaging == "py-files" else "parts/") in file for file in files), files
    assert numbers(node) == [*range(ROWS)]


def test_a_slow_task_is_run_twice_at_once(node: Broker, tmp_path: Path) -> None:
    """Spark's speculation runs the task twice, on two workers with different loopback addresses.

    Neither attempt ends before both run. (`test_partition_sender` tests races of two attempts by seeds.)"""
    node.create_topic("t", partitions=2)
    program, marker = tmp_path / "program.py", tmp_path / "attempts"
    marker.mkdir()
    program.write_text(SPECULATIVE)
    home = Path(pyspark.__file__).parent
    environ = environment(SPARK_HOME=str(home), SPARK_LOCAL_IP="127.0.0.1")
    master, ui = free_port(), "--webui-port"
    deploy = "org.apache.spark.deploy"
    address = f"spark://127.0.0.1:{master}"
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.cores": "2",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    log = tmp_path / "log"
    with log.open("wb") as said, ExitStack() as stack:

        def start(kind: str, *arguments: str) -> None:
            command = [str(home / "bin" / "spark-class"), f"{deploy}.{kind}", *arguments]
            where = {**environ, "SPARK_LOCAL_IP": "127.0.0.1"}
            process = subprocess.Popen(command, env=where, cwd=tmp_path, stdout=said, stderr=said)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start("master.Master", "--host", "127.0.0.1", "--port", str(master), ui, "0")
        for worker in ("127.0.0.2", "127.0.0.3"):
            place = tmp_path / worker
            room = ("--cores", "2", "--memory", "1g", "--work-dir", str(place))
            start("worker.Worker", "--host", worker, *room, ui, "0", address)
        submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", address, "--driver-memory", "512m"]
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        done = subprocess.run(
            [*submit, *options, str(program), node.address, str(marker)],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr[-4000:] + log.read_text()[-2000:]
    assert sorted(path.name for path in marker.iterdir()) == ["first", "second"]
    assert numbers(node) == [*range(ROWS)]
