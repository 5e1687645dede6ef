"""Tests of watches of a compacted topic: the changes that a watcher gets, and the error if it is too late."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.model.errors import HistoryGone
from sandq.model.piece import Piece
from sandq.partition.kv import watch as module
from sandq.partition.kv.watch import Changes, Watch, changes
from sandq.partition.shared_state import SLICE_ITEMS
from tests.support.partition.bench import ALL
from tests.support.partition.key_bench import KeyBench

HOUR = 3_600_000
Seen = tuple[str, str | None]


def watch_page(
    bench: KeyBench,
    after: bytes | None = offsets.FIRST,
    *,
    mark: bytes | None = None,
    every: bool = True,
    start: str = "",
    stop: str | None = None,
    limit: int = ALL,
) -> Changes:
    """Return one page of a watch."""
    watch = Watch(after, mark, every, start.encode(), None if stop is None else stop.encode())
    return changes(bench.machine, watch, limit, ALL, bench.view)


def seen(found: Changes) -> list[Seen]:
    """Return keys and values as a client reads them."""
    return [(key, value) for piece in found.pieces for _, key, value in messages(piece)]


def messages(piece: Piece) -> list[tuple[bytes, str, str | None]]:
    """Return (offset, key, value) of the messages in a piece."""
    batch = Batch.parse(piece.batch)
    keys, values = batch.bytes_column(Column.KEY) or [], batch.values()
    live = range(batch.count) if piece.live is None else [p for at, n in piece.live for p in range(at, at + n)]
    found = []
    for at in live:
        is_run, start = len(piece.offsets) == 16, 16 * at
        offset = offsets.shift(piece.offsets, at) if is_run else piece.offsets[start : start + 16]
        value = values[at]
        found.append((offset, (keys[at] or b"").decode(), None if value is None else value.decode()))
    assert len(found) == piece.count
    return found


def test_every_change_in_its_order() -> None:
    bench = KeyBench()
    bench.write(("a", "1"), ("b", "1"))
    now = watch_page(bench, None)
    assert seen(now) == [] and not now.is_behind
    bench.set("a", "2", at=5)
    bench.set("b", None, at=5)
    assert seen(watch_page(bench)) == [("a", "1"), ("b", "1"), ("a", "2"), ("b", None)]
    later = watch_page(bench, now.through)
    assert seen(later) == [("a", "2"), ("b", None)]
    assert seen(watch_page(bench, later.through)) == []
    bench.set("c", "1", at=5)
    assert seen(watch_page(bench, later.through)) == [("c", "1")], "also a change in the millisecond of the read"


def test_watch_returns_changes_after_a_version() -> None:
    bench = KeyBench()
    base, _ = bench.write(("a", "1"), ("b", "1"), ("c", "1"))
    assert seen(watch_page(bench, offsets.shift(base, 1))) == [("c", "1")]
    assert seen(watch_page(bench, offsets.shift(base, 2))) == []


def test_a_range_of_keys() -> None:
    bench = KeyBench()
    base, _ = bench.write(("a", "1"), ("b1", "1"), ("c", "1"), ("b2", None), headers=[None, b"\x80", None, None])
    bench.set("a", "2")
    bench.set("b1", "2")
    found = watch_page(bench, start="b", stop="c")
    assert seen(found) == [("b1", "1"), ("b2", None), ("b1", "2")]
    (first, _, _), (second, _, _) = messages(found.pieces[0])
    assert (first, second) == (offsets.shift(base, 1), offsets.shift(base, 3)), "each change has its own version"
    assert Batch.parse(found.pieces[0].batch).bytes_column(Column.HEADERS) == [b"\x80", None]
    nothing = watch_page(bench, start="x")
    assert seen(nothing) == [] and nothing.through >= found.through, "the page must advance without matching changes"


def test_watch_of_latest_values_returns_the_last_of_each_key() -> None:
    bench = KeyBench()
    bench.write(("a", "1"), ("a", "2"), ("b", "1"))
    bench.set("c", "1")
    bench.set("c", None)
    bench.set("b", "2")
    assert seen(watch_page(bench, every=False)) == [("a", "2"), ("c", None), ("b", "2")]


def test_watch_returns_changes_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = KeyBench()
    for n in range(7):
        bench.set(f"k{n}", str(n))
    found: list[Seen] = []
    part = watch_page(bench, limit=3)
    while True:
        found += seen(part)
        assert len(seen(part)) <= 3
        if not part.is_behind:
            break
        part = watch_page(bench, part.through, limit=3)
    assert found == [(f"k{n}", str(n)) for n in range(7)]
    monkeypatch.setattr(module, "LOOKED_AT", 2)
    part = watch_page(bench, start="k6")
    assert seen(part) == [] and part.is_behind, "the number of checked changes is limited too"


def compacted(bench: KeyBench, at: int) -> None:
    """Run compaction passes over all messages up to this time."""
    for later in range(0, 40_000, 1000):
        bench.upkeep(at=at + later)


def test_late_watcher_gets_an_error() -> None:
    bench = KeyBench()
    first = bench.set("a", "1")
    last = bench.set("a", "2", at=1)
    bench.set("b", "1", at=2)
    compacted(bench, HOUR)
    assert [key for _, key, _ in bench.log()] == ["a", "b"]
    found = watch_page(bench)
    assert seen(found) == [("a", "2"), ("b", "1")], "a watch from the beginning misses no current value"
    assert seen(watch_page(bench, first)) == [("a", "2"), ("b", "1")], "no change after that version is gone"
    before = offsets.pack(offsets.deliver_ms(first) - 1, 0, 0, 0)
    with pytest.raises(HistoryGone, match="they were compacted"):
        watch_page(bench, before)
    assert seen(watch_page(bench, before, every=False)) == [("a", "2"), ("b", "1")]
    assert seen(watch_page(bench, before, mark=found.mark)) == [("a", "2"), ("b", "1")], (
        "the change was already gone at the mark"
    )
    bench.set("a", "3", at=2 * HOUR)
    compacted(bench, 3 * HOUR)
    with pytest.raises(HistoryGone):
        watch_page(bench, first, mark=found.mark)
    assert seen(watch_page(bench, last)) == [("b", "1"), ("a", "3")]


def test_watch_after_forgotten_deletion_raises_history_gone() -> None:
    bench = KeyBench()
    first = bench.set("a", "1")
    bench.set("a", None, at=1)
    bench.set("b", "1", at=2)
    compacted(bench, HOUR)
    assert seen(watch_page(bench, first, every=False)) == [("a", None), ("b", "1")], "the change is kept for a day"
    began = watch_page(bench, every=False)
    compacted(bench, 30 * HOUR)
    with pytest.raises(HistoryGone):
        watch_page(bench, first, every=False)
    with pytest.raises(HistoryGone):
        watch_page(bench, first, mark=began.mark, every=False)
    assert seen(watch_page(bench, every=False)) == [("b", "1")]


def test_watch_mark_survives_a_restart() -> None:
    bench = KeyBench()
    bench.set("a", "1")
    bench.set("a", "2", at=1)
    compacted(bench, HOUR)
    mark = watch_page(bench).mark
    assert mark > offsets.FIRST
    bench.restart()
    assert watch_page(bench).mark == mark
    assert bench.get("a", at=HOUR) == "2"


def test_removal_below_an_earlier_removal_is_reported() -> None:
    bench = KeyBench()
    bench.set("early", "1")
    bench.set("a", "1", at=1)
    bench.set("a", "2", at=2)
    compacted(bench, HOUR)
    began = watch_page(bench, limit=1)
    assert seen(began) == [("early", "1")] or began.is_behind
    first = watch_page(bench, limit=1)
    bench.set("early", "2", at=2 * HOUR)
    bench.set("early", "3", at=2 * HOUR + 1)
    compacted(bench, 3 * HOUR)
    assert watch_page(bench).mark > first.mark, "early=1 was before a=1, which was removed earlier"
    before = offsets.pack(offsets.deliver_ms(first.through) - 1, 0, 0, 0)
    with pytest.raises(HistoryGone):
        watch_page(bench, before, mark=first.mark)


def test_watch_of_unchanged_key_survives_compaction() -> None:
    bench = KeyBench()
    version = bench.set("a", "1")
    for n in range(5):
        bench.set("b", str(n), at=1 + n)
    compacted(bench, HOUR)
    with pytest.raises(HistoryGone):
        watch_page(bench, version)
    for every in (True, False):
        assert seen(watch_page(bench, version, start="a", stop="a\0", every=every)) == []
    bench.set("a", "2", at=2 * HOUR)
    bench.set("b", "6", at=2 * HOUR)
    assert seen(watch_page(bench, version, start="a", stop="a\0", every=False)) == [("a", "2")]


@pytest.mark.parametrize(("limit", "max_bytes"), [(1, ALL), (2, ALL), (ALL, 1), (ALL, ALL)])
def test_watcher_of_some_keys_scans_many_and_gets_few(limit: int, max_bytes: int) -> None:
    bench = KeyBench()
    for number in range(10):
        bench.write(*[(f"{'b' if at % 10 == number else 'a'}{number}", f"{at}") for at in range(40)])
    reported: list[Seen] = []
    after, looks = offsets.FIRST, 0
    while True:
        asked = Watch(after, None, True, b"b", None)
        found = changes(bench.machine, asked, limit, max_bytes, bench.view)
        reported += seen(found)
        after = found.through
        if not found.pieces:
            break
        looks += 1
        assert sum([piece.count for piece in found.pieces]) <= limit
    assert reported == [(f"b{number}", f"{at}") for number in range(10) for at in range(number, 40, 10)]
    assert looks == {(1, ALL): 40, (2, ALL): 20, (ALL, 1): 10, (ALL, ALL): 1}[limit, max_bytes]
    assert watch_page(bench, offsets.FIRST, start="c", limit=1).through >= after, (
        "no change matches, so one read is enough"
    )


def test_watch_page_yields() -> None:
    bench = KeyBench()
    for number in range(4):
        bench.write(*[(f"{number}{at}", "x") for at in range(3 * SLICE_ITEMS)])
    yielded: list[bool] = []
    bench.machine.shared.yield_now = lambda: yielded.append(True)
    assert len(seen(watch_page(bench, every=False, start="0"))) == 12 * SLICE_ITEMS
    assert len(yielded) >= 4 * 3


def test_watch_page_that_ends_early_leaves_nothing_behind() -> None:
    """The rows that were read ahead keep their earlier state."""
    bench = KeyBench()
    bench.write(*[(f"a{at}", "x" * 1000) for at in range(10)])
    bench.set("b", "1")
    assert len(seen(watch_page(bench, start="a", limit=1))) == 1
    assert not bench.machine.log.reader._ahead
