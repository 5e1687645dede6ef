"""The TypeScript program of docs/start.md is run by Node.js against a node. It is also plain JavaScript."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess

PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.interop


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_typescript_program_prints_what_the_page_shows(tmp_path: Path) -> None:
    ((program, output),) = re.findall(r"^```typescript run\n(.*?)^```\n\n```output\n(.*?)^```", PAGE, re.M | re.S)
    port = free_port()
    node = NodeProcess(tmp_path, SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}")
    script = tmp_path / "first.mjs"
    script.write_text(program.replace("localhost:2108", f"127.0.0.1:{port}"), encoding="utf-8")
    try:
        node.start()
        done = subprocess.run(["node", script], capture_output=True, text=True, check=False)
    finally:
        node.close()
    assert (done.stdout, done.stderr) == (output, "")
