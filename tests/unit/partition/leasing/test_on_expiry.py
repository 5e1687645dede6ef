"""Messages that expire in a group with `on_expiry: drop`: the group is done with them as with acked messages."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.partition import commands as c
from sandq.partition.queries.queries import PartitionQueries
from tests.support.partition import in_parts
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.outbox_bench import OutboxBench
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.scenes import scene


def dropping(bench: type[Bench] = Bench, **settings: Any) -> Bench:
    """Return a partition with group g that drops messages 100 ms after their time."""
    made = bench(**{"ttl": "100ms", "on_expiry": "drop"} | settings)
    made.open()
    return made


def dropped(bench: Bench, group: str = "g") -> int:
    """Return the number of dropped messages of a group, and check that a restart keeps it."""
    found = bench.status().groups.get(group)
    assert found is not None
    bench.restart()
    again = bench.status().groups.get(group)
    assert again is not None and again.dropped == found.dropped
    return found.dropped


def why(bench: Bench, offset: bytes) -> dict[str, Any]:
    """Return what `why` reports about a message in the first group."""
    found = PartitionQueries(bench.machine, bench.view).why(by_id(offset))
    assert found is not None
    status: dict[str, Any] = found["groups"][0]
    return status


@pytest.mark.parametrize("state", ["delayed", "ready", "waiting"])
@pytest.mark.parametrize("ttl", [{"ttl": "100ms"}, {"own_ttl": 100}])
def test_expired_message_is_dropped(state: str, ttl: dict[str, Any]) -> None:
    lasting = scene(state, on_expiry="drop", **ttl)
    at = 1100 if state == "delayed" else 100
    assert lasting.bench.status().next_expiry_ms == T + at
    assert lasting.bench.expire(at=at - 1) == 0
    assert lasting.bench.expire(at=at) == 1
    assert (lasting.state, lasting.bench.dead(), dropped(lasting.bench)) == ("acked", [], 1)
    assert lasting.bench.status().next_expiry_ms is None
    lasting.bench.trim(at=at)
    assert lasting.bench.rows(b"m") == lasting.bench.rows(b"d") == lasting.bench.rows(b"w") == []


def test_lease_drops_expired_messages_and_the_log_is_trimmed() -> None:
    bench = dropping()
    bench.append("a", "b")
    bench.append("c", at=90)
    assert bench.values(bench.lease(at=150)) == ["c"]
    assert dropped(bench) == 2 and bench.dead() == []
    bench.trim(at=150)
    assert bench.status().messages == 1


def test_leased_message_is_dropped_once_it_is_given_back() -> None:
    bench = dropping()
    bench.append("a")
    lease = bench.one(at=1)
    assert bench.expire(at=200) == 0
    bench.nack(lease.token, at=300, delay=0)
    assert bench.lease(at=300) == [] and dropped(bench) == 1


def test_last_attempt_makes_a_message_dead_in_spite_of_its_ttl() -> None:
    bench = dropping(max_attempts=1)
    bench.append("a")
    bench.nack(bench.one(at=1).token, at=300)
    assert [message.reason for message in bench.dead()] == ["nacked"] and dropped(bench) == 0


@pytest.mark.parametrize(
    ("topic", "own", "drops"), [("dead", "drop", True), ("drop", "dead", False), ("drop", None, True)]
)
def test_setting_of_the_group_wins(topic: str, own: str | None, drops: bool) -> None:
    bench = dropping(on_expiry=topic)
    bench.apply(0, c.ConfigureGroup("g", {} if own is None else {"on_expiry": own}))
    bench.append("a")
    bench.expire(at=100)
    assert (dropped(bench), len(bench.dead())) == ((1, 0) if drops else (0, 1))


def test_each_group_drops_by_itself() -> None:
    bench = dropping(on_expiry="dead")
    bench.open("h")
    bench.apply(0, c.ConfigureGroup("h", {"on_expiry": "drop"}))
    offset = bench.put("a")
    assert bench.expire(at=100) == 2
    assert (bench.state_of(offset, "g"), bench.state_of(offset, "h")) == ("dead", "acked")
    assert (dropped(bench, "g"), dropped(bench, "h")) == (0, 1)


def test_dropped_message_frees_its_key_order() -> None:
    bench = dropping(ttl=None, ordering="key")
    bench.put("a", key="k", ttl=100)
    bench.put("b", key="k")
    lease = bench.one(at=1)
    assert bench.values([lease]) == ["a"]
    bench.nack(lease.token, at=2, delay=5000)
    assert bench.lease(at=50) == []
    assert bench.expire(at=100) == 1
    assert bench.values(bench.lease(at=101)) == ["b"] and dropped(bench) == 1


def test_blocked_message_is_dropped() -> None:
    bench = dropping(ttl=None, ordering="key")
    bench.put("a", key="k")
    bench.put("b", key="k", ttl=100)
    lease = bench.one(at=1)
    bench.ack(lease.token, at=200)
    assert bench.lease(at=200) == [] and dropped(bench) == 1
    bench.trim(at=200)
    assert bench.rows(b"b") == bench.rows(b"m") == []


def test_unique_key_of_a_dropped_message_stays_taken_for_the_dedup_window() -> None:
    bench = dropping(dedup_window="1m")
    bench.put("a", unique="k")
    bench.expire(at=100)
    assert len(bench.send("b", unique=["k"], at=101).refused) == 1
    assert bench.send("b", unique=["k"], at=60_101).refused == []


def test_kept_row_of_a_dropped_message_is_deleted() -> None:
    bench = dropping(ttl="5m")
    bench.put("a", unique="k")
    bench.append("b")
    lease = bench.one(at=1, ms=120_000, limit=1)
    bench.ack(bench.one(at=2, limit=1).token, at=61_000)
    bench.trim(at=63_000)
    assert len(bench.rows(b"k")) == 1
    bench.nack(lease.token, at=64_000, delay=600_000)
    assert bench.expire(at=300_000) == 1
    assert bench.rows(b"k") == [] and dropped(bench) == 1


def test_nothing_goes_to_the_dead_letter_topic() -> None:
    bench = OutboxBench(ttl="100ms", on_expiry="drop")
    bench.open()
    bench.append("a")
    bench.expire(at=100)
    assert bench.machine.outbox.messages == 0 and dropped(bench) == 1


def test_ranked_topic_drops_promoted_and_returned_messages() -> None:
    bench = dropping(RankedBench)
    bench.append("a", "b", "c")
    lease = bench.one(limit=1, at=1)
    bench.nack(lease.token, at=2, delay=1)
    assert bench.lease(at=150) == [] and dropped(bench) == 3
    bench.append("d", "e", at=200)
    bench.lease(limit=1, at=201)
    assert bench.expire(at=300) == 1 and dropped(bench) == 4


def test_entry_drops_a_bounded_number_of_messages() -> None:
    bench = dropping(ordering="key")
    for _ in range(6):
        bench.put("a")
    with in_parts.small_budget(2):
        assert bench.expire(at=100) == 2 and bench.expire(at=100) == 2
        assert bench.lease(at=100) == [] and bench.expire(at=100) == 0
    assert dropped(bench) == 6


def test_entry_drops_a_bounded_number_of_waiting_messages() -> None:
    bench = dropping(ordering="key")
    for _ in range(5):
        bench.put("a")
    bench.nack(bench.one(at=1).token, at=2, delay=600)
    with in_parts.small_budget(2):
        assert [bench.expire(at=100) for _ in range(4)] == [2, 2, 1, 0]
    assert dropped(bench) == 5 and bench.rows(b"w") == []


def test_redriven_message_is_not_dropped() -> None:
    bench = dropping(on_expiry="dead")
    bench.append("a")
    bench.expire(at=100)
    bench.apply(100, c.ConfigureGroup("g", {"on_expiry": "drop"}))
    bench.job("redrive", at=200)
    assert bench.expire(at=10_000) == 0 and bench.values(bench.lease(at=10_000)) == ["a"]


@pytest.mark.parametrize(("rule", "end"), [("dead", "dies"), ("drop", "is dropped")])
def test_why_says_when_a_message_expires_and_how_it_ends_then(rule: str, end: str) -> None:
    bench = dropping(on_expiry=rule)
    offset = bench.put("a", due=1000)
    assert (found := why(bench, offset))["state"] == "delayed"
    assert (found["expires_ms"], found["on_expiry"]) == (T + 1100, rule)
    bench.nack(bench.one(at=1000).token, at=1001, delay=5000)
    found = why(bench, offset)
    assert (found["expires_ms"], found["on_expiry"]) == (T + 1100, rule)
    assert found["reason"] == f"its ttl passes before its next attempt: it {end} then"


def test_why_has_no_expiry_without_a_ttl() -> None:
    bench = dropping(ttl=None)
    assert "expires_ms" not in why(bench, bench.put("a"))


def test_why_does_not_call_a_message_acked_that_may_have_been_dropped() -> None:
    bench = dropping(retention="1h")
    first, second = bench.put("a"), bench.put("b")
    bench.ack(bench.one(limit=1, at=1).token, at=2)
    assert why(bench, first)["reason"] == "it was acked"
    bench.expire(at=100)
    assert why(bench, first)["reason"] == "it was acked", "its lease is still known"
    assert why(bench, second)["state"] == "acked"
    assert why(bench, second)["reason"].startswith("it was acked, or it expired and was dropped (on_expiry)")
