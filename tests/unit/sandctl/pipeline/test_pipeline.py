"""Tests of sandctl pipeline: its output and files, wrong usage, and missing parts. Spark itself: tests/spark."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandctl.pipeline import JOBS, pipeline
from sandq.client import Forecast
from sandq.model.times import format_instant
from sandq.testing import broker
from tests.support.paths import ROOT
from tests.support.sandctl.fake_client import NOW_MS, Ctl, FakeClient
from tests.support.sandctl.patient import patient
from tests.support.waiting import PATIENCE_S

START_MS = NOW_MS - NOW_MS % 60_000
SCHEDULE = ["pipeline", "schedule", "t", "a.parquet", "--map", "value=v", "--map", "deliver_at=at"]


@pytest.fixture
def ctl(offline: Ctl) -> Ctl:
    return offline


def test_jobs_stand_under_their_names() -> None:
    for name in ("schedule", "forecast", "report"):
        assert pipeline.commands[name].name == name and JOBS[name].short_help.endswith(".")


# forecast


def test_forecast(ctl: Ctl, client: FakeClient, tmp_path: Path) -> None:
    client.forecast = Forecast(NOW_MS, [(START_MS, 4), (START_MS + 60_000, 8), (START_MS + 600_000, 2)], 30)
    files = ["--csv", str(tmp_path / "f.csv"), "--png", str(tmp_path / "f.png")]
    result = ctl("pipeline", "forecast", "a", "b", "a", "--ahead", "1h", "--limit", "2", *files)
    assert result.exit_code == 0, result.output
    at = [format_instant(START_MS + minute * 60_000) for minute in (0, 1, 10)]
    assert result.stdout.splitlines() == [
        f"{at[0]}   8  {'█' * 20}",
        f"{at[1]}  16  {'█' * 40}",
        "later                     64",
        "",
        "TOPIC  MESSAGES  BY SCHEDULES  LATER  MOST  AT",
        f"a            14             0     30     8  {at[1]}",
        f"b            14             0     30     8  {at[1]}",
    ]
    assert "only the first 2 are shown" in result.stderr
    asked = {"unit": "minute", "count": 60}
    assert client.asked("forecast") == [{"topic": "a", **asked}, {"topic": "b", **asked}]
    rows = list(csv.reader((tmp_path / "f.csv").read_text().splitlines()))
    assert rows[:3] == [["start", "topic", "messages"], [at[0], "a", "4"], [at[0], "b", "4"]] and len(rows) == 7
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads(ctl("pipeline", "forecast", "a", "--unit", "hour", "-o", "json").stdout)
    assert (record["unit"], record["count"], record["topics"][0]["later"]) == ("hour", 24, 30)


def test_forecast_counts_messages_of_schedules(ctl: Ctl, client: FakeClient) -> None:
    client.forecast = Forecast(NOW_MS, [(START_MS, 4)], 30, [(START_MS, 2), (START_MS + 60_000, 1)], False)
    (row,) = json.loads(ctl("pipeline", "forecast", "a", "-o", "json").stdout)["topics"]
    assert (row["messages"], row["scheduled"], row["peak"], row["later"], row["complete"]) == (7, 3, 6, 30, False)
    assert "of these 3 by schedules" in ctl("pipeline", "forecast", "a").stderr


def test_forecast_that_cannot_be(ctl: Ctl, client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in (["--ahead", "61h", "--unit", "minute"], ["--ahead", "151d"], ["--ahead", "soon"], ["--ahead", "0s"]):
        assert ctl("pipeline", "forecast", "a", *bad).exit_code == 2, bad
    assert ctl("pipeline", "forecast", "a", "--csv", str(tmp_path / "no" / "f.csv")).exit_code == 1
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = ctl("pipeline", "forecast", "a", "--png", str(tmp_path / "f.png"))
    assert result.exit_code == 1 and "pip install 'sandq[spark]'" in result.stderr


# report


def test_report(tmp_path: Path) -> None:
    with broker() as node, node.client() as client:
        node.create_topic("orders", max_attempts=1)
        node.create_topic("idle")
        for number in range(5):
            client.produce("orders", b"%d" % number)
        with client.subscribe("orders", group="billing", credit=3) as subscription:
            for _ in range(3):
                next(iter(subscription)).nack(error="no").wait()
        client.produce("orders", b"later", delay="30h")
        node.advance("30s")

        # Use a separate process, because the broker in this process writes a log.
        def ask(*args: str) -> subprocess.CompletedProcess[str]:
            return run(*patient("pipeline", "report", *args), SANDCTL_SERVERS=node.address)

        result = ask("--days", "2", "--csv", str(tmp_path / "r"))
        assert result.returncode == 0, result.stderr
        assert [line.split() for line in result.stdout.splitlines()] == [
            ["TOPIC", "GROUP", "READY", "LEASED", "WAITING", "DEAD", "CONSUMERS", "OLDEST", "IN", "LOG", "LATE"],
            ["orders", "billing", "2", "0", "0", "3", "0", "2030-01-01T00:00:00.000Z", "30s"],
            [],
            ["TOPIC", "DUE", "ON", "MESSAGES"],
            ["orders", "2030-01-02", "1"],
            [],
            ["TOPIC", "GROUP", "DIED", "ON", "OF", "ATTEMPTS", "MESSAGES"],
            ["orders", "billing", "2030-01-01", "nacked", "1", "3"],
        ]
        assert (tmp_path / "r" / "due.csv").read_text().splitlines()[-1].startswith("orders,later,")
        assert {path.name for path in (tmp_path / "r").iterdir()} == {"groups.csv", "due.csv", "dead.csv"}
        result = ask("idle", "--dead-since", "+1m")
        assert result.stdout.splitlines() == ["no groups", "", "nothing is due", "", "no dead letters"]
        record = json.loads(ask("orders", "-o", "json").stdout)
        assert (record["groups"][0]["late_ms"], record["dead"][0]["messages"]) == (30_000, 3)
        result = ask("nosuch")
        assert result.returncode == 1 and "nosuch" in result.stderr
    assert ask().returncode == 3
    assert ask("--days", "150").returncode == 2


# schedule, up to where Spark would start


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--map", "deliver_on=x"], "did you mean deliver_at"),
        (["--map", "value=w"], "value is given twice"),
        (["--map", "key"], "NAME=VALUE is expected"),
        (["--value-json", "a,b"], "value: either map"),
        (["--unique-key", "u", "--map", "unique_key=w"], "unique_key is given twice"),
        (["--priority", "p", "--map", "priority=q"], "priority is given twice"),
        (["--tenant", "a", "--map", "tenant=b"], "tenant is given twice"),
        (["--max-rejected", "many"], "max_rejected"),
        (["--time-zone", "Wien"], "time_zone"),
        (["--conf", "spark.x"], "--conf"),
        (["--read-option", "header"], "--read-option: NAME=VALUE is expected"),
        (["--default-delay", "soon"], "is not a duration"),
        (["--on-conflict", "replace"], "it needs a unique_key"),
    ],
)
def test_schedule_used_wrongly(ctl: Ctl, client: FakeClient, args: list[str], said: str) -> None:
    result = ctl(*SCHEDULE, *args)
    assert result.exit_code == 2 and said in result.stderr, result.stderr


def test_schedule_without_files_or_times(ctl: Ctl) -> None:
    assert ctl("pipeline", "schedule", "t").exit_code == 2
    result = ctl("pipeline", "schedule", "t", "a.csv", "--map", "value=v")
    assert result.exit_code == 2 and "deliver_at" in result.stderr


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_missing_extra_is_named(ctl: Ctl, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = ctl(*SCHEDULE)
    assert result.exit_code == 1
    assert f"this needs {missing}: pip install 'sandq[spark]'; Java 17" in result.stderr


WITHOUT_SPARK = """
import sys
sys.modules.update(pyspark=None, pyarrow=None)
import sandctl.__main__
sys.argv = {args!r}
sandctl.__main__.run()
"""


@pytest.mark.parametrize("job", ["archive", "compact", "replay", "schedule", "sql"])
def test_jobs_without_spark_name_the_extra(job: str) -> None:
    args = {"archive": ARCHIVE[1:], "compact": ["compact", "a"], "replay": REPLAY[1:], "schedule": SCHEDULE[1:]}
    script = WITHOUT_SPARK.format(args=["sandctl", "pipeline", *args.get(job, SQL[1:])])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'sandq[spark]'" in done.stderr and "Traceback" not in done.stderr


def test_jobs_that_need_no_spark_run_without_it() -> None:
    script = WITHOUT_SPARK.format(args=["sandctl", "pipeline", "forecast", "t", "--server", "127.0.0.1:1"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "127.0.0.1:1" in done.stderr and "pyspark" not in done.stderr


# options of all commands that run Spark

ARCHIVE = ["pipeline", "archive", "t", "--to", "a"]
REPLAY = ["pipeline", "replay", "a", "t"]
SQL = ["pipeline", "sql", "select 1", "--topic", "t"]


@pytest.mark.parametrize("args", [ARCHIVE, REPLAY, SCHEDULE, SQL], ids=lambda args: str(args[1]))
def test_pairs_that_are_none(ctl: Ctl, args: list[str]) -> None:
    result = ctl(*args, "--conf", "spark.x=1", "--conf", "spark.y")
    assert result.exit_code == 2 and "--conf: NAME=VALUE is expected, not 'spark.y'" in result.stderr, result.stderr


@pytest.mark.parametrize("args", [ARCHIVE, REPLAY, SQL], ids=lambda args: str(args[1]))
def test_spark_is_missing(ctl: Ctl, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = ctl(*args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("sandctl: this needs pyspark: pip install 'sandq[spark]'; Java 17"), result.stderr


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command with these environment variables, and return its outcome."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_java_is_missing(tmp_path: Path) -> None:
    with broker() as node:
        node.create_topic("t")
        found = run(*patient(*SCHEDULE), SANDCTL_SERVERS=node.address, JAVA_HOME=str(tmp_path))
        assert found.returncode == 1 and "Java 17 or later" in found.stderr, found.stderr
        assert "Traceback" not in found.stderr
        # These errors are raised before Java is looked up.
        other = [arg if arg != "t" else "u" for arg in SCHEDULE]
        found = run(*patient(*other), SANDCTL_SERVERS=node.address, JAVA_HOME=str(tmp_path))
        assert found.returncode == 1 and "'u'" in found.stderr and "Java" not in found.stderr
    command = [sys.executable, "-m", "sandctl", *SCHEDULE]
    found = run(*command, SANDCTL_SERVERS=node.address, JAVA_HOME=str(tmp_path))
    assert found.returncode == 3 and "Java" not in found.stderr
