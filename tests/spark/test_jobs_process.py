"""`sandctl pipeline schedule` as a process, with a Spark of its own: what it prints, and Ctrl-C in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from sandctl.main import main
from sandq.model.times import instant_ms
from sandq.spark import jobs
from sandq.testing import Broker

ROOT = Path(__file__).parents[2]
AT_MS = instant_ms("2030-06-01T00:00:00Z")
ROWS = 24_000
FILES = 24
"""Eight of them are a task."""
PATIENCE_S = 90.0


def start(node: Broker, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sandctl", "-s", node.address, "pipeline", "schedule", *args],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the signal is for all of it, as on a terminal
    )


def test_interrupted_and_run_again(spark: Any, node: Broker, tmp_path: Path) -> None:
    """Nothing is lost, and nothing is there twice."""
    node.create_topic("t", partitions=2)
    for first in range(0, ROWS, ROWS // FILES):
        numbers = range(first, first + ROWS // FILES)
        table = {"body": [f"{n:08d}" for n in numbers], "at": [AT_MS + n for n in numbers]}
        pq.write_table(pa.table(table), tmp_path / f"{first}.parquet")
    args = ["t", str(tmp_path), "--map", "value=body", "--map", "deliver_at=at"]
    process = start(node, *args, "--master", "local[1]", "-o", "json")
    try:
        with node.client() as client:
            deadline = time.monotonic() + PATIENCE_S
            while not sum(row["messages"] for row in client.admin.stats("t")):
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()
                time.sleep(0.01)  # another process is at work
            os.killpg(process.pid, signal.SIGINT)
            output, told = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, output) == (130, ""), told
            # Spark itself says nothing there.
            assert told.strip() == "stopped; what is sent by now stays, and the same command sends the rest"
            part = sum(row["messages"] for row in client.admin.stats("t"))
            assert 0 < part < ROWS, "it was to be in the middle"
            mapping = {"value": "body", "deliver_at": "at"}
            jobs.schedule(spark, "t", [str(tmp_path)], mapping, servers=[node.address])
            assert sum(row["messages"] for row in client.admin.stats("t")) == ROWS
            values = {message.value for message in client.messages("t").list(values=True)}
            assert len(values) == ROWS
    finally:
        process.kill()
        process.communicate()


def test_what_it_prints(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t")
    (tmp_path / "a.csv").write_text(f"text,at,id\nhello,{AT_MS},1\n,{AT_MS},2\n")
    args = ["pipeline", "schedule", "t", str(tmp_path / "a.csv"), "--map", "value=text", "--map", "deliver_at=at"]
    args += ["--unique-key", "id", "--rejected", str(tmp_path / "bad")]
    runner = CliRunner(env={"SANDCTL_SERVERS": node.address})
    result = runner.invoke(main, args)
    assert result.exit_code == 1 and result.stderr.startswith(
        "sandctl: 1 of 2 rows are bad, 0 may be: nothing was sent\n"
    )
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
    assert result.exit_code == 1 and "started already" in result.stderr
