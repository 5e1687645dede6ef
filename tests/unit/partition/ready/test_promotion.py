"""What is promoted into ready queues does not depend on what a process has in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandq.model.limits import FIXED
from sandq.partition.ready import ready_queues
from tests.support.partition.ranked_bench import RankedBench


def test_queue_without_rows_does_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_queues, "FIXED", replace(FIXED, ready_queues=1))
    bench = RankedBench()
    bench.open()
    bench.add("back", priority=1)
    bench.nack(bench.one(limit=1).token, delay=0)
    bench.add("b", priority=0)
    assert bench.take(1) == ["b"]  # now "back" stands in its queue, in memory alone
    bench.add("first", priority=-1)
    assert bench.take(1) == ["first"]


def test_ack_in_topic_with_ttl_reads_no_rows_after_eviction() -> None:
    bench = RankedBench(ttl="1h")
    bench.open()
    bench.add("a", "b")
    lease = bench.one(limit=1)
    bench.status()
    ready = bench.machine.groups.named("g").ready
    assert ready is not None
    ready.evict()
    bench.ack(lease.token)  # the bench fails if an entry that is said to need no disk reads rows
    assert bench.take(9) == ["b"]
