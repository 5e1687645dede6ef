"""The examples of docs/schedules.md print the output on the page.

The Python code runs against a broker whose time the page moves. The shell lines run against a node."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest

import sandq.testing
from tests.e2e.test_keys_page import is_like
from tests.support.documents import document
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell
from tests.support.waiting import PATIENCE_S

PAGE = document("schedules")
CLIENT_PAGE = document("client")
BLOCKS = re.findall(r"^```(sh|python) run\n(.*?)^```\n(?:\n```output\n(.*?)^```)?", PAGE, re.M | re.S)
"""(language, source, expected output) of each example."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    port = free_port()
    process = NodeProcess(tmp_path, SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}", HTTP_PORT=str(port))
    process.start()
    yield process
    process.close()


def test_page_has_examples() -> None:
    assert len(BLOCKS) == PAGE.count(" run\n") == PAGE.count("```output\n") > 7


def differences(language: str, run: Callable[[str], str]) -> str:
    """Return the differences between the output of the examples and the page. After a difference, continue."""
    wrong = []
    for which, block, expected in BLOCKS:
        if which == language:
            printed = run(block)
            if not is_like(printed, expected):
                wrong.append(f"{block}\nprinted\n{printed}\ninstead of\n{expected}")
    return "\n\n".join(wrong)


def test_python_examples_run() -> None:
    shown: list[str] = []

    def show(*parts: object) -> None:
        shown.append(" ".join(map(str, parts)))

    with sandq.testing.broker() as b, sandq.sync.connect(b.address, timeout=PATIENCE_S) as client:
        names: dict[str, Any] = {"b": b, "client": client, "print": show, "datetime": datetime, "ZoneInfo": ZoneInfo}

        def run(block: str) -> str:
            shown.clear()
            exec(block, names)
            return "\n".join(shown)

        assert not differences("python", run)


def test_schedules_example_of_the_client_page_runs() -> None:
    """Run the example about schedules of docs/client.md, whose other examples use a server without schedules."""
    (example,) = re.findall(r"^```python schedules\n(.*?)^```", CLIENT_PAGE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(f"async def example(client):\n{textwrap.indent(example, '    ')}", names)

    async def main(address: str) -> None:
        async with sandq.connect(address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("orders")
            await names["example"](client)

    with sandq.testing.broker() as b:
        anyio.run(main, b.address)


def test_shell_examples_run(node: NodeProcess, tmp_path: Path) -> None:
    shell = Shell(tmp_path, SANDCTL_SERVERS=node.address)

    def run(block: str) -> str:
        lines = block.replace("localhost:2108", f"localhost:{node.environ['HTTP_PORT']}").splitlines()
        return "\n".join([shell(line).removesuffix("\n") for line in lines])

    assert not differences("sh", run)
