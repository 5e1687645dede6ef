"""Tests of seeks in priority and fair topics: swept messages come again from rows of the group."""

from __future__ import annotations

import pytest

from sandq.partition import commands as c
from sandq.partition.base.digest import comparable
from sandq.partition.log import sweep, trim
from tests.support.partition.ranked_bench import RankedBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> RankedBench:
    """A group `g` whose first message waits forever for its turn."""
    monkeypatch.setattr(sweep, "LEAST_SETTLED", 2)
    monkeypatch.setattr(trim, "PIN_MS", 1000)
    bench = RankedBench(max_attempts=1)
    bench.open()
    bench.add("last", priority=9)
    return bench


def swept(bench: RankedBench, at: int) -> list[bytes]:
    """Ack some messages and sweep the log. Return the offsets that the log still has."""
    bench.add("x", "y", "z", priority=-1, at=at)
    assert bench.take(3, at=at) == ["x", "y", "z"]
    bench.trim(at)
    return [key[1:] for key, _ in bench.rows(b"m")]


def test_leased_message_that_was_swept_comes_again_after_seek(bench: RankedBench) -> None:
    offset = bench.add("held", priority=1)[0]
    lease = bench.one(limit=1, ms=60_000)
    assert bench.values([lease]) == ["held"]
    assert offset not in swept(bench, at=2000)
    bench.seek("earliest", at=2000)
    assert bench.take(10, at=2000) == ["held", "last"]
    assert bench.lease(at=2000) == []


def test_dead_message_that_was_swept_comes_again_after_seek(bench: RankedBench) -> None:
    offset = bench.add("dead", priority=1)[0]
    bench.nack(bench.one(limit=1).token)
    assert len(bench.dead()) == 1
    assert offset not in swept(bench, at=2000)
    bench.seek("earliest", at=2000)
    assert bench.dead() == []
    bench.restart()
    assert bench.take(10, at=2000) == ["dead", "last"]
    assert bench.lease(at=2000) == []


def test_message_that_was_swept_and_came_again_can_be_cancelled(bench: RankedBench) -> None:
    offset = bench.add("dead", priority=1)[0]
    bench.nack(bench.one(limit=1).token)
    swept(bench, at=2000)
    bench.seek("earliest", at=2000)
    assert bench.cancel(offset, at=2000)[0] == "cancelled"
    assert bench.take(10, at=2000) == ["last"]


def test_seek_with_many_ready_messages_drops_their_rows_in_steps() -> None:
    bench, twin = RankedBench(), RankedBench()
    for one in (bench, twin):
        one.open()
        for _ in range(3):
            one.add(*[str(number) for number in range(1000)], priority=[number % 7 for number in range(1000)])
        assert one.take(1) == ["0"]
        cursor = one.apply(0, c.Seek("g", "earliest"))[0]
        assert isinstance(cursor, bytes)
    steps = 0
    while bench.machine.groups.named("g").seeking:
        steps += 1
        twin.restart()
        for one in (bench, twin):
            assert one.lease(1) == []
            one.upkeep()
        assert comparable(bench.everything()) == comparable(twin.everything())
    assert steps >= 3, "one step deletes 1,000 rows at most"
    assert bench.rows(b"o") == []
    values = bench.take(1000) + bench.take(1000) + bench.take(1000)
    assert len(values) == 3000
    assert values[:2] == ["0", "7"]
    assert bench.lease(1) == []
