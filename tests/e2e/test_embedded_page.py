"""The examples of docs/embedded.md are put into files as the page says, and run as a user would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "embedded.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
APP = """
from fastapi.testclient import TestClient
import app, broker
with TestClient(app.app) as api:
    print(len(api.post("/mails/ada@example.com").json()["id"]))
    (row,) = broker.client().messages("mails").list()
    print(row.state)
broker.client().close()
"""


def run(directory: Path, *arguments: str) -> str:
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(arguments, cwd=directory, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, block in BLOCKS:
        (tmp_path / name).write_text(block)
    return tmp_path


def test_every_block_is_a_file() -> None:
    assert [name for name, _ in BLOCKS] == ["reminders.py", "script.py", "app.py", "broker.py"]
    assert len(BLOCKS) == PAGE.count("```python")


def test_programs_run_on_one_directory(directory: Path) -> None:
    for _ in range(2):
        assert run(directory, sys.executable, "reminders.py") == "call the bank\n"
    assert run(directory, sys.executable, "script.py") == "resize picture 7\n"
    for command in re.findall(r"^    (sandctl --data .*)$", PAGE, re.MULTILINE):
        printed = run(directory, sys.executable, "-m", *command.split())
        # Messages that are acked may be trimmed already.
        assert "reminders" in printed or command.endswith("message list reminders"), command


def test_application_and_worker_share_the_directory(directory: Path) -> None:
    (directory / "use.py").write_text(APP)
    assert run(directory, sys.executable, "use.py") == "26\ndelayed\n"
