"""Nodes are cut off from each other in one or both directions, while clients reach all nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes import hosts

SHORT = ("silent", "both")
LONG = ("silent", "deaf", "both", "follower") * 3


@pytest.mark.parametrize(
    ("seed", "cuts"), [(1, SHORT), *(pytest.param(seed, LONG, marks=pytest.mark.long) for seed in (2, 3, 4))]
)
def test_cuts_under_load_lose_nothing_and_answer_nothing_stale(
    seed: int, cuts: tuple[str, ...], tmp_path: Path
) -> None:
    if not hosts.can_be_made():
        pytest.skip("network namespaces take a privilege that is missing here (unshare, ip)")
    program = [sys.executable, "-m", "tests.support.processes.cut_off", str(tmp_path), str(seed), *cuts]
    done = subprocess.run(
        [*hosts.IN_A_NETWORK, *program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
