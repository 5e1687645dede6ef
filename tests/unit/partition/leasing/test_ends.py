"""Tests of ends that a consumer chooses: dead messages and snoozed messages."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.batch import Column
from sandq.model.group_limits import parse_limit, with_limit
from sandq.model.nack_ends import DEAD, SNOOZE
from sandq.partition import commands as c
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.records.leases import Lease, Waiting
from tests.support.partition.bench import Bench, T
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.steps import step_at


def bench_of(**settings: Any) -> Bench:
    bench = Bench(**settings)
    bench.open()
    return bench


def waits(bench: Bench) -> Waiting:
    """Return the only waiting entry of the group."""
    (entry,) = bench.machine.groups.named("g").waiting.values()
    return entry


def counted(bench: Bench) -> dict[str, int]:
    """Return the partition's counters that are not zero."""
    found = bench.status().counted._asdict()
    return {name: count for name, count in found.items() if count and not name.startswith(("stored", "leases"))}


class TestRejected:
    def test_only_named_messages_of_a_lease_are_dead(self) -> None:
        bench = bench_of()
        base, _ = bench.append("a", "b", "c")
        lease = bench.one(at=1)
        (second,) = [message.offset for message in bench.messages(lease) if message.fields[Column.VALUE] == b"b"]
        assert bench.reject(lease.token, [[second, 1]], at=2, error="410 gone") is None
        assert bench.reject(lease.token, [[second, 1]], at=3) == [[second, 1]], (
            "the message no longer belongs to the lease"
        )
        assert [bench.state_of(base), bench.state_of(second)] == ["leased", "dead"]
        assert bench.ack(lease.token, at=4) is None
        assert counted(bench) == {"acked": 2, "dead_rejected": 1}

    def test_key_of_rejected_message_is_free_immediately(self) -> None:
        bench = bench_of(ordering="key")
        bench.send("first", "second", keys=["k", "k"])
        lease = bench.one(at=1)
        assert bench.values([lease]) == ["first"] and bench.lease(at=2) == []
        bench.reject(lease.token, at=3)
        assert bench.values([bench.one(at=3)]) == ["second"]

    @pytest.mark.parametrize("end", [DEAD, SNOOZE])
    def test_end_frees_a_slot_under_the_limits_of_the_group(self, end: int) -> None:
        bench = bench_of()
        bench.apply(0, c.Configure(with_limit(bench.settings, "g", 1, parse_limit({"max_in_flight": 1}))))
        bench.append("a", "b")
        lease = bench.one(at=1)
        assert bench.lease(at=2) == []
        bench.apply(3, c.Nack([(lease.token, None, None, None, True, None, end)]))
        assert bench.values([bench.one(at=3)]) == ["b"]

    def test_rejected_message_keeps_nothing_in_the_log(self) -> None:
        bench = bench_of()
        bench.append("a")
        bench.reject(bench.one(at=1).token, at=2)
        bench.trim(at=3)
        assert bench.rows(b"m") == []
        assert [message.fields[Column.VALUE] for message in bench.dead()] == [b"a"]

    def test_redriven_message_can_die_again(self) -> None:
        bench = bench_of()
        bench.append("a")
        bench.reject(bench.one(at=1).token, at=2, error="once")
        assert bench.job("redrive", at=3, reason="nacked") == (0, 0, 0)
        assert bench.job("redrive", at=3, reason="rejected") == (1, 1, 0)
        lease = bench.one(at=4)
        assert (lease.attempt, lease.kept) == (1, True)
        bench.reject(lease.token, at=5, error="twice")
        assert [(message.reason, message.error) for message in bench.dead()] == [("rejected", "twice")]

    def test_earlier_attempts_are_in_its_history(self) -> None:
        bench = bench_of()
        bench.append("a")
        bench.nack(bench.one(at=1).token, at=2, delay=0, error="503")
        bench.restart()
        bench.reject(bench.one(at=3).token, at=4, error="410")
        (message,) = bench.dead()
        assert [attempt[0] for attempt in message.history] == [1, 2]
        assert [attempt[4:] for attempt in message.history] == [("nacked", "503"), ("rejected", "410")]

    @pytest.mark.parametrize("kind", ["priority", "fair"])
    def test_rejected_message_of_ranked_topic_is_dead(self, kind: str) -> None:
        bench = RankedBench(kind)
        bench.open()
        bench.append("a", "b")
        lease = bench.one(limit=1, at=1)
        bench.reject(lease.token, at=2)
        assert [message.reason for message in bench.dead()] == ["rejected"]
        assert bench.values([bench.one(at=3)]) == ["b"]


class TestSnoozed:
    def test_any_number_of_snoozes_uses_no_attempt(self) -> None:
        bench = bench_of(max_attempts=1)
        bench.append("a")
        for number in range(20):
            lease = bench.one(at=10 * number)
            assert (lease.attempt, lease.snoozes) == (1, number)
            if number % 3 == 0:
                bench.restart()
            bench.snooze(lease.token, at=10 * number + 1, delay=5, error="429")
            if number % 3 == 1:
                bench.restart()
        assert (waits(bench).attempt, waits(bench).snoozes, waits(bench).error) == (0, 20, "429")
        lease = bench.one(at=300)
        bench.nack(lease.token, at=301, error="no")
        (message,) = bench.dead()
        assert (message.attempts, message.reason) == (1, "nacked")

    def test_snoozes_are_counted_apart(self) -> None:
        bench = bench_of()
        bench.append("a", "b")
        bench.snooze(bench.one(at=1).token, at=2)
        assert counted(bench) == {"snoozed": 2}

    def test_history_has_the_last_of_consecutive_snoozes(self) -> None:
        bench = bench_of()
        bench.append("a")
        bench.nack(bench.one(at=0).token, at=1, delay=0, error="boom")
        for at in (10, 20, 30):
            bench.snooze(bench.one(at=at).token, at=at + 1, delay=0, error=f"429 at {at}")
        bench.nack(bench.one(at=40).token, at=41, delay=0, error="again")
        bench.snooze(bench.one(at=50).token, at=51, delay=0)
        assert [(attempt, outcome, error) for attempt, _, _, _, outcome, error in waits(bench).history] == [
            (1, "nacked", "boom"),
            (2, "snoozed", "429 at 30"),
            (2, "nacked", "again"),
            (3, "snoozed", None),
        ]

    def test_without_a_delay_the_back_off_grows(self) -> None:
        bench = bench_of(backoff={"kind": "exponential", "first": "1s", "cap": "5s", "jitter_percent": 0})
        bench.append("a")
        found, at = [], 0
        for _ in range(4):
            bench.snooze(bench.one(at=at).token, at=at)
            found.append(waits(bench).due_ms - T - at)
            at = waits(bench).due_ms - T
        assert found == [1000, 2000, 4000, 5000]

    def test_beyond_the_bound_attempts_are_counted(self) -> None:
        bench = bench_of(max_attempts=2, max_snoozes=2)
        bench.append("a")
        attempts, at = [], 0
        for at in range(0, 40, 10):
            lease = bench.one(at=at)
            attempts.append(lease.attempt)
            bench.snooze(lease.token, at=at + 1, delay=0, error="429")
            bench.restart()
        assert attempts == [1, 1, 1, 2]
        (message,) = bench.dead()
        assert (message.attempts, message.reason, message.error) == (2, "nacked", "429")
        assert [attempt[4] for attempt in message.history] == ["snoozed", "nacked", "nacked"]

    def test_message_given_back_is_neither_attempted_nor_snoozed(self) -> None:
        bench = bench_of(max_attempts=1, max_snoozes=1)
        bench.append("a")
        for at in range(0, 40, 10):
            bench.apply(at, c.Nack([(bench.one(at=at).token, None, 10, "the host is down", False)]))
            bench.restart()
            entry = waits(bench)
            assert (entry.attempt, entry.snoozes, entry.history, entry.error) == (0, 0, (), "the host is down")
            assert bench.lease(at=at + 9) == []
        bench.snooze(bench.one(at=40).token, at=40, delay=0)
        bench.snooze(bench.one(at=40).token, at=40, delay=0)
        assert [message.reason for message in bench.dead()] == ["nacked"], "the only snooze was left"

    def test_a_group_has_a_bound_of_its_own(self) -> None:
        bench = bench_of(max_snoozes=0)
        bench.append("a")
        for own, attempt in (({}, 1), ({"max_snoozes": None}, 1), ({"max_snoozes": 1}, 2)):
            bench.apply(0, c.ConfigureGroup("g", own))
            bench.snooze(bench.one(at=0).token, at=0, delay=0)
            assert waits(bench).attempt == attempt, own

    def test_snoozed_message_dies_at_its_ttl(self) -> None:
        bench = bench_of(ttl="10s")
        bench.append("a")
        bench.snooze(bench.one(at=1).token, at=2, delay=60_000, error="429")
        assert bench.expire(at=10_000) == 1
        (message,) = bench.dead()
        assert (message.reason, message.attempts, message.error) == ("expired", 0, "429")

    def test_messages_with_different_snoozes_get_different_leases(self) -> None:
        bench = bench_of()
        bench.append("a", "b", "c")
        bench.snooze(bench.one(limit=1, at=1).token, at=2, delay=0)
        first, second = bench.lease(at=3)
        assert (bench.values([first]), first.attempt, first.snoozes) == (["a"], 1, 1)
        assert (bench.values([second]), second.attempt, second.snoozes) == (["b", "c"], 1, 0)

    @pytest.mark.parametrize("how", ["release", "not begun", "expire", "clock"])
    def test_snooze_count_survives_other_ends_of_the_lease(self, how: str) -> None:
        bench = bench_of()
        bench.append("a")
        bench.snooze(bench.one(at=1).token, at=2, delay=0)
        lease = bench.one(at=3)
        match how:
            case "release":
                bench.release(at=4)
            case "not begun":
                bench.apply(4, c.Nack([(lease.token, None, None, None, False)]))
            case "expire":
                bench.expire(at=30_003)
            case "clock":
                bench.machine.settlement.give_back_all(step_at(T + 4, bench.view))
        assert waits(bench).snoozes == 1

    def test_moving_it_keeps_the_count(self) -> None:
        bench = bench_of()
        made, _ = bench.append("a", "b")
        bench.snooze(bench.one(at=1).token, at=2, delay=60_000)
        assert bench.move(made, 50, at=3) == ("moved", made)
        lease = bench.one(at=50)
        assert (bench.values([lease]), lease.snoozes) == (["a"], 1)

    @pytest.mark.parametrize("how", ["seek", "redrive"])
    def test_seek_or_redrive_resets_the_snoozes(self, how: str) -> None:
        bench = bench_of()
        bench.append("a")
        bench.snooze(bench.one(at=1).token, at=2, delay=0)
        if how == "seek":
            bench.seek("earliest", at=3)
        else:
            bench.reject(bench.one(at=3).token, at=3)
            bench.job("redrive", at=3)
        assert bench.one(at=4).snoozes == 0

    @pytest.mark.parametrize("kind", ["priority", "fair"])
    def test_snoozed_message_may_get_another_priority(self, kind: str) -> None:
        bench = RankedBench(kind)
        bench.open()
        bench.append("a", "b")
        lease = bench.one(limit=1, at=1)
        bench.apply(2, c.Nack([(lease.token, None, 0, "429", True, {Column.PRIORITY: 5}, SNOOZE)]))
        bench.restart()
        first, second = bench.lease(at=3)
        assert (bench.values([first]), first.snoozes) == (["b"], 0)
        assert (bench.values([second]), second.snoozes, second.attempt) == (["a"], 1, 1)
        bench.restart()
        again = bench.machine.leases.by_token[second.token]
        assert (again.snoozes, again.queues) == (1, second.queues)

    def test_why_reports_the_number_of_snoozes(self) -> None:
        bench = bench_of()
        made, _ = bench.append("a")
        assert "snoozes" not in _why(bench, made)
        bench.snooze(bench.one(at=1).token, at=2, delay=0, error="429")
        told = _why(bench, made)
        assert (told["snoozes"], told["attempt"], told["error"]) == (1, 0, "429")
        bench.one(at=3)
        assert (_why(bench, made)["snoozes"], _why(bench, made)["attempt"]) == (1, 1)


def _why(bench: Bench, offset: bytes) -> dict[str, Any]:
    """Return the result of `why` for a message in the group."""
    shown = PartitionQueries(bench.machine, bench.view).why([c.TARGET_ID, offset])
    assert shown is not None
    (told,) = shown["groups"]
    found: dict[str, Any] = told
    return found


class TestRows:
    def test_rows_without_snoozes_are_unchanged(self) -> None:
        bench = bench_of()
        bench.append("a")
        lease = bench.one(at=1)
        without = lease.row()
        lease.snoozes = 3
        assert len(lease.row()) > len(without)
        assert Lease.load(lease.token, lease.row(), None).snoozes == 3
        assert Lease.load(lease.token, without, None).snoozes == 0
        lease.snoozes = 0
        bench.nack(lease.token, at=2)
        entry = waits(bench)
        key = b"w" + bytes(4) + entry.due_ms.to_bytes(6, "big") + entry.seq.to_bytes(8, "big")
        before = entry.row()
        assert Waiting.load(key, before).snoozes == 0
        entry.snoozes, made = 2, entry.made
        loaded = Waiting.load(key, entry.row())
        assert (loaded.snoozes, loaded.made, loaded.queue) == (2, made, None)
        entry.made, entry.queue = None, b"queue"
        loaded = Waiting.load(key, entry.row())
        assert (loaded.snoozes, loaded.made, loaded.queue) == (2, None, b"queue")


def test_attempt_begins_at_the_due_time() -> None:
    """A lease is granted some milliseconds before its push."""
    bench = bench_of()
    made = bench.put("a", due=50)
    lease = bench.one(at=45, ahead=5)
    assert lease.leased_ms == T + 45
    bench.nack(lease.token, at=60, delay=0, error="no")
    assert [row[2] for row in _why(bench, made)["history"]] == [T + 50]
    again = bench.one(at=70)
    bench.nack(again.token, at=80, delay=0, error="no")
    assert [row[2] for row in _why(bench, made)["history"]] == [T + 50, T + 70]
