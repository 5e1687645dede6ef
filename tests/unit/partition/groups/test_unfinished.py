"""Tests of groups with unfinished messages: their deletion, and the end of `group_ttl`."""

from __future__ import annotations

import pytest

from sandq.model.errors import Conflict
from sandq.partition import commands as c
from sandq.partition.base import rows
from tests.support.partition.bench import Bench
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.restore_bench import restored

MINUTE = 60_000
HOUR = 60 * MINUTE
TTL = 2 * HOUR


def bench_of(**settings: object) -> Bench:
    bench = Bench(group_ttl="2h", max_attempts=None, **settings)
    bench.open()
    return bench


def group_of(bench: Bench, name: str = "g") -> object:
    return bench.machine.groups.find(name)


@pytest.mark.parametrize("state", ["leased", "waiting", "ripe", "blocked"])
def test_deletion_with_an_unfinished_message_is_refused_unless_forced(state: str) -> None:
    bench = bench_of(ordering="key")
    bench.send("first", "second", keys=["k", "k" if state == "blocked" else None])
    lease = bench.one(limit=2)
    bench.ack(lease.token, [[lease.ranges[0].base, 1]] if state == "blocked" else [[lease.ranges[-1].base, 1]])
    if state == "blocked":
        bench.send("third", "fourth", keys=["k", "k"], at=1)
        assert bench.values(bench.lease(at=1, limit=1)) == ["second"]
        assert bench.lease(at=1) == []
    elif state != "leased":
        bench.nack(lease.token, [[lease.ranges[0].base, 1]], delay=1000)
    at = 5 * MINUTE if state != "leased" else 2
    count = 3 if state == "blocked" else 1
    bench.trim(at)
    refused = bench.apply(at, c.DropGroup("g", True))[0]
    assert isinstance(refused, Conflict) and refused.details == {"group": "g", "unfinished": count}
    assert f"{count} message" in str(refused) and bench.status().groups[0].unfinished == count
    assert bench.apply(at, c.DropGroup("g"))[0] is None
    assert group_of(bench) is None


def test_deletion_with_dead_letters_only_is_not_refused() -> None:
    bench = bench_of()
    bench.append("x")
    bench.reject(bench.one().token)
    assert bench.apply(1, c.DropGroup("g", True))[0] is None


def test_drop_without_the_check_is_encoded_without_a_field_for_it() -> None:
    assert (c.DropGroup("g").fields(), c.DropGroup("g", True).fields()) == (("g",), ("g", True))


def test_group_with_a_retry_beyond_group_ttl_receives_it() -> None:
    bench = bench_of()
    bench.append("x")
    bench.nack(bench.one().token, delay=3 * HOUR)
    bench.trim(TTL + MINUTE)
    bench.trim(3 * HOUR + TTL - 1)
    assert not bench.machine.groups.named("g").is_expired and not bench.status().groups[0].is_expired
    assert bench.values(bench.lease(at=3 * HOUR + TTL - 1)) == ["x"]


def test_expired_group_keeps_its_retry_and_frees_the_log() -> None:
    bench = bench_of()
    bench.open("other")
    bench.append("retried")
    bench.append("unread")
    bench.nack(bench.one(limit=1).token, delay=HOUR)
    for lease in bench.lease(group="other"):
        bench.ack(lease.token)
    bench.apply(HOUR + 1, c.Touch(["other"]))
    bench.trim(HOUR + TTL - 1)
    assert len(bench.rows(rows.LOG)) == 1, "the log is kept for messages that the group has not received yet"
    bench.trim(HOUR + TTL)
    group = bench.machine.groups.named("g")
    assert group.is_expired and not bench.rows(rows.LOG)
    told = bench.status().groups.get("g")
    assert told is not None and (told.is_expired, told.unfinished) == (True, 1)
    bench.restart()
    assert bench.machine.groups.named("g").is_expired
    bench.append("new", at=HOUR + TTL)
    assert bench.values(bench.lease(at=HOUR + TTL)) == ["retried", "new"]
    assert not bench.machine.groups.named("g").is_expired


def test_expired_group_with_dead_messages_is_deleted_after_another_group_ttl() -> None:
    bench = bench_of(ttl="3h")
    bench.append("x")
    bench.nack(bench.one().token, delay=HOUR)
    bench.trim(HOUR + TTL)
    assert bench.machine.groups.named("g").is_expired
    bench.expire(HOUR + TTL + 1)
    assert [letter.reason for letter in bench.dead()] == ["expired"]
    bench.trim(HOUR + 2 * TTL + 1)
    assert group_of(bench) is None


@pytest.mark.parametrize("use", ["open", "touch", "seek", "resume", "lease", "restore"])
def test_expired_group_that_is_used_is_expired_no_longer(use: str) -> None:
    bench = bench_of()
    bench.append("x")
    bench.nack(bench.one().token, delay=HOUR)
    at = HOUR + TTL
    bench.trim(at)
    assert bench.machine.groups.named("g").is_expired
    match use:
        case "open":
            bench.open("g", at=at)
        case "touch":
            bench.apply(at, c.Touch(["g"]))
        case "seek":
            bench.seek("earliest", at)
        case "resume":
            bench.apply(at, c.PauseGroup("g", False))
        case "restore":
            bench = restored(bench, at)
            bench.apply(at, c.PauseGroup("g", False))
        case "lease":
            pass
    assert bench.values(bench.lease(at=at)) == ["x"]
    assert not bench.machine.groups.named("g").is_expired


def test_expired_group_of_a_ranked_topic_frees_the_log_behind_its_ready_queues() -> None:
    bench = RankedBench("priority", group_ttl="2h", max_attempts=None)
    bench.open()
    bench.open("other")
    bench.add("retried", priority=1)
    bench.nack(bench.one().token, delay=HOUR)
    bench.add(*[f"m{n}" for n in range(2000)], priority=2, at=1)
    while bench.take(3000, at=1, group="other"):
        pass
    bench.apply(HOUR + 1, c.Touch(["other"]))
    bench.trim(HOUR + TTL)
    assert bench.machine.groups.named("g").is_expired and not bench.rows(rows.LOG)
    bench.add("new", priority=0, at=HOUR + TTL)
    assert sorted(bench.values(bench.lease(at=HOUR + TTL))) == ["new", "retried"]


def test_seek_back_after_a_clock_reset_keeps_trimmed_messages() -> None:
    bench = bench_of()
    bench.append("x", at=1000)
    bench.nack(bench.one(at=1000).token, delay=HOUR, at=1000)
    bench.trim(1000 + 2 * MINUTE)
    assert not bench.rows(rows.LOG)
    bench.upkeep(HOUR * 100)
    bench.apply(1000 + 2 * MINUTE, c.ClockReset(1_800_000_000_000 + 500))
    bench.trim(1000 + 2 * MINUTE)
    bench.seek("earliest", 1000 + 3 * MINUTE)
    assert bench.values(bench.lease(at=1000 + 3 * MINUTE)) == ["x"]


def test_expired_group_keeps_no_unique_key_taken() -> None:
    bench = bench_of(delete_on_ack=False, dedup_window="1m")
    bench.open("other")
    bench.put("retried")
    bench.nack(bench.one().token, delay=0)
    bench.put("x", unique="k")
    at = TTL
    bench.apply(at, c.Touch(["other"]))
    bench.trim(at)
    assert bench.machine.groups.named("g").is_expired
    for lease in bench.lease(at=at, group="other"):
        bench.ack(lease.token, at=at)
    assert bench.send("again", unique=["k"], at=at).refused == [(0, "delivered")]
    assert bench.send("again", unique=["k"], at=at + MINUTE).refused == []
    assert bench.values(bench.lease(at=at + MINUTE)) == ["retried", "x", "again"]


def test_message_that_only_an_expired_group_has_yet_to_take_is_pending() -> None:
    bench = bench_of()
    bench.put("retried")
    bench.nack(bench.one().token, delay=0)
    bench.put("x", unique="k")
    bench.trim(TTL)
    assert bench.machine.groups.named("g").is_expired
    assert bench.send("again", unique=["k"], at=TTL).refused == [(0, "ready")]
