"""Tests of the order in which messages of one priority are leased, with any returned messages."""

from __future__ import annotations

from tests.support.partition.ranked_bench import RankedBench


def test_messages_returned_together_let_those_between_go_first() -> None:
    bench = RankedBench()
    bench.open()
    offsets = bench.add("a", "b", "c", "d", "e")
    lease = bench.one(limit=5)
    bench.nack(lease.token, [[offsets[at], 1] for at in (0, 2, 4)], delay=0)
    bench.nack(lease.token, [[offsets[at], 1] for at in (1, 3)], delay=0)
    assert bench.values(bench.lease(4)) == ["a", "b", "c", "d"]


def test_entry_that_was_looked_at_twice_is_leased_once() -> None:
    bench = RankedBench()
    bench.open()
    offsets = bench.add("a", "b", "c", "d")
    lease = bench.one(limit=4)
    bench.nack(lease.token, [[offsets[at], 1] for at in (0, 1, 3)], delay=0)
    bench.nack(lease.token, [[offsets[2], 1]], delay=0)
    assert bench.take(1) == ["a"]
    bench.restart()
    assert bench.take(9) == ["b", "c", "d"]
