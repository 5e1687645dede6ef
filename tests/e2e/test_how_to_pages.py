"""The code of each page in docs/how-to prints the output on the page, with a broker for each page. The code of a
tutorial is a program.

A block that calls `client.run` is run in a thread, because `run` ends only with the client. The output of its handler
belongs to the next block, which moves the clock."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import sandq.testing
from tests.e2e.test_keys_page import is_like
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S

DIRECTORY = ROOT / "docs" / "how-to"
_RUN = re.compile(r"^client\.run\(\"([^\"]+)\", \"([^\"]+)\"", re.MULTILINE)


def pages(directory: Path) -> list[Path]:
    """Return the pages of a directory that have code."""
    return [path for path in sorted(directory.glob("*.md")) if "```python run\n" in path.read_text(encoding="utf-8")]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return (source, expected output) of the examples of a page."""
    text = page.read_text(encoding="utf-8")
    found: list[tuple[str, str]] = re.findall(
        r"^```python run\n(.*?)^```\n(?:\n```output\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL
    )
    assert len(found) == text.count(" run\n") and sum(bool(output) for _, output in found) == text.count("```output\n")
    return found


@pytest.mark.parametrize("page", pages(DIRECTORY), ids=lambda page: page.stem)
def test_page_prints_its_output(page: Path) -> None:
    shown: list[str] = []
    workers: list[threading.Thread] = []

    def show(*parts: object) -> None:
        shown.append(" ".join(map(str, parts)))

    with sandq.testing.broker() as b:
        with sandq.sync.connect(b.address, timeout=PATIENCE_S) as client:
            names: dict[str, Any] = {"b": b, "client": client, "print": show}
            for source, expected in blocks(page):
                consumer = _RUN.search(source)
                if consumer is None:
                    exec(source, names)
                    assert is_like("\n".join(shown), expected), source
                    shown.clear()
                    continue
                before, _, run = source.partition("client.run(")
                exec(before, names)
                # `run` returns when the end of the page closes the client.
                workers.append(threading.Thread(target=exec, args=(f"client.run({run}", names)))
                workers[-1].start()
                b.wait_for_consumers(*consumer.groups())
        for worker in workers:
            worker.join()


@pytest.mark.parametrize("page", pages(ROOT / "docs" / "tutorials"), ids=lambda page: page.stem)
def test_code_of_tutorial_is_a_program(page: Path, tmp_path: Path) -> None:
    """The page says how: its blocks, indented, below its first lines."""
    start = re.search(r"```python\n(import sandq.testing\n\nwith .*:\n)```\n", page.read_text(encoding="utf-8"))
    assert start is not None
    program = tmp_path / f"{page.stem}.py"
    program.write_text(start[1] + "\n".join(textwrap.indent(source, "    ") for source, _ in blocks(page)))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0 and "ClosedError" not in done.stderr, done.stderr
    assert is_like(done.stdout, "".join(output for _, output in blocks(page)))


def test_programs_of_the_tutorial_work_with_a_node(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorials" / "reminders.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (python \w+\.py.*)$", text, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["shop.py", "worker.py", "shop.py"]
    node = NodeProcess(tmp_path)
    node.start()
    try:
        for name, source in re.findall(r"^```python (\w+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            (tmp_path / name).write_text(source.replace("127.0.0.1:7170", node.address))
        ordered, work, paid = ([sys.executable, *command.split()[1:]] for command in commands)
        for _ in range(2):
            subprocess.run(ordered, cwd=tmp_path, check=True, timeout=PATIENCE_S)
        with subprocess.Popen(work, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
            try:
                assert worker.stdout is not None and worker.stdout.readline() == "mail 1 to ada@example.org\n"
            finally:
                worker.terminate()
        subprocess.run(paid, cwd=tmp_path, check=True, timeout=PATIENCE_S)
        with sandq.sync.connect(node.address) as client:
            assert list(client.messages("reminders").list(state="delayed")) == []
    finally:
        node.close()


def test_index_lists_every_page() -> None:
    index = (DIRECTORY / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in DIRECTORY.glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\(([^)/]+\.md)\)", index)) == pages
