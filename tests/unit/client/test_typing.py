"""Tests of public types: a correct program passes `mypy --strict`, and mistakes are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import sandq
from tests.support.paths import ROOT

PROGRAM = ROOT / "tests/support/client/typed_program.py"


def test_a_typed_program() -> None:
    wanted = [
        (number, code)
        for number, line in enumerate(PROGRAM.read_text().splitlines(), 1)
        for code in (line.split("# wrong: ")[1].split(", ") if "# wrong: " in line else ())
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(PROGRAM)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [
        (int(match[1]), match[2])
        for match in re.finditer(r":(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    ]
    assert sorted(found) == wanted, done.stdout + done.stderr
    assert len(wanted) > 10


def test_package_has_py_typed_marker() -> None:
    assert sandq.__file__ is not None
    assert Path(sandq.__file__).with_name("py.typed").is_file()
