"""`python -m tests.support.runner`: run the suites as `make test` does, and print the cost of each.

The suite through Spark runs at the same time as the others: its session is made once, and waits for Java most of the
time. Suites over their budget of CPU time are listed, but do not fail the run: on a machine with other load, the same
tests take up to three times as much. A run of all tests fails if any test was skipped; its last line gives the reasons.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.runner.costs import FILE

SUITES = ("e2e", "faults", "simulation", "property", "integration", "integrations", "regressions", "interop", "unit")
"""Suites with long tests are first, so that short tests fill the end."""
BUDGETS_S = {
    "unit": 199,
    "property": 87,
    "integration": 310,
    "integrations": 60,
    "simulation": 115,
    "faults": 130,
    "interop": 10,
    "e2e": 160,
    "regressions": 15,
    "spark": 230,
}
"""CPU seconds of each suite on two idle cores on which `loop_s()` returns LOOP_S. Raise a budget when its suite gains
tests."""
LISTED_TESTS = 25
"""Number of expensive tests to list."""
LOOP_S = 0.2
OVER = 1.5
"""A suite is listed if it takes more than this multiple of its budget."""
YIELD = ("nice", "-n", "10")
"""Prefix of the processes that run at the same time as Spark.

Spark regards the run as failed if a Python process does not start within ten seconds."""
SPREAD = ("-n", "6", "--dist", "worksteal")
STYLE = ("tests/unit/test_floors.py", "tests/unit/test_language.py", "tests/unit/test_shapes.py")
"""Tests of the source text. `make check` runs them, so that `make test` need not."""
FAST = ("-n", "2", "--dist", "worksteal", "tests/unit", "tests/property")
"""The part that developers run before each commit."""


def loop_s() -> float:
    """Return the CPU time of a fixed loop, the minimum of three runs, in seconds."""
    took = []
    for _ in range(3):
        began, value = time.process_time(), 0
        for number in range(5_000_000):
            value ^= number * 7
        took.append(time.process_time() - began)
    return min(took)


def start(
    arguments: list[str], costs: Path, log: Path | None = None, before: tuple[str, ...] = (), cwd: Path = ROOT
) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(log.open("wb")) if log is not None else None
        command = [*before, sys.executable, "-m", "pytest", "-p", "tests.support.runner.costs", "-ra", *arguments]
        return subprocess.Popen(command, cwd=cwd, env=os.environ | {FILE: str(costs)}, stdout=out, stderr=out)


def compile_tests() -> None:
    """Compile the tests once in a new clone, instead of in each of the processes that run them."""
    subprocess.run(
        [*YIELD, sys.executable, "-m", "pytest", "--collect-only", "-qq", *(f"tests/{suite}" for suite in SUITES)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )


def passed(codes: list[int], is_part: bool) -> bool:
    """Return whether all runs passed, by pytest's exit codes.

    `is_part`: only part of the tests was selected, so some runs may be without tests, but not all of them."""
    return 0 in codes and all(code == 0 or (is_part and code == pytest.ExitCode.NO_TESTS_COLLECTED) for code in codes)


def ignored() -> list[str]:
    """Return pytest's arguments that leave out the tests of the source text."""
    return [f"--ignore={path}" for path in STYLE]


def run_fast(build: Path, arguments: list[str]) -> bool:
    """Run the units and the properties. Return whether all passed."""
    return passed([start([*arguments, *ignored(), *FAST], build / "fast.json").wait()], is_part=bool(arguments))


def run_suite(build: Path, suite: str, arguments: list[str]) -> bool:
    """Run one suite. Return whether all tests passed."""
    spread = () if suite == "spark" else SPREAD
    process = start([*arguments, *ignored(), *spread, f"tests/{suite}"], build / f"{suite}.json")
    try:
        return process.wait() == 0
    finally:
        process.terminate()
        process.wait()


def run(build: Path, arguments: list[str], is_part: bool) -> bool:
    """Run all suites, or those that the arguments for pytest select. Return whether all passed."""
    log = build / "spark.log"
    spark = start([*arguments, "tests/spark"], build / "spark.json", log)
    if not is_part and not (ROOT / "tests" / "e2e" / "__pycache__").exists():
        compile_tests()
    suites = [f"tests/{suite}" for suite in SUITES]
    rest = start([*arguments, *ignored(), *SPREAD, *suites], build / "rest.json", before=YIELD)
    try:
        codes = [rest.wait(), spark.wait()]
    finally:
        for process in (spark, rest):
            process.terminate()
            process.wait()
    print(log.read_text(errors="replace"), flush=True)
    return passed(codes, is_part)


def print_costs(build: Path) -> list[str]:
    """Print the costs of each suite and of the most expensive tests; return the suites far over budget."""
    over, total_s, tests = [], 0.0, {}
    print("suite          tests    CPU s   budget   took s")
    for path in sorted(build.glob("*.json")):
        found = json.loads(path.read_text())
        for suite, row in sorted(found["suites"].items()):
            print(f"{suite:12} {row['tests']:7.0f} {row['cpu_s']:8.0f} {BUDGETS_S[suite]:8.0f} {row['took_s']:8.0f}")
            total_s += row["cpu_s"]
            if row["cpu_s"] > OVER * BUDGETS_S[suite]:
                over.append(suite)
        print(f"(loading)    {found['loading']:16.0f}")
        total_s += found["loading"]
        tests |= found["tests"]
    print(f"all          {total_s:16.0f}")
    print("the most expensive tests, CPU s")
    for test in sorted(tests, key=tests.__getitem__, reverse=True)[:LISTED_TESTS]:
        print(f"{tests[test]:8.1f}  {test}")
    return over


def skipped(build: Path) -> str | None:
    """Return a line about the tests that were skipped, with the reasons, or None if there were none."""
    rows = [json.loads(path.read_text()) for path in sorted(build.glob("*.json"))]
    reasons = Counter(reason for row in rows for reason in row["skipped"].values())
    if not reasons:
        return None
    why = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    return f"NOT RUN (number of tests), so this run does not count as passed: {why}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="only the units and the properties: for each commit")
    parser.add_argument("--suite", choices=sorted(BUDGETS_S), help="run one suite")
    parser.add_argument("--long", action="store_true", help="also what is marked long, with new examples")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "test", help="where logs and costs go")
    options, arguments = parser.parse_known_args()
    is_part = bool(arguments)
    if options.long:
        os.environ |= {"TEST_RANDOM": "1", "TEST_LOADING": "1"}
        arguments = ["-m", "not interop", *arguments]
    options.build.mkdir(parents=True, exist_ok=True)
    for left in options.build.glob("*.json"):
        left.unlink()
    if options.fast:
        return int(not run_fast(options.build, arguments))
    before_s, began_s = loop_s(), time.monotonic()
    if options.suite:
        is_green = run_suite(options.build, options.suite, arguments)
    else:
        is_green = run(options.build, arguments, is_part)
    wall_s = time.monotonic() - began_s
    over = print_costs(options.build)
    slower = max(before_s, loop_s()) / LOOP_S
    print(f"in {wall_s / 60:.1f} minutes, on a machine that took {slower:.2f} times as long for a loop of a known cost")
    if over and not options.long:
        print(f"over budget by half, which says little while others use the machine: {', '.join(over)}")
    left = None if is_part else skipped(options.build)
    if left is not None:
        print(left)
    return int(not is_green or left is not None)


if __name__ == "__main__":
    sys.exit(main())
