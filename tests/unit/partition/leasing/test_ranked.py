"""Tests of priority and fair topics: the order of leases, delays, and returned messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandq.model.batch import Column
from sandq.model.limits import FIXED
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.leasing import ranked_grants
from sandq.partition.log import sweep
from tests.support.partition.bench import T, by_id, by_key
from tests.support.partition.ranked_bench import RankedBench


@pytest.fixture
def bench() -> RankedBench:
    bench = RankedBench()
    bench.open()
    return bench


@pytest.fixture
def fair() -> RankedBench:
    bench = RankedBench("fair")
    bench.open()
    return bench


# -- priorities -------------------------------------------------------------------------------------------------------


def test_a_lower_priority_goes_first_and_of_one_the_older(bench: RankedBench) -> None:
    bench.add("a", "b", priority=5)
    bench.add("c", "d", priority=[5, -1])
    bench.add("e")
    assert bench.take(10) == ["d", "e", "a", "b", "c"]


def test_order_within_one_lease_is_that_of_the_ranks(bench: RankedBench) -> None:
    bench.add(*"abcdef", priority=[3, 1, 2, 1, 3, 2])
    lease = bench.one(limit=10)
    assert bench.values([lease]) == ["b", "d", "c", "f", "a", "e"]
    assert bench.ack(lease.token, [[lease.ranges[0].base, 1]]) is None  # b
    bench.restart()
    assert bench.expire(at=30_000) == 5
    assert bench.take(10, at=31_000) == ["d", "c", "f", "a", "e"]


def test_a_delayed_message_joins_its_priority_when_it_is_due(bench: RankedBench) -> None:
    bench.add("late", priority=0, due=[1000])
    bench.add("now", priority=9)
    assert bench.take(1, at=999) == ["now"]
    bench.add("next", priority=9)
    assert bench.take(1, at=1000) == ["late"]


def test_ranked_messages_are_not_leased_ahead(bench: RankedBench) -> None:
    bench.add("a", due=[5])
    assert bench.lease(ahead=50) == []


def test_later_message_with_higher_priority_is_first(bench: RankedBench) -> None:
    bench.add(*[f"low{n}" for n in range(5)], priority=7)
    assert bench.take(2) == ["low0", "low1"]
    bench.add("high", priority=1)
    assert bench.take(2) == ["high", "low2"]


def test_returned_message_keeps_its_priority(bench: RankedBench) -> None:
    bench.add("a", "b", priority=5)
    lease = bench.one(limit=1)
    bench.add("high", priority=1)
    bench.nack(lease.token, delay=0)
    assert bench.take(1) == ["high"]
    assert bench.take(1) == ["a"]


def test_waiting_messages_age_with_the_ageing_setting() -> None:
    bench = RankedBench(ageing="1s")
    bench.open()
    bench.add("old", priority=5)
    bench.add("young", priority=1, at=3000)
    assert bench.take(1, at=3000) == ["young"]
    bench.add("younger", priority=1, at=4500)
    assert bench.take(2, at=4500) == ["old", "younger"]


def test_all_due_messages_are_ranked_before_a_lease(bench: RankedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked_grants, "PROMOTED", 100)
    monkeypatch.setattr(ranked_grants, "PART_ENTRIES", 40)
    for n in range(250):
        bench.add(f"{n}", priority=5, due=[n])
    bench.add("best", priority=1, due=[250])
    taken = []
    while not (found := bench.take(1, at=300)):
        assert bench.status().groups[0].is_promoting
        taken.append(found)
    assert len(taken) == 2 and found == ["best"]
    assert not bench.status().groups[0].is_promoting
    assert bench.take(1, at=300) == ["0"]


# -- changes ----------------------------------------------------------------------------------------------------------


def test_priority_of_ready_message_changes(bench: RankedBench) -> None:
    _, _, d = bench.add("a", "b", "d", priority=5)
    bench.take(0)
    moved = bench.apply(0, c.Move([(by_id(d), None, False, 1)]))[0][0]
    assert moved[0] == "moved"
    assert bench.state_of(moved[1]) == "ready"
    assert bench.take(3) == ["d", "a", "b"]


def test_priority_of_delayed_message_changes_and_its_time_stays(bench: RankedBench) -> None:
    (a,) = bench.add("a", priority=5, due=[1000])
    bench.add("b", priority=3, due=[1000])
    bench.apply(0, c.Move([(by_id(a), None, False, 1)]))
    assert bench.take(5, at=999) == []
    assert bench.take(5, at=1000) == ["a", "b"]


def test_priority_of_waiting_message_changes(bench: RankedBench) -> None:
    (a,) = bench.add("a", priority=5, unique=["u"])
    bench.add("b", priority=5)
    bench.nack(bench.one(limit=1).token, delay=1000)
    assert bench.apply(0, c.Move([(by_key("u"), None, False, 7)]))[0] == [("moved", a)]
    bench.restart()
    assert bench.take(1, at=2000) == ["b"]
    lease = bench.one(limit=1, at=2000)
    assert lease.attempt == 2
    assert bench.messages(lease)[0].fields[Column.PRIORITY] == 7


def test_a_nack_may_change_priority_and_headers(bench: RankedBench) -> None:
    bench.add("a", "b", priority=5)
    lease = bench.one(limit=1)
    news = {int(Column.PRIORITY): 6, int(Column.HEADERS): b"\x81\xa1k\xa1v"}
    assert bench.apply(0, c.Nack([(lease.token, None, 0, "busy", True, news)])) == [[None]]
    bench.restart()
    assert bench.take(1) == ["b"]
    (message,) = bench.messages(bench.one(limit=1))
    assert (message.fields[Column.PRIORITY], message.fields[Column.HEADERS]) == (6, b"\x81\xa1k\xa1v")


def test_a_nack_may_change_headers_of_the_last_attempt(bench: RankedBench) -> None:
    bench.add("a")
    for _ in range(3):
        lease = bench.one(limit=1)
        bench.apply(0, c.Nack([(lease.token, None, 0, "x", True, {int(Column.HEADERS): b"\x80"})]))
    assert bench.dead()[0].fields[Column.HEADERS] == b"\x80"
    assert bench.rows(rows.KEPT) == []


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_tenants_take_turns_at_any_backlog(fair: RankedBench) -> None:
    fair.add(*[f"a{n}" for n in range(100)], tenant="a")
    fair.add("b0", "b1", tenant="b")
    fair.add("d0", tenant=None)
    assert fair.take(6) == ["a0", "b0", "d0", "a1", "b1", "a2"]


def test_later_tenant_waits_for_one_turn_of_each(fair: RankedBench) -> None:
    fair.add(*[f"a{n}" for n in range(50)], tenant="a")
    fair.add(*[f"b{n}" for n in range(50)], tenant="b")
    fair.take(21)
    fair.add("c0", tenant="c")
    assert "c0" in fair.take(3)


def test_within_a_tenant_priorities_count(fair: RankedBench) -> None:
    fair.add("a-low", "a-high", tenant="a", priority=[5, 1])
    fair.add("b-low", "b-high", tenant="b", priority=[9, 3])
    assert fair.take(4) == ["a-high", "b-high", "a-low", "b-low"]


def with_retries(fair: RankedBench) -> None:
    """Store messages of three tenants. Two of `b` and of `c` failed before, and are due at 10 ms."""
    fair.add("b0", "b1", "c0", "c1", tenant=["b", "b", "c", "c"])
    for lease in fair.lease(10):
        fair.nack(lease.token, delay=10)
    fair.add("a0", "a1", "a2", "b2", "c2", tenant=["a", "a", "a", "b", "c"])


def test_messages_of_one_kind_share_a_lease_although_tenants_alternate(fair: RankedBench) -> None:
    with_retries(fair)
    fair.restart()
    leases = fair.lease(10, at=10)
    assert [(lease.attempt, fair.values([lease])) for lease in leases] == [
        (1, ["a0", "a1", "a2"]),
        (2, ["b0", "c0", "b1", "c1"]),
        (1, ["b2", "c2"]),  # they follow the earlier messages of their tenants
    ]
    assert fair.status().groups[0].leased == 9


def test_each_lease_of_a_grant_counts_for_the_limits(fair: RankedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    with_retries(fair)
    monkeypatch.setattr(ranked_grants, "FIXED", replace(FIXED, leases_per_consumer=2))
    assert [fair.values([lease]) for lease in fair.lease(10, at=10)] == [
        ["a0", "a1", "a2"],
        ["b0", "c0", "b1", "c1"],
    ]
    assert fair.lease(10, at=10) == []
    assert [fair.values([lease]) for lease in fair.lease(10, at=10, consumer="d")] == [["b2", "c2"]]


def test_weights_count_and_change_while_it_runs() -> None:
    fair = RankedBench("fair", tenants={"a": {"weight": 3}})
    fair.open()
    for tenant in "ab":
        fair.add(*[f"{tenant}{n}" for n in range(100)], tenant=tenant)
    assert "".join(value[0] for value in fair.take(40)).count("a") == 30
    fair.apply(0, c.Configure(fair.settings | {"tenants": []}))
    assert "".join(value[0] for value in fair.take(40)).count("a") in (20, 21, 22)


def test_a_tenant_has_no_more_in_flight_than_it_may() -> None:
    fair = RankedBench("fair", tenants={"a": {"max_in_flight": 2}})
    fair.open()
    fair.add(*[f"a{n}" for n in range(6)], tenant="a")
    fair.add("b0", tenant="b")
    leases = fair.lease(20)
    assert fair.values(leases) == ["a0", "b0", "a1"]
    assert fair.lease(20) == []
    assert fair.status().groups[0].next_ms is None, "the group waits for a settled message"
    assert fair.ack(leases[0].token, [[leases[0].ranges[0].base, 1]]) is None
    assert fair.status().groups[0].next_ms is not None
    fair.restart()
    assert fair.values(fair.lease(20)) == ["a2"]
    fair.expire(at=30_000)
    assert fair.status().groups[0].leased == 0
    assert len(fair.lease(20, at=31_000)) == 1


def test_two_groups_have_separate_turns(fair: RankedBench) -> None:
    fair.open("h")
    fair.add("a0", "a1", tenant="a")
    fair.add("b0", tenant="b")
    assert fair.take(1) == ["a0"]
    assert fair.take(3, group="h") == ["a0", "b0", "a1"]
    assert fair.take(3) == ["b0", "a1"]


# -- other changes of messages ----------------------------------------------------------------------------------------


def test_ready_message_can_be_cancelled(bench: RankedBench) -> None:
    offsets_of = bench.add("a", "b", "c", "d", priority=4)
    bench.take(1)
    assert bench.cancel(offsets_of[2]) == ("cancelled", offsets_of[2])
    assert bench.cancel(offsets_of[0]) == ("too_late", "acked")
    bench.restart()
    assert bench.take(5) == ["b", "d"]
    bench.trim(1)
    assert bench.status().messages == 0 and bench.rows(rows.READY) == [] == bench.rows(rows.QUEUE)


def test_ready_message_expires_at_its_ttl() -> None:
    bench = RankedBench(ttl="5s")
    bench.open()
    bench.add("a", "b", priority=5)
    bench.add("c", priority=1)
    bench.take(1)
    assert bench.status().next_expiry_ms == T + 5000
    assert bench.expire(at=5000) == 2
    assert bench.lease(5, at=5000) == []
    assert [message.reason for message in bench.dead()] == ["expired", "expired"]


def test_seek_clears_the_ready_queues(bench: RankedBench) -> None:
    bench.add(*[f"{n}" for n in range(3000)], priority=2)
    bench.add("best", priority=1)
    assert bench.take(1) == ["best"]
    bench.seek("earliest")
    assert bench.rows(rows.READY) == []
    assert bench.take(2) == ["best", "0"]
    bench.seek("latest")
    assert bench.lease(5) == []


def test_overtaken_message_does_not_keep_acked_ones_in_the_log(
    bench: RankedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "LEAST_SETTLED", 20)
    monkeypatch.setattr(sweep, "SWEEP_ROWS", 7)
    bench.add("for ever", priority=1000)
    for n in range(300):
        bench.add(f"{n}a", f"{n}b", priority=1, at=n)
        assert bench.take(2, at=n) == [f"{n}a", f"{n}b"]
        bench.trim(n)
    assert bench.status().messages < 60
    assert len(bench.rows(rows.LOG)) < 60
    bench.restart()
    assert bench.take(5, at=400) == ["for ever"]
    bench.trim(500)
    assert bench.status().messages == 0 and bench.rows(rows.LOG) == []


def test_a_group_that_is_deleted_leaves_no_rows(fair: RankedBench) -> None:
    fair.add("a", tenant="a")
    fair.add("b", "bb", tenant="b", priority=3)
    fair.take(1)
    fair.apply(0, c.DropGroup("g"))
    fair.trim(1)
    for tag in (rows.READY, rows.QUEUE, rows.TURNS):
        assert fair.rows(tag) == []


def test_many_queues_have_a_limit(fair: RankedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.partition.ready.ready_queues.FIXED", replace(FIXED, ready_queues=3))
    for n in range(5):
        fair.add("x", tenant=f"t{n}", due=[n])
    monkeypatch.setattr(ranked_grants, "PART_ENTRIES", 1)
    fair.lease(0, at=10)
    reason = fair.status().groups[0].paused
    assert reason is not None and "tenants and priorities have something ready" in reason
    assert not fair.status().groups[0].is_promoting
    assert len(fair.take(10, at=10)) == 3
    assert fair.status().groups[0].paused is None
    assert len(fair.take(10, at=10)) == 2


def test_returned_messages_are_delivered_at_any_number(bench: RankedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.partition.groups.group.FIXED", replace(FIXED, max_gaps=3))
    bench.add(*[f"{n}" for n in range(8)], priority=[n % 2 for n in range(8)])
    for lease in bench.lease(5):
        bench.nack(lease.token, delay=1000)
    reason = bench.status().groups[0].paused
    assert reason is not None and "nothing new is leased" in reason
    assert bench.lease(5, at=999) == []
    assert bench.status().groups[0].next_ms == T + 1000
    assert sorted(bench.take(20, at=1000)) == ["0", "1", "2", "4", "6"]
    assert bench.take(20, at=1000) == ["3", "5", "7"]


def test_expiry_of_ready_messages_needs_the_disk() -> None:
    bench = RankedBench(ttl="5s")
    bench.open()
    for n in range(30):
        bench.add(f"{n}", priority=n)
    bench.take(1)
    bench.restart()
    bench.add("x")
    assert not bench.needed_no_disk
    assert bench.take(1) == ["x"]


def test_a_tenant_has_its_messages_at_a_rate() -> None:
    fair = RankedBench("fair", tenants={"a": {"rate": "10/s", "burst": 2}})
    fair.open()
    fair.add(*[f"a{n}" for n in range(9)], tenant="a")
    fair.add("b0", tenant="b")
    assert fair.take(20) == ["a0", "b0", "a1"]
    assert fair.status().groups[0].next_ms == T + 100
    assert fair.take(20, at=99) == []
    fair.restart()
    assert fair.take(20, at=100) == ["a2"]
    assert fair.take(20, at=250) == ["a3"]
    assert fair.status().groups[0].next_ms == T + 300
    assert fair.take(20, at=1000) == ["a4", "a5"], "after a pause only as many messages as the burst"
    fair.apply(1000, c.Configure(fair.settings | {"tenants": []}))
    assert fair.status().groups[0].next_ms == T, "new rules apply at once"
    assert fair.take(20, at=1000) == ["a6", "a7", "a8"]
    assert fair.rows(rows.PACE) != []
    fair.add("a9", tenant="a", at=5000)
    fair.take(1, at=5000)
    assert fair.rows(rows.PACE) == [], "a pace that is not ahead of the time is forgotten"


def test_redelivery_counts_for_the_rate() -> None:
    fair = RankedBench("fair", tenants={"*": {"rate": 1, "burst": 1}})
    fair.open()
    fair.add("a0", tenant="a")
    fair.nack(fair.one().token, delay=0)
    assert fair.lease(1, at=999) == []
    assert fair.take(1, at=1000) == ["a0"]


def test_a_rate_that_is_raised_holds_at_once() -> None:
    fair = RankedBench("fair", tenants={"a": {"rate": "1/d"}})
    fair.open()
    fair.add("a0", "a1", tenant="a")
    assert fair.take(2) == ["a0"]
    raised = parse_settings({"tenants": {"a": {"rate": "100/s", "burst": 1}}}, "fair").record()
    fair.apply(1000, c.Configure(raised))
    assert fair.take(2, at=1000) == []
    assert fair.take(2, at=1010) == ["a1"]


def test_lease_with_a_slow_clock_uses_the_partition_time() -> None:
    for is_restarted in (False, True):
        fair = RankedBench("fair", tenants={"b": {"rate": "10/s", "burst": 2}})
        fair.open()
        for n in range(1, 5):
            fair.add(f"b{n}", tenant="b")
        for n in range(1, 5):
            fair.add(f"a{n}", tenant="a")
        assert fair.take(4) == ["a1", "b1", "a2", "b2"]
        assert fair.take(1, at=100) == ["a3"]
        if is_restarted:
            fair.restart()
        assert fair.values(fair.lease(2, at=101, ahead=-3)) == ["b3", "a4"]


def test_a_seek_gives_no_tenant_more_than_its_rate() -> None:
    fair = RankedBench("fair", tenants={"a": {"rate": "1/d", "burst": 2}})
    fair.open()
    fair.add("a0", "a1", "a2", tenant="a")
    assert len(fair.values(fair.lease(5))) == 2
    fair.seek("earliest", at=1)
    assert fair.lease(5, at=2) == []


def test_a_clock_reset_sets_paces_back() -> None:
    day_ms = 86_400_000
    fair = RankedBench("fair", tenants={"a": {"rate": "1/s"}})
    fair.open()
    fair.add("a0", tenant="a")
    assert fair.take(1, at=30 * day_ms) == ["a0"]
    fair.apply(1000, c.ClockReset(T + 1000))
    fair.trim(1000)
    fair.add("a1", tenant="a", at=2000)
    fair.add("b0", tenant="b", at=2000)
    assert fair.take(5, at=2000) == ["b0"]
    assert fair.take(5, at=3000) == ["a1"]


def test_blocked_tenant_is_not_polled_while_nothing_new_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.partition.groups.group.FIXED", replace(FIXED, max_gaps=2))
    fair = RankedBench("fair", tenants={"a": {"max_in_flight": 6}})
    fair.open()
    fair.add(*[f"a{n}" for n in range(12)], tenant="a")
    lease = fair.one(limit=6)
    fair.nack(lease.token, [[lease.ranges[0].base, 1]], delay=0)
    for at in (2, 4):
        base = (int.from_bytes(lease.ranges[0].base, "big") + (at << 12)).to_bytes(16, "big")
        fair.nack(lease.token, [[base, 1]], delay=0)
    fair.add("c0", tenant="c")
    fair.lease(0)
    fair.apply(0, c.Configure(fair.settings | {"tenants": [["a", 1, 1]]}))
    assert fair.values(fair.lease(9)) == ["a0", "c0"]
    assert fair.lease(9) == []
    assert fair.status().groups[0].next_ms is None
