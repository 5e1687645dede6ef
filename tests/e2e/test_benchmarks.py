"""The benchmarks run. The tests do not check the speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LONG = pytest.mark.long


@pytest.mark.parametrize(
    "names",
    [
        ["produce_1000", "consume"],
        pytest.param(["kv_client_get", "lateness_idle", "kv_watch"], marks=LONG),
        pytest.param(["backup_create", "backup_restore", "backup_lateness"], marks=LONG),
        pytest.param(["sql_by_id", "sql_range"], marks=LONG),
        pytest.param(["produce_scheduled", "consume_each"], marks=LONG),
        pytest.param(["schedule_hour_keys", "cancel_moment", "move_hour", "trim_second", "earliest"], marks=LONG),
    ],
)
def test_a_quick_run(tmp_path: Path, names: list[str]) -> None:
    only = [part for name in names for part in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "-o", "json", "--dir", str(tmp_path), *only],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [result["name"] for result in found["results"]] == names
    for result in found["results"]:
        assert result["messages"] > 0
        assert result["value"] > 0
        assert result["goal"] is None or result["ratio"] > 0
        assert result["errors"] == 0
        assert result["details"].get("early", 0) == 0
    assert list(tmp_path.iterdir()) == []  # the data directories were deleted
