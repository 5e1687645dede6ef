"""Tests of a group of a priority topic with too many messages that wait for another attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandq.model.limits import FIXED
from sandq.partition.groups import group
from tests.support.partition.ranked_bench import RankedBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> RankedBench:
    """Three messages were nacked, but only one may wait. A fourth message is ready and would be first."""
    monkeypatch.setattr(group, "FIXED", replace(FIXED, max_gaps=1))
    bench = RankedBench()
    bench.open()
    for name, priority in (("a", 2), ("b", 1), ("c", 1)):
        bench.add(name, priority=priority)
    for lease in bench.lease(3):
        bench.nack(lease.token, delay=1000)
    bench.add("new", priority=0)
    return bench


def test_full_group_gets_nothing_new(bench: RankedBench) -> None:
    assert bench.lease() == []
    assert bench.status().groups[0].paused is not None


def test_full_group_receives_returned_messages_when_due(bench: RankedBench) -> None:
    assert bench.take(1, at=1000) == ["b"]
    bench.restart()
    assert bench.status().groups[0].next_ms is not None
    assert bench.take(1, at=1000) == ["c"]
    assert bench.take(2, at=1000) == ["new", "a"]
