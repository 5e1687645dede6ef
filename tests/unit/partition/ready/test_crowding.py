"""A tenant with many messages that wait for a retry gets no new messages. Other tenants and retries continue."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.groups import group
from sandq.partition.leasing import ranked_grants
from sandq.partition.queries.ranked_queries import why_ready
from sandq.partition.ready import crowding
from sandq.partition.ready.crowding import Crowding
from sandq.partition.ready.ready_queue import ReadyQueue
from sandq.partition.ready.ready_queues import ReadyQueues
from tests.support.partition.ranked_bench import RankedBench

MOST = 12
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "FIXED", replace(FIXED, max_gaps=MOST))


def bench_of(**settings: Any) -> RankedBench:
    bench = RankedBench("fair", **{"max_attempts": "none"} | settings)
    bench.open()
    return bench


def fail(bench: RankedBench, tenants: tuple[str, ...], at: int = 0, delay: int = HOUR) -> Counter[str]:
    """Lease all messages one by one and nack the messages of these tenants with a delay. Return tenant -> count."""
    had: Counter[str] = Counter()
    while leases := bench.lease(1, at=at):
        (value,) = bench.values(leases)
        had[value] += 1
        if value in tenants:
            bench.nack(leases[0].token, at=at, delay=delay)
        else:
            bench.ack(leases[0].token, at=at)
    return had


def due_ms(bench: RankedBench) -> int | None:
    told = bench.status().groups.get("g")
    assert told is not None
    return told.due_ms


@pytest.mark.parametrize("restarts", [False, True])
def test_failing_tenant_gets_at_most_half_of_the_slots(restarts: bool) -> None:
    bench = bench_of()
    for tenant in ("bad", "good"):
        for _ in range(2 * MOST):
            bench.add(tenant, tenant=tenant)
    assert fail(bench, ("bad",)) == {"bad": MOST // 2, "good": 2 * MOST}
    if restarts:
        bench.restart()
    bench.add("late", tenant="quiet")
    assert bench.take(5) == ["late"], "a message of another tenant comes at once"
    assert due_ms(bench) is None or due_ms(bench) > bench.machine.now_ms, "no consumer asks again and again"


def test_several_failures_leave_capacity_for_others() -> None:
    bench = bench_of()
    bad = ("a", "a.x", "b")
    for tenant in bad:
        for _ in range(2 * MOST):
            bench.add(tenant, tenant=tenant)
    had = fail(bench, bad)
    assert all(1 <= had[tenant] <= MOST // 4 + 1 for tenant in bad), had
    bench.add("late", tenant="quiet")
    assert bench.take(5) == ["late"]


def test_retries_of_crowding_tenant_come_before_new_messages() -> None:
    bench = bench_of()
    for number in range(2 * MOST):
        bench.add("bad", tenant="bad", priority=number % 2)
    held = fail(bench, ("bad",))["bad"]
    assert bench.take(MOST, at=HOUR - 1) == []
    lease = bench.one(limit=1, at=HOUR)
    assert lease.attempt == 2, "retries come while no new message does"
    bench.nack(lease.token, at=HOUR, delay=HOUR)
    taken: list[str] = []
    while found := bench.take(MOST, at=HOUR):
        taken += found
    assert len(taken) == 2 * MOST - 1, "once the retries are acked, new messages come too"
    assert held > 1


def test_cancel_frees_a_slot() -> None:
    bench = bench_of()
    ids = [bench.add("bad", tenant="bad")[0] for _ in range(MOST)]
    held = fail(bench, ("bad",))["bad"]
    assert bench.lease(1) == []
    for offset in ids[:2]:
        assert bench.cancel(offset)[0] == "cancelled"
    told = due_ms(bench)
    assert told is not None and told <= bench.machine.now_ms
    assert bench.take(1) == ["bad"]
    assert held == MOST // 2


def test_why_names_the_crowding_tenant() -> None:
    bench = bench_of()
    ids = [bench.add("bad", tenant="bad")[0] for _ in range(MOST)]
    fail(bench, ("bad",))
    found = bench.machine.groups.named("g")
    assert found.ready is not None
    told = why_ready(bench.machine, found, found.ready, ids[-1], bench.view)
    assert told == (
        "tenant bad has 6 runs of messages that wait for another attempt, and 0 messages in flight: until they are "
        "fewer, it gets no new messages"
    )
    first = why_ready(bench.machine, found, found.ready, ids[0], bench.view)
    assert first != told, "the message is one of the waiting messages"


def test_all_messages_may_wait_without_tenants() -> None:
    bench = RankedBench("priority")
    bench.open()
    for _ in range(2 * MOST):
        bench.add("bad")
    assert fail(bench, ("bad",))["bad"] == MOST + 1


def test_tenant_with_waiting_messages_gets_limited_new_leases() -> None:
    """A tenant with waiting messages gets no more messages at a time than may wait."""
    bench = bench_of()
    for _ in range(3 * MOST):
        bench.add("bad", tenant="bad")
    bench.nack(bench.one(limit=1).token, delay=HOUR)
    assert sum(lease.total for lease in bench.lease(3 * MOST)) == MOST // 2 - 1, "a half, of which one waits"
    assert bench.lease(1) == []
    bench.expire(at=40_000)
    assert bench.machine.groups.named("g").pause_reason() is None


def flying(bench: RankedBench, tenant: str) -> int:
    found = bench.machine.groups.named("g")
    assert found.ready is not None
    return found.ready.limits.in_flight[tenant]


def test_leases_of_a_tenant_are_bounded_without_waiting_messages() -> None:
    """The tenant may reach its limit at once. The other tenants must continue then."""
    bench = bench_of()
    for _ in range(3 * MOST):
        bench.add("bad", tenant="bad")
    assert sum(lease.total for lease in bench.lease(3 * MOST)) == MOST // 2
    bench.restart()
    assert bench.lease(3 * MOST) == [], "the same holds after a restart"
    bench.expire(at=40_000)
    bench.add("late", tenant="quiet", at=40_000)
    assert bench.machine.groups.named("g").pause_reason() is None
    assert bench.take(1, at=40_000) == ["late"]


@pytest.mark.parametrize("how", ["ack", "nack", "release", "expire", "seek", "reclaim"])
def test_slots_of_a_tenant_are_bounded_for_any_outcome(how: str) -> None:
    """However deliveries end: at most half of the slots are waiting or in flight, and freed slots are used."""
    bench = bench_of(backoff={"kind": "none"})
    for number in range(4 * MOST):
        bench.add("bad", tenant="bad", priority=number % 3)
    for at in range(1, 9):
        leases = bench.lease(MOST, at=at * 40_000)
        assert flying(bench, "bad") == MOST // 2
        found = bench.machine.groups.named("g")
        assert found.waiting_ranges + flying(bench, "bad") <= MOST // 2
        if at % 2:
            bench.restart()
        match how:
            case "ack":
                bench.ack(leases[0].token, [[leases[0].ranges[0].base, 1]], at=at * 40_000)
                assert flying(bench, "bad") == MOST // 2 - 1
                for lease in bench.held():
                    bench.ack(lease.token, at=at * 40_000)
            case "nack":
                for lease in leases:
                    bench.nack(lease.token, at=at * 40_000)
            case "release":
                bench.apply(at * 40_000, c.Release("g", "c"))
            case "expire":
                bench.expire(at=at * 40_000 + 30_000)
            case "seek":
                bench.apply(at * 40_000, c.Seek("g", "earliest"))
                while bench.machine.groups.named("g").seeking:
                    bench.apply(at * 40_000, c.Upkeep())
            case "reclaim":
                assert bench.reclaim(at, at=at * 40_000)[0] >= 1
                assert (bench.lease(MOST, at=at * 40_000), flying(bench, "bad")) == ([], MOST // 2)
                for lease in bench.held():
                    bench.ack(lease.token, at=at * 40_000)


def test_each_has_a_half_and_limits_below_it_hold() -> None:
    bench = bench_of(tenants={"few": {"max_in_flight": 2}})
    for tenant in ("a", "b", "few"):
        for _ in range(2 * MOST):
            bench.add(tenant, tenant=tenant)
    leases = bench.lease(6 * MOST)
    assert Counter(bench.values(leases)) == {"a": MOST // 2, "b": MOST // 2, "few": 2}
    found = bench.machine.groups.named("g")
    assert due_ms(bench) is None or due_ms(bench) > bench.machine.now_ms, "no consumer asks again and again"
    assert found.ready is not None
    a = next(key for key, *_ in bench.rows(rows.READY) if b"a\0" in key)
    told = why_ready(bench.machine, found, found.ready, a[-16:], bench.view)
    assert told is not None and told.startswith(
        f"tenant a has 0 runs of messages that wait for another attempt, and {MOST // 2}"
    )


def test_shares_are_computed_from_the_free_slots() -> None:
    crowding = Crowding()
    for tenant, ranges in (("a", 50), ("b", 20), ("c", 1)):
        crowding.count(tenant, ranges)
    assert crowding.decide(None, {}, 1000) == set()
    assert crowding.available("a", 1000) is None and not crowding.may_stop("a", 1000)
    assert crowding.decide(200, {}, 57) == set()
    assert crowding.available("a", 57) is None, "129 slots are free, and no tenant reaches its limit with this lease"
    assert crowding.decide(200, {}, 58) == set()
    assert (crowding.available("a", 70), crowding.available("a", 80), crowding.available("z", 500)) == (9, 0, None)
    assert crowding.decide(120, {}, 0) == {"a"}, "49 are free"
    assert crowding.decide(120, {"b": 29, "c": 47}, 76) == {"b"}, "the tenants whose state has changed"
    assert crowding.stopped == {"a", "b"} and not crowding.is_stale
    crowding.count("a", -50)
    assert (crowding.is_stale, crowding.waits["a"]) == (True, 0)
    assert crowding.decide(120, {}, 0) == {"a", "b"}
    assert crowding.stopped == set()


def test_blocked_tenant_may_be_freed_by_earlier_grants_of_the_lease() -> None:
    """Waiting messages of the other tenants were leased earlier in the same lease."""
    bench = bench_of()
    for tenant, delay in (("u", 1000), ("u", 1000), ("u", 1000), ("u", 1000), ("t", HOUR)):
        bench.add(tenant, tenant=tenant)
        bench.nack(bench.one(limit=1).token, delay=delay)
    for _ in range(30):
        bench.add("t", tenant="t")
    leases = bench.lease(100, at=1000)
    for lease in leases:
        if "u" in bench.values([lease]):
            bench.ack(lease.token, at=1000)
    told = [due_ms(bench)]
    bench.restart()
    told.append(due_ms(bench))
    assert all(due is not None and due <= bench.machine.now_ms for due in told)
    assert bench.lease(100, at=1000) == [] and (due_ms(bench) or 0) > bench.machine.now_ms, (
        "half of the slots are in flight"
    )


@pytest.mark.parametrize("ageing", ["none", "1s"])
def test_repetitions_of_one_that_is_stopped_come_in_its_order(ageing: str) -> None:
    bench = bench_of(ageing=ageing)
    for number in range(MOST // 2):
        bench.add(f"{number}", tenant="bad", priority=MOST - number, at=number * 60_000)
    for _ in range(MOST // 2):
        bench.nack(bench.one(limit=1, at=400_000).token, at=400_000, delay=1000)
    bench.add("new", tenant="bad", priority=999, at=400_000)
    came = []
    for _ in range(MOST // 2):
        (lease,) = bench.lease(1, at=401_000)
        came += bench.values([lease])
    in_order = [f"{number}" for number in range(MOST // 2)]
    assert came == (in_order if ageing == "1s" else in_order[::-1])


def test_many_priorities_of_one_that_is_stopped_are_not_looked_at_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "FIXED", replace(FIXED, max_gaps=200))
    looks, looked = 0, ReadyQueues.first_returned

    def counted(ready: ReadyQueues, queue: ReadyQueue) -> Any:
        nonlocal looks
        looks += 1
        return looked(ready, queue)

    bench = bench_of()
    bench.add(*["bad"] * 100, tenant="bad", priority=range(1000, 1100))
    for _ in range(100):
        bench.nack(bench.one(limit=1).token, delay=1000)
    bench.add(*["bad"] * 900, tenant="bad", priority=range(900))
    assert bench.lease(1) == []
    monkeypatch.setattr(ReadyQueues, "first_returned", counted)
    assert len(bench.lease(1, at=1000)) == 1
    assert looks < 10 * 100


@pytest.mark.parametrize("settings", [{}, {"ageing": "1h"}])
def test_waiting_messages_and_leases_count_together(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant that reaches half in one lease has no turn in the next lease of the same entry."""
    few_each = replace(FIXED, grant_messages=4)
    for module in (crowding, ranked_grants):
        monkeypatch.setattr(module, "FIXED", few_each)
    monkeypatch.setattr(group, "FIXED", replace(FIXED, max_gaps=40))
    bench = bench_of(**settings)
    for _ in range(60):
        bench.add("bad", tenant="bad")
    for lease in (bench.lease(1)[0], bench.lease(1)[0]):
        bench.nack(lease.token, delay=HOUR)
    assert sum(bench.lease(1)[0].total for _ in range(14)) == 14
    grants = tuple(c.Grant(consumer, 4, 30_000) for consumer in "abc")
    bench.apply(0, c.Lease("g", 0, grants))
    assert flying(bench, "bad") == 18, "with the two waiting messages half of the slots"
