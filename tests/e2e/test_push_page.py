"""The examples of docs/push.md and docs/push/urls.md run and print the output on the pages.

The receiver runs, the shell lines run against a node, and the Python code runs against a broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import sandq
import sandq.testing
from tests.e2e.test_keys_page import is_like
from tests.support.documents import document
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell
from tests.support.waiting import PATIENCE_S

PAGE = (ROOT / "docs" / "push.md").read_text(encoding="utf-8")
CLIENT_PAGE = document("client")
URLS_PAGE = (ROOT / "docs" / "push" / "urls.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh|python) run\n(.*?)^```\n(?:\n```output\n(.*?)^```)?", PAGE + URLS_PAGE, re.M | re.S)
ALLOWS = re.findall(r"^(SANDQ_PUSH.*) sandq$", PAGE, re.M)
RECEIVER = re.findall(r"^python (docs/examples/push_receiver\.py) --port 9000 --secret-file secret$", PAGE, re.M)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def environ(port: int) -> dict[str, str]:
    """Return the environment that the page requires for a node."""
    (line,) = ALLOWS
    return dict(word.split("=", 1) for word in line.replace("9000", str(port)).split())


@pytest.fixture
def node(tmp_path: Path, environ: dict[str, str]) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path, **environ)
    process.start()
    yield process
    process.close()


def test_shell_examples_run(node: NodeProcess, tmp_path: Path, port: int) -> None:
    (tmp_path / "secret").write_text(sandq.new_push_secret() + "\n")
    shell = Shell(tmp_path, SANDCTL_SERVERS=node.address)
    (program,) = RECEIVER
    receiver = subprocess.Popen(
        [sys.executable, str(ROOT / program), "--port", str(port), "--secret-file", str(tmp_path / "secret")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == f"listening on port {port}\n"
        first, *others = [block for block in BLOCKS if block[0] == "sh"]
        for _, block, expected in (first, *others):
            lines = block.replace(":9000", f":{port}").splitlines()
            printed = "\n".join([shell(line).removesuffix("\n") for line in lines])
            assert is_like(printed, expected.replace(":9000", f":{port}")), printed
            if block == first[1]:
                assert receiver.stdout.readline() == "orders attempt 1: tea\n"
                assert receiver.stdout.readline() == "orders attempt 1: cake\n"
        calls = {receiver.stdout.readline() for _ in range(2)}
        assert calls == {"calls attempt 1: call Ada\n", "calls attempt 1: call Eve\n"}
    finally:
        receiver.kill()
        receiver.communicate()


def test_python_examples_run() -> None:
    shown: list[str] = []
    names: dict[str, object] = {"sandq": sandq, "print": lambda *parts: shown.append(" ".join(map(str, parts)))}
    (line,) = ALLOWS
    settings = dict(word.removeprefix("SANDQ_").split("=", 1) for word in line.split())
    with sandq.testing.broker(settings=settings) as b, sandq.sync.connect(b.address, timeout=PATIENCE_S) as client:
        client.admin.create_topic("orders")
        names["client"] = client
        for language, block, expected in BLOCKS:
            if language == "python":
                shown.clear()
                exec(block, names)
                assert is_like("\n".join(shown), expected), shown


def test_push_example_of_the_client_page_runs() -> None:
    (example,) = re.findall(r"^```python push\n(.*?)^```", CLIENT_PAGE, re.M | re.S)
    names: dict[str, object] = {"sandq": sandq}
    exec(f"async def example(client):\n{textwrap.indent(example, '    ')}", names)

    async def main(address: str) -> None:
        async with sandq.connect(address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("orders")
            await names["example"](client)  # type: ignore[operator]

    with sandq.testing.broker() as b:
        anyio.run(main, b.address)
