"""What is promoted into ready queues does not depend on what a process has in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.groups import ranked_grants
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


def test_lease_that_promoted_all_it_may_says_that_there_may_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked_grants, "PROMOTED", 2)
    monkeypatch.setattr(ranked_grants, "PART_ENTRIES", 2)
    bench = RankedBench()
    bench.open()
    bench.add("a", "b", "c", priority=[3, 2, 1])
    assert bench.lease(1) == []
    assert bench.status().groups[0].is_promoting
    assert bench.take(1) == ["c"]
    assert not bench.status().groups[0].is_promoting


def test_nothing_is_promoted_before_its_time_while_the_time_of_the_partition_is_ahead() -> None:
    bench = RankedBench()
    bench.open()
    bench.add("back")
    bench.nack(bench.one(limit=1).token, delay=4000)
    bench.add("a", due=[3000])
    bench.apply(5000, c.Clock())
    assert bench.lease(1, at=2999) == []
    assert not bench.status().groups[0].is_promoting
    assert bench.take(2, at=3000) == ["a"]
    assert bench.take(2, at=4000) == ["back"]


def test_what_was_due_by_a_wrong_clock_alone_waits_when_it_is_right() -> None:
    bench = RankedBench()
    bench.open()
    bench.add("back", priority=1)
    bench.nack(bench.one(limit=1).token, delay=4000)
    bench.add("a")
    assert bench.take(1, at=5000) == ["a"]  # "back" stands in its queue
    assert bench.lease(1, at=1000) == []
    assert bench.take(1, at=4000) == ["back"]
