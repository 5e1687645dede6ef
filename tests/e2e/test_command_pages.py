"""Every command line of docs/sandctl.md and docs/configuration.md, run as it stands by a shell, against a real node.

What the reader is thought to have (topics, files, a message with that id) is made before; what asks gets its --yes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess

ID = re.compile(r"\b01HN7K2B6R00000000\d{8}\b")
ASKS = re.compile(
    r"^sandctl (topic (delete|purge)|group (delete|seek)|dead purge|"
    r"message (cancel|move) .*(--all|--since|--key-prefix))"
)
REFUSED = {
    "sandctl cluster init": "belongs to cluster",
    "sandctl cluster drain": "no node 'node2' is registered",
    "sandctl cluster remove": "no node 'node2' is registered",
    "sandctl cluster transfer": "node2 does not hold partition 0",
}
"""What a single node cannot do."""
HELD = (
    "sandctl topic create archive; sandctl topic create orders; sandctl consume orders -g billing; "
    "sandctl consume orders -g copy; sandctl topic create config --kind compacted"
)
"""What is there before each line, unless it is what the line itself makes."""


def lines(page: str, program: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if re.match(rf"    (SANDQ_\S+ )*{program} ", line)]


class Shell:
    """A shell in which `sandctl` and `sandq` are commands."""

    def __init__(self, directory: Path, **environ: str) -> None:
        self.has_all = False
        self.timeout_s = 60
        self._directory = directory
        programs = directory / "bin"
        programs.mkdir()
        for name, module in (("sandctl", "sandctl"), ("sandq", "sandq.cli")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        self._environ = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path, **environ}

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self._directory,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # a photo may be among what is consumed
            timeout=self.timeout_s,
            check=False,
        )

    def __call__(self, line: str, code: int = 0) -> str:
        done = self.run(line)
        assert done.returncode == code, (line, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("node"), SANDQ_LISTEN__HTTP="none")
    process.start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def shell(node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    directory = tmp_path_factory.mktemp("shell")
    (directory / "photo.jpg").write_bytes(bytes(range(256)))
    (directory / "words.txt").write_text("one\ntwo\n")
    return Shell(directory, SANDCTL_SERVERS=node.address)


def prepare(shell: Shell, line: str) -> str:
    """Make what the line needs; the line with ids that exist."""
    if line.startswith("sandctl topic create"):
        shell.run(f"sandctl topic delete {line.split()[3]} --yes")
        shell.has_all = False
        return line
    if not shell.has_all:
        shell.run(HELD)
    shell.has_all = " delete " not in line
    if line.startswith("sandctl topic") and " log" in line:
        shell.run("sandctl topic create log --retain")
    if "--unique-key call-ada" in line and " produce " not in line:
        shell.run("sandctl produce orders x --unique-key call-ada --on-conflict replace --in 30m")
    if "--max 5" in line:
        shell("sandctl produce orders x --count 5")
    if line.startswith("sandctl kv"):
        if "--absent" in line:
            shell("sandctl kv delete config owner")
        else:
            for key in ("app/port", "logo", "theme"):
                shell(f"sandctl kv put config {key} x")
        return ID.sub(lambda match: shell("sandctl kv put config theme x").strip(), line)
    return ID.sub(lambda match: shell("sandctl produce orders x --in 30m").strip(), line)


PAGE = lines("sandctl.md", "sandctl")


def test_the_page_has_commands() -> None:
    assert len(PAGE) > 50


@pytest.mark.parametrize("line", PAGE)
def test_a_line_of_the_page_about_sandctl(shell: Shell, line: str) -> None:
    ready = prepare(shell, line)
    if "--follow" in line:
        shell(f"timeout --preserve-status -s INT 2 {ready.partition('#')[0]}", code=130)
        return
    if line.startswith("sandctl kv watch") and "--max" not in line:
        shell(f"timeout --preserve-status -s INT 3 {ready.partition('#')[0]}", code=0)
        return
    for start, words in REFUSED.items():
        if line.startswith(start):
            refused = shell.run(ready)
            assert refused.returncode == 1 and words in refused.stderr, refused
            return
    if ASKS.match(line) and "--yes" not in line and "--dry-run" not in line:
        refused = shell.run(ready)
        assert refused.returncode == 2 and "--yes" in refused.stderr, "nobody can be asked here"
        ready += " --yes"
    shell(ready)


@pytest.mark.parametrize("line", lines("configuration.md", "sandq"))
def test_a_line_of_the_page_about_configuration(node: NodeProcess, tmp_path: Path, line: str) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(node.data_dir, tmp_path / "sandq-data")
    names = ("CLIENT", "HTTP", "PEER", "GOSSIP")
    ports = {f"SANDQ_LISTEN__{name}": f"127.0.0.1:{free_port()}" for name in names}
    out = Shell(tmp_path, **(ports if "doctor" in line else {}))(line)
    assert out, line
