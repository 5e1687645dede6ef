"""The examples of docs/testing.md are put into files as the page says, and run as a user would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "testing.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)


def test_first_example_runs(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(BLOCKS[0])
    done = run(tmp_path, "first.py")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_files_of_page_are_a_suite_without_failures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(BLOCKS[1])
    for block in BLOCKS[2:]:
        name = re.match(r"# (test_\w+\.py)\n", block)
        assert name is not None, block[:80]
        (tmp_path / name[1]).write_text(block)
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout, "five that block, and two under both event loops"


def test_every_method_is_in_the_table() -> None:
    from sandq.testing import AsyncBroker, Broker

    table = PAGE[PAGE.index("## Reference") :]
    for face in (Broker, AsyncBroker):
        for name in dir(face):
            assert name.startswith("_") or re.search(rf"`b\.{name}\b", table), name
