"""Examples of docs/client.md that a fake server cannot run are run against a real node."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import sandq
from tests.support.documents import document
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, until_answer

PAGE = document("client")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path)
    process.start()
    with sandq.sync.connect(process.address, timeout=PATIENCE_S) as client:
        client.admin.create_topic("orders")
    yield process
    process.close()


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^```python {kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async_examples_run(node: NodeProcess, backend: str) -> None:
    """The example on the page runs its handler for two seconds. This test waits until it has handled both messages."""
    shown: list[tuple[object, ...]] = []
    names: dict[str, Any] = {"sandq": sandq, "print": lambda *parts: shown.append(parts)}

    async def run(client: sandq.Client, block: str) -> None:
        exec(f"async def page(client):\n{textwrap.indent(block, '    ')}\n    return locals()", names)
        names.update(await names["page"](client))

    async def settle(client: sandq.Client, scope: anyio.CancelScope) -> None:
        def is_settled(rows: list[dict[str, Any]]) -> bool:
            return [(row["ready"], row["leased"], row["waiting"]) for row in rows] == [(0, 0, 1)]

        await until_answer(lambda: client.admin.groups("orders"), is_settled)
        scope.cancel()

    async def main() -> None:
        timing, several, partitions, lasting, handling, leasing = blocks("node")
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client, anyio.create_task_group() as tasks:
            await client.admin.create_topic("refunds")
            await client.produce("refunds", b"two euros")
            await run(client, timing)  # the example works with or without a reply in time
            shown.clear()
            for block in (several, partitions, lasting):
                await run(client, block)
            assert shown == [("refunds", b"two euros"), (["orders", "refunds"],)]
            shown.clear()
            await client.admin.delete_group("orders", "desk")
            await client.produce("orders", b"one")
            await client.produce("orders", b"out of stock")
            scope = anyio.CancelScope()
            names["anyio"] = SimpleNamespace(move_on_after=lambda seconds: scope)
            tasks.start_soon(settle, client, scope)
            await run(client, handling)
            await client.produce("orders", b"two")
            await run(client, leasing)

    anyio.run(main, backend=backend)
    assert shown == [("billed", b"one")]
    assert [message.value for message in names["messages"]] == [b"two"] and names["lost"] == []


def test_blocking_example_runs(node: NodeProcess) -> None:
    shown: list[object] = []
    (source,) = blocks("sync")
    exec(source, {"sandq": sandq, "server": node.address, "print": shown.append})
    offset, value, delayed, lease_ms = shown
    assert len(str(offset)) == len(str(delayed)) == 26
    assert (value, lease_ms) == (b"also paid", 30_000)
