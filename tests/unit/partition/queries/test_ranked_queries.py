"""Tests of queries about ranked messages and their groups."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sandq.model.batch import Column
from sandq.model.times import format_instant
from sandq.partition import commands as c
from sandq.partition.queries import ranked_queries
from sandq.partition.queries.queries import PartitionQueries
from tests.support.examples import seeds
from tests.support.partition.bench import T, by_id
from tests.support.partition.ranked_bench import RankedBench

ALL_TIMES = (0, 1 << 47)
DEFAULT = "it waits for a consumer that may receive more"


def made(kind: str = "fair", **settings: Any) -> RankedBench:
    bench = RankedBench(kind, **settings)
    bench.open()
    return bench


def queries(bench: RankedBench) -> PartitionQueries:
    return PartitionQueries(bench.machine, bench.view)


def reason(bench: RankedBench, offset: bytes) -> str:
    told = queries(bench).why(by_id(offset))
    assert told is not None and told["groups"][0]["state"] == "ready"
    found: str = told["groups"][0]["reason"]
    return found


def tenants(bench: RankedBench) -> list[tuple[Any, ...]]:
    return [tuple(row.values())[:5] for row in queries(bench).group_rows()[0]["tenants"]]


# -- messages ---------------------------------------------------------------------------------------------------------


def test_messages_and_dead_letters_have_their_priority_and_tenant() -> None:
    bench = made(max_attempts=1)
    (offset,) = bench.add("a", priority=-3, tenant="acme")
    (plain,) = bench.add("b")
    page, _ = queries(bench).page(None, *ALL_TIMES, None, 10, None, False)
    for shown in (queries(bench).get(by_id(offset)), page[0]):
        assert shown is not None and (shown["priority"], shown["tenant"]) == (-3, "acme")
    assert not page[1].keys() & {"priority", "tenant"}, "the default priority and tenant are not shown"
    for lease in bench.lease(10):
        bench.nack(lease.token)
    (dead, other), _ = queries(bench).dead_page("g", None, 10, None, False)
    assert (dead["offset"], dead["priority"], dead["tenant"]) == (offset, -3, "acme")
    assert other["offset"] == plain and not other.keys() & {"priority", "tenant"}


def test_get_returns_the_changed_priority() -> None:
    bench = made("priority")
    (offset,) = bench.add("a", priority=9)
    bench.apply(0, c.Move([(by_id(offset), None, False, 2)]))
    found = queries(bench).get(by_id(offset))
    assert found is not None and found["priority"] == 2


# -- why --------------------------------------------------------------------------------------------------------------


def test_why_reports_the_in_flight_limit_of_the_tenant() -> None:
    bench = made(tenants={"acme": {"max_in_flight": 2}})
    offsets = bench.add(*"abc", tenant="acme")
    (other,) = bench.add("d")
    bench.lease(10)
    assert reason(bench, offsets[2]) == "tenant acme has 2 of 2 messages in flight"
    told = queries(bench).why(by_id(other))
    assert told is not None and told["groups"][0]["state"] == "leased"
    bench.restart()
    assert reason(bench, offsets[2]) == "tenant acme has 2 of 2 messages in flight"


def test_why_counts_earlier_messages_of_the_tenant() -> None:
    bench = made(tenants={"other": {"max_in_flight": 1}})
    low = bench.add(*"abc", priority=5, tenant="acme")
    bench.add(*"de", priority=1, tenant="acme")
    bench.add(*"fghi", priority=0, tenant="acme.more")
    expected = ["2 messages go before it in its tenant", *[f"{n} messages go before it in its tenant" for n in (3, 4)]]
    assert [reason(bench, each) for each in low] == expected, "while all messages are in the log"
    bench.add("one", tenant="other")
    lease = bench.one(limit=1)  # promotes all
    assert bench.values([lease]) == ["d"]
    assert [reason(bench, each) for each in low] == [
        "1 message goes before it in its tenant",
        "2 messages go before it in its tenant",
        "3 messages go before it in its tenant",
    ]
    bench.restart()
    assert reason(bench, low[2]) == "3 messages go before it in its tenant"
    bench.nack(lease.token, delay=0)
    assert reason(bench, low[2]) == "4 messages go before it in its tenant", "the returned message counts too"
    bench.add("later", priority=0, tenant="acme")
    assert reason(bench, low[2]) == "5 messages go before it in its tenant", "and the new message counts too"


def test_why_names_no_tenant_in_a_priority_topic() -> None:
    bench = made("priority")
    first, second = bench.add("a", "b", priority=3)
    assert reason(bench, first) == DEFAULT
    assert reason(bench, second) == "1 message goes before it"


def test_why_respects_ageing() -> None:
    bench = made("priority", ageing="1s")
    (old,) = bench.add("old", priority=3)
    bench.add("young", priority=1, at=1000)
    (last,) = bench.add("last", priority=3, at=5000)
    (bulk,) = bench.add("urgent", priority=0, at=6000)
    assert bench.take(1, at=6000) == ["young"]
    assert reason(bench, old) == DEFAULT
    assert reason(bench, bulk) == "1 message goes before it"
    assert reason(bench, last) == "2 messages go before it"
    assert bench.take(3, at=6000) == ["old", "urgent", "last"]


def test_why_checks_a_limited_number_of_messages() -> None:
    bench = made("priority")
    for _ in range(3):
        bench.add(*["x"] * 400, priority=1)
    (last,) = bench.add("last", priority=2)
    assert reason(bench, last) in ("1000 or more messages go before it", "more than 1000 messages go before it")
    bench.take(1)
    assert reason(bench, last) == "more than 1000 messages go before it"
    offsets = bench.add("one", priority=1)
    assert reason(bench, offsets[0]) == "more than 1000 messages go before it"


# -- groups -----------------------------------------------------------------------------------------------------------


def test_group_rows_list_tenants_with_counts() -> None:
    bench = made(tenants={"acme": {"weight": 3, "max_in_flight": 1}, "*": {"weight": 2}})
    bench.add(*"abc", tenant="acme")
    bench.add(*"de", tenant="bolt")
    (lease,) = bench.lease(1)
    assert bench.values([lease]) == ["a"]
    assert tenants(bench) == [("acme", 2, 1, 1, 3), ("bolt", 2, 0, None, 2)]
    bench.nack(lease.token, delay=0)
    assert tenants(bench) == [("acme", 3, 0, 1, 3), ("bolt", 2, 0, None, 2)]
    assert sorted(bench.take(10)) == ["a", "d", "e"]
    assert tenants(bench) == [("acme", 2, 0, 1, 3)]


def test_tenant_row_has_the_time_when_its_rate_allows_more() -> None:
    bench = made(tenants={"acme": {"rate": "2/s", "burst": 2}})
    offsets = bench.add(*"abc", tenant="acme")
    bench.add("d", tenant="bolt")

    def paces() -> list[tuple[Any, ...]]:
        return [tuple(row.values())[5:] for row in queries(bench).group_rows()[0]["tenants"]]

    assert len(bench.take(10)) == 3
    assert paces() == [("2/s", 2, T + 500)]
    assert reason(bench, offsets[2]) == (
        f"tenant acme has had what its rate allows, its next message may go at {format_instant(T + 500)}"
    )
    bench.add("e", tenant="bolt", at=499)
    assert bench.lease(10, at=499) != []
    assert paces() == [("2/s", 2, T + 500), (None, None, None)]
    bench.apply(499, c.Configure(bench.settings | {"tenants": []}))
    assert paces() == [(None, None, None)] * 2, "the rate was removed"
    assert sorted(bench.take(10, at=499)) == ["c"]


def test_priority_group_has_no_tenants() -> None:
    bench = made("priority")
    bench.add("a")
    assert "tenants" not in queries(bench).group_rows()[0]


def test_group_rows_list_the_tenants_with_the_most_ready_messages() -> None:
    bench = made()
    count = ranked_queries.TENANTS + 20
    for number in range(count):
        bench.add(*["x"] * (1 + number % 2), tenant=f"t{number:03}")
    bench.take(1)
    rows = tenants(bench)
    assert len(rows) == ranked_queries.TENANTS
    assert [row[1] for row in rows] == sorted([row[1] for row in rows], reverse=True)


def test_a_nack_with_another_priority_counts_as_that_one() -> None:
    bench = made("priority")
    bench.add("a", priority=1)
    (other,) = bench.add("b", priority=2)
    lease = bench.one(limit=1)
    bench.apply(0, c.Nack([(lease.token, None, 0, None, True, {Column.PRIORITY: 5})]))
    assert reason(bench, other) == DEFAULT


@pytest.mark.parametrize("seed", seeds(20, 200))
def test_why_counts_the_earlier_messages(seed: int) -> None:
    rng = random.Random(seed)
    settings: dict[str, Any] = {"backoff": {"kind": "none"}, "max_attempts": None}
    bench = made("priority", **settings, **({"ageing": "1s"} if seed % 2 else {}))
    offsets: dict[str, bytes] = {}
    at = number = 0
    for _ in range(rng.randrange(3, 12)):
        at += rng.choice([0, 0, 500, 1000, 2000])
        values = [f"m{number + place}" for place in range(rng.randrange(1, 4))]
        number += len(values)
        priorities = [rng.randrange(-2, 3) for _ in values]
        offsets.update(zip(values, bench.add(*values, priority=priorities, at=at), strict=True))
        for lease in bench.lease(rng.randrange(3), at=at) if rng.random() < 0.4 else ():
            if rng.random() < 0.5:
                bench.nack(lease.token, delay=0, at=at)
                continue
            for value in bench.values([lease]):
                del offsets[value]
            bench.ack(lease.token, at=at)
        if rng.random() < 0.2:
            bench.restart()
    said = {value: reason(bench, offset) for value, offset in offsets.items()}
    order = [value for _ in offsets for value in bench.take(1, at=at)]
    assert {value: int(text.split()[0]) if text != DEFAULT else 0 for value, text in said.items()} == {
        value: place for place, value in enumerate(order)
    }
