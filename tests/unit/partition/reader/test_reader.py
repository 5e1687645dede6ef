"""Tests of a group's look-ahead over the log: it matches the rows after any cancels, leases and restarts."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.log import trim
from sandq.partition.reader import reader
from tests.support.partition.bench import Bench, by_id

MANY = 1 << 16
"""Messages of the largest batch."""


@pytest.mark.parametrize("restart", ["before", "after", "never"])
@pytest.mark.parametrize("positions", [{0}, {4}, {2}, {0, 1}, {0, 2, 4}, {0, 1, 2, 3, 4}])
@pytest.mark.parametrize("taken", [0, 2])
def test_cancelled_in_a_batch(bench: Bench, positions: set[int], restart: str, taken: int) -> None:
    """`taken`: number of messages that were leased before, so that the cursor is within the row."""
    bench.open()
    base, _ = bench.append(*"abcde")
    bench.append("z")
    got = bench.values(bench.lease(taken)) if taken else []
    if restart == "before":
        bench.restart()
    gone = {place for place in positions if place >= taken}
    for place in gone:
        assert bench.cancel(offsets.shift(base, place)) == ("cancelled", offsets.shift(base, place))
    if restart == "after":
        bench.restart()
    assert bench.status().messages == 6 - len(gone)
    left = [value for place, value in enumerate("abcde") if place not in gone]
    assert got + bench.values(bench.lease()) == [*left, "z"]


@pytest.mark.parametrize("restart", [True, False])
def test_a_batch_of_one_that_was_cancelled(bench: Bench, restart: bool) -> None:
    """The row is as long as the row of a single message. A tombstone replaces it all the same."""
    bench.open()
    base, _ = bench.append("a")
    bench.append("b")
    bench.cancel(base)
    if restart:
        bench.restart()
    assert bench.values(bench.lease()) == ["b"]
    assert bench.cancel(base) == ("cancelled", base)


def _many(bench: Bench, count: int) -> bytes:
    base: bytes = bench.apply(0, c.Append(encode({Column.VALUE: [b"%d" % n for n in range(count)]})))[0][0]
    return base


def _cancel_all(bench: Bench, base: bytes, start: int, count: int) -> None:
    for first in range(start, count, 10_000):
        run = offsets.run(offsets.shift(base, first), min(10_000, count - first))
        outcomes = bench.apply(0, c.Cancel([by_id(offset) for offset in run]))[0]
        assert {outcome[0] for outcome in outcomes} == {"cancelled"}


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("taken", [0, 3])
def test_more_tombstones_in_a_row_than_are_read_at_once(
    restart: bool, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor may be within the first of these rows. Later rows are not visited again and again."""
    monkeypatch.setattr(trim, "FILL_TOMBSTONES", 9)
    monkeypatch.setattr(reader, "FILL_TOMBSTONES", 9)
    monkeypatch.setattr(reader, "LOOK_AHEAD_ENTRIES", 2)
    bench = Bench()
    bench.open()
    bases = [_many(bench, 8) for _ in range(6)]
    bench.append("last")
    taken_values = bench.values(bench.lease(taken)) if taken else []
    for number, base in enumerate(bases):
        _cancel_all(bench, base, 0 if number else taken, 8)
    if restart:
        bench.restart()
    assert taken_values == ["0", "1", "2"][:taken]
    assert bench.values(bench.lease()) == ["last"]
    bench.restart()
    assert bench.lease() == []


def test_more_tombstones_than_the_largest_batch_has_messages(bench: Bench) -> None:
    bench.open()
    first, second = _many(bench, MANY), _many(bench, 500)
    bench.append("last")
    bench.lease(3)
    _cancel_all(bench, first, 3, MANY)
    _cancel_all(bench, second, 0, 500)
    bench.restart()
    assert bench.values(bench.lease()) == ["last"]


@pytest.mark.parametrize("restart", [True, False])
def test_more_tombstones_than_are_read_at_once_before_a_row(restart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For single-message rows: trimming continues after them and removes their tombstones too."""
    monkeypatch.setattr(trim, "FILL_TOMBSTONES", 9)
    monkeypatch.setattr(reader, "FILL_TOMBSTONES", 9)
    bench = Bench()
    bench.open()
    made = bench.send(*["gone"] * 30, due=list(range(30)))
    bench.append("last", due=[40])
    bench.apply(50, c.Cancel([by_id(made.offsets[at : at + 16]) for at in range(0, 480, 16)]))
    assert len(bench.rows(b"t")) == 30
    if restart:
        bench.restart()
    bench.ack(bench.one(at=50).token, at=50)
    bench.trim(at=50)
    assert bench.rows(b"m") == []
    bench.trim(at=700_000)
    assert bench.rows(b"t") == bench.rows(b"e") == [], "the memory of a cancel expires"


def test_message_inserted_within_the_look_ahead_is_delivered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LOOK_AHEAD_ENTRIES", 3)
    bench = Bench()
    bench.open()
    for due in (900, 100, 500, 300, 700):
        bench.append(str(due), due=[due])
    assert bench.values(bench.lease(1, at=100)) == ["100"]
    for due in (200, 800, 400, 600, 1000, 250):
        bench.append(str(due), due=[due])
    bench.append("now", at=100)
    found: list[str] = []
    while leases := bench.lease(2, at=1000):
        found += bench.values(leases)
    assert found == ["now", "200", "250", "300", "400", "500", "600", "700", "800", "900", "1000"]


@pytest.mark.parametrize("gone", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("look_ahead", [1, 2, 3])
def test_look_ahead_that_ends_within_a_row_is_continued(
    look_ahead: int, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last message of the look-ahead is cancelled before the rest of its row is read."""
    monkeypatch.setattr(reader, "LOOK_AHEAD_ENTRIES", look_ahead)
    bench = Bench()
    bench.open()
    bench.append("first")
    assert bench.values(bench.lease(2)) == ["first"], "the look-ahead reaches the end of the log"
    base, _ = bench.append(*"abcde")
    offsets_of = [offsets.shift(base, place) for place in range(5)]
    others = [place for place in (1, 3) if place != gone]
    for place in (*others, gone):
        bench.cancel(offsets_of[place])
        for n in range(2 * look_ahead):
            bench.put(f"z{place}{n}", due=n)
    left = [value for place, value in enumerate("abcde") if place not in (*others, gone)]
    found: list[str] = []
    while leases := bench.lease(1, at=100):
        found += bench.values(leases)
    assert [value for value in found if value[0] != "z"] == left
    assert len(found) == len(set(found)) == bench.status().messages - 1


def test_a_large_batch_in_grants(bench: Bench) -> None:
    bench.open()
    base = _many(bench, 2500)
    bench.cancel(offsets.shift(base, 1000))
    leases = bench.lease(2500)
    assert [lease.total for lease in leases] == [FIXED.grant_messages]
    bench.restart()
    rest = bench.values(bench.lease(1000)) + bench.values(bench.lease(1000))
    assert rest == [str(n) for n in range(1001, 2500)]
