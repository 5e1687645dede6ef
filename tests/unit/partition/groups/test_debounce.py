"""Tests of debounced messages: the newest of a series is delivered, at most a maximum wait after the first call."""

from __future__ import annotations

from collections import Counter

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.row_kinds import COMMON
from sandq.model.sequence import RESENT, sequence_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.log.appends import Stored
from tests.support.partition.bench import Bench, T, batch_of
from tests.support.partition.ranked_bench import RankedBench
from tests.unit.partition.test_clock_reset import YEAR, set_back

DELAY_MS, MAX_WAIT_MS = 500, 1000


@pytest.fixture(params=[False, True], ids=["in memory", "from rows"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """A partition with a group. `from rows`: it is loaded again before every entry."""
    bench = Bench(dedup_window="1m")
    bench.open()
    bench.restarts = request.param
    return bench


def debounce(bench: Bench, value: str, at: int, max_wait: int | None = MAX_WAIT_MS, delay: int = DELAY_MS) -> Stored:
    return bench.send(value, unique=["k"], due=[delay], relative=True, at=at, on_conflict=c.DEBOUNCE, span=max_wait)


def due(stored: Stored) -> int:
    """Return the delivery time of the only message, in ms after T."""
    return offsets.deliver_ms(stored.offsets) - T


def test_newest_message_of_a_series_is_delivered_after_the_last_call(bench: Bench) -> None:
    sent = [debounce(bench, value, at, max_wait=None) for value, at in (("a", 0), ("b", 400), ("c", 800))]
    assert [due(one) for one in sent] == [500, 900, 1300]
    assert [one.outcomes for one in sent] == [
        [],
        [(0, "replaced", sent[0].offsets)],
        [(0, "replaced", sent[1].offsets)],
    ]
    assert bench.lease(at=1299) == []
    assert bench.values(bench.lease(at=1300)) == ["c"]
    assert bench.lease(at=9999) == []


def test_replaced_message_leaves_no_row() -> None:
    bench = Bench()
    bench.open()
    debounce(bench, "a", 0)
    before = Counter(key[:1] for key, _ in bench.everything())
    debounce(bench, "b", 1)
    debounce(bench, "c", 2)
    added = Counter(key[:1] for key, _ in bench.everything()) - before
    assert set(added) == {rows.COUNTS}  # numbers of messages by time, which are merged later


def test_series_is_delivered_within_the_max_wait_of_its_first_call(bench: Bench) -> None:
    sent = [debounce(bench, value, at) for value, at in (("a", 0), ("b", 400), ("c", 800), ("d", 999))]
    assert [due(one) for one in sent] == [500, 900, 1000, 1000]
    assert bench.lease(at=999) == []
    assert bench.values(bench.lease(at=1000)) == ["d"]
    assert bench.lease(at=9999) == []


def test_call_after_the_max_wait_is_due_at_once(bench: Bench) -> None:
    debounce(bench, "a", 0)
    late = debounce(bench, "b", 1700)
    assert due(late) <= 1700
    assert bench.values(bench.lease(at=1700)) == ["b"]


def test_each_call_has_its_own_max_wait(bench: Bench) -> None:
    debounce(bench, "a", 0, max_wait=None)
    assert due(debounce(bench, "b", 400, max_wait=600)) == 600
    assert due(debounce(bench, "c", 500, max_wait=5000)) == 1000


def test_call_while_the_message_is_leased_is_stored_and_begins_a_series(bench: Bench) -> None:
    debounce(bench, "a", 0)
    lease = bench.one(at=500)
    stored = debounce(bench, "b", 700)
    assert (stored.refused, stored.outcomes, due(stored)) == ([], [(0, "stored", "leased")], 1200)
    assert due(debounce(bench, "c", 1100)) == 1600
    bench.ack(lease.token, at=1300)
    assert due(debounce(bench, "d", 1400)) == 1700
    assert bench.values(bench.lease(at=1700)) == ["d"]
    assert bench.cancel((c.TARGET_KEY, b"k"), at=1701)[1] == "leased"


@pytest.mark.parametrize(("end", "state"), [("ack", "acked"), ("reject", "dead")])
def test_call_after_the_message_is_done_is_stored(bench: Bench, end: str, state: str) -> None:
    debounce(bench, "a", 0)
    lease = bench.one(at=500)
    bench.ack(lease.token, at=501) if end == "ack" else bench.reject(lease.token, at=501)
    stored = debounce(bench, "b", 600)
    assert (stored.refused, stored.outcomes, due(stored)) == ([], [(0, "stored", state)], 1100)


def test_message_that_waits_for_another_attempt_is_replaced(bench: Bench) -> None:
    first = debounce(bench, "a", 0)
    bench.nack(bench.one(at=500).token, at=501, delay=60_000)
    stored = debounce(bench, "b", 600)
    assert (stored.outcomes, due(stored)) == ([(0, "replaced", first.offsets)], 1100)
    assert bench.values(bench.lease(at=99_999)) == ["b"]


def test_cancelled_message_ends_its_series(bench: Bench) -> None:
    debounce(bench, "a", 0)
    bench.cancel((c.TARGET_KEY, b"k"), at=100)
    stored = debounce(bench, "b", 900)
    assert (stored.outcomes, due(stored)) == ([], 1400)


def test_replaced_message_of_another_rule_begins_a_series(bench: Bench) -> None:
    bench.send("a", unique=["k"], due=[9000])
    assert due(debounce(bench, "b", 800)) == 1300
    bench.send("c", unique=["k"], due=[9000], at=900, on_conflict=c.REPLACE)
    assert due(debounce(bench, "d", 1500)) == 2000


def test_message_of_one_batch_replaces_an_earlier_one(bench: Bench) -> None:
    stored = bench.send(
        "a", "b", unique=["k", "k"], due=[100, 5000], relative=True, on_conflict=c.DEBOUNCE, span=MAX_WAIT_MS
    )
    assert stored.outcomes == [(1, "replaced", stored.offsets[:16])]
    assert bench.values(bench.lease(at=1000)) == ["b"]


def test_repeated_batch_gets_the_first_reply_with_the_earlier_time(bench: Bench) -> None:
    debounce(bench, "a", 0)
    batch = batch_of(["b", "c"], unique=["k", "other"], due=[DELAY_MS] * 2, relative=True)

    def send(at: int, resent: int) -> Stored:
        command = c.Append(batch, 77, 1, sequence_of(1, 0) | resent, c.DEBOUNCE, True, MAX_WAIT_MS)
        (stored,) = bench.apply(at, command)
        assert isinstance(stored, Stored)
        return stored

    first = send(800, 0)
    assert [offsets.deliver_ms(first.offsets[at : at + 16]) - T for at in (0, 16)] == [1000, 1300]
    assert send(900, RESENT) == first
    assert bench.values(bench.lease(at=1300)) == ["b", "c"]


@pytest.mark.parametrize(("kind", "column"), [("timer", Column.KEY), ("fair", Column.TENANT)])
def test_series_of_different_keys_or_tenants_are_apart(kind: str, column: int) -> None:
    bench = Bench() if kind == "timer" else RankedBench(kind)
    bench.open()
    for value, scope in ((b"a", b"ada"), (b"b", b"bob"), (b"c", b"ada")):
        cells = {Column.VALUE: [value], Column.UNIQUE_KEY: [b"k"], column: [scope], Column.DELIVER_MS: [T + DELAY_MS]}
        bench.apply(0, c.Append(encode(cells), on_conflict=c.DEBOUNCE, split=True, span_ms=MAX_WAIT_MS))
    assert sorted(bench.values(bench.lease(at=DELAY_MS))) == ["b", "c"]


def test_series_by_a_wrong_clock_waits_no_longer_than_its_max_wait_after_the_reset() -> None:
    bench = Bench()
    bench.open()
    debounce(bench, "a", YEAR)
    set_back(bench, 3000)
    assert [due(debounce(bench, "b", at)) for at in (3100, 3500, 3900)] == [3600, 4000, 3100 + MAX_WAIT_MS]
    assert bench.values(bench.lease(at=3100 + MAX_WAIT_MS)) == ["b"]


def test_capped_instant_by_a_wrong_clock_comes_after_its_max_wait_when_the_clock_is_reset() -> None:
    bench = Bench()
    bench.open()
    bench.send("a", unique=["k"], due=[2 * YEAR], at=YEAR, on_conflict=c.DEBOUNCE, span=MAX_WAIT_MS)
    set_back(bench, 3000)
    assert bench.values(bench.lease(at=3000 + MAX_WAIT_MS)) == ["a"]


@pytest.mark.parametrize(("delay", "comes_at"), [(5000, 2000), (600, 1600)])
def test_message_of_a_right_clock_under_a_wrong_floor_comes_in_time_after_the_reset(delay: int, comes_at: int) -> None:
    bench = Bench()
    bench.open()
    bench.apply(YEAR, c.Clock())
    debounce(bench, "a", 1000, delay=delay)
    set_back(bench, 1500)
    assert bench.lease(at=comes_at - 1) == []
    assert bench.values(bench.lease(at=comes_at)) == ["a"]


def test_capped_message_by_a_wrong_clock_comes_after_its_wait_when_the_clock_is_reset() -> None:
    bench = Bench()
    bench.open()
    debounce(bench, "a", YEAR)
    assert due(debounce(bench, "b", YEAR + 800)) == YEAR + MAX_WAIT_MS
    set_back(bench, 3000)
    assert bench.lease(at=3000) == []
    assert bench.values(bench.lease(at=3000 + DELAY_MS)) == ["b"]


@pytest.mark.parametrize(
    ("row", "is_valid"),
    [
        ([0, bytes(16), None, None], True),
        ([0, bytes(16), [7, 1, 1, 0], 5, None], True),
        ([3, bytes(16), None, 5, None], False),
        ([0, bytes(16), None, 5, 6], False),
        ([0, bytes(16), None, None, None], False),
        ([0, bytes(16), None, -1, None], False),
        ([0, bytes(16), None, 5, None, None], False),
    ],
)
def test_restored_row_of_a_debounced_key_is_checked(row: list[object], is_valid: bool) -> None:
    for tag in (rows.UNIQUE, rows.SCOPED_UNIQUE, rows.KEYED_UNIQUE):
        assert COMMON[tag].fields(row) is is_valid
