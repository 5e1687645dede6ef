"""Tests of `max_in_flight_per_key`: it limits the leased messages of a key in a group.

A group may have a lower limit.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.groups.key_order import KeyOrder
from sandq.partition.log.trim import PIN_MS
from sandq.partition.queries.queries import PartitionQueries
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.plain_groups import check_groups

BOTH = pytest.mark.parametrize("restart", [True, False])


def of_key(count: int, *, limit: int = 2, restart: bool = False, **settings: Any) -> Bench:
    """Return a group in a topic with this limit, and `count` messages of key k. `restart`: load it from rows."""
    bench = Bench(max_in_flight_per_key=limit, **settings)
    bench.open()
    for n in range(count):
        bench.put(f"{n}", key="k")
    if restart:
        bench.restart()
    return bench


def configure(bench: Bench, limit: int | None, at: int = 0) -> None:
    bench.apply(at, c.ConfigureGroup("g", {} if limit is None else {"max_in_flight_per_key": limit}))


def why(bench: Bench, offset: bytes) -> str:
    told = PartitionQueries(bench.machine, bench.view).why(by_id(offset))
    assert told is not None
    reason: str = told["groups"][0]["reason"]
    return reason


def shown(bench: Bench) -> tuple[int, int]:
    """Number of ready messages, and number of these that wait for their key, as in a list of groups."""
    (row,) = PartitionQueries(bench.machine, bench.view).group_rows()
    return row["ready"], row["blocked_by_key"]


@BOTH
def test_messages_of_a_key_in_flight_are_limited_and_in_order(restart: bool) -> None:
    bench = of_key(5)
    bench.put("other", key="l")
    bench.put("none")
    (lease,) = bench.lease()
    assert bench.values([lease]) == ["0", "1", "other", "none"]
    if restart:
        bench.restart()
    assert bench.lease() == []
    status = bench.status().groups[0]
    assert (status.leased, status.ready, status.next_ms) == (4, 3, None)
    bench.ack(lease.token, [[lease.ranges[1].base, 1]])
    if restart:
        bench.restart()
    assert bench.status().groups[0].next_ms == T, "the next message may be leased"
    third = bench.one()
    assert bench.values([third]) == ["2"], "although the first message is not settled"
    bench.ack(third.token)
    bench.ack(lease.token)
    assert bench.values(bench.lease()) == ["3", "4"]
    check_groups(bench)


@BOTH
def test_message_waiting_for_retry_counts_for_the_limit(restart: bool) -> None:
    bench = of_key(4, max_attempts=2)
    lease = bench.one()
    bench.nack(lease.token, [[lease.ranges[0].base, 1]], delay=1000)
    if restart:
        bench.restart()
    assert bench.lease(at=1) == []
    again = bench.one(at=1000)
    assert (bench.values([again]), again.attempt) == (["0"], 2)
    bench.nack(again.token, at=1000)
    if restart:
        bench.restart()
    assert bench.values(bench.lease(at=1001)) == ["2"], "a dead message does not"
    assert bench.lease(at=1001) == []


@BOTH
def test_messages_without_a_key_have_no_limit(restart: bool) -> None:
    bench = of_key(0, restart=restart)
    bench.append(*["m"] * 10)
    assert bench.one().total == 10


def test_message_behind_blocked_message_of_its_key_does_not_overtake() -> None:
    """When the cursor reaches the message, the key has room. But the blocked message of the key comes first."""
    bench = of_key(3, limit=2)
    lease = bench.one()
    assert bench.lease() == []
    bench.put("3", key="k")
    bench.ack(lease.token)
    assert bench.values(bench.lease(limit=1)) == ["2"]
    assert bench.values(bench.lease()) == ["3"]


@BOTH
def test_a_lower_limit_holds_as_messages_are_settled(restart: bool) -> None:
    bench = of_key(6, limit=3)
    lease = bench.one()
    assert lease.total == 3
    configure(bench, 1)
    if restart:
        bench.restart()
    for taken in lease.ranges[:2]:
        bench.ack(lease.token, [[taken.base, 1]])
        assert bench.lease() == []
    bench.ack(lease.token)
    (one,) = bench.lease()
    assert bench.values([one]) == ["3"]
    assert bench.lease() == []
    check_groups(bench)


@BOTH
@pytest.mark.parametrize("limit", [2, 3, None])
def test_higher_limit_frees_blocked_messages_immediately(restart: bool, limit: int | None) -> None:
    bench = of_key(6, limit=3)
    configure(bench, 1)
    assert bench.values(bench.lease()) == ["0"]
    configure(bench, limit, at=5)
    if restart:
        bench.restart()
    assert bench.status().groups[0].next_ms == T
    assert bench.values(bench.lease(at=6)) == [str(n) for n in range(1, limit or 3)]
    check_groups(bench)


def test_lower_limit_takes_a_turn_back() -> None:
    bench = of_key(5, limit=3)
    configure(bench, 1)
    bench.lease()
    configure(bench, 3)
    configure(bench, 1)
    assert bench.status().groups[0].next_ms is None
    assert bench.lease() == []
    configure(bench, 2)
    assert bench.values(bench.lease()) == ["1"]


def test_a_group_is_never_above_its_topic() -> None:
    bench = of_key(5, limit=2)
    configure(bench, 1000)
    assert bench.one().total == 2


def test_limits_of_groups_are_their_own() -> None:
    bench = of_key(5, limit=3)
    bench.open("h")
    configure(bench, 1)
    assert (bench.one().total, bench.one(group="h").total) == (1, 3)


@BOTH
def test_unblocked_message_can_be_cancelled(restart: bool) -> None:
    bench = of_key(0)
    ids = [bench.put(f"{n}", key="k") for n in range(6)]
    lease = bench.one()
    bench.ack(lease.token)
    assert bench.cancel(ids[2])[0] == bench.cancel(ids[4])[0]
    if restart:
        bench.restart()
    assert bench.values(bench.lease()) == ["3", "5"]


@BOTH
def test_redriven_messages_precede_unblocked_messages(restart: bool) -> None:
    bench = of_key(5, max_attempts=1)
    lease = bench.one()
    bench.nack(lease.token)
    bench.job("redrive", at=1)
    if restart:
        bench.restart()
    again = bench.one(at=1)
    assert bench.values([again]) == ["0", "1"]
    assert bench.lease(at=1) == []
    bench.ack(again.token, at=1)
    assert bench.values(bench.lease(at=1)) == ["2", "3"]


@BOTH
def test_a_seek_begins_again_with_the_limit(restart: bool) -> None:
    bench = of_key(4)
    bench.ack(bench.one().token)
    assert bench.one().total == 2
    bench.seek("earliest")
    if restart:
        bench.restart()
    assert bench.one(limit=10).total == 2
    assert bench.lease() == []


@BOTH
def test_blocked_messages_are_leased_from_their_copies(restart: bool) -> None:
    bench = of_key(5)
    lease = bench.one(ms=12 * 3_600_000)
    assert bench.lease() == []
    at = PIN_MS + 10
    bench.apply(at, c.Ack([]))
    bench.trim(at)
    assert len(bench.rows(rows.KEPT)) == 5, "the log is not kept for blocked messages"
    if restart:
        bench.restart()
    bench.ack(lease.token, at=at)
    following = bench.one(at=at)
    assert (bench.values([following]), following.kept) == (["2", "3"], True)
    bench.ack(following.token, at=at)
    bench.ack(bench.one(at=at).token, at=at)
    assert bench.rows(rows.KEPT) == bench.rows(rows.BLOCKED) == []


def test_expired_message_unblocks_the_next() -> None:
    bench = of_key(0)
    for n, ttl in enumerate((None, None, 50, 50, None, None)):
        bench.put(f"{n}", key="k", ttl=ttl)
    lease = bench.one(limit=2)
    assert bench.lease() == []
    bench.ack(lease.token, at=100)
    assert bench.values(bench.lease(at=100)) == ["4", "5"]
    assert [m.reason for m in bench.dead()] == ["expired"] * 2


def test_why_explains_blocked_messages() -> None:
    bench = of_key(0, limit=3)
    ids = [bench.put(f"{n}", key="k") for n in range(6)]
    configure(bench, 2)
    lease = bench.one()
    bench.lease()
    assert why(bench, ids[2]) == "it waits for messages of its key: 2 of 2 are in flight"
    configure(bench, 1)
    assert why(bench, ids[2]) == "it waits for an earlier message of its key"
    configure(bench, 2)
    bench.ack(lease.token, [[ids[0], 1]])
    assert why(bench, ids[2]) == "it waits for a consumer that may receive more"
    assert why(bench, ids[3]) == "it waits for an earlier message of its key"


@BOTH
def test_blocked_messages_are_counted(restart: bool) -> None:
    """Only read and blocked messages count. Messages that may be leased or are not due do not count."""
    bench = of_key(5, restart=restart)
    bench.put("later", due=9_000, key="k")
    other = bench.put("other", key="l")
    assert shown(bench) == (6, 0), "the group has read no message yet"
    lease = bench.one(limit=10)
    assert bench.lease() == [] and bench.values([lease]) == ["0", "1", "other"]
    assert shown(bench) == (3, 3)
    bench.ack(lease.token, [[other, 1]])
    assert shown(bench) == (3, 3)
    bench.ack(lease.token)
    assert shown(bench) == (3, 1), "two messages wait only for a consumer"
    bench.lease()
    assert shown(bench) == (1, 1)


def test_without_a_limit_nothing_is_said_of_keys() -> None:
    bench = Bench()
    bench.open()
    assert "blocked_by_key" not in PartitionQueries(bench.machine, bench.view).group_rows()[0]
    bench = Bench(ordering="key")
    bench.open()
    bench.put("0", key="k")
    bench.put("1", key="k")
    bench.one()
    bench.lease()
    assert shown(bench) == (1, 1)


# -- the key order alone ----------------------------------------------------------------------------------------------


class Plain:
    """A simple model of the key order that checks every message."""

    def __init__(self) -> None:
        self.busy: dict[bytes, int] = {}
        self.blocked: dict[bytes, int] = {}

    def free(self, limit: int) -> list[bytes]:
        """Return the blocked messages that are free, computed in the simplest way."""
        taken = Counter(self.busy.values())
        found = []
        for offset, key in sorted(self.blocked.items()):
            if taken[key] < limit:
                taken[key] += 1
                found.append(offset)
        return found


@pytest.mark.parametrize("seed", range(20))
def test_turns_equal_those_of_a_full_scan(seed: int) -> None:
    rng, order, plain = random.Random(seed), KeyOrder(), Plain()
    ends: list[bytes] = []
    for number in range(400):
        offset, key = offsets.pack(number, 0, 0, 0), rng.randrange(3)
        free, busy = plain.free(order.limit), list(plain.busy)
        match rng.randrange(7):
            case 0 | 1:
                is_full = Counter(plain.busy.values())[key] >= order.limit or key in plain.blocked.values()
                assert order.is_full(key) == is_full
                if is_full:
                    order.block(offset, key)
                    plain.blocked[offset] = key
                else:
                    order.start(offset, key)
                    plain.busy[offset] = key
            case 2 if free:
                order.take(free[0])
                plain.busy[free[0]] = plain.blocked.pop(free[0])
            case 3 if busy:
                ends.append(done := rng.choice(busy))
                order.finish(done)
                del plain.busy[done]
            case 4 if plain.blocked:
                gone = rng.choice(list(plain.blocked))
                order.remove(gone)
                del plain.blocked[gone]
            case 5:
                order.set_limit(rng.randrange(1, 4))
            case 6 if ends:
                again = ends.pop()
                order.start(again, key)  # redriven
                plain.busy[again] = key
        free = plain.free(order.limit)
        assert order.first_free() == (free[0] if free else None)
        assert [one for one in sorted(plain.blocked) if order.is_free(one)] == free
        assert order.waiting == len(plain.blocked) - len(free)
        assert order.blocked == plain.blocked
        assert order.lowest() == min(plain.blocked, default=None)
        assert [order.busy_of(key) for key in range(3)] == [Counter(plain.busy.values())[key] for key in range(3)]
    queues = (order._free_by_key, order._blocked_by_key)
    assert not any(queue is None or not queue for by_key in queues for queue in by_key.values())


@pytest.mark.parametrize("seed", range(5))
def test_heap_of_turns_does_not_grow(seed: int) -> None:
    rng, order = random.Random(seed), KeyOrder()
    order.start(offsets.pack(0, 0, 0, 0), 0)
    for number in range(1, 20):
        order.block(offsets.pack(number, 0, 0, 0), 0)
    for _ in range(500):
        order.set_limit(rng.randrange(1, 20))
        free = [one for one in sorted(order.blocked) if order.is_free(one)]
        assert order.first_free() == (free[0] if free else None)
    assert len(order._free) < 150
