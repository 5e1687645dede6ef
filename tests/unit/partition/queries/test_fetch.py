"""Tests of fetches of a range of the log: the returned messages and their count."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import peek
from sandq.partition.base import rows
from sandq.partition.log.appends import WHOLE_MESSAGES
from sandq.partition.queries import fetch as log_fetch
from sandq.partition.queries.fetch import FETCH_BYTES, Extent, Fetched, fetch, measure
from sandq.partition.shared_state import SLICE_ITEMS
from tests.support.partition.bench import Bench, T


@pytest.fixture
def bench() -> Bench:
    return Bench()


def pages(bench: Bench, start: bytes = offsets.FIRST, end: bytes | None = None, **options: Any) -> list[Fetched]:
    """Return every page from `start` on."""
    most, pending = options.get("most", 100_000), options.get("pending", False)
    found = [fetch(bench.machine, bench.view, start, end, most, 1 << 20, pending)]
    while found[-1].next is not None:
        found.append(fetch(bench.machine, bench.view, found[-1].next, end, most, 1 << 20, pending))
    return found


def count(bench: Bench, start: bytes = offsets.FIRST, end: bytes | None = None, **options: Any) -> int:
    """Return the number of messages that `fetch` gives."""
    pieces = [piece for page in pages(bench, start, end, **options) for piece in page.pieces]
    return sum(
        peek(piece.batch).count if piece.live is None else sum(length for _, length in piece.live) for piece in pieces
    )


def measured(bench: Bench, start: bytes = offsets.FIRST, end: bytes | None = None, **options: Any) -> Extent:
    return measure(bench.machine, bench.view, start, end, options.get("most"), options.get("pending", False))


def at(ms: int) -> bytes:
    return offsets.pack(T + ms, 0, 0, 0)


def test_empty_stretch_has_no_messages(bench: Bench) -> None:
    assert measured(bench)[:3] == (None, None, 0)
    bench.append("later", due=[60_000])
    bench.upkeep(at=1000)
    assert measured(bench)[:3] == (None, None, 0), "this time is not closed yet"
    assert measured(bench, pending=True)[1:3] == (None, 1)
    assert measured(bench, at(60_001), pending=True)[:3] == (None, None, 0)
    assert measured(bench, end=at(60_000), pending=True)[:3] == (None, None, 0)
    assert count(bench) == 0 and count(bench, pending=True) == 1
    assert count(bench, at(60_001), pending=True) == 0


def test_whole_seconds_are_counted_without_reading(bench: Bench) -> None:
    for second in range(20):
        bench.append(*"abcde", due=[second * 1000 + place for place in range(5)])
    bench.upkeep(at=30_000)
    assert measured(bench)[1:3] == (None, 100)
    assert measured(bench, at(5000))[1:3] == (None, 75)
    assert measured(bench, at(5000), at(10_000))[1] is None
    first = measured(bench, at(4500)).first
    assert first is not None and offsets.deliver_ms(first) == T + 5000
    found = measured(bench, most=50)
    assert found.next is not None and count(bench, end=found.next) == found.messages == 50


@pytest.mark.parametrize("most", [1, 3, 7, 100, 1000])
def test_a_stretch_is_walked_in_parts_of_a_size(bench: Bench, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_fetch, "FETCH_MESSAGES", 40)
    rng = random.Random(most)
    total = 0
    for _ in range(12):
        burst = rng.choice([1, 2, 30, 90])
        due = rng.randrange(20) * rng.choice([1, 1000])
        bench.append(*map(str, range(burst)), due=[due] * burst)
        total += burst
    bench.upkeep(at=60_000)
    cuts = [offsets.FIRST]
    while True:
        found = measured(bench, cuts[-1], most=most)
        if found.next is None:
            assert count(bench, cuts[-1]) <= most
            break
        assert 1 <= count(bench, cuts[-1], found.next) <= most
        cuts.append(found.next)
    parts = [count(bench, start, end) for start, end in pairwise(cuts)] + [count(bench, cuts[-1])]
    assert sum(parts) == total == count(bench)


def test_more_messages_in_one_ms_than_requested_are_split(bench: Bench) -> None:
    bench.append(*map(str, range(500)), due=[500] * 500)
    bench.upkeep(at=5000)
    found = measured(bench, most=200)
    assert found.messages == 200 and found.next is not None
    assert count(bench, end=found.next) == 200
    assert count(bench, found.next) == measured(bench, found.next, most=400).messages == 300


def test_cancelled_message_is_not_counted(bench: Bench) -> None:
    kept = bench.put("kept", due=2000)
    bench.cancel(bench.put("gone", due=1000))
    bench.upkeep(at=5000)
    assert measured(bench)[:3] == (kept, None, 1)


def test_a_batch_for_one_moment_to_come(bench: Bench) -> None:
    """One row before its due time, after some and after many cancels, and once it is due. After many cancels the rest
    has separate rows."""
    messages, due = 4 * WHOLE_MESSAGES, 5000
    made = bench.append(*map(str, range(messages)), due=[due] * messages)
    ids = (
        offsets.run(*made)
        if isinstance(made, tuple)
        else [made[place : place + 16] for place in range(0, len(made), 16)]
    )
    assert {row[0] for _, row in bench.rows(rows.LOG)} == {rows.KIND_BATCH}
    left = set(range(messages))
    for taken in (range(0), range(5, 8), range(messages // 2, messages - 1)):
        for place in taken:
            assert bench.cancel(ids[place], at=1000)[0] == "cancelled"
        left -= set(taken)
        assert measured(bench)[1:3] == (None, 0) and count(bench) == 0, "this time is not closed yet"
        assert measured(bench, pending=True)[1:3] == (None, len(left))
        assert count(bench, pending=True) == len(left)
        assert count(bench, ids[4], ids[10], pending=True) == len(left & set(range(4, 10)))
        part = measured(bench, ids[4], most=5, pending=True)
        assert part.next is not None and 1 <= count(bench, ids[4], part.next, pending=True) <= 5
        assert measured(bench, at(due + 1), pending=True).messages == 0
    assert {row[0] for _, row in bench.rows(rows.LOG)} == {rows.KIND_MESSAGE}
    bench.upkeep(at=due + 1)
    assert measured(bench)[:3] == (ids[0], None, len(left)) and count(bench) == len(left)


def test_measure_and_fetch_report_the_trimmed_position() -> None:
    bench = Bench(retention=0)
    bench.open()
    bench.append("a", "b")
    before = measured(bench, offsets.FIRST)
    assert before.trimmed == offsets.FIRST
    bench.upkeep(at=10)
    bench.ack(bench.one(at=20, limit=2).token, at=20)
    bench.trim(at=1000)
    bench.upkeep(at=2000)
    found = measured(bench)
    assert found.first is None and found.trimmed > offsets.FIRST
    assert pages(bench)[-1].trimmed == found.trimmed


def test_page_yields_and_releases_rows(bench: Bench) -> None:
    """A page is not held twice in memory, as rows and as the pieces that are built from them."""
    for _ in range(6):
        bench.append("x" * (400 << 10), *map(str, range(SLICE_ITEMS)))
    bench.upkeep(at=10)
    rows_left: list[int] = []
    bench.machine.shared.yield_now = lambda: rows_left.append(len(bench.machine.log.reader._ahead))
    found = fetch(bench.machine, bench.view, offsets.FIRST, None, 1000, FETCH_BYTES)
    assert sum(piece.count for piece in found.pieces) == 6 * (1 + SLICE_ITEMS)
    reads, made = rows_left[: -len(found.pieces)], rows_left[-len(found.pieces) :]
    assert len(reads) >= 6 * 400 // 1024 and set(reads) == {0}
    assert made == [5, 4, 3, 2, 1, 0]
    assert not bench.machine.log.reader._ahead


def test_page_of_single_message_rows_yields(bench: Bench) -> None:
    bench.append(*map(str, range(10 * SLICE_ITEMS)), due=[*range(10 * SLICE_ITEMS)])
    bench.upkeep(at=100_000)
    yielded: list[bool] = []
    bench.machine.shared.yield_now = lambda: yielded.append(True)
    found = fetch(bench.machine, bench.view, offsets.FIRST, None, 10_000, FETCH_BYTES)
    assert sum(piece.count for piece in found.pieces) == 10 * SLICE_ITEMS and len(found.pieces) == 1
    assert len(yielded) >= 10
