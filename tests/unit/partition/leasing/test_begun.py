"""Tests of the attempts of messages whose consumer crashed: only begun messages count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench, T
from tests.support.partition.ranked_bench import RankedBench

LEASE_MS = 30_000
NO_WAIT = {"kind": "none"}


def opened(**settings: Any) -> Bench:
    bench = Bench(**{"max_attempts": 3, "backoff": NO_WAIT, **settings})
    bench.open()
    return bench


def lease(bench: Bench, at: int, *, handlers: int = 1, limit: int = 100, epoch: int = 0) -> list[Lease]:
    """Lease the due messages to a consumer that reports its number of handlers."""
    leases: list[Lease] = bench.apply(at, c.Lease("g", T + at, (c.Grant("c", limit, LEASE_MS, epoch, handlers),)))[0]
    return leases


def attempts(bench: Bench, leases: Sequence[Lease]) -> dict[str, int]:
    """Return value -> number of the current attempt."""
    return {value: lease.attempt for lease in leases for value in bench.values([lease])}


def dead(bench: Bench) -> list[str]:
    """Return the values of the dead messages."""
    return [letter.fields[Column.VALUE].decode() for letter in bench.dead()]


def begin(bench: Bench, held: Lease, values: Sequence[str], at: int) -> None:
    """Report messages of a lease as begun."""
    named = [[message.offset, 1] for message in bench.messages(held) if message.fields[Column.VALUE].decode() in values]
    bench.apply(at, c.Extend([(held.token, LEASE_MS, named)]))


def test_first_unsettled_messages_use_an_attempt() -> None:
    bench = opened()
    base, _ = bench.append(*"abcdef")
    (held,) = lease(bench, 0, handlers=2)
    bench.ack(held.token, [[base, 1]])
    bench.ack(held.token, [[offsets.shift(base, 2), 1]])
    assert bench.expire(at=LEASE_MS) == 4
    again = lease(bench, LEASE_MS)
    assert attempts(bench, again) == {"e": 1, "f": 1, "b": 2, "d": 2}
    assert [*attempts(bench, again)] == [*"efbd"], "messages without a counted attempt come first"


def test_lease_without_handlers_charges_all() -> None:
    bench = opened()
    bench.append(*"abc")
    lease(bench, 0, handlers=0)
    bench.expire(at=LEASE_MS)
    again = lease(bench, LEASE_MS)
    assert attempts(bench, again) == {"a": 2, "b": 2, "c": 2} and {one.crashes for one in again} == {0}


def test_reported_messages_use_an_attempt() -> None:
    bench = opened()
    bench.append(*"abcde")
    (held,) = lease(bench, 0)
    begin(bench, held, "cd", at=0)
    bench.restart()
    bench.expire(at=LEASE_MS)
    assert attempts(bench, lease(bench, LEASE_MS)) == {"b": 1, "e": 1, "a": 2, "c": 2, "d": 2}


def test_after_a_crash_only_reported_messages_use_an_attempt() -> None:
    bench = opened()
    bench.append(*"abc")
    lease(bench, 0)
    bench.expire(at=LEASE_MS)
    again = lease(bench, LEASE_MS)
    assert {one.crashes for one in again} == {1}
    begin(bench, again[0], "c", at=LEASE_MS)
    bench.expire(at=2 * LEASE_MS)
    third = lease(bench, 2 * LEASE_MS)
    assert attempts(bench, third) == {"b": 1, "a": 2, "c": 2} and {one.crashes for one in third} == {2}


def test_message_is_spared_five_times_at_most() -> None:
    bench = opened(max_attempts=None)
    bench.append(*"ab")
    seen = []
    for crash in range(8):
        seen.append(attempts(bench, lease(bench, crash * LEASE_MS))["b"])
        bench.restart()
        bench.expire(at=(crash + 1) * LEASE_MS)
    assert FIXED.lease_reclaims == 5 and seen == [1, 1, 1, 1, 1, 1, 2, 2]


def test_poison_dies_alone() -> None:
    bench = opened()
    bench.append("poison", *"abcdefgh")
    at = 0
    for _ in range(10):
        leases = lease(bench, at)
        for held in leases:
            for message in bench.messages(held):
                value = message.fields[Column.VALUE].decode()
                begin(bench, held, [value], at)
                if value == "poison":
                    break
                bench.ack(held.token, [[message.offset, 1]], at=at)
            else:
                continue
            break
        at += LEASE_MS
        bench.expire(at=at)
    assert dead(bench) == ["poison"]
    assert not lease(bench, at)


def test_settled_message_is_suspect_no_longer() -> None:
    bench = opened(max_attempts=4)
    bench.append("m")
    lease(bench, 0)
    bench.expire(at=LEASE_MS)
    (held,) = lease(bench, LEASE_MS)
    bench.nack(held.token, at=LEASE_MS)
    (held,) = lease(bench, LEASE_MS)
    assert (held.attempt, held.crashes) == (3, 0)


def test_message_that_is_given_back_stays_suspect() -> None:
    bench = opened()
    bench.append("m")
    lease(bench, 0)
    bench.expire(at=LEASE_MS)
    (held,) = lease(bench, LEASE_MS)
    bench.apply(LEASE_MS, c.Nack([(held.token, None, None, None, False)]))
    (held,) = lease(bench, LEASE_MS)
    bench.apply(LEASE_MS, c.Release("g", "c"))
    (held,) = lease(bench, LEASE_MS)
    assert (held.attempt, held.crashes) == (2, 1)


def test_consumer_that_comes_back_reports_from_then_on() -> None:
    bench = opened()
    bench.append(*"ab")
    lease(bench, 0, epoch=1)
    for epoch in range(2, FIXED.lease_reclaims + 3):
        bench.reclaim(epoch)
        assert {(one.crashes, one.attempt) for one in bench.held()} in ({(1, 1)}, set())
        for held in bench.held():
            begin(bench, held, "b", at=0)
    assert attempts(bench, lease(bench, 0)) == {"a": 1, "b": 2}


def test_begun_messages_of_other_leases_change_nothing() -> None:
    bench = opened()
    base, _ = bench.append(*"ab")
    (held,) = lease(bench, 0, limit=1)
    answer = bench.apply(0, c.Extend([(held.token, LEASE_MS, [[offsets.shift(base, 1), 1], [bytes(16), 60_000]])]))
    assert answer[0] == [T + LEASE_MS] and held.begun == 0


def test_charged_messages_die_and_spared_ones_do_not() -> None:
    bench = opened(max_attempts=1)
    bench.append(*"abcd")
    (held,) = lease(bench, 0, handlers=2)
    assert held.crashes == 1, "the consumer reports begun messages, because this is the last attempt"
    begin(bench, held, "bd", at=0)
    assert bench.expire(at=LEASE_MS) == 4
    assert dead(bench) == ["b", "d"]
    assert attempts(bench, lease(bench, LEASE_MS)) == {"a": 1, "c": 1}


def test_consumer_that_reports_nothing_uses_a_last_attempt_at_the_first_crash() -> None:
    bench = opened(max_attempts=1)
    bench.append(*"ab")
    lease(bench, 0, handlers=0)
    bench.expire(at=LEASE_MS)
    assert dead(bench) == ["a", "b"]


@pytest.mark.parametrize("kind", ["priority", "fair"])
def test_ranked_messages_are_charged_in_the_order_of_their_delivery(kind: str) -> None:
    bench = RankedBench(kind, max_attempts=3, backoff=NO_WAIT)
    bench.open()
    bench.add("low", priority=5)
    bench.add("high", priority=1)
    lease(bench, 0)
    bench.expire(at=LEASE_MS)
    bench.restart()
    found = attempts(bench, lease(bench, LEASE_MS))
    assert found == {"high": 2, "low": 1}
