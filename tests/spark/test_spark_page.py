"""Every runnable example of docs/spark.md, run in order with one node, prints the output on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_keys_page import is_like
from tests.support.documents import document
from tests.support.processes.node import NodeProcess
from tests.support.spark.pipeline_shell import PipelineShell

PAGE = document("spark")
BLOCKS = re.findall(r"^```(sh|python) run\n(.*?)^```\n(?:\n```output\n(.*?)^```)?", PAGE, re.M | re.S)
"""(language, source, expected output) of each example."""
DEFAULT = "127.0.0.1:7170"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path, SANDQ_LISTEN__HTTP="none")
    node.start()
    yield node
    node.close()


def test_page_has_examples() -> None:
    assert len(BLOCKS) == PAGE.count(" run\n") > 5
    assert sum(bool(expected) for _, _, expected in BLOCKS) == PAGE.count("```output\n")


def test_every_example(spark: Any, process: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = PipelineShell(spark, tmp_path, SANDCTL_SERVERS=process.address)
    names: dict[str, Any] = {"spark": spark}
    for language, source, expected in BLOCKS:
        printed: list[str] = []
        errors = ""
        if language == "sh":
            done = shell.run(source)
            assert done.code == 0 and "Traceback" not in done.err, (source, done.out, done.err)
            printed.append(done.out)
            errors = done.err
        else:
            names["print"] = lambda *parts, printed=printed: printed.append(" ".join(map(str, parts)))
            exec(source.replace(DEFAULT, process.address).replace('"/data/', f'"{tmp_path}/'), names)
        assert is_like("\n".join(printed), expected), (source, printed, errors)
    names_of_jobs = ("archive", "compact", "sql", "replay", "schedule", "forecast", "report")
    assert set(shell.ran) == {f"pipeline {name}" for name in names_of_jobs}
