"""Tests of a consumer that returns after a restart: it gets its held messages back at once, under new tokens."""

from __future__ import annotations

import pytest

from sandq.model.errors import ConsumerFenced, UnknownGroup
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.leasing import lease_reclaim
from sandq.partition.leasing.lease_reclaim import RECLAIMS_MOST
from sandq.partition.queries.queries import PartitionQueries
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.ranked_bench import RankedBench


def leased(bench: Bench, limit: int, *, epoch: int = 0, at: int = 0, consumer: str = "c") -> int:
    """Lease the next messages. Return the token."""
    command = c.Lease("g", T + at, (c.Grant(consumer, limit, 30_000, epoch),))
    ((lease,),) = bench.apply(at, command)
    token: int = lease.token
    return token


def test_reclaim_leaves_settled_messages_settled(bench: Bench) -> None:
    bench.open()
    base, _ = bench.append(*"abcd")
    token = leased(bench, 4)
    bench.ack(token, [[base, 1]])
    bench.nack(token, [[bench.held()[0].ranges[0].base, 1]])
    assert bench.reclaim(5, at=10) == (1, 0)
    (again,) = bench.held()
    assert bench.values([again]) == ["b", "c", "d"]
    bench.restart()
    (again,) = bench.held()
    assert (bench.values([again]), again.epoch, again.attempt) == (["b", "c", "d"], 5, 1)


def test_attempt_history_and_first_lease_are_kept(bench: Bench) -> None:
    bench.open()
    bench.append("m")
    bench.nack(leased(bench, 1), at=1, error="no")
    leased(bench, 1, at=1001)
    bench.reclaim(5, at=1500)
    (again,) = bench.held()
    assert (again.attempt, again.since_ms, again.deadline_ms) == (2, T, T + 31_500)
    bench.nack(again.token, at=1600, error="again")
    third = bench.one(at=2600)
    history = third.past_of(third.ranges[0].base)
    assert [(attempt, error) for attempt, _, _, _, _, error in history] == [(1, "no"), (2, "again")]


def test_reclaimed_lease_expires_at_its_new_deadline_and_counts_once(bench: Bench) -> None:
    bench.open()
    bench.append("m")
    leased(bench, 1)
    bench.reclaim(5, at=20_000)
    assert bench.expire(at=40_000) == 0
    assert bench.expire(at=50_001) == 1
    assert bench.one(at=51_001).attempt == 2


def test_leases_of_its_own_epoch_and_of_others_stay(bench: Bench) -> None:
    bench.open()
    bench.append(*"abc")
    own, other = leased(bench, 1, epoch=7), leased(bench, 1, consumer="d")
    older = leased(bench, 1, epoch=6)
    assert bench.reclaim(7) == (1, 0)
    tokens = [lease.token for lease in bench.held()]
    assert own in tokens and older not in tokens and len(tokens) == 2
    assert [lease.token for lease in bench.held("d")] == [other]
    assert bench.reclaim(7) == (0, 0)


def test_an_older_process_is_fenced_and_changes_nothing(bench: Bench) -> None:
    bench.open()
    bench.append(*"ab")
    leased(bench, 1, epoch=6)
    leased(bench, 1, epoch=8)
    before = bench.everything()
    refused = bench.reclaim(7)
    assert isinstance(refused, ConsumerFenced) and "'c'" in refused.message
    assert [row for row in bench.everything() if row[0] != b"s"] == [row for row in before if row[0] != b"s"]


def test_a_group_that_is_not_there(bench: Bench) -> None:
    assert isinstance(bench.reclaim(7), UnknownGroup)


def test_many_leases_are_renewed_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_reclaim, "RECLAIMED_LEASES", 2)
    bench.open()
    bench.append(*"abcde")
    old = [leased(bench, 1) for _ in range(5)]
    assert [bench.reclaim(7) for _ in range(4)] == [(2, 3), (2, 1), (1, 0), (0, 0)]
    assert bench.values(bench.held()) == [*"abcde"]
    assert not {lease.token for lease in bench.held()} & {*old}


def test_leases_of_many_ranges_end_a_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_reclaim, "RECLAIMED_RANGES", 3)
    bench.open()
    for value in "abcdef":
        bench.append(value)
    leased(bench, 3)
    leased(bench, 3)
    assert bench.reclaim(7) == (1, 1)


def test_tokens_of_one_entry_differ(bench: Bench) -> None:
    bench.open()
    bench.append(*"abc")
    leased(bench, 1)
    lease = c.Lease("g", T, (c.Grant("d", 1, 30_000),))
    bench.apply(0, lease, c.Reclaim("g", "c", 7, 30_000), lease)
    tokens = [lease.token for lease in (*bench.held(), *bench.held("d"))]
    assert len({*tokens}) == 3


def test_reclaim_keeps_the_order_of_keys(bench: Bench) -> None:
    ordered = Bench(ordering="key")
    ordered.open()
    ordered.put("a", key="k")
    ordered.put("b", key="k")
    leased(ordered, 1)
    ordered.reclaim(7)
    assert ordered.lease(consumer="d") == []
    ordered.ack(ordered.held()[0].token)
    assert ordered.values(ordered.lease(consumer="d")) == ["b"]


def test_tenants_in_flight_are_counted_once() -> None:
    fair = RankedBench("fair", tenants={"*": {"max_in_flight": 2}})
    fair.open()
    for value in "abc":
        fair.put(value)
    assert len(fair.lease(limit=5)[0].ranges) == 2
    fair.reclaim(7)
    assert fair.lease(limit=5, consumer="d") == []
    fair.ack(fair.held()[0].token)
    assert len(fair.lease(limit=5, consumer="d")) == 1


def test_entries_without_epochs_are_as_they_were() -> None:
    assert c.Lease("g", T, (c.Grant("c", 1, 1000),)).fields() == ("g", T, [("c", 1, 1000)])


def test_leases_without_epochs_are_as_they_were(bench: Bench) -> None:
    bench.open()
    bench.append(*"ab")
    leased(bench, 1)
    leased(bench, 1, epoch=7)
    lengths = [len(rows.unpack(lease.row())) for lease in bench.held()]
    assert lengths == [10, 13]


# -- a message that kills its worker each time ------------------------------------------------------------------------


def counting(**settings: object) -> Bench:
    bench = Bench(**settings)
    bench.open()
    return bench


def come_back(bench: Bench, times: int, *, at: int = 0, epoch: int = 1) -> list[tuple[int, int]]:
    return [bench.reclaim(epoch + number, at=at) for number in range(times)]


def test_coming_back_uses_an_attempt_in_the_end() -> None:
    bench = counting(max_attempts=2)
    bench.append("m")
    leased(bench, 1)
    assert come_back(bench, RECLAIMS_MOST) == [(1, 0)] * RECLAIMS_MOST
    (again,) = bench.held()
    assert (again.attempt, again.reclaims) == (1, RECLAIMS_MOST)
    bench.restart()
    assert bench.reclaim(10, at=5) == (0, 0)
    assert bench.held() == [] and bench.lease(at=1004) == [], "the message waits for its back-off"
    second = bench.one(at=1005)
    assert (second.attempt, second.reclaims) == (2, 0)
    said = f"consumer 'c' was started again {RECLAIMS_MOST + 1} times and has not settled it"
    (failed,) = second.past_of(second.ranges[0].base)
    assert failed == (1, "c", T, T + 5, "lease_expired", said)
    come_back(bench, RECLAIMS_MOST + 1, at=1006, epoch=20)
    (letter,) = bench.dead()
    assert (letter.reason, letter.attempts, letter.error) == ("lease_expired", 2, said)
    assert bench.machine.shared.totals.lease_expired == 2


def test_messages_leased_after_the_reclaim_are_kept() -> None:
    bench = counting()
    base, _ = bench.append(*"abc")
    leased(bench, 3)
    come_back(bench, RECLAIMS_MOST)
    bench.ack(bench.held()[0].token, [[base, 1]])
    fresh = bench.put("d")
    leased(bench, 1, epoch=RECLAIMS_MOST)
    assert bench.reclaim(10) == (1, 0), "the consumer keeps the messages that it got later"
    assert bench.values(bench.held()) == ["d"] and bench.state_of(fresh) == "leased"
    assert bench.values(bench.lease(at=1000)) == ["b", "c"]


def test_expiry_restarts_the_reclaim_count() -> None:
    bench = counting()
    bench.append("m")
    leased(bench, 1)
    come_back(bench, RECLAIMS_MOST)
    bench.expire(at=30_000)
    (second,) = bench.lease(at=31_000)
    assert (second.attempt, second.reclaims) == (2, 0)


def test_many_that_are_given_up_are_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_reclaim, "RECLAIMED_LEASES", 2)
    monkeypatch.setattr(lease_reclaim, "RECLAIMS_MOST", 0)
    bench = counting(max_attempts=1)
    bench.append(*"abc")
    for _ in range(3):
        leased(bench, 1)
    assert [bench.reclaim(7) for _ in range(3)] == [(0, 1), (0, 0), (0, 0)]
    assert len(bench.dead()) == 3


def test_large_ones_that_die_end_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_reclaim, "RECLAIMS_MOST", 0)
    bench = counting(max_attempts=1)
    for _ in range(4):
        bench.append("x" * (6 << 20))
        leased(bench, 1)
    assert [bench.reclaim(7) for _ in range(2)] == [(0, 1), (0, 0)]
    assert len(bench.dead()) == 4


def test_why_reports_the_number_of_reclaims() -> None:
    bench = counting()
    offset = bench.put("m")
    leased(bench, 1)

    def reported() -> dict[str, object]:
        (group,) = PartitionQueries(bench.machine, bench.view).why(by_id(offset))["groups"]
        return dict(group)

    assert "reclaims" not in reported()
    come_back(bench, 2)
    assert reported()["reclaims"] == 2
