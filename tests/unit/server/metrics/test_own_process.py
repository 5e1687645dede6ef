"""Tests that process metrics exist even with a restricted /proc (ProcSubset=pid)."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from sandq.server.metrics.own_process import OwnProcess


def reported(collector: type[ProcessCollector], proc: Path) -> dict[str, float]:
    registry = CollectorRegistry()
    collector(proc=str(proc), registry=registry)
    return {sample.name: sample.value for metric in registry.collect() for sample in metric.samples}


def test_process_is_reported_without_the_rest_of_proc(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to("/proc/self")
    assert reported(ProcessCollector, tmp_path) == {}, "otherwise the workaround is no longer needed"
    found = reported(OwnProcess, tmp_path)
    whole = reported(OwnProcess, Path("/proc"))
    assert found.keys() == whole.keys() and found["process_resident_memory_bytes"] > 0
    assert found["process_start_time_seconds"] == pytest.approx(whole["process_start_time_seconds"], abs=5)
