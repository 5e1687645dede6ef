"""`python -m tests.support.flaky`: run all suites repeatedly on a machine under load.

Several runs are active at the same time, each with a random order of its tests. Some processes only compute, syncs take
up to 50 ms longer, and at times a whole run, with all its processes, is stopped for up to three seconds. The command
lists each test that failed at least once, with the path of its output. The exit code is 1 if there is such a test.

With `--suite`, only one suite is run, as a slice of half an hour at most: no run is started after that. Its results are
added to `loaded_runs.json`, which is committed. `--table` prints that file."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.support.flaky import loaded_runs
from tests.support.paths import ROOT
from tests.support.runner.__main__ import BUDGETS_S
from tests.support.runner.costs import ORDER

BUILD = ROOT / "build" / "flaky"
SLICE_S = 1800
"""Time in seconds after which a slice of one suite starts no more runs."""
HOG = ("nice", "-n", "15")
"""Prefix that gives the computing processes a lower priority than the runs."""
_BAD = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+(?:\[.*?\](?= - |$))?)", re.M)
"""Failed tests in pytest's summary. The parameters in the name of a test may contain spaces."""


def slow_sync() -> dict[str, str]:
    """Compile the library that slows syncs down, and return the environment that loads it.

    If there is no compiler, print a note and return an empty environment."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("there is no cc: the disk is not slowed", file=sys.stderr)
        return {}
    library = BUILD / "slow_sync.so"
    source = Path(__file__).with_name("slow_sync.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def descendants(pid: int) -> dict[int, str]:
    """Return a process and its descendants with their states; parents come before their children."""
    children, states = defaultdict(list), {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            states[int(stat.parent.name)] = fields[0]
            children[int(fields[1])].append(int(stat.parent.name))
    found = [pid]
    for process in found:
        found += children[process]
    return {process: states[process] for process in found if process in states}


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def stand_still(pid: int, seconds: float) -> None:
    """Stop a process and its descendants for a time, as when the host of a virtual machine stops it.

    A process that a test has stopped stays stopped."""
    stopped: list[int] = []
    for _ in range(2):  # the second time for processes that were started meanwhile
        running = [process for process, state in descendants(pid).items() if state != "T" and process not in stopped]
        send_signal(running, signal.SIGSTOP)
        stopped += running
    time.sleep(seconds)
    send_signal(reversed(stopped), signal.SIGCONT)


def failed_in(log: str) -> set[str]:
    """Return the names of the tests that did not pass, from pytest's summary."""
    return set(_BAD.findall(log))


class Run:
    """One run of all suites, in a random order."""

    def __init__(self, number: int, environ: dict[str, str], arguments: list[str]) -> None:
        self.number = number
        self.log = BUILD / f"run{number}.log"
        self.build = BUILD / f"run{number}"
        self.stops = 0
        command = [sys.executable, "-m", "tests.support.runner", "--build", str(self.build), *arguments]
        # Outside of the repository: its .gitignore and its settings of pytest would count in the directories of tests.
        self.tmp = Path(tempfile.mkdtemp(prefix="sandq-run"))
        environ = os.environ | environ | {ORDER: str(number), "TMPDIR": str(self.tmp)}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def stop_for(self, seconds: float) -> None:
        stand_still(self.process.pid, seconds)
        self.stops += 1

    def end(self) -> None:
        """Kill the run with all its processes, which would not end by themselves."""
        if self.process.poll() is None:
            send_signal(descendants(self.process.pid), signal.SIGKILL)
            self.process.wait()

    def bad(self) -> set[str]:
        """Return the names of the tests that failed in this run, once it has ended."""
        bad = failed_in(self.log.read_text(errors="replace"))
        if self.process.returncode and not bad:
            bad.add(f"(the run itself ended with {self.process.returncode})")
        return bad


def disturb(runs: list[Run], ended: threading.Event, rng: random.Random) -> None:
    while not ended.wait(rng.uniform(5, 25)):
        alive = [run for run in runs if run.process.poll() is None]
        if alive:
            rng.choice(alive).stop_for(rng.uniform(0.3, 3.0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--beside", type=int, default=2, help="how many runs at a time (default 2)")
    parser.add_argument("--hogs", type=int, default=1, help="processes that only compute (default 1)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--suite", choices=sorted(BUDGETS_S), help="run one suite, and count its runs")
    parser.add_argument("--table", action="store_true", help="print the counted runs of all suites, and end")
    options, arguments = parser.parse_known_args()
    if options.table:
        print(loaded_runs.table(loaded_runs.load(), sorted(BUDGETS_S)))
        return 0
    ends_s = time.monotonic() + (SLICE_S if options.suite else math.inf)
    subject = loaded_runs.subject_of(options.suite) if options.suite else ""
    if options.suite:
        arguments = ["--suite", options.suite, *arguments]
    # end the processes that were started, too
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    environ = slow_sync()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}, {options.runs} runs, {options.beside} at a time", flush=True)
    hogs = [subprocess.Popen([*HOG, sys.executable, "-c", "while True: pass"]) for _ in range(options.hogs)]
    runs: list[Run] = []
    ended = threading.Event()
    disturbing = threading.Thread(target=disturb, args=(runs, ended, rng), daemon=True)
    disturbing.start()
    try:
        reported: set[int] = set()
        while len(reported) < (options.runs if time.monotonic() < ends_s else len(runs)):
            alive = [run for run in runs if run.process.poll() is None]
            for run in runs:
                if run not in alive and run.number not in reported:
                    reported.add(run.number)
                    said = ", ".join(sorted(run.bad())) or "green"
                    print(f"run {run.number} (stopped {run.stops} times): {said}", flush=True)
                    shutil.rmtree(run.tmp, ignore_errors=True)
            if len(alive) < options.beside and len(runs) < options.runs and time.monotonic() < ends_s:
                runs.append(Run(options.seed % 1_000_000 + len(runs), environ, arguments))
            time.sleep(0.5)
    finally:
        ended.set()
        disturbing.join()
        for run in runs:
            run.end()
            shutil.rmtree(run.tmp, ignore_errors=True)
        for hog in hogs:
            hog.kill()
            hog.wait()
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        for name in run.bad():
            found[name].append(run)
    for name, of in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(of)} of {len(runs)}: {name}  ({', '.join(str(run.log.relative_to(ROOT)) for run in of)})")
    if options.suite:
        counted = loaded_runs.load()
        loaded_runs.add(counted, options.suite, subject, loaded_runs.current_commit(), [run.bad() for run in runs])
        loaded_runs.store(counted)
        print(loaded_runs.table(counted, [options.suite]))
    green = sum(not run.bad() for run in runs)
    print(f"{green} of {len(runs)} runs were green")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
