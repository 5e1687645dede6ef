"""Tests of rates with a unit in one partition: costs of new, returned, kept, blocked and ranked messages."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.batch import Column, encode
from sandq.model.errors import InvalidRequest
from sandq.model.group_limits import GroupLimit, limits_of, parse_limit, with_limit
from sandq.model.limits import Limits
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.produce_validation import BatchTarget, check_batch
from sandq.partition.queries.queries import PartitionQueries
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.ranked_bench import RankedBench

LIMIT = {"rate": "10/s", "burst": 10, "unit": "tokens"}


def limit(bench: Bench, at: int = 0, partitions: int = 1, **given: Any) -> GroupLimit:
    record = with_limit(bench.machine.settings, "g", partitions, parse_limit(given))
    assert bench.apply(at, c.Configure(record)) == [None]
    return limits_of(record)["g"]


def limited(**settings: Any) -> Bench:
    bench = Bench(**settings)
    bench.open()
    limit(bench, **LIMIT)
    return bench


def values(bench: Bench, at: int, most: int = 100) -> list[str]:
    """Lease messages, and return their values."""
    return bench.values(bench.lease(at=at, limit=most))


def next_ms(bench: Bench) -> int | None:
    """Return the time of the next lease."""
    status = bench.status().groups.get("g")
    assert status is not None
    return None if status.due_ms is None else status.due_ms - T


def reason(bench: Bench, offset: bytes) -> str:
    """Return why a message is not leased."""
    shown = PartitionQueries(bench.machine, bench.view).why(by_id(offset))
    assert shown is not None
    text: str = shown["groups"][0]["reason"]
    return text


def test_messages_are_leased_up_to_the_available_units() -> None:
    bench = limited()
    bench.send(*"abcd", costs=[4, None, 4, 3])
    assert values(bench, 0) == ["a", "b", "c"]
    assert next_ms(bench) == 200
    assert values(bench, 199) == []
    bench.restart()
    assert next_ms(bench) == 200
    assert values(bench, 200) == ["d"]


def test_message_of_cost_one_waits_behind_a_larger_one() -> None:
    bench = limited()
    bench.send(*"abc", costs=[8, 5, None])
    assert values(bench, 0) == ["a"]
    assert values(bench, 299) == []
    assert values(bench, 300) == ["b"]
    assert values(bench, 399) == []
    assert values(bench, 400) == ["c"]


def test_cost_above_the_burst_waits_for_the_whole_burst_and_is_paid_afterwards() -> None:
    bench = limited()
    bench.send(*"abcd", costs=[1, 50, 1, 10])
    assert values(bench, 0) == ["a"]
    assert values(bench, 99) == []
    assert values(bench, 100) == ["b"]
    assert next_ms(bench) == 100 + 4000 + 100
    bench.restart()
    assert values(bench, 4199) == []
    assert values(bench, 4200) == ["c"]
    assert values(bench, 5199) == []
    assert values(bench, 5200) == ["d"]


def test_new_definition_with_a_lower_burst_forgets_the_need_of_the_next_message() -> None:
    """Otherwise the partition would wait for more units than the whole limit has."""
    bench = Bench()
    bench.open()
    limit(bench, limit="llm")
    bench.apply(0, c.AllowLimit([("g", 1, 4, 7, 0, 20, 0, [None, 100_000, 60, "tokens"], None)]))
    bench.send("a", costs=[50])
    assert values(bench, 0) == [], "the share has too few units"
    bench.apply(0, c.AllowLimit([("g", 1, 5, 8, 0, 10, 0, [None, 100_000, 10, "tokens"], None)]))
    bench.restart()
    assert next_ms(bench) == 0
    assert values(bench, 0) == ["a"]


def test_batch_rows_are_leased_in_parts() -> None:
    bench = limited()
    bench.append(*[f"{number:02}" for number in range(25)])
    assert len(values(bench, 0)) == 10
    assert values(bench, 50) == []
    assert values(bench, 300) == ["10", "11", "12"]


def test_retries_cost_again() -> None:
    bench = limited(backoff={"kind": "none"})
    bench.send(*"abc", costs=[6, 4, 2])
    (lease,) = bench.lease()
    assert bench.values([lease]) == ["a", "b"]
    bench.nack(lease.token, at=100)
    assert values(bench, 599) == []
    assert values(bench, 600) == ["a"], "the returned message waits before the new one"
    assert values(bench, 1000) == ["b"]
    assert values(bench, 1200) == ["c"]


def test_lease_command_stops_before_a_returned_message_that_does_not_fit() -> None:
    bench = limited(backoff={"kind": "none"})
    bench.put("large", cost=10)
    bench.nack(bench.one().token)
    bench.put("small")
    grants = (c.Grant("one", 5, 30_000), c.Grant("two", 5, 30_000))
    assert bench.apply(900, c.Lease("g", T + 900, grants)) == [[]]
    assert values(bench, 1000) == ["large"]
    assert values(bench, 1100) == ["small"]


def test_costs_of_messages_that_the_group_keeps() -> None:
    bench = limited(max_attempts=1)
    bench.send("a", "b", costs=[6, 5])
    for at in (0, 1000):
        (lease,) = bench.lease(at=at)
        bench.nack(lease.token, at=at)
    assert len(bench.dead()) == 2
    bench.trim(100_000)
    bench.job("redrive", 100_000)
    assert values(bench, 100_000) == ["a"]
    assert values(bench, 100_099) == []
    assert values(bench, 100_100) == ["b"]


def test_costs_of_messages_whose_keys_blocked_them() -> None:
    bench = limited(ordering="key")
    bench.send("a", "b", "c", keys=["k", "k", "k"], costs=[1, 10, 1])
    lease = bench.one()
    bench.ack(lease.token)
    assert values(bench, 99) == []
    lease = bench.one(at=100)
    assert bench.values([lease]) == ["b"]
    bench.ack(lease.token, at=100)
    assert values(bench, 199) == []
    assert values(bench, 200) == ["c"]


def test_message_that_its_key_blocks_needs_no_units() -> None:
    bench = limited(ordering="key")
    bench.send("a", "b", "c", keys=["k", "k", "l"], costs=[5, 10, 2])
    assert values(bench, 0) == ["a", "c"]
    assert next_ms(bench) is None


def test_expired_message_needs_no_units() -> None:
    bench = limited(ordering="key")
    first, second = bench.send("a", "b", keys=["k", "k"], costs=[5, 10], ttls=[None, 50]), bench.put("c", cost=2)
    lease = bench.one(limit=1)
    assert bench.values(bench.lease(at=60)) == ["c"], "the key blocks the message with the ttl"
    bench.ack(lease.token, at=60)
    bench.send("d", "e", costs=[10, 1], ttls=[50, None], at=61)
    assert values(bench, 200) == ["e"]
    assert len(bench.dead()) == 2
    assert first.offsets < second


@pytest.mark.parametrize("kind", ["priority", "fair"])
def test_costs_in_topics_with_ranks(kind: str) -> None:
    bench = RankedBench(kind, backoff={"kind": "none"})
    bench.open()
    limit(bench, **LIMIT)
    bench.add("a", "b", "c", "d", costs=[5, None, 9, None], priority=[1, 2, 3, 4])
    (lease,) = bench.lease(limit=10)
    assert bench.values([lease]) == ["a", "b"]
    assert bench.lease(limit=10, at=499) == [], "the message with cost 9 is next"
    bench.nack(lease.token, at=499)
    assert bench.values(bench.lease(limit=10, at=500)) == ["a", "b"]
    bench.restart()
    assert bench.lease(limit=10, at=1099) == []
    assert bench.values(bench.lease(limit=10, at=1100)) == ["c"]
    assert bench.values(bench.lease(limit=10, at=1200)) == ["d"]


def ranked_behind_a_large_message(**settings: Any) -> RankedBench:
    """Return a group that waits for the units of a message with cost 10."""
    bench = RankedBench("priority", **settings)
    bench.open()
    limit(bench, **LIMIT)
    bench.add("first", "large", costs=[5, 10], priority=5)
    assert bench.values(bench.lease()) == ["first"]
    assert bench.lease() == []
    assert next_ms(bench) == 500
    return bench


def test_message_of_a_better_priority_does_not_wait_for_the_units_of_a_larger_one() -> None:
    bench = ranked_behind_a_large_message()
    bench.add("urgent", costs=[2], priority=0, at=10)
    assert next_ms(bench) == 10
    bench.restart()
    assert next_ms(bench) == 10
    assert bench.values(bench.lease(at=10)) == ["urgent"]
    assert bench.lease(at=10) == []
    assert next_ms(bench) == 700, "nothing else may come first, so no lease is needed before"
    assert bench.values(bench.lease(at=700)) == ["large"]


def test_scheduled_message_of_a_better_priority_is_leased_at_its_time_before_a_larger_one() -> None:
    bench = ranked_behind_a_large_message()
    bench.add("later", costs=[2], priority=0, due=[300], at=10)
    assert next_ms(bench) == 300
    assert bench.values(bench.lease(at=300)) == ["later"]


def test_retry_of_a_better_priority_is_leased_at_its_time_before_a_larger_one() -> None:
    bench = ranked_behind_a_large_message(backoff={"kind": "fixed", "first": "300ms", "jitter_percent": 0})
    bench.add("urgent", costs=[2], priority=0)
    bench.nack(bench.one().token)
    assert bench.lease() == []
    assert next_ms(bench) == 300
    assert bench.values(bench.lease(at=300)) == ["urgent"]


def test_message_that_is_not_ranked_yet_waits_for_any_unit() -> None:
    bench = RankedBench("priority")
    bench.open()
    limit(bench, **LIMIT)
    bench.add("first", "large", costs=[15, 10], priority=5)
    assert bench.values(bench.lease()) == ["first"]
    assert bench.lease() == []
    bench.add("urgent", costs=[2], priority=0)
    assert next_ms(bench) == 600


def test_tenants_share_a_rate_message_by_message() -> None:
    bench = RankedBench("fair")
    bench.open()
    limit(bench, **LIMIT)
    bench.add(*[f"a{number}" for number in range(8)], tenant="a")
    bench.add(*[f"b{number}" for number in range(8)], tenant="b")
    assert sorted(bench.values(bench.lease(limit=100))) == sorted(f"{name}{n}" for name in "ab" for n in range(5))


def test_in_flight_counts_messages() -> None:
    bench = Bench()
    bench.open()
    limit(bench, max_in_flight=2, **LIMIT)
    bench.send(*"abc", costs=[3, 3, 3])
    assert values(bench, 0) == ["a", "b"]


def test_rate_without_a_unit_counts_messages() -> None:
    bench = Bench()
    bench.open()
    limit(bench, rate="10/s", burst=2)
    bench.send(*"abc", costs=[3, 300, 3])
    assert values(bench, 0) == ["a", "b"]
    assert values(bench, 100) == ["c"]


def test_why_says_what_the_next_message_needs() -> None:
    bench = limited()
    first, second = bench.put("a", cost=8), bench.put("b", cost=1200)
    bench.one()
    assert bench.lease() == []
    assert reason(bench, second) == (
        "it waits for the rate of the group, 10/s tokens: the next message needs 10 and 2 are available, free in 800ms"
    )
    assert first < second


def test_group_shows_its_unit() -> None:
    bench = limited()
    (row,) = PartitionQueries(bench.machine, bench.view).group_rows()
    assert row["limits"]["unit"] == "tokens"


def test_partition_with_too_few_units_asks_for_those_that_it_needs() -> None:
    bench = Bench()
    bench.open()
    limit(bench, partitions=2, **LIMIT)
    bench.apply(0, c.ShareLimit("g", 1, [(1, 0, 0, 0)], []))
    bench.apply(0, c.ShareLimit("g", 1, [], [(1, 0, 6)]))
    bench.send("a", costs=[7])
    assert values(bench, 5000) == []
    status = bench.status().groups.get("g")
    assert status is not None and status.limit is not None
    assert (status.next_ms, status.limit.free_ms, status.limit.holds_up(T + 5000)) == (None, None, (False, 7))
    bench.restart()
    again = bench.status().groups.get("g")
    assert again is not None and again.limit == status.limit


def test_clock_reset_keeps_the_debt() -> None:
    bench = limited()
    bench.put("a", cost=10)
    ahead = 30 * 86_400_000
    bench.put("b", at=ahead, cost=30)
    for at in (0, 1000):
        bench.ack(bench.one(at=ahead + at).token, at=ahead + at)
    bench.apply(2000, c.ClockReset(T + 2000))
    for _ in range(100):
        bench.apply(2000, c.Upkeep())
    bench.put("c", at=2000)
    assert values(bench, 4099) == []
    assert values(bench, 4100) == ["c"]


def test_rows_of_a_message_have_its_cost() -> None:
    bench = limited()
    bench.send("a", "b" * 9000, costs=[7, 8])
    found = [rows.log_entry(key, value) for key, value in bench.rows(rows.LOG)]
    assert [(entry.length, entry.cost) for entry in found] == [(1, 7), (1, 8)]
    bench.send("c", "d")
    assert [rows.log_entry(key, value).cost for key, value in bench.rows(rows.LOG)] == [7, 8, 1, 1]


@pytest.mark.parametrize("cost", [0, -5, 10**9 + 1, 2**62])
def test_wrong_cost_is_refused_by_the_leader(cost: int) -> None:
    batch = encode({Column.VALUE: [b"a", b"b"], Column.COST: [1, cost]})
    with pytest.raises(InvalidRequest, match=r"^message 1 of the batch: cost is wrong: a whole number from 1 to"):
        check_batch(batch, T, Limits(), BatchTarget(0, 1, ordered=False))


def test_compacted_topic_takes_no_cost() -> None:
    batch = encode({Column.VALUE: [b"a"], Column.KEY: [b"k"], Column.COST: [2]})
    with pytest.raises(InvalidRequest, match=r"^cost: this is a compacted topic"):
        check_batch(batch, T, Limits(), BatchTarget(0, 1, ordered=False, compacted=True))


def test_costs_in_a_batch_that_was_not_checked_do_no_harm() -> None:
    """A leader of an earlier term checked by other rules. Such a batch must not stop the partition."""
    for cost in (0, -5, 2**62):
        bench = limited()
        bench.send("a", "b", costs=[cost, cost])
        for at in (0, 5000):
            bench.lease(at=at, limit=100)
        bench.restart()
