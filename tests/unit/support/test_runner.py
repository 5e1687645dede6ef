"""Tests of the test runner: no test is omitted, and a test that fails or kills its worker is named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.flaky import __main__ as flaky
from tests.support.flaky.__main__ import descendants, failed_in, send_signal
from tests.support.paths import ROOT
from tests.support.runner.__main__ import BUDGETS_S, STYLE, SUITES, passed, skipped, start
from tests.support.waiting import wait_until

SCENE = """
import os
import pytest

@pytest.mark.parametrize("text", ["a b", "c - d"])
def test_bad(text): assert not text

def test_good(): pass

@pytest.mark.skip(reason="no browser")
def test_page(): pass

def test_that_ends_its_worker(): os._exit(3)
"""


def test_every_suite_is_run() -> None:
    suites = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert suites == {*SUITES, "spark"} == set(BUDGETS_S)


def test_check_runs_the_tests_that_the_runner_leaves_out() -> None:
    assert f"pytest -q {' '.join(STYLE)}\n" in (ROOT / "Makefile").read_text()


def test_interop_tests_are_in_the_interop_directory() -> None:
    """`make test-interop` collects only that directory."""
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark." + "interop" in path.read_text()}
    assert marked and all(path.parent == ROOT / "tests" / "interop" for path in marked)


def test_a_run_has_to_find_tests() -> None:
    assert passed([0, 0], False) and passed([0, 0], True)
    assert passed([0, 5], True) and passed([5, 0], True)
    for codes in ([0, 5], [5, 0], [0, 1], [2, 0], [5, 5]):
        assert not passed(codes, False)
    assert not any(passed(codes, True) for codes in ([5, 5], [0, 1], [1, 5], [0, 3]))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a separate directory of tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_scene.py").write_text(SCENE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_each_test_that_fails_is_named(scene: Path) -> None:
    log = scene / "log"
    process = start(["-p", "xdist", "-n", "2", "tests"], scene / "costs.json", log, cwd=scene)
    assert process.wait() == 1
    said = log.read_text()
    bad = {
        f"tests/unit/test_scene.py::{name}"
        for name in ("test_bad[a b]", "test_bad[c - d]", "test_that_ends_its_worker")
    }
    assert failed_in(said) == bad, said
    assert "1 passed" in said
    seen = (scene / "costs.failures").read_text()
    assert all(f"FAILED {name} " in seen for name in bad)
    assert json.loads((scene / "costs.json").read_text())["suites"]["unit"]["tests"] >= 3
    assert skipped(scene) == "NOT RUN (number of tests), so this run does not count as passed: no browser (1)"


def test_a_process_that_a_test_has_stopped_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()

    def telling(processes: Iterable[int], signal_: signal.Signals) -> None:
        seen.update(found := list(processes))
        send_signal(found, signal_)

    monkeypatch.setattr(flaky, "send_signal", telling)
    # The child stops itself again and again, because the runner of this test may continue it.
    child = "import os, signal\nwhile True: os.kill(os.getpid(), signal.SIGSTOP)"
    starts = f"subprocess.Popen([sys.executable, '-c', {child!r}])"
    parent = f"import subprocess, sys; print({starts}.pid, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        stopped = int(process.stdout.readline())
        wait_until(lambda: sorted(descendants(process.pid).values()) == ["S", "T"])
        flaky.stand_still(process.pid, 0)
        wait_until(lambda: sorted(descendants(process.pid).values()) == ["S", "T"])
        assert process.pid in seen and stopped not in seen
        send_signal(descendants(process.pid), signal.SIGKILL)
