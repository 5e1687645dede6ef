"""Tests of group limits in one partition: freed slots, restarts from rows, and ignored old or foreign reports."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.group_limits import limits_of, parse_limit, with_limit
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.queries.limit_reasons import limit_reason
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench, T
from tests.support.partition.restore_bench import restored


def limit(bench: Bench, at: int = 0, partitions: int = 1, group: str = "g", **given: Any) -> None:
    record = with_limit(bench.machine.settings, group, partitions, parse_limit(given))
    assert bench.apply(at, c.Configure(record)) == [None]


def available(bench: Bench) -> int:
    """Return the number of messages that may be leased now."""
    group = bench.machine.groups.named("g")
    assert group.allowance is not None
    return group.allowance.available(group.in_flight, bench.machine.now_ms * 1000, 1000)


def ack(bench: Bench, lease: Lease) -> None:
    assert bench.ack(lease.token, at=10) is None


def nack(bench: Bench, lease: Lease) -> None:
    assert bench.nack(lease.token, at=10) is None


def die(bench: Bench, lease: Lease) -> None:
    for at in (10, 2000):
        bench.nack(lease.token, at=at)
        (lease,) = bench.lease(at=at + 1500, limit=2)
    bench.nack(lease.token, at=5000)
    assert len(bench.dead()) == 2


def expire(bench: Bench, lease: Lease) -> None:
    assert bench.expire(at=30_000) == 2


def release(bench: Bench, lease: Lease) -> None:
    assert bench.release(at=10) == 2


def seek(bench: Bench, lease: Lease) -> None:
    bench.seek("latest", at=10)


@pytest.mark.parametrize("free", [ack, nack, die, expire, release, seek])
def test_each_end_of_a_lease_frees_a_slot(bench: Bench, free: Any) -> None:
    bench.open()
    limit(bench, max_in_flight=2)
    bench.append("a", "b", "c")
    lease = bench.one()
    assert (lease.total, available(bench)) == (2, 0)
    status = bench.status().groups.get("g")
    assert status is not None and status.next_ms is None and status.limit is not None and status.limit.next_ms == T
    assert bench.lease(at=5) == []
    free(bench, lease)
    assert available(bench) == 2
    bench.restart()
    assert available(bench) == 2


def test_grants_share_the_remaining_limit_in_order(bench: Bench) -> None:
    bench.open()
    limit(bench, max_in_flight=3)
    bench.append(*"abcdef")
    grants = (c.Grant("one", 2, 30_000), c.Grant("two", 2, 30_000), c.Grant("three", 2, 30_000))
    leases = bench.apply(0, c.Lease("g", T, grants))[0]
    assert [(lease.consumer, lease.total) for lease in leases] == [("one", 2), ("two", 1)]


def test_lease_ahead_does_not_exceed_the_rate(bench: Bench) -> None:
    """Messages are leased ahead of their time. The rate counts no future time."""
    bench.open()
    limit(bench, rate="10/s", burst=1)
    bench.append("a", "b", due=[1000, 1000])
    assert bench.one(at=995, ahead=5).total == 1
    status = bench.status().groups.get("g")
    assert status is not None and status.not_before_ms == T + 1095 and status.due_ms == T + 1095
    assert bench.lease(at=1090, ahead=50) == []
    assert bench.one(at=1095).total == 1


def test_a_restart_keeps_the_pace(bench: Bench) -> None:
    bench.open()
    limit(bench, rate="1/s", burst=2)
    bench.append(*"abcd")
    assert bench.one().total == 2
    bench.restart()
    assert bench.lease(at=999) == []
    assert bench.one(at=1000).total == 1
    limit(bench, at=1000, rate="2/s", burst=2)
    assert bench.lease(at=1000) == [], "a new rate starts with the rest of the old rate"
    assert bench.one(at=1500).total == 1


def test_a_group_without_limits_has_none(bench: Bench) -> None:
    bench.open()
    bench.open("other")
    limit(bench, max_in_flight=1)
    bench.append("a", "b")
    assert (bench.one().total, bench.one(group="other").total) == (1, 2)
    limit(bench)
    assert limits_of(bench.machine.settings) == {} and bench.status().limits is None
    assert bench.rows(rows.LIMIT) == []
    assert bench.one().total == 1


def test_limits_are_there_before_the_group_and_after_it(bench: Bench) -> None:
    limit(bench, max_in_flight=1)
    bench.append("a", "b")
    for _ in range(2):
        bench.open()
        assert bench.one().total == 1
        bench.apply(0, c.DropGroup("g"))
        bench.trim()


def test_no_leases_before_all_partitions_have_reported(bench: Bench) -> None:
    bench.open()
    limit(bench, partitions=2, max_in_flight=3)
    bench.append(*"abc")
    assert bench.lease() == []
    (row,) = bench.machine.groups.by_id.values()
    assert row.allowance is not None and row.allowance.is_waiting
    bench.apply(0, c.ShareLimit("g", 1, [(1, 0, 2, 0)], []))
    bench.restart()
    assert bench.one().total == 1
    assert bench.apply(0, c.ShareLimit("g", 9, [(1, 0, 0, 0)], [])) == [None]
    assert bench.lease() == [], "the share belongs to other limits"


def test_older_settings_bring_no_older_limits(bench: Bench) -> None:
    """A leader with old settings must not allow again a start that was used already."""
    bench.open()
    before = bench.machine.settings
    limit(bench, partitions=2, rate="1/m", burst=2)
    bench.apply(0, c.ShareLimit("g", 1, [(1, 0, 0, 0)], []))
    bench.append(*"abcd")
    assert bench.one().total == 2
    first = bench.machine.settings
    bench.apply(10, c.Configure(before | {"max_attempts": 7}))
    assert bench.machine.settings == first | {"max_attempts": 7}
    assert bench.lease(at=10) == []
    limit(bench, at=20)
    bench.apply(30, c.Configure(first))
    assert limits_of(bench.machine.settings) == {} and bench.one(at=30).total == 2
    bench.restart()
    assert bench.status().limits is None


def test_group_of_a_named_limit_gets_nothing_before_its_share() -> None:
    bench = Bench()
    bench.open()
    bench.append("a", "b")
    limit(bench, limit="llm")
    assert bench.lease() == []
    reason = limit_reason(bench.machine.groups.named("g"), bench.machine.now_ms)
    assert reason == "it waits for the limit llm: topic sandq.limits has not given this partition a share yet"
    # Shares of another use of the limit, of an older definition, and without a definition change nothing.
    definition = [1, None, None, None]
    assert bench.apply(
        0, c.AllowLimit([("g", 9, 4, 7, 1, 0, 0, definition, None), ("g", 1, 4, 7, 1, 0, 0, None, None)])
    ) == [None]
    assert bench.lease() == []
    bench.apply(0, c.AllowLimit([("g", 1, 4, 7, 1, 0, 0, definition, None)]))
    bench.restart()
    bench.apply(0, c.AllowLimit([("g", 1, 3, 8, 2, 0, 0, definition, None)]))
    assert len(bench.lease(limit=5)) == 1
    bench.apply(0, c.AllowLimit([("g", 1, 5, 0, 0, 0, 0, [9, None, None, None], None)]))
    assert bench.lease() == [], "a new definition begins with a share of nothing"
    limit(bench)
    assert len(bench.lease()) == 1


def test_restored_partition_begins_with_fresh_limits() -> None:
    """A backup has the partitions at different times, and indexes of the new log are lower than stored versions."""
    bench = Bench()
    bench.open()
    bench.append("a", "b", "c")
    limit(bench, partitions=2, max_in_flight=5)
    bench.apply(0, c.ShareLimit("g", 1, [(1, 0, 0, 0)], [(1, 4, 0)]))
    there = restored(bench)
    found = there.machine.limits.ledger("g")
    assert found is not None and (found.shares, found.unheard) == ({}, (1,))
    assert there.rows(rows.SHARE) == []
    named = Bench()
    named.open()
    limit(named, limit="llm")
    named.apply(0, c.AllowLimit([("g", 1, 4, 700, 1, 0, 0, [1, None, None, None], None)]))
    allowed = restored(named).machine.limits.status()
    assert allowed is not None and (allowed.allowances["g"].epoch, allowed.allowances["g"].version) == (0, 0)
