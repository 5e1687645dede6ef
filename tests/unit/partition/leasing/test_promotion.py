"""Tests of promotion into ready queues: it does not depend on the memory of a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandq.model.limits import FIXED
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base.digest import comparable
from sandq.partition.leasing import ranked_grants
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.ready import queue_keys, ready_queues
from sandq.partition.ready.queue_entries import HEAD_ENTRIES, MOST_ENTRIES
from sandq.partition.ready.ready_queue import ENTRY_BYTES, bytes_of, queue_bytes
from tests.support.partition.bench import DEFAULTS, T
from tests.support.partition.ranked_bench import RankedBench


def test_queue_without_rows_does_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_queues, "FIXED", replace(FIXED, ready_queues=1))
    bench = RankedBench()
    bench.open()
    bench.add("back", priority=1)
    bench.nack(bench.one(limit=1).token, delay=0)
    bench.add("b", priority=0)
    assert bench.take(1) == ["b"]  # now "back" is in its queue, only in memory
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
    bench.ack(lease.token)  # the bench fails if an entry that claims to need no disk reads rows
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


def test_messages_are_not_promoted_before_the_lease_time() -> None:
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


def test_message_due_only_by_a_wrong_clock_waits_once_it_is_right() -> None:
    bench = RankedBench()
    bench.open()
    bench.add("back", priority=1)
    bench.nack(bench.one(limit=1).token, delay=4000)
    bench.add("a")
    assert bench.take(1, at=5000) == ["a"]  # "back" is in its queue
    assert bench.lease(1, at=1000) == []
    assert bench.take(1, at=4000) == ["back"]


def test_many_queues_share_the_memory_limit() -> None:
    look_aheads = LookAheads(100 * ENTRY_BYTES)
    bench = RankedBench("fair", look_aheads=look_aheads)
    bench.open()
    sent = [f"{n}" for n in range(600)]
    bench.add(*sent, tenant=[f"t{int(n) % 5}" for n in sent])
    taken = bench.take(5, at=1)
    assert taken == sent[:5]
    assert 5 * HEAD_ENTRIES <= look_aheads.bytes // ENTRY_BYTES <= 50
    for start in range(5, 600, 5):
        assert bench.take(5, at=1) == sent[start : start + 5]
        assert look_aheads.bytes <= 100 * ENTRY_BYTES


def test_entries_with_long_unique_keys_are_held_by_their_bytes() -> None:
    """A key may have 1 KiB. The same number of such entries would use five times the memory."""
    bench = RankedBench("priority")
    bench.open()
    names = [f"{n:04}" for n in range(2000)]
    for start in range(0, 2000, 500):
        some = names[start : start + 500]
        bench.add(*some, unique=[name + "k" * 1000 for name in some])
    ready = bench.machine.groups.named("g").ready
    assert ready is not None
    bench.lease(0)
    (queue,) = ready._queues.values()
    one = bytes_of(queue.entries[0])
    assert one > 5 * ENTRY_BYTES
    most = MOST_ENTRIES * ENTRY_BYTES + one
    assert queue.held_bytes == len(queue.entries) * one <= most
    taken: list[str] = []
    while some := bench.take(300):
        taken += some
        assert queue.held_bytes == sum(map(bytes_of, queue.entries)) <= 2 * most
    assert taken == names


def test_messages_far_apart_in_the_log_are_delivered() -> None:
    bench = RankedBench("priority")
    bench.open()
    sent = [f"{n}" for n in range(1200)]
    for start in range(0, 1200, 100):
        bench.add(*sent[start : start + 100], priority=[int(n) % 7 for n in sent[start : start + 100]])
    in_order = sorted(sent, key=lambda value: (int(value) % 7, int(value)))
    leases = bench.lease(1000)
    assert bench.values(leases) == in_order[:1000]
    assert bench.values(bench.lease(1000)) == in_order[1000:]
    # The acks name each message as a range of its own, and some messages twice.
    (lease,) = leases
    assert bench.ack(lease.token, [[one.base, 1] for one in lease.ranges[:500]] + [[lease.ranges[3].base, 1]]) is None
    assert bench.ack(lease.token, [[one.base, 1] for one in reversed(lease.ranges)]) is None


def test_rank_of_row_skipped_after_clock_reset_is_not_used_for_others() -> None:
    """Some rows between promoted messages are skipped. Each message is judged by its own row."""
    bench = RankedBench()
    bench.open()
    for name, priority, due in (("m", 5, 10_000), ("a", 0, 9_000), ("b", 0, 11_000)):
        bench.add(name, priority=priority, due=[due], unique=[None])
    assert len(bench.take(9, at=60_000)) == 3
    bench.apply(1000, c.ClockReset(T + 1000))
    bench.trim(1000)
    bench.add("x", priority=0, due=[9_500], unique=[None], at=1000)
    (y,) = bench.add("y", priority=0, due=[12_000], unique=[None], at=1000)
    bench.apply(13_000, c.Lease("g", T + 13_000, [c.Grant("c", 0, 1000)]))
    assert bench.state_of(y) == "ready"
    assert bench.take(9, at=13_000) == ["x", "y"]


def test_changed_limits_give_the_same_turns_after_a_restart() -> None:
    """The new limit blocks a tenant. A replica without a restart had already given turns to this tenant, a restarted
    replica not."""
    benches = [RankedBench("fair") for _ in range(2)]
    limits = parse_settings(DEFAULTS | {"tenants": {"*": {"max_in_flight": 3}}}, "fair").record()
    for bench in benches:
        bench.open()
        bench.add(*"123456", tenant="a.x")
        bench.add("p", tenant="a.x.p")
        bench.lease(2)
        bench.lease(2)
        bench.apply(0, c.Configure(limits))
        bench.add("q", "r", tenant="a.x.p")
    one, another = benches
    another.restart()
    assert one.values(one.lease(1)) == another.values(another.lease(1))
    assert comparable(one.everything()) == comparable(another.everything())


LONG = ".".join(["x" * 25] * 8)


def of_long_names(monkeypatch: pytest.MonkeyPatch, look_aheads: LookAheads | None = None) -> RankedBench:
    """Ten tenants have ready messages. The limit allows queues for only three tenants with such names."""
    few = replace(FIXED, ready_queue_bytes=3 * queue_bytes(queue_keys.pack(f"{LONG}0", 0)))
    monkeypatch.setattr(ready_queues, "FIXED", few)
    monkeypatch.setattr(ranked_grants, "PART_ENTRIES", 1)
    bench = RankedBench("fair", look_aheads=look_aheads)
    bench.open()
    for at in range(10):
        bench.add(str(at), tenant=f"{LONG}{at}")
    return bench


@pytest.mark.parametrize("restarts", [False, True])
def test_ready_queues_are_bounded_by_bytes(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tenants are promoted once some queues are empty. No message is lost or delivered twice."""
    bench = of_long_names(monkeypatch)
    taken: list[str] = []
    for _ in range(10):
        if restarts:
            bench.restart()
        taken += bench.take(1)
        found = bench.machine.groups.named("g")
        assert found.ready is not None and len(found.ready) <= 3
        if not found.ready.takes_more:
            assert "names take" in str(found.stall_reason())
    assert sorted(taken) == [str(at) for at in range(10)]


def test_memory_of_ready_queues_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    look_aheads = LookAheads(1 << 20)
    bench = of_long_names(monkeypatch, look_aheads)
    bench.lease(1)
    each = queue_bytes(queue_keys.pack(f"{LONG}0", 0))
    assert look_aheads.fixed_bytes == 2 * each > 2 * 8000
    while bench.take(1):
        pass
    assert (look_aheads.fixed_bytes, look_aheads.is_over) == (0, False)


def test_look_aheads_get_the_rest_of_the_share_and_at_least_a_quarter() -> None:
    look_aheads = LookAheads(1000)
    look_aheads.bytes, look_aheads.fixed_bytes = 501, 499
    assert not look_aheads.is_over
    look_aheads.fixed_bytes = 500
    assert look_aheads.is_over
    look_aheads.bytes, look_aheads.fixed_bytes = 250, 5000
    assert not look_aheads.is_over
    look_aheads.evict(lambda: [])
    look_aheads.bytes = 251
    assert look_aheads.is_over
    look_aheads.evict(lambda: [])
    assert (look_aheads.bytes, look_aheads.fixed_bytes) == (0, 0), "the groups of the entries are gone"


def test_entries_of_queues_have_no_rows_at_hand() -> None:
    """Only turns read these entries, and the memory account does not count cached rows."""
    bench = RankedBench("fair")
    bench.open()
    bench.add(*[str(number) for number in range(20)], due=range(1, 21))
    assert len(bench.lease(1, at=30)) == 1
    ready = bench.machine.groups.named("g").ready
    assert ready is not None
    held = [entry for queue in ready._queues.values() for entry in queue.entries]
    assert len(held) > 1
    assert {entry.row for entry in held} == {None}
