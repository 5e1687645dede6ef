"""A pytest plugin that measures the CPU time of each suite, including processes that its tests started and that ended.

Wall time says little on a shared machine. `TEST_COSTS` names the output file, in JSON. It contains the number of tests,
CPU seconds and duration of each suite; `loading`, the CPU time outside of tests; the CPU seconds of each test that used
any, including setup and teardown of shared fixtures; and `skipped`, the reason for each skipped test. Failures are
written as they happen, to a file with the ending `.failures`."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import forks

FILE = "TEST_COSTS"
ORDER = "TEST_ORDER"
"""Name of the environment variable with a seed for a random order of tests. The tests of a module stay together."""


def _cpu_s() -> float:
    """Return the CPU time of this process, its threads, and its descendants that were waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime + forks.ended_cpu_s()


class Costs:
    def __init__(self, is_worker: bool) -> None:
        self._is_worker = is_worker
        self._seen_s = _cpu_s()
        self._rows: dict[str, dict[str, float]] = {}
        self._tests: dict[str, float] = {}
        self._skipped: dict[str, str] = {}
        self._total_s = 0.0
        self._failures = Path(os.environ[FILE]).with_suffix(".failures")
        if not is_worker:
            self._failures.unlink(missing_ok=True)

    def pytest_collection_finish(self) -> None:
        self._seen_s = _cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now_s = _cpu_s()
        report.cpu_s, self._seen_s = now_s - self._seen_s, now_s
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self._is_worker:
            return
        suite = report.nodeid.split("/")[1]
        row = self._rows.setdefault(suite, {"tests": 0, "cpu_s": 0.0, "took_s": 0.0})
        row["tests"] += report.when == "call"
        row["cpu_s"] += getattr(report, "cpu_s", 0.0)  # if a worker process dies in a test, the report has no time
        row["took_s"] += report.duration
        self._tests[report.nodeid] = self._tests.get(report.nodeid, 0.0) + getattr(report, "cpu_s", 0.0)
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")
        if report.failed:  # at once, because a run may take long
            with self._failures.open("a") as file:
                file.write(f"FAILED {report.nodeid} ({report.when})\n{report.longreprtext}\n\n")

    def pytest_testnodedown(self, node: Any) -> None:
        self._total_s += node.workeroutput.get("cpu_s", 0.0) if hasattr(node, "workeroutput") else 0.0

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu_s"] = _cpu_s()

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if self._is_worker:
            return
        # Without workers, this process ran the tests. With workers, `_cpu_s` may lack their time: take the larger sum.
        total_s = max(_cpu_s(), self._total_s)
        loading_s = total_s - sum(row["cpu_s"] for row in self._rows.values())
        tests = {test: round(cpu_s, 3) for test, cpu_s in self._tests.items() if cpu_s >= 0.0005}
        found = {"suites": self._rows, "loading": loading_s, "tests": tests, "skipped": self._skipped}
        Path(os.environ[FILE]).write_text(json.dumps(found))


class RandomOrder:
    def __init__(self, seed: str) -> None:
        self._seed = seed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Each worker must compute the same order.
        def place(item: pytest.Item) -> tuple[bytes, bytes]:
            module = item.nodeid.partition("::")[0]
            return _hash(self._seed + module), _hash(self._seed + item.nodeid)

        items.sort(key=place)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode()).digest()


def pytest_configure(config: pytest.Config) -> None:
    if FILE in os.environ:
        config.pluginmanager.register(Costs(hasattr(config, "workerinput")), "sandq-costs")
    if ORDER in os.environ:
        config.pluginmanager.register(RandomOrder(os.environ[ORDER]), "sandq-order")
