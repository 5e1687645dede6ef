"""Tests that a unique key in a fair topic belongs to its tenant."""

from __future__ import annotations

import pytest

from sandq.partition import commands as c
from sandq.partition.base import rows
from tests.support.partition.bench import by_key
from tests.support.partition.ranked_bench import RankedBench
from tests.unit.partition.test_clock_reset import YEAR, set_back

HOUR = 3_600_000


def key_of(tenant: str | None) -> c.Target:
    return [c.TARGET_KEY, b"k", *([] if tenant is None else [tenant])]


@pytest.fixture
def bench() -> RankedBench:
    bench = RankedBench(kind="fair", dedup_window="1h", max_attempts=1)
    bench.open()
    return bench


def test_tenants_have_keys_of_their_own(bench: RankedBench) -> None:
    acme = bench.add("of acme", tenant="acme", unique=["k"])
    nobody = bench.add("of nobody", unique=["k"])
    default = bench.add("of default", tenant="default", unique=["k"])
    beta = bench.add("of beta", tenant="beta", unique=["k"], due=[9000])
    assert default == nobody and len({*acme, *nobody, *beta}) == 3
    assert bench.cancel(key_of(None)) == ("cancelled", nobody[0])
    assert bench.cancel(key_of("default")) == ("cancelled", nobody[0]), "it is remembered"
    assert bench.cancel(key_of("gamma")) == ("not_found", None)
    assert bench.move(key_of("beta"), 8000)[0] == "moved"
    assert bench.take(9) == ["of acme"]
    assert bench.take(9, at=8000) == ["of beta"]


def test_a_name_that_goes_on_is_another_tenant(bench: RankedBench) -> None:
    one = bench.add("one", tenant="acme", unique=["video.k"])
    other = bench.add("other", tenant="acme.video", unique=["k"])
    assert one != other
    assert bench.cancel(key_of("acme.video")) == ("cancelled", other[0])
    assert bench.take(9) == ["one"]


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_key_of_leased_message_is_taken_for_the_window(bench: RankedBench, is_apart: bool, is_restarted: bool) -> None:
    value = "v" * 5000 if is_apart else "v"
    first = bench.add(value, tenant="acme", unique=["k"])
    lease = bench.one(limit=1)
    if is_restarted:
        bench.restart()
    assert bench.add("w", tenant="acme", unique=["k"], at=1) == first
    assert bench.add("w", tenant="beta", unique=["k"], at=1) != first
    bench.nack(lease.token, at=1)
    bench.trim(HOUR)
    assert bench.add("w", tenant="acme", unique=["k"], at=HOUR) != first


def test_a_topic_without_tenants_has_plain_keys() -> None:
    bench = RankedBench(kind="priority")
    bench.open()
    offset = bench.add("a", unique=["k"])
    assert [key for key, _ in bench.rows(rows.UNIQUE)] == [rows.UNIQUE + b"k"]
    assert bench.cancel(by_key("k")) == ("cancelled", offset[0])
    assert bench.rows(rows.SCOPED_UNIQUE) == []


def test_a_clock_that_is_set_back_keeps_the_window() -> None:
    bench = RankedBench(kind="fair", dedup_window="1h")
    bench.open()
    first = bench.add("a", tenant="acme", unique=["k"], at=YEAR)
    bench.ack(bench.one(at=YEAR, limit=1).token, at=YEAR)
    set_back(bench, 3000)
    assert bench.add("b", tenant="acme", unique=["k"], at=HOUR) == first
    bench.trim(at=HOUR + 3001)
    assert bench.add("b", tenant="acme", unique=["k"], at=HOUR + 3001) != first
