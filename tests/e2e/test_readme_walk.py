"""The commands that the README shows, run as they stand (with ports of the test's own)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.node_process import ROOT, NodeProcess

README = (ROOT / "README.md").read_text()
COMMANDS = {".venv/bin/sandq": "-m sandq.cli", ".venv/bin/sandctl": "-m sandctl"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path)
    process.start()
    yield process
    process.close()


def shell(line: str, node: NodeProcess) -> str:
    """Run a line of the README; it must stand there. Its standard output."""
    assert line in README, f"the README no longer shows: {line}"
    for name, module in COMMANDS.items():
        line = line.replace(name, f"{sys.executable} {module}")
    environ = os.environ | {"PYTHONPATH": str(ROOT), "SANDCTL_SERVERS": node.address}
    done = subprocess.run(line, shell=True, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_minutes(node: NodeProcess) -> None:
    shell(".venv/bin/sandctl topic create t", node)
    before = time.time()
    shell("echo hi | .venv/bin/sandctl produce t --file - --in 2s", node)
    printed = shell(".venv/bin/sandctl consume t --group g --max 1", node)
    assert printed == "hi\n\n", "its bytes as they are, and a line end"
    assert time.time() - before >= 2


def test_the_configuration_that_is_shown(tmp_path: Path) -> None:
    assert ".venv/bin/sandq --config configs/single.yaml" in README
    done = subprocess.run(
        [sys.executable, "-m", "sandq.cli", "check-config", str(ROOT / "configs" / "single.yaml")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0


def test_the_python_example(node: NodeProcess, tmp_path: Path) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    shell(".venv/bin/sandctl topic create t", node)
    script = tmp_path / "example.py"
    script.write_text(source.replace("sandq.connect()", f'sandq.connect("{node.address}")'))
    before = time.time()
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert line.startswith("b'call the bank'")
    assert time.time() - before >= 2
