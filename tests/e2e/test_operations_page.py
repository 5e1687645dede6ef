"""Every command of docs/operations.md and the HTTP lines of the README, in order, beside a node with HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_command_pages import Shell
from tests.e2e.test_http_page import wait_for
from tests.faults.node_process import ROOT, NodeProcess, free_port


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if re.match(r"    (sandq|sandctl|curl) ", line)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in which localhost:2108 is the node."""
    port = free_port()
    node = NodeProcess(
        tmp_path, SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}", SANDQ_NODE__DATA_DIR=str(tmp_path / "sandq-data")
    )
    node.start()
    try:
        wait_for(port)
        shell = Shell(tmp_path, SANDCTL_SERVERS=node.address, SANDQ_LISTEN__CLIENT=node.address)
        (tmp_path / "bin" / "curl").write_text(
            f'#!/bin/bash\nexec /usr/bin/env -S PATH="${{PATH#*:}}" curl "${{@/2108/{port}}}"\n'
        )
        (tmp_path / "bin" / "curl").chmod(0o755)
        yield shell
    finally:
        node.close()


def test_operations(shell: Shell) -> None:
    lines = commands("docs/operations.md")
    assert len(lines) > 12
    for line in lines:
        shell(line)


def test_the_http_lines_of_the_readme(shell: Shell) -> None:
    lines = commands("README.md")
    assert len(lines) == 3 and all(line.startswith("curl -s ") for line in lines)
    *_, last = [shell(line.replace("curl -s ", "curl -sf ")) for line in lines]
    assert '"text":"{\\"hello\\":\\"world\\"}"' in last
