"""Every example of docs/keys.md, run in order with one node with HTTP, prints the output on the page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import sandq
from tests.support.documents import document
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Run, Shell, run_with_commands
from tests.support.waiting import PATIENCE_S

PAGE = document("keys")
BLOCKS = re.findall(r"^```(sh|python|python sync) run\n(.*?)^```\n(?:\n```output\n(.*?)^```)?", PAGE, re.M | re.S)
"""(language, source, expected output) of each example."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    port = free_port()
    process = NodeProcess(tmp_path, SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}", HTTP_PORT=str(port))
    process.start()
    yield process
    process.close()


def is_like(printed: str, expected: str) -> bool:
    """Return whether the output is as on the page, where `...` stands for any text within a line."""
    lines = (re.escape(line).replace(re.escape("..."), ".*") for line in expected.splitlines())
    return re.fullmatch("\n".join(lines), printed.rstrip("\n")) is not None


def test_is_like_compares_output_with_placeholders() -> None:
    assert is_like("a 01ABC\nb\n", "a 01...\nb\n") and not is_like("a\nb", "a") and not is_like("a\nb", "a...")
    assert is_like("", "") and not is_like("x", "") and is_like("(a.b)", "(a.b)") and not is_like("(axb)", "(a.b)")


def test_page_has_examples() -> None:
    assert len(BLOCKS) == PAGE.count(" run\n") > 20
    assert sum(bool(expected) for _, _, expected in BLOCKS) == PAGE.count("```output\n")


def test_every_example(node: NodeProcess, tmp_path: Path) -> None:
    """Run all examples as one function, because later examples use names of earlier ones."""
    shown: dict[int, list[str]] = {number: [] for number in range(len(BLOCKS))}
    at = 0

    def begin(number: int) -> None:
        nonlocal at
        at = number

    def show(*parts: object) -> None:
        shown[at].append(" ".join(map(str, parts)))

    async def run_blocking(number: int) -> None:
        def blocking() -> None:
            with sandq.sync.connect(node.address, timeout=PATIENCE_S) as client:
                exec(BLOCKS[number][1], {"client": client, "print": show})

        await anyio.to_thread.run_sync(blocking)

    source = ""
    for number, (language, block, _) in enumerate(BLOCKS):
        if language == "python":
            source += f"begin({number})\n{block}"
        else:
            source += f"begin({number})\nawait {'run' if language == 'sh' else 'run_blocking'}({number})\n"
    names: dict[str, Any] = {"begin": begin, "run_blocking": run_blocking, "print": show}
    exec(f"async def page(client):\n{textwrap.indent(source, '    ')}", names)
    page: Callable[[sandq.Client], Awaitable[None]] = names["page"]

    async def main(run: Run) -> None:
        async def run_block(number: int) -> None:
            block = BLOCKS[number][1].replace("localhost:2108", f"localhost:{node.environ['HTTP_PORT']}")
            for lines in [block] if "$" in block else block.splitlines():
                done = await run(lines)
                assert done.code == 0 and "Traceback" not in done.err, (lines, done)
                shown[number].append(done.out.removesuffix("\n"))

        names["run"] = run_block
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await page(client)

    run_with_commands(main, Shell(tmp_path, SANDCTL_SERVERS=node.address))
    wrong = []
    for number, (_, block, expected) in enumerate(BLOCKS):
        printed = "\n".join(shown[number])
        if not is_like(printed, expected):
            wrong.append(f"{block}\nprinted\n{printed}\ninstead of\n{expected}")
    assert not wrong, "\n\n".join(wrong)
