"""In a fair topic a unique key is its tenant's, from its level on; what was taken before stays taken for all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandq.partition import commands as c
from sandq.partition import rows
from sandq.partition.levels import IN_PLACE, SCOPED_KEYS
from tests.support.partition.bench import T, by_key
from tests.support.partition.ranked_bench import RankedBench
from tests.unit.partition.test_clock_reset import YEAR, set_back

HOUR = 3_600_000


def key_of(tenant: str | None) -> c.Target:
    return [c.TARGET_KEY, b"k", *([] if tenant is None else [tenant])]


@pytest.fixture
def bench() -> RankedBench:
    bench = RankedBench(kind="fair", level=SCOPED_KEYS, dedup_window="1h", max_attempts=1)
    bench.open()
    return bench


@pytest.fixture
def old() -> RankedBench:
    bench = RankedBench(kind="fair", level=IN_PLACE, dedup_window="1h", max_attempts=1)
    bench.open()
    return bench


def test_tenants_have_keys_of_their_own(bench: RankedBench) -> None:
    acme = bench.add("of acme", tenant="acme", unique=["k"])
    nobody = bench.add("of nobody", unique=["k"])
    default = bench.add("of default", tenant="default", unique=["k"])
    beta = bench.add("of beta", tenant="beta", unique=["k"], due=[9000])
    assert default == nobody and len({*acme, *nobody, *beta}) == 3
    assert bench.cancel(key_of(None)) == ["cancelled", nobody[0]]
    assert bench.cancel(key_of("default")) == ["cancelled", nobody[0]], "it is remembered"
    assert bench.cancel(key_of("gamma")) == ["not_found", None]
    assert bench.move(key_of("beta"), 8000)[0] == "moved"
    assert bench.take(9) == ["of acme"]
    assert bench.take(9, at=8000) == ["of beta"]


def test_a_name_that_goes_on_is_another_tenant(bench: RankedBench) -> None:
    one = bench.add("one", tenant="acme", unique=["video.k"])
    other = bench.add("other", tenant="acme.video", unique=["k"])
    assert one != other
    assert bench.cancel(key_of("acme.video")) == ["cancelled", other[0]]
    assert bench.take(9) == ["one"]


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_key_of_what_was_leased_is_taken_for_the_window(
    bench: RankedBench, is_apart: bool, is_restarted: bool
) -> None:
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
    bench = RankedBench(kind="priority", level=SCOPED_KEYS)
    bench.open()
    offset = bench.add("a", unique=["k"])
    assert [key for key, _ in bench.rows(rows.UNIQUE)] == [rows.UNIQUE + b"k"]
    assert bench.cancel(by_key("k")) == ["cancelled", offset[0]]
    assert bench.rows(rows.SCOPED_UNIQUE) == []


def leased(bench: RankedBench) -> None:
    bench.ack(bench.one(limit=1, at=5).token, at=5)


def cancelled(bench: RankedBench) -> None:
    assert bench.cancel(key_of("acme"), at=5)[0] == "cancelled"


def passed_over(bench: RankedBench) -> None:
    bench.seek("latest", at=5)


def trimmed(bench: RankedBench) -> None:
    leased(bench)
    bench.trim(5)


@pytest.mark.parametrize("ends", [leased, cancelled, passed_over, trimmed])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_key_from_before_is_all_tenants_until_it_is_forgotten(
    old: RankedBench, ends: Callable[[RankedBench], None], is_restarted: bool
) -> None:
    first = old.add("a", tenant="acme", unique=["k"])
    assert old.add("b", tenant="beta", unique=["k"]) == first
    old.apply(0, c.RaiseLevel(SCOPED_KEYS))
    if is_restarted:
        old.restart()
    assert old.add("b", tenant="beta", unique=["k"], at=1) == first
    assert old.add("a", tenant="acme", unique=["k"], at=1) == first
    ends(old)
    is_free = ends in (cancelled, passed_over)
    for tenant in ("acme", "beta"):
        assert (old.add(tenant, tenant=tenant, unique=["k"], at=6) != first) is is_free
    old.trim(6 + HOUR)
    assert old.rows(rows.UNIQUE) == []
    for tenant in ("acme", "beta"):
        old.add(tenant, tenant=tenant, unique=["k"], at=6 + HOUR)
    assert sorted(old.take(9, at=6 + HOUR)) == ["acme", "beta"]


def test_a_key_from_before_and_one_of_now_are_ended_each_by_its_message(old: RankedBench) -> None:
    before = old.add("a", tenant="acme", unique=["k"])
    old.cancel(key_of("acme"))
    old.apply(0, c.RaiseLevel(SCOPED_KEYS))
    now = old.add("b", tenant="acme", unique=["k"], at=1)
    assert old.cancel([c.TARGET_ID, before[0]], at=2) == ["cancelled", before[0]]
    assert old.add("c", tenant="acme", unique=["k"], at=3) == now
    assert old.take(9, at=4) == ["b"]
    assert old.add("c", tenant="acme", unique=["k"], at=5) == now


def test_below_the_level_a_tenant_in_a_target_means_nothing(old: RankedBench) -> None:
    offset = old.add("a", tenant="acme", unique=["k"])
    assert old.cancel(key_of("beta")) == ["cancelled", offset[0]]


def test_levels_that_targets_need() -> None:
    for named, level in ((key_of(None), 1), (key_of("acme"), SCOPED_KEYS)):
        assert c.Cancel([[c.TARGET_ID, bytes(16)], named]).needed_level == level
        assert c.Move([[named, T, False]]).needed_level == level
    assert c.Move([[key_of("acme"), None, False, 5]]).needed_level == SCOPED_KEYS


def test_a_clock_that_is_set_back_keeps_the_window() -> None:
    bench = RankedBench(kind="fair", level=SCOPED_KEYS, dedup_window="1h")
    bench.open()
    first = bench.add("a", tenant="acme", unique=["k"], at=YEAR)
    bench.ack(bench.one(at=YEAR, limit=1).token, at=YEAR)
    set_back(bench, 3000)
    assert bench.add("b", tenant="acme", unique=["k"], at=HOUR) == first
    bench.trim(at=HOUR + 3001)
    assert bench.add("b", tenant="acme", unique=["k"], at=HOUR + 3001) != first
