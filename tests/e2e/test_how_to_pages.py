"""The code of each page in docs/how-to and docs/tutorials prints the output on the page, with a broker for each page.

A block that calls `client.run` is run in a thread, because `run` ends only with the client. The output of its handler
belongs to the next block, which moves the clock."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import sandq.testing
from sandq.errors import ClosedError
from tests.e2e.test_keys_page import is_like
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S

DIRECTORY = ROOT / "docs" / "how-to"
PAGES = sorted(
    path
    for path in (*DIRECTORY.glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md"))
    if "```python run\n" in path.read_text(encoding="utf-8")
)
_RUN = re.compile(r"^client\.run\(\"([^\"]+)\", \"([^\"]+)\"", re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return (source, expected output) of the examples of a page."""
    text = page.read_text(encoding="utf-8")
    found: list[tuple[str, str]] = re.findall(
        r"^```python run\n(.*?)^```\n(?:\n```output\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL
    )
    assert len(found) == text.count(" run\n") and sum(bool(output) for _, output in found) == text.count("```output\n")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_prints_its_output(page: Path) -> None:
    shown: list[str] = []
    workers: list[threading.Thread] = []

    def show(*parts: object) -> None:
        shown.append(" ".join(map(str, parts)))

    with sandq.testing.broker() as b:
        with sandq.sync.connect(b.address, timeout=PATIENCE_S) as client:
            names: dict[str, Any] = {"b": b, "client": client, "print": show}

            def work(source: str) -> None:
                with contextlib.suppress(ClosedError):  # the end of the page closes the client
                    exec(source, names)

            for source, expected in blocks(page):
                consumer = _RUN.search(source)
                if consumer is None:
                    exec(source, names)
                    assert is_like("\n".join(shown), expected), source
                    shown.clear()
                    continue
                before, _, run = source.partition("client.run(")
                exec(before, names)
                workers.append(threading.Thread(target=work, args=(f"client.run({run}",)))
                workers[-1].start()
                b.wait_for_consumers(*consumer.groups())
        for worker in workers:
            worker.join()


def test_index_lists_every_page() -> None:
    index = (DIRECTORY / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in DIRECTORY.glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\(([^)/]+\.md)\)", index)) == pages
