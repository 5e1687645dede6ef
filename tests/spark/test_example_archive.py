"""The example project docs/examples/spark-archive: its tests and the commands of its README, in one Spark session."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sandq.testing import Broker
from tests.e2e.test_keys_page import is_like
from tests.support.paths import ROOT
from tests.support.processes.shell import Shell

PROJECT = ROOT / "docs" / "examples" / "spark-archive"


@pytest.fixture
def tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the test module of the project."""
    monkeypatch.syspath_prepend(PROJECT)
    spec = importlib.util.spec_from_file_location("example_archive_tests", PROJECT / "tests" / "test_archive.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    yield found
    del sys.modules["archive_topic"]


def test_example_archives_each_message_once(spark: Any, node: Broker, tests: ModuleType, tmp_path: Path) -> None:
    (own,) = [name for name in vars(tests) if name.startswith("test_")]
    getattr(tests, own)(spark, node, tmp_path)


def test_commands_of_readme_print_its_output(
    spark: Any,
    node: Broker,
    tests: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last command is the program. Its session is that of the suite, which must not end with it."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    (source, expected), *others = re.findall(r"^```sh run\n(.*?)^```\n\n```output\n(.*?)^```", text, re.M | re.S)
    assert not others and "```sh start\nsandq\n```" in text
    *commands, program = source.splitlines()
    shell = Shell(tmp_path, SANDCTL_SERVERS=node.address)
    printed = "".join([shell(line) for line in commands])
    node.advance("1s")
    words = shlex.split(program)
    assert words == ["python", "archive_topic.py", "orders", "--to", "archive"]
    # Spark's JVM has a working directory of its own.
    words[-1] = str(tmp_path / "archive")
    monkeypatch.setenv("BROKER", node.address)
    monkeypatch.setattr(sys, "argv", words[1:])
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    capsys.readouterr()
    for _ in range(2):  # the counts stay the same
        tests.until_started(sys.modules["archive_topic"].main)
        assert is_like(printed + capsys.readouterr().out.rstrip("\n"), expected)
