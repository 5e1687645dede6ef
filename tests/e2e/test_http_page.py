"""Every command of docs/http.md, and of the how-to page about other languages, is run in order against a node with
HTTP, and has the status on the page."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import document
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess

PAGE = document("http")
LANGUAGES = (ROOT / "docs" / "how-to" / "use-another-language.md").read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    return [line for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()]


@pytest.fixture
def web_port(tmp_path: Path) -> int:
    return free_port()


def test_every_command(tmp_path: Path, web_port: int) -> None:
    lines = [*commands(PAGE), *commands(LANGUAGES)]
    assert len(lines) > 35
    node = NodeProcess(tmp_path, SANDQ_LISTEN__HTTP=f"127.0.0.1:{web_port}")
    node.start()
    try:
        for line in lines:
            run(line, tmp_path, web_port)
    finally:
        node.close()


def run(line: str, directory: Path, port: int) -> None:
    """Run a line in a new shell. A file passes variables from one line to the next."""
    command = line.replace("localhost:2108", f"localhost:{port}")
    status = re.search(r"  # (\d+)$", line)
    if status is not None:
        command = command.replace("curl -s", "curl -s -w '%{stderr}%{http_code}'", 1)
    kept = "code=$?; declare -p TOKEN > env 2> /dev/null; exit $code"
    script = f"[ ! -f env ] || . ./env; {command.split('  # ')[0]}\n{kept}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (line, done.stderr)
    if status is not None:
        assert done.stderr == status[1], (line, done.stdout[:500])
