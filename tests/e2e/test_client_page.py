"""What docs/client.md shows and a scripted server cannot play, run against a real node."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import sandq
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess

PAGE = (ROOT / "docs" / "client.md").read_text()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path)
    process.start()
    with sandq.sync.connect(process.address) as client:
        client.admin.create_topic("orders")
    yield process
    process.close()


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^```python {kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_async_blocks(node: NodeProcess, backend: str) -> None:
    shown: list[tuple[object, ...]] = []
    names: dict[str, Any] = {"sandq": sandq, "anyio": anyio, "print": lambda *parts: shown.append(parts)}
    source = textwrap.indent("".join(blocks("node")), "    ")
    exec(f"async def page(client):\n{source}\n    return locals()", names)

    async def main() -> dict[str, Any]:
        async with sandq.connect(node.address) as client:
            await client.produce("orders", b"one")
            await client.produce("orders", b"out of stock")
            await client.produce("orders", b"two", delay="2500ms")
            found: dict[str, Any] = await names["page"](client)
            return found

    left = anyio.run(main, backend=backend)
    assert shown == [("billed", b"one")]
    assert [message.value for message in left["messages"]] == [b"two"] and left["lost"] == []


def test_the_blocking_block(node: NodeProcess) -> None:
    shown: list[object] = []
    (source,) = blocks("sync")
    exec(source, {"sandq": sandq, "server": node.address, "print": shown.append})
    offset, value, delayed, lease_ms = shown
    assert len(str(offset)) == len(str(delayed)) == 26
    assert (value, lease_ms) == (b"also paid", 30_000)
