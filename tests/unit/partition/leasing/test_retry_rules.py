"""Messages with their own number of attempts and their own back-off."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import InvalidRequest
from sandq.model.limits import Limits
from sandq.model.nack_ends import SNOOZE
from sandq.model.retries import UNLIMITED, RetryRules, pack_backoff
from sandq.partition import commands as c
from sandq.partition.produce_validation import BatchTarget, check_batch
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench, T, batch_of, by_id
from tests.support.partition.ranked_bench import RankedBench


def fixed(ms: int) -> bytes:
    return pack_backoff({"kind": "fixed", "first_ms": ms, "factor_permille": 1000, "cap_ms": ms, "jitter_percent": 0})


def attempts_until_dead(bench: Bench, value: str, most: int = 50) -> int:
    """Nack a message until it is dead; return its number of attempts. All other messages are acked."""
    at = 0
    for number in range(1, most):
        at += 10_000_000
        for lease in bench.lease(at=at):
            if value in bench.values([lease]):
                assert lease.attempt == number
                bench.nack(lease.token, at=at)
            else:
                bench.ack(lease.token, at=at)
        if bench.dead():
            assert bench.dead()[0].attempts == number
            return number
    return most


@pytest.mark.parametrize(("own", "died_after"), [(None, 3), (1, 1), (2, 2), (7, 7), (UNLIMITED, 50)])
def test_message_dies_after_its_own_number_of_attempts(own: int | None, died_after: int) -> None:
    bench = Bench(max_attempts=3)
    bench.open()
    bench.put("m", attempts=own)
    assert attempts_until_dead(bench, "m") == died_after


def test_rules_of_a_message_win_over_those_of_its_group() -> None:
    bench = Bench(max_attempts=3)
    bench.open()
    bench.apply(0, c.ConfigureGroup("g", {"max_attempts": 2}))
    bench.put("m", attempts=4)
    assert attempts_until_dead(bench, "m") == 4
    bench.put("n", at=600_000_000)
    lease = bench.one(at=600_000_000)
    assert bench.nack(lease.token, at=600_000_000) is None
    assert bench.machine.groups.named("g").next_waiting().due_ms == T + 600_001_000  # type: ignore[union-attr]


def test_own_back_off_replaces_that_of_the_topic() -> None:
    bench = Bench()
    bench.open()
    bench.put("own", backoff=fixed(5000))
    bench.put("other")
    for lease in bench.lease():
        bench.nack(lease.token)
    assert bench.values(bench.lease(at=1000)) == ["other"]
    assert bench.lease(at=4999) == []
    assert bench.values(bench.lease(at=5000)) == ["own"]


def test_snooze_uses_the_back_off_of_the_message() -> None:
    bench = Bench()
    bench.open()
    bench.put("own", backoff=fixed(5000))
    bench.snooze(bench.one().token)
    assert bench.lease(at=4999) == []
    assert bench.one(at=5000).attempt == 1


def test_lease_holds_only_messages_with_equal_rules() -> None:
    bench = Bench()
    bench.open()
    attempts = [None, 5, 5, 6, None, None]
    bench.send(*"abcdef", attempts=attempts, backoffs=[None, None, None, None, fixed(1), None])
    leases = bench.lease()
    assert [bench.values([lease]) for lease in leases] == [["a"], ["b", "c"], ["d"], ["e"], ["f"]]
    rules = [None, RetryRules(5), RetryRules(6), RetryRules(None, fixed(1)), None]
    assert [lease.retry for lease in leases] == rules
    for lease in leases:
        bench.nack(lease.token, delay=0)
    again = bench.lease(at=1)
    assert [(bench.values([lease]), lease.retry) for lease in again] == [
        (["a"], None),
        (["b", "c"], RetryRules(5)),
        (["d"], RetryRules(6)),
        (["e"], RetryRules(None, fixed(1))),
        (["f"], None),
    ]


def test_batch_without_rules_stays_one_row() -> None:
    bench = Bench()
    bench.open()
    bench.append(*"abcdefghij")
    assert len(bench.rows(b"m")) == 1
    assert check_batch(batch_of(["a"]), T, Limits(), BatchTarget(0, 1, False)).split is False
    assert check_batch(batch_of(["a"], attempts=[2]), T, Limits(), BatchTarget(0, 1, False)).split is True


@pytest.mark.parametrize("value", ["m", "x" * 5000])
def test_rules_survive_a_restart_in_each_state(value: str) -> None:
    bench = Bench()
    bench.open()
    rules = RetryRules(5, fixed(2000))
    offset = bench.put(value, due=1000, attempts=5, backoff=fixed(2000))
    bench.move(offset, 3000)
    bench.restart()
    lease = bench.one(at=3000)
    assert lease.retry == rules
    bench.restart()
    (held,) = bench.held()
    assert held.retry == rules
    bench.nack(held.token, at=3000)
    bench.restart()
    bench.move(bench.messages(lease)[0].id, 3500, at=3100)
    bench.restart()
    assert bench.one(at=3500).retry == rules
    assert bench.reclaim(1, at=3500)[0] == 1
    bench.restart()
    (renewed,) = bench.held()
    assert renewed.retry == rules and renewed.attempt == 2
    bench.release(at=3500)
    bench.restart()
    assert bench.one(at=3500).retry == rules


def test_redriven_message_begins_again_with_its_own_rules() -> None:
    bench = Bench(max_attempts=3)
    bench.open()
    bench.put("own", attempts=2)
    bench.put("other")
    at = 0
    while len(bench.dead()) < 2:
        at += 5000
        for lease in bench.lease(at=at):
            bench.nack(lease.token, at=at)
    assert sorted(message.attempts for message in bench.dead()) == [2, 3]
    assert bench.job("redrive", at)[1] == 2
    leases = bench.lease(at=at)
    assert [(bench.values([lease]), lease.attempt, lease.retry) for lease in leases] == [
        (["own"], 1, RetryRules(2)),
        (["other"], 1, None),
    ]
    for lease in leases:
        bench.nack(lease.token, at=at)
    for lease in bench.lease(at=at + 1000):
        bench.nack(lease.token, at=at + 1000)
    assert [message.attempts for message in bench.dead()] == [2]


def test_message_that_a_group_keeps_has_its_rules_after_a_seek() -> None:
    bench = Bench(max_attempts=1)
    bench.open()
    offset = bench.put("own", attempts=2)
    bench.put("other")
    for lease in bench.lease():
        bench.nack(lease.token)
    bench.trim(100_000)
    bench.job("redrive", 100_000)
    bench.seek("earliest", at=100_000)
    leases = bench.lease(at=100_000)
    found = {(bench.values([lease])[0], lease.retry) for lease in leases}
    assert found == {("own", RetryRules(2)), ("other", None)}
    assert bench.state_of(offset) == "leased"


def test_blocked_messages_of_a_key_keep_their_rules() -> None:
    bench = Bench(ordering="key")
    bench.open()
    bench.send("a", "b", "c", keys=["k", "k", "l"], attempts=[None, 7, 7])
    first, second = bench.lease()
    assert (bench.values([first]), bench.values([second])) == (["a"], ["c"])
    bench.ack(first.token)
    assert bench.one().retry == RetryRules(7)


def test_last_attempt_of_a_message_must_be_reported() -> None:
    bench = Bench(max_attempts=9)
    bench.open()
    bench.put("own", attempts=1)
    lease: Lease
    (lease,) = bench.apply(0, c.Lease("g", T, (c.Grant("c", 5, 30_000, 0, 2),)))[0]
    assert lease.crashes == 1
    bench.expire(40_000)
    assert bench.dead() == []  # the message was not begun


@pytest.mark.parametrize("kind", ["priority", "fair"])
def test_ranked_topic_leases_messages_with_equal_rules(kind: str) -> None:
    bench = RankedBench(kind)
    bench.open()
    bench.add("a", "b", "c", "d", priority=0, attempts=[None, 5, 5, None])
    bench.restart()
    leases = bench.lease()
    assert [bench.values([lease]) for lease in leases] == [["a"], ["b", "c"], ["d"]]
    assert [lease.retry for lease in leases] == [None, RetryRules(5), None]
    for lease in leases:
        bench.nack(lease.token)
    bench.restart()
    assert [lease.retry for lease in bench.lease(at=5000)] == [None, RetryRules(5), None]


def test_promoted_message_keeps_its_rules_in_its_row() -> None:
    bench = RankedBench("priority")
    bench.open()
    bench.add("a", "b", priority=0, attempts=[None, 5], unique=["u", None])
    bench.apply(0, c.Lease("g", T, (c.Grant("c", 1, 30_000),)))
    bench.restart()
    assert [lease.retry for lease in bench.lease()] == [RetryRules(5)]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"attempts": [1001]}, "message 0 of the batch: max_attempts is wrong: 1 to 1000 is expected, or 0 for none"),
        ({"attempts": [-1]}, "message 0 of the batch: max_attempts is wrong"),
        ({"backoffs": [b""]}, "message 0 of the batch: backoff is wrong"),
        ({"backoffs": [b"\xc1"]}, "backoff is wrong"),
        ({"backoffs": [b"\x95" + b"\x01" * 5]}, "backoff is wrong"),
        ({"backoffs": [b"x" * 100_000]}, "backoff is wrong"),
        ({"backoffs": [fixed(5) + b"\0"]}, "backoff is wrong"),
        ({"backoffs": [fixed(8 * 86_400_000)]}, "backoff is wrong"),
    ],
)
def test_batch_with_wrong_rules_is_refused(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        check_batch(batch_of(["m"], **columns), T, Limits(), BatchTarget(0, 1, False))


def test_compacted_topic_refuses_rules() -> None:
    with pytest.raises(InvalidRequest, match=r"max_attempts: this is a compacted topic, .* set it for the topic"):
        check_batch(batch_of(["m"], keys=["k"], attempts=[4]), T, Limits(), BatchTarget(0, 1, False, compacted=True))


def test_update_and_cancel_leave_the_rules_of_other_messages() -> None:
    bench = Bench()
    bench.open()
    offset, other = bench.put("m", due=1000, attempts=5), bench.put("n", due=1000, attempts=5)
    bench.update(offset, "changed")
    bench.cancel(by_id(other))
    lease = bench.one(at=1000)
    assert (bench.values([lease]), lease.retry) == (["changed"], RetryRules(5))
    bench.nack(lease.token, at=1000)
    bench.update(offset, "again", at=1001)
    assert bench.one(at=9000).retry == RetryRules(5)


def test_snoozed_message_is_no_attempt() -> None:
    bench = Bench()
    bench.open()
    bench.put("m", attempts=1)
    lease = bench.one()
    bench.apply(0, c.Nack([(lease.token, None, 0, None, True, None, SNOOZE)]))
    assert bench.dead() == [] and bench.one(at=1).attempt == 1
