"""`sandctl pipeline schedule` in use: its output, and Ctrl-C while it sends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from sandctl.main import main
from sandq.model.times import instant_ms
from sandq.testing import Broker
from tests.support.paths import ROOT
from tests.support.spark.session_helpers import fill
from tests.support.waiting import PATIENCE_S, wait_until

AT_MS = instant_ms("2030-06-01T00:00:00Z")
FILES = 40
"""Number of files. A task reads eight of them."""
ROWS = 100 * FILES
STOPPED = "stopped; the rows sent so far stay; run the same command to send the rest"


@pytest.fixture
def args(node: Broker, tmp_path: Path) -> list[str]:
    """Return the arguments of a command that sends ROWS messages to topic "t"."""
    node.create_topic("t", partitions=2)
    for first in range(0, ROWS, ROWS // FILES):
        numbers = range(first, first + ROWS // FILES)
        table = {"body": [f"{number:08d}" for number in numbers], "at": [AT_MS + number for number in numbers]}
        pq.write_table(pa.table(table), tmp_path / f"{first:08d}.parquet")
    mapped = ["--map", "value=body", "--map", "deliver_at=at"]
    return ["--server", node.address, "pipeline", "schedule", "t", str(tmp_path), *mapped]


@pytest.fixture
def own_handler() -> Iterator[None]:
    """Use Python's own handler of Ctrl-C, as in a new process; restore Spark's handler after the test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def stored(node: Broker) -> int:
    with node.client() as client:
        return sum(row["messages"] for row in client.admin.stats("t"))


def wait_for_the_first(node: Broker) -> None:
    with node.client() as client:
        wait_until(lambda: sum(row["messages"] for row in client.admin.stats("t")))


def test_interrupted_and_run_again(
    spark: Any, node: Broker, args: list[str], own_handler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the command, each message exists exactly once."""
    monkeypatch.setattr("sandctl.pipeline.running.POLL_S", 0.02)

    def interrupt() -> None:
        wait_for_the_first(node)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = CliRunner().invoke(main, args)
    thread.join()
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (130, "", STOPPED)
    assert 0 < stored(node) < ROWS, "Ctrl-C must happen in the middle"
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    messages = node.messages("t")
    assert sorted(int(message.value or b"") for message in messages) == list(range(ROWS))
    assert all(message.deliver_at_ms == AT_MS + int(message.value or b"") for message in messages)


def test_schedule_command_prints_its_result(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t")
    (tmp_path / "a.csv").write_text(f"text,at,id\nhello,{AT_MS},1\n,{AT_MS},2\n")
    args = ["pipeline", "schedule", "t", str(tmp_path / "a.csv"), "--map", "value=text", "--map", "deliver_at=at"]
    args += ["--unique-key", "id", "--rejected", str(tmp_path / "bad")]
    runner = CliRunner(env={"SANDCTL_SERVERS": node.address})
    result = runner.invoke(main, args)
    assert result.exit_code == 1
    assert result.stderr.startswith("sandctl: 1 of 2 rows are bad, 0 are allowed: nothing was sent\n")
    assert not node.messages("t")
    result = runner.invoke(main, [*args, "--max-rejected", "50%", "-o", "json"])
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    found = json.loads(result.stdout)
    assert (found["rows"], found["sent"], found["rejected"], found["reasons"]) == (2, 1, 1, {"value: missing": 1})
    (message,) = node.messages("t")
    assert (message.value, message.unique_key, message.deliver_at_ms) == (b"hello", b"1", AT_MS)
    result = runner.invoke(main, [*args, "--max-rejected", "50%"])
    assert result.stdout.startswith("t: 2 rows of 1 file, 1 sent, 1 rejected\n") and len(node.messages("t")) == 1
    result = runner.invoke(main, [*args, "--master", "local[1]"])
    assert result.exit_code == 2 and "already started" in result.stderr


def test_priorities_and_tenants_by_options(spark: Any, node: Broker, tmp_path: Path) -> None:
    with node.client() as client:
        client.admin.create_topic("fair", kind="fair", partitions=2)
    (tmp_path / "a.csv").write_text(f"text,at,urgency,account\nhello,{AT_MS},-3,acme\nbye,{AT_MS},,\n")
    args = ["pipeline", "schedule", "fair", str(tmp_path / "a.csv"), "--map", "value=text", "--map", "deliver_at=at"]
    args += ["--priority", "urgency", "--tenant", "account"]
    result = CliRunner(env={"SANDCTL_SERVERS": node.address}).invoke(main, args)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    found = {(message.value, message.priority, message.tenant) for message in node.messages("fair")}
    assert found == {(b"hello", -3, "acme"), (b"bye", 0, None)}


@pytest.mark.long
def test_a_process_with_a_spark_of_its_own(node: Broker, args: list[str]) -> None:
    """Spark's output is not on standard error, and Ctrl-C ends all processes."""

    def start(*more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sandctl", *args, "--master", "local[1]", "-o", "json", *more],
            **{"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
            start_new_session=True,  # so that the signal reaches all its processes, as on a terminal
        )

    process = start()
    wait_for_the_first(node)
    os.killpg(process.pid, signal.SIGINT)
    output, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, told.strip()) == (130, "", STOPPED)
    with pytest.raises(ProcessLookupError):
        while True:  # Java takes a moment to end
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    process = start("--conf", "spark.task.maxFailures=2")
    output, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, told) == (0, "") and json.loads(output)["sent"] == ROWS
    assert stored(node) == ROWS


def test_an_archive_without_news_starts_no_spark(
    spark: Any, node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create_topic("t")
    fill(node, "t", range(10))
    node.advance("1m")
    args = ["--server", node.address, "pipeline", "archive", "t", "--to", str(tmp_path / "archive")]
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0 and "t: 10 messages archived" in done.output, done.output

    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("sandctl.pipeline.archive.run_job", start)
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0 and "t: 0 messages archived" in done.output, done.output
    fill(node, "t", range(10, 11))
    node.advance("1m")
    assert isinstance(CliRunner().invoke(main, args).exception, AssertionError)
