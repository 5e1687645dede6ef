"""Tests that a paused group gets no messages, loses nothing, and does not affect other groups."""

from __future__ import annotations

from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.groups.group import PAUSED
from tests.support.partition.bench import Bench, T

HOUR = 3_600_000


def pause(bench: Bench, paused: bool = True, at: int = 0) -> None:
    assert bench.apply(at, c.PauseGroup("g", paused)) == [None]


def test_paused_group_gets_due_messages_after_resume(bench: Bench) -> None:
    bench.open()
    bench.open("other")
    bench.append("now")
    bench.append("later", due=[5000])
    pause(bench)
    for _ in range(2):
        status = bench.status().groups.get("g")
        assert status is not None and (status.next_ms, status.paused, status.ready) == (None, PAUSED, 1)
        assert bench.lease(at=50) == []
        bench.restart()
    assert bench.values(bench.lease(at=5000, group="other")) == ["now", "later"]
    pause(bench, False, at=6000)
    status = bench.status().groups.get("g")
    assert status is not None and (status.next_ms, status.paused) == (T, None)
    assert bench.values(bench.lease(at=6000)) == ["now", "later"]


def test_leased_messages_stay_leased_and_returned_ones_wait(bench: Bench) -> None:
    bench.open()
    bench.append(*"abc")
    first, second, third = (bench.one(limit=1) for _ in range(3))
    pause(bench)
    assert bench.extend(second.token, 60_000, at=1) == T + 60_001
    assert bench.ack(first.token, at=1) is None
    assert bench.nack(second.token, at=1, delay=0) is None
    bench.expire(at=40_000)
    assert bench.lease(at=50_000) == [], "neither returned messages nor messages of expired leases"
    pause(bench, False, at=50_000)
    assert sorted(bench.values(bench.lease(at=50_000))) == ["b", "c"]
    assert third.token not in bench.machine.groups.named("g").leases


def test_a_ttl_counts_on() -> None:
    bench = Bench(ttl="1m")
    bench.open()
    bench.append("m")
    pause(bench)
    assert bench.status().next_expiry_ms == T + 60_000
    bench.expire(at=60_000)
    assert [letter.reason for letter in bench.dead()] == ["expired"]


def test_paused_group_is_kept_without_consumers() -> None:
    bench = Bench(group_ttl="1h")
    bench.open()
    bench.append("m")
    pause(bench)
    for hours in (1, 2, 5):
        bench.apply(hours * HOUR, c.Upkeep())
        assert bench.machine.groups.find("g") is not None
    pause(bench, False, at=5 * HOUR + 10)
    bench.apply(6 * HOUR, c.Upkeep())
    (lease,) = bench.lease(at=6 * HOUR)
    assert bench.values([lease]) == ["m"], "the `group_ttl` starts again at the end of the pause"
    bench.ack(lease.token, at=6 * HOUR)
    bench.apply(8 * HOUR, c.Upkeep())
    assert bench.machine.groups.find("g") is None


def test_settings_and_a_seek_leave_it_paused(bench: Bench) -> None:
    bench.open()
    bench.append("m")
    bench.apply(0, c.ConfigureGroup("g", {"max_attempts": 1}))
    pause(bench)
    bench.apply(0, c.ConfigureGroup("g", {}))
    bench.seek("earliest")
    bench.open()
    assert bench.lease(at=1) == []
    pause(bench, False, at=1)
    assert bench.values(bench.lease(at=1)) == ["m"]


def test_row_of_group_that_is_not_paused_is_unchanged(bench: Bench) -> None:
    """A version without pauses can read the row."""
    bench.open()

    def fields() -> int:
        ((_, row),) = bench.rows(rows.GROUP)
        return len(rows.unpack(row))

    before = fields()
    pause(bench)
    assert fields() == before + 1
    pause(bench, False)
    assert fields() == before


def test_a_group_that_is_made_paused_is_paused(bench: Bench) -> None:
    """A group that is paused in other partitions of its topic is created paused."""
    bench.append("m")
    bench.apply(0, c.OpenGroup("g", "earliest", True))
    bench.restart()
    assert bench.lease(at=1) == []
    bench.open()
    assert bench.lease(at=1) == [], "it was there"
    pause(bench, False, at=1)
    assert bench.values(bench.lease(at=1)) == ["m"]
    assert c.OpenGroup("g", "latest").fields() == ("g", "latest"), "in the form of versions without pauses"
