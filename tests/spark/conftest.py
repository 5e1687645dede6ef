"""Provide one Spark session for all tests here, with two threads and three attempts per task.

Brokers belong to single tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandq.spark.jobs.session import home_in_environment, spark_home
from sandq.testing import Broker, broker

# These options apply to every JVM of the tests, including those of commands. Few JVMs live long enough to profit from
# the second compiler, which takes half of their CPU time. Without it, the default code cache is so small that a thread
# deletes compiled code all the time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m")

pyspark = pytest.importorskip("pyspark.sql", reason="the extra sandq[spark] is not installed: make spark")


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    if shutil.which("java") is None:
        pytest.skip("`java` is not installed: make system, or apt-get install default-jre-headless")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyspark.SparkSession]:
    """Return the Spark session of this process, which listens on loopback only."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    place: Path = tmp_path_factory.mktemp("spark")
    # As in `jobs.session`: Python workers start in a fourth of the time.
    with spark_home(is_local=True) as home:
        with home_in_environment(home):
            session = _session(place)
        yield session
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # Java ends when its standard input is closed
        gateway.proc.wait()


def _session(place: Path) -> pyspark.SparkSession:
    return (
        pyspark.SparkSession.builder.master("local[2,3]")
        .appName("sandq tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(place / "local"))
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={place}")
        .config("spark.log.level", "ERROR")
        # Jobs have few rows here, so compiling code for them takes longer than it saves.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .getOrCreate()
    )


@pytest.fixture
def node() -> Iterator[Broker]:
    """Run a broker in a thread, with the real clock."""
    with broker() as running:
        yield running
