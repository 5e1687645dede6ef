"""The tests of the example project docs/examples/spark-archive, with the session of this suite."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from sandq.testing import Broker
from tests.support.paths import ROOT

PROJECT = ROOT / "docs" / "examples" / "spark-archive"


def test_example_archives_each_message_once(
    spark: Any, node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PROJECT)
    spec = importlib.util.spec_from_file_location("example_archive_tests", PROJECT / "tests" / "test_archive.py")
    assert spec is not None and spec.loader is not None
    tests = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(tests)
        tests.test_runs_add_new_messages_once(spark, node, tmp_path)
    finally:
        sys.modules.pop("archive_topic", None)
