"""Tests that heaps with lazily dropped entries stay proportional to their live entries, for any top entry."""

from __future__ import annotations

from sandq.partition.base import rows
from sandq.partition.base.stale_heaps import FEW
from sandq.partition.groups.key_order import KeyOrder
from tests.support.partition.bench import Bench

ROUNDS = 500
HALF_A_DAY_MS = 12 * 3600 * 1000


def test_deadlines_do_not_gather_behind_a_long_lease(bench: Bench) -> None:
    bench.open()
    bench.append("slow")
    slow = bench.one(ms=30_000)
    for at in range(ROUNDS):
        bench.append("quick", at=at)
        bench.ack(bench.one(at=at, ms=HALF_A_DAY_MS).token, at=at)
    table = bench.machine.leases
    assert len(table._deadlines) <= 2 * 2 + FEW + 1
    assert table.next_deadline_ms() == slow.deadline_ms
    assert bench.expire(at=30_001) == 1, "the lease below the top still expires"
    assert table.next_deadline_ms() is None


def test_deadlines_do_not_gather_when_a_lease_is_extended_again_and_again(bench: Bench) -> None:
    bench.open()
    bench.append("a", "b")
    other, slow = bench.one(limit=1, ms=60_000), bench.one(limit=1, ms=HALF_A_DAY_MS)
    for at in range(ROUNDS):
        bench.extend(slow.token, ms=HALF_A_DAY_MS, at=at)
    table = bench.machine.leases
    assert len(table._deadlines) <= 2 * 2 + FEW + 1
    assert table.next_deadline_ms() == other.deadline_ms
    assert [bench.expire(at=60_001), bench.expire(at=HALF_A_DAY_MS + ROUNDS)] == [1, 1]


def test_blocked_messages_do_not_gather_behind_the_lowest() -> None:
    order = KeyOrder()
    first, stuck = _offset(0), _offset(1)
    order.start(first, 0)
    order.block(stuck, 0)
    for number in range(1, ROUNDS):
        busy, blocked = _offset(2 * number), _offset(2 * number + 1)
        order.start(busy, number)
        order.block(blocked, number)
        order.finish(busy)
        assert order.first_free() == blocked
        order.take(blocked)
        order.finish(blocked)
    assert len(order._lowest) <= 2 * 2 + FEW + 1
    assert order.lowest() == stuck
    order.finish(first)
    assert order.first_free() == stuck


def test_turns_do_not_accumulate_behind_an_unleased_one() -> None:
    order = KeyOrder()
    order.start(_offset(0), 0)
    order.block(_offset(1), 0)
    order.finish(_offset(0))
    for number in range(1, ROUNDS):
        order.start(_offset(2 * number), number)
        order.block(_offset(2 * number + 1), number)
        order.finish(_offset(2 * number))
        order.remove(_offset(2 * number + 1))
    assert len(order._free) <= 2 * 2 + FEW + 1
    assert order.first_free() == _offset(1)


def test_waiting_entries_do_not_accumulate_behind_an_early_entry() -> None:
    bench = Bench(max_attempts=None)
    bench.open()
    bench.put("old", ttl=1_000_000)
    bench.nack(bench.one().token, delay=900_000)
    for at in range(ROUNDS):
        offset = bench.put("x", ttl=20_000_000, at=at)
        bench.nack(bench.one(at=at).token, delay=0, at=at)
        lease = bench.one(at=at)
        assert lease.ranges[0].base == offset
        bench.ack(lease.token, at=at)
    group = bench.machine.groups.named("g")
    for heap in (group._expiries, group._queue, group.metrics._unripe):
        assert 1 <= len(heap) <= 2 * 2 + FEW + 1
    (old,) = group.waiting.values()
    assert (group.next_to_expire(), group.next_waiting()) == (old, old)
    assert bench.status().groups[0].waiting == 1


def test_attempts_that_wait_do_not_gather_behind_an_early_one() -> None:
    """The messages expire by their ttl before their due time."""
    bench = Bench(max_attempts=None)
    bench.open()
    bench.put("old")
    bench.nack(bench.one().token, delay=900_000)
    for at in range(0, 10 * ROUNDS, 10):
        bench.put("x", ttl=5, at=at)
        bench.nack(bench.one(at=at).token, delay=20_000_000, at=at)
        bench.expire(at=at + 5)
    group = bench.machine.groups.named("g")
    assert len(group.waiting) == 1
    for heap in (group._queue, group.metrics._unripe):
        assert 1 <= len(heap) <= 2 * 2 + FEW + 1
    bench.expire(at=900_000)
    assert len(bench.lease(at=900_000)) == 1


def test_rebuilt_heap_equals_a_loaded_heap() -> None:
    """A replica that restarts sometimes has the same rows as a replica that never restarts."""
    grown, restarted = Bench(max_attempts=None, ordering="key"), Bench(max_attempts=None, ordering="key")
    for bench in (grown, restarted):
        bench.open()
        bench.put("old", key="old")
        bench.nack(bench.one().token, delay=50_000)
        for at in range(0, 2 * ROUNDS, 2):
            if bench is restarted and at % 100 == 0:
                bench.restart()
            bench.put("x", key=f"k{at % 6}", at=at)
            bench.put("y", key=f"k{at % 6}", at=at)
            for lease in bench.lease(1, at=at, ms=1000 + at % 7 * 1000):
                if at % 3:
                    bench.ack(lease.token, at=at)
            if at % 50 == 0:
                bench.expire(at=at)
        bench.expire(at=60_000)
        bench.lease(at=60_000)
    # A start merges the rows of counters. All other rows are the same.
    grown_rows, restarted_rows = (
        [row for row in bench.everything() if row[0][:1] != rows.COUNTS] for bench in (grown, restarted)
    )
    assert grown_rows == restarted_rows


def _offset(number: int) -> bytes:
    return number.to_bytes(16, "big")
