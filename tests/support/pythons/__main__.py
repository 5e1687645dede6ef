"""Run sandq on other Python versions: `python -m tests.support.pythons [--smoke] [VERSION ...]`.

Each version has a Debian root with that Python, git and make and nothing else (roots.py). These steps run in it:

- `make setup`, from the lock file;
- the demo and the unit, property and regression suites; with `--smoke` the unit tests of four packages;
- with `--spark` the suite through Spark;
- `installed_check.py` with the wheels of a release in an empty virtual environment, without this checkout:
  `sandq --version`, `sandq doctor`, a message that a killed node delivers after its restart;
- an exchange: a data directory goes from this Python's node to the root's node and back, with messages pending.

`installed_check.py` also runs with the wheels on this Python and on those given with `--python`, without a root."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT
from tests.support.pythons.roots import SOURCES, SUITES, PythonRoot, RootFailed, python_root
from tests.support.release import release

INSTALLED_CHECK: Final = "tests/support/pythons/installed_check.py"
SMOKE_TESTS: Final = tuple(f"tests/unit/{name}" for name in ("storage", "raft", "protocol", "client"))
ALL_TESTS: Final = ("tests/unit", "tests/property", "tests/regressions")
JAVA: Final = "default-jre-headless file"
NOT_IN_A_ROOT: Final = "promtool is missing"
"""The only permitted reason to skip a test: the test needs a program that a root does not have."""
PYTEST: Final = "-m pytest -q -n 2 --dist worksteal"
"""One process per core: in a new root, each process compiles all modules."""


class StepFailed(Exception):
    """A step failed; the text names the step."""


class Report:
    """Prints each step with its duration in seconds, and keeps these lines for the summary."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, version: str, name: str, done: subprocess.CompletedProcess[str], began: float) -> str:
        """Record a step that ran, and return its output. If the step failed, raises StepFailed with its output."""
        output = (done.stdout or "") + (done.stderr or "")
        if done.returncode:
            raise StepFailed(f"Python {version}: {name} failed with exit code {done.returncode}\n{output}")
        self.note(version, name, began, _tests_in(output))
        return done.stdout or ""

    def note(self, version: str, name: str, began: float, result: str = "") -> None:
        line = f"Python {version}: {name}: {result + ', ' if result else ''}{time.monotonic() - began:.0f} s"
        self.lines.append(line)
        print(line, flush=True)


def _tests_in(output: str) -> str:
    """Return pytest's last line. Raises StepFailed if a test was skipped that a root could run."""
    skipped = [line for line in re.findall(r"^SKIPPED .*", output, re.M) if NOT_IN_A_ROOT not in line]
    if skipped:
        raise StepFailed("skipped tests are failures here:\n" + "\n".join(skipped))
    found = re.findall(r"^(\d+ (?:passed|failed)[^\n]*?) in [\d.]+s", output, re.M)
    return found[-1] if found else ""


def run_in_root(root: PythonRoot, wheels: Path, report: Report, *, is_smoke: bool, is_spark: bool) -> None:
    """Run all steps in a root. Raises StepFailed."""

    def shell(name: str, script: str) -> str:
        began = time.monotonic()
        return report.step(root.version, name, root.shell(script, capture_output=True), began)

    shell("make setup", "make setup")
    if is_smoke:
        shell("tests", f".venv/bin/python {PYTEST} {' '.join(SMOKE_TESTS)}")
    else:
        shell("make demo", "make demo")
        shell("make spark", "make spark")  # Unit tests of the pipeline import pyspark; they start no Java.
        shell("tests", f".venv/bin/python {PYTEST} {' '.join(ALL_TESTS)}")
    if is_spark:
        # An outdated mirror has a list of packages whose signature is valid, but whose date is too old.
        update = "apt-get update -qq -o Acquire::Check-Valid-Until=false"
        shell("install Java", f"{update} && apt-get install -y -qq --no-install-recommends {JAVA}")
        shell("tests of Spark", ".venv/bin/python -m pytest -q tests/spark")
    inside = root.directory / "wheels"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(wheels, inside)
    shell("install the wheels", _install("python3", Path("/wheels"), Path("/installed")))
    check = f"/installed/bin/python -I /{SOURCES}/{INSTALLED_CHECK}"
    print(shell("sandq doctor", f"{check} doctor"), end="")
    shell("kill -9 and deliver", f"rm -rf /data; {_kill_and_deliver(check, '/data')}")
    began = time.monotonic()
    _exchange(root, check)
    report.note(root.version, f"data of Python {_own_version()} and back", began)


def _exchange(root: PythonRoot, check: str) -> None:
    """Move a data directory to the root's node and back; check that every message arrives once."""
    data = root.directory / "exchange"
    shutil.rmtree(data, ignore_errors=True)
    own = [sys.executable, "-I", str(ROOT / INSTALLED_CHECK)]
    seen: list[str] = []
    for step in ("write 0 4", "-read 2", "-write 4 4", "read 4", "-read 2"):
        command, *numbers = step.lstrip("-").split()
        if step.startswith("-"):
            done = root.shell(f"{check} {command} /exchange {' '.join(numbers)}", capture_output=True)
        else:
            done = subprocess.run([*own, command, str(data), *numbers], capture_output=True, text=True, check=False)
        if done.returncode:
            output = done.stdout + done.stderr
            raise StepFailed(f"Python {root.version}: exchange of a data directory, {step}:\n{output}")
        seen += done.stdout.split()
    if sorted(seen) != [str(number) for number in range(8)]:
        raise StepFailed(f"Python {root.version}: exchange of a data directory: {seen} were delivered, not 0 to 7")


def check_wheels(pythons: Iterable[str], wheels: Path, report: Report) -> None:
    """Install the wheels on other interpreters of this machine, and check them. Raises StepFailed."""
    for python in pythons:
        version = subprocess.run([python, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            check = f"{place}/venv/bin/python -I {ROOT / INSTALLED_CHECK}"
            script = f"{_install(python, wheels, place / 'venv')}; {check} doctor; "
            script += _kill_and_deliver(check, f"{place}/data")
            began = time.monotonic()
            command = ["bash", "-euo", "pipefail", "-c", script]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            report.step(version, "install the wheels, doctor, kill -9 and deliver", done, began)


def _kill_and_deliver(check: str, data: str) -> str:
    return f"{check} write {data} 0 6; test \"$({check} read {data} 6 | sort | xargs)\" = '0 1 2 3 4 5'"


def _install(python: str, wheels: Path, venv: Path) -> str:
    pip = f"{venv}/bin/python -m pip install --quiet --disable-pip-version-check"
    return (
        f"rm -rf {venv}; {python} -m venv {venv}; {pip} --require-hashes -r {wheels}/requirements.lock; "
        f"{pip} --no-deps --no-index {wheels}/*.whl"
    )


def _own_version() -> str:
    return "{}.{}".format(*sys.version_info)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--smoke", action="store_true", help="fewer tests, and a virtual environment of an earlier run")
    parser.add_argument("--spark", action="store_true", help="also install Java, and run the suite through Spark")
    parser.add_argument("--python", action="append", default=[], help="also check the wheels on this interpreter")
    options = parser.parse_args(arguments)
    versions = options.versions or list(SUITES)
    if unknown := set(versions) - set(SUITES):
        parser.error(f"no root has Python {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    report = Report()
    try:
        with tempfile.TemporaryDirectory() as directory:
            wheels = Path(directory) / "dist"
            release().build(wheels)
            check_wheels([sys.executable, *options.python], wheels, report)
            for version in versions:
                began = time.monotonic()
                with python_root(version, is_fresh=not options.smoke) as root:
                    report.note(version, "the root", began)
                    run_in_root(root, wheels, report, is_smoke=options.smoke, is_spark=options.spark)
    except (RootFailed, StepFailed) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print("\n".join(["", *report.lines]))
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main())
