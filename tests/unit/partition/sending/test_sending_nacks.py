"""Tests of nacks that send messages if their message is dead: both in one entry, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import InvalidRequest, Overloaded
from sandq.model.limits import FixedLimits
from sandq.model.nack_ends import DEAD, RETRY, SNOOZE
from sandq.model.outbox import DEAD_LETTER
from sandq.partition import commands as c
from sandq.partition import outbox, shared_state
from sandq.partition.base import rows
from sandq.partition.records.leases import Lease
from tests.support.partition.outbox_bench import HERE, OutboxBench, arrived, carry, receiver, values

THERE = [*HERE, None, False, {Column.VALUE.value: b"there"}]
OWN = [None, None, None, False, {Column.VALUE.value: b"own"}]


def held(*sent: str, **settings: Any) -> tuple[OutboxBench, Lease]:
    """Return a partition whose dead letters stay in it, and a lease of new messages."""
    bench = OutboxBench(**({"max_attempts": 3} | settings))
    bench.forward_to(None)
    bench.append(*(sent or ("m",)))
    return bench, bench.one()


def nack(
    bench: OutboxBench, lease: Lease, end: int, *messages: list[Any], at: int = 1, place: int = 0, **terms: Any
) -> Any:
    """Nack one message of a lease. Return the result of the item, or the error."""
    what = [[offsets.shift(lease.ranges[0].base, place), 1]]
    command = c.AckThen(lease.token, what, messages, end, terms.get("delay_ms"), terms.get("error", "boom"))
    result = bench.apply(at, command)[0]
    return result if isinstance(result, Exception) else result[0]


def test_dead_message_is_stored_with_what_it_sends() -> None:
    bench, lease = held()
    to = receiver()
    assert nack(bench, lease, DEAD, THERE, OWN) is None
    (letter,) = bench.dead()
    assert (letter.reason, letter.error, letter.fields[Column.VALUE]) == ("rejected", "boom", b"m")
    bench.restart()
    carry(bench, to)
    assert values(arrived(to)) == ["there"] and bench.values(bench.lease(at=2)) == ["own"]


def test_repeated_it_is_answered_as_the_first_time() -> None:
    bench, lease = held()
    to = receiver()
    for at in (1, 2, 60_000):
        assert nack(bench, lease, DEAD, THERE, OWN, at=at) is None
        bench.restart()
    carry(bench, to, at=60_001)
    assert nack(bench, lease, DEAD, THERE, OWN, at=60_002) is None
    assert bench.status().outbox is None and len(bench.dead()) == 1
    assert values(arrived(to)) == ["there"] and bench.values(bench.lease(at=60_003)) == ["own"]


def test_repeated_after_a_redrive_it_leaves_the_new_lease_alone() -> None:
    bench, lease = held()
    nack(bench, lease, DEAD, OWN)
    (letter,) = bench.dead()
    bench.apply(2, c.RedriveDead("g", [letter.id]))
    again = bench.lease(at=3)
    assert nack(bench, lease, DEAD, OWN, at=4) is None
    assert bench.dead() == [] and sorted(bench.values(again)) == ["m", "own"]


@pytest.mark.parametrize("how", ["ack", "ack_then", "nack", "dead", "expire", "release", "seek"])
@pytest.mark.parametrize("end", [DEAD, RETRY, SNOOZE])
def test_settled_or_lost_message_sends_nothing(how: str, end: int) -> None:
    bench, lease = held()
    match how:
        case "ack":
            bench.ack(lease.token)
        case "ack_then":
            bench.apply(1, c.AckThen(lease.token, None, [OWN]))
        case "nack":
            bench.nack(lease.token)
        case "dead":
            bench.reject(lease.token)
        case "expire":
            bench.expire(40_000)
        case "release":
            bench.release()
        case "seek":
            bench.seek("earliest")
    stored, dead = len(bench.rows(rows.LOG)), len(bench.dead())
    for _ in range(2):
        assert nack(bench, lease, end, THERE, OWN, at=40_001) not in (None, "not_yet")
        bench.restart()
    assert not bench.rows(rows.OUTBOX) and len(bench.rows(rows.LOG)) == stored and len(bench.dead()) == dead


def test_ack_after_it_is_lost() -> None:
    bench, lease = held()
    nack(bench, lease, DEAD, OWN)
    assert bench.ack(lease.token) is not None
    assert bench.apply(2, c.AckThen(lease.token, None, [THERE]))[0] != [None]
    assert not bench.rows(rows.OUTBOX) and len(bench.dead()) == 1


def test_nack_sends_only_with_the_last_attempt() -> None:
    bench, lease = held(max_attempts=2)
    assert nack(bench, lease, RETRY, THERE, OWN, delay_ms=10) is None
    assert not bench.rows(rows.OUTBOX) and bench.dead() == []
    assert nack(bench, lease, RETRY, THERE, OWN, delay_ms=10) is not None, "a repeated nack has lost its lease"
    (last,) = bench.lease(at=11)
    assert last.attempt == 2
    for _ in range(2):
        assert nack(bench, last, RETRY, THERE, OWN, at=12) is None
        bench.restart()
    (letter,) = bench.dead()
    assert (letter.reason, letter.attempts, bench.batches.keys()) == ("nacked", 2, {HERE})
    assert bench.values(bench.lease(at=13)) == ["own"]


def test_rules_of_the_message_decide_which_attempt_is_the_last() -> None:
    bench, lease = held(max_attempts=1)
    bench.ack(lease.token)
    bench.put("other", attempts=5)
    assert nack(bench, bench.one(), RETRY, OWN) is None and bench.dead() == []


def test_snooze_sends_once_it_counts_as_the_last_attempt() -> None:
    bench, lease = held(max_attempts=1, max_snoozes=1)
    assert nack(bench, lease, SNOOZE, OWN, delay_ms=10) is None and bench.dead() == []
    (again,) = bench.lease(at=11)
    assert nack(bench, again, SNOOZE, OWN, at=12) is None
    assert [letter.reason for letter in bench.dead()] == ["nacked"]
    assert bench.values(bench.lease(at=13)) == ["own"]


def test_several_messages_of_a_lease() -> None:
    bench, lease = held("a", "b", "c")
    assert nack(bench, lease, DEAD, OWN, place=1) is None
    assert [letter.fields[Column.VALUE] for letter in bench.dead()] == [b"b"]
    first, _, third = offsets.run(lease.ranges[0].base, 3)
    assert bench.state_of(first) == bench.state_of(third) == "leased"
    assert nack(bench, lease, DEAD, OWN, place=2) is None
    assert bench.ack(lease.token, [[first, 1]]) is None
    assert nack(bench, lease, DEAD, OWN, place=1) is None
    assert len(bench.dead()) == 2 and sorted(bench.values(bench.lease(at=2))) == ["own", "own"]


@pytest.mark.parametrize("what", [None, [], [[b"\0" * 16, 2]], [[b"\0" * 16, b"\1"]], [[b"\0" * 16, 1]] * 2])
def test_nack_of_several_messages_is_refused(what: Any) -> None:
    bench, lease = held("a", "b")
    (refused,) = bench.apply(1, c.AckThen(lease.token, what, [OWN], DEAD))
    assert isinstance(refused, InvalidRequest) and "names one message" in refused.message
    assert bench.dead() == [] and len(bench.rows(rows.LOG)) == 1


def test_message_of_another_lease_is_lost() -> None:
    bench, lease = held("a")
    bench.append("b")
    other = bench.one(at=1)
    what = [[other.ranges[0].base, 1]]
    assert bench.apply(1, c.AckThen(lease.token, what, [OWN], DEAD))[0] == [[[other.ranges[0].base, 1]]]
    assert bench.apply(1, c.AckThen(77, what, [OWN], DEAD))[0] == [[]]
    assert bench.dead() == []


def test_full_outbox_refuses_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIXED", FixedLimits(outbox_messages=0))
    bench, lease = held(max_attempts=2)
    for _ in range(2):
        assert isinstance(nack(bench, lease, DEAD, OWN, THERE), Overloaded)
        assert bench.state_of(lease.ranges[0].base) == "leased" and len(bench.rows(rows.LOG)) == 1
    assert nack(bench, lease, RETRY, THERE, delay_ms=0) is None, "a nack that sends nothing needs no room in the outbox"


def test_spent_budget_of_the_entry_refuses_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state, "BUDGET_BYTES", 1024)
    bench, lease = held("a", "b")
    first, second = offsets.run(lease.ranges[0].base, 2)
    commands = [c.AckThen(lease.token, [[offset, 1]], [OWN], DEAD, None, "boom") for offset in (first, second)]
    done, refused = bench.apply(1, *commands)
    assert done == [None] and isinstance(refused, Overloaded) and refused.retriable
    assert bench.state_of(second) == "leased" and len(bench.dead()) == 1
    assert bench.apply(1, commands[1]) == [[None]] and len(bench.dead()) == 2


def test_dead_letter_goes_to_its_topic_too() -> None:
    bench, lease = held()
    bench.forward_to(HERE.topic)
    to = receiver()
    assert DEAD_LETTER in bench.settings
    assert nack(bench, lease, DEAD, THERE) is None
    while bench.batches:
        carry(bench, to)
    assert sorted(values(arrived(to))) == ["m", "there"] and bench.dead() == []
