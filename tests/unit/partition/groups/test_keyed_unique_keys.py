"""A unique key of a message with a key is unique within that key."""

from __future__ import annotations

import pytest

from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition.base import rows
from tests.support.partition.bench import Bench, by_key
from tests.support.partition.ranked_bench import RankedBench
from tests.unit.partition.test_clock_reset import YEAR, set_back

HOUR = 3_600_000
SETTINGS = {"dedup_window": "1h", "max_attempts": 1}


def pair(key: str, unique_key: str = "i") -> c.Target:
    return [c.TARGET_KEY, unique_key.encode(), None, key.encode()]


@pytest.fixture
def bench() -> Bench:
    bench = Bench(**SETTINGS)
    bench.open()
    return bench


@pytest.fixture
def old() -> Bench:
    bench = Bench(**SETTINGS)
    bench.open()
    return bench


def test_same_unique_key_under_two_keys_names_two_messages(bench: Bench) -> None:
    ada = bench.put("of ada", key="ada", unique="i")
    bob = bench.put("of bob", key="bob", unique="i")
    nobody = bench.put("of nobody", unique="i")
    assert len({ada, bob, nobody}) == 3
    assert bench.put("again", key="bob", unique="i") == bob
    assert bench.cancel(pair("ada")) == ("cancelled", ada)
    assert bench.cancel(pair("ada")) == ("cancelled", ada), "a repeated cancel has the same answer"
    assert bench.cancel(by_key("i")) == ("cancelled", nobody)
    assert bench.cancel(pair("eve")) == ("not_found", None)
    assert bench.move(pair("bob"), 8000)[0] == "moved"
    assert bench.update(pair("bob"), "of bob, later")[0] == "updated"
    assert bench.values(bench.lease(at=8000)) == ["of bob, later"]


def test_equal_key_and_unique_key_are_one_name_and_no_key_another(bench: Bench) -> None:
    both, alone = bench.put("both", key="k", unique="k"), bench.put("alone", unique="k")
    assert both != alone
    assert bench.cancel(by_key("k")) == ("cancelled", alone)
    assert bench.put("both", key="k", unique="k") == both
    assert bench.cancel(pair("k", "k")) == ("cancelled", both)


def test_key_of_other_length_is_another_name(bench: Bench) -> None:
    first = bench.put("a", key="ab", unique="c")
    assert bench.put("b", key="a", unique="bc") != first
    assert bench.put("c", key="", unique="abc") not in (first, bench.put("d", unique="abc"))


@pytest.mark.parametrize("on_conflict", [c.REJECT, c.REPLACE, c.IGNORE, c.REPLACE_PENDING])
def test_conflict_within_a_pair_leaves_other_keys_alone(bench: Bench, on_conflict: int) -> None:
    bob = bench.put("of bob", key="bob", unique="i")
    ada = bench.put("of ada", key="ada", unique="i")
    columns = {"keys": ["ada", "eve"], "unique": ["i", "i"], "on_conflict": on_conflict}
    made = bench.send("of ada, again", "of eve", at=1, **columns)
    first, eve = made.offsets[:16], made.offsets[16:]
    if on_conflict in (c.REPLACE, c.REPLACE_PENDING):
        assert (made.refused, made.outcomes) == ([], [(0, "replaced", ada)])
        expected = ["of bob", "of ada, again", "of eve"]
    else:
        assert first == ada
        assert made.refused == ([(0, "ready")] if on_conflict == c.REJECT else [])
        expected = ["of bob", "of ada", "of eve"]
    assert len({bob, first, eve}) == 3
    assert sorted(bench.values(bench.lease(at=1))) == sorted(expected)


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("kind", ["timer", "keys", "priority"])
def test_pair_of_a_leased_message_is_taken_for_the_window(kind: str, is_apart: bool, is_restarted: bool) -> None:
    bench: Bench = RankedBench("priority", **SETTINGS)
    if kind != "priority":
        bench = Bench(**SETTINGS, **({"ordering": "key"} if kind == "keys" else {}))
    bench.open()
    value = "v" * 5000 if is_apart else "v"
    first = bench.put(value, key="ada", unique="i")
    (lease,) = bench.lease(limit=1)
    if is_restarted:
        bench.restart()
    assert bench.put("w", key="ada", unique="i", at=1) == first
    assert bench.put("w", key="bob", unique="i", at=1) != first
    bench.ack(lease.token, at=1)
    bench.trim(HOUR)
    assert bench.put("w", key="ada", unique="i", at=HOUR) != first


@pytest.mark.parametrize("is_apart", [False, True])
def test_message_that_a_group_keeps_is_named_by_its_pair(bench: Bench, is_apart: bool) -> None:
    bench.apply(0, c.ConfigureGroup("g", {"max_attempts": 5}))
    first = bench.put("v" * (5000 if is_apart else 1), key="ada", unique="i")
    bench.nack(bench.one(limit=1).token, delay=2 * HOUR)
    bench.put("later")
    bench.trim(HOUR // 2)
    assert bench.rows(rows.KEPT), "the message is no longer in the log"
    bench.restart()
    assert bench.put("w", key="ada", unique="i", at=HOUR // 2) == first
    assert bench.cancel(pair("ada"), at=HOUR // 2) == ("cancelled", first)


def test_pair_of_a_message_that_every_group_skipped_is_free(bench: Bench) -> None:
    first = bench.put("v", key="ada", unique="i")
    bench.seek("latest")
    bench.trim(1)
    assert bench.rows(rows.KEYED_UNIQUE) == []
    assert bench.put("v", key="ada", unique="i", at=1) != first


def test_row_of_a_name_holds_a_digest_of_the_key(bench: Bench) -> None:
    bench.put("v", key="k" * 60_000, unique="i")
    (row_key,) = [key for key, _ in bench.rows(rows.KEYED_UNIQUE)]
    assert row_key == rows.keyed_unique_key(rows.key_digest(b"k" * 60_000), b"i")
    assert len(row_key) == 1 + rows.DIGEST_BYTES + 1
    assert bench.rows(rows.UNIQUE) == []


def test_message_shows_no_digest(bench: Bench) -> None:
    offset = bench.put("v", key="ada", unique="i")
    found = bench.machine.log.find(offset, bench.view)
    assert found is not None
    fields = bench.machine.log.load(found, bench.view).fields
    assert fields == {Column.VALUE: b"v", Column.KEY: b"ada", Column.UNIQUE_KEY: b"i"}


def test_unique_keys_of_fair_topic_ignore_message_keys() -> None:
    bench = RankedBench("fair", **SETTINGS)
    bench.open()
    first = bench.put("v", key="ada", unique="i")
    assert bench.put("v", key="bob", unique="i") == first
    assert bench.rows(rows.KEYED_UNIQUE) == []


def leased(bench: Bench) -> None:
    bench.ack(bench.one(limit=1, at=5).token, at=5)


def cancelled(bench: Bench) -> None:
    assert bench.cancel(pair("k", "k"), at=5)[0] == "cancelled"


def passed_over(bench: Bench) -> None:
    bench.seek("latest", at=5)


def test_row_without_a_key_is_not_that_of_equal_ones(bench: Bench) -> None:
    bench.put("v", unique="k")
    leased(bench)
    assert bench.put("v", key="k", unique="k", at=6) != bench.put("v", unique="k", at=6)


def test_clock_set_back_keeps_the_window_of_a_pair() -> None:
    bench = Bench(dedup_window="1h")
    bench.open()
    first = bench.put("a", key="ada", unique="i", at=YEAR)
    bench.ack(bench.one(at=YEAR, limit=1).token, at=YEAR)
    set_back(bench, 3000)
    assert bench.put("b", key="ada", unique="i", at=HOUR) == first
    bench.trim(at=HOUR + 3001)
    assert bench.put("b", key="ada", unique="i", at=HOUR + 3001) != first
