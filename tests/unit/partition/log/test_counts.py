"""Tests of message counts per second against a plain dictionary: over years, with restarts, and with folded and dropped
rows."""

from __future__ import annotations

from collections import Counter as Plain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.view import View
from sandq.partition.log import counts
from sandq.partition.log.counts import Counts
from sandq.partition.queries.queries import PartitionQueries
from sandq.storage.stores import MemoryStores
from tests.support.partition.bench import Bench, T
from tests.support.partition.steps import step_at

HOUR_MS = 3_600_000
YEAR_MS = 366 * 24 * HOUR_MS
FOREVER_S = offsets.U48_MAX // 1000 + 1


class Desk:
    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.view = View(self.stores)
        self.counts = Counts()
        self.wanted: Plain[int] = Plain()
        self.now_ms = 0

    def add(self, at_ms: int, count: int = 1) -> None:
        self.counts.add(at_ms, count)
        self.wanted[at_ms // 1000] += count

    def add_each(self, times_ms: list[int]) -> None:
        self.counts.add_each(times_ms)
        self.wanted.update(at_ms // 1000 for at_ms in times_ms)

    def write(self) -> None:
        self.counts.write(self.view)
        self.stores.write(self.view.drain())

    def restart(self) -> None:
        self.write()
        state = self.counts.state()
        self.counts = Counts()
        self.counts.load(state)
        self.view = View(self.stores)

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.counts.advance(step_at(self.now_ms, self.view))

    def check(self, start_s: int = 0, stop_s: int = FOREVER_S) -> None:
        found = {second: count for second, count in self.wanted.items() if count and start_s <= second < stop_s}
        assert self.counts.seconds(start_s, stop_s, self.view) == sorted(found.items())
        assert self.counts.between(start_s, stop_s, self.view) == sum(found.values())
        assert self.counts.later == sum(n for second, n in self.wanted.items() if second > self.now_ms // 1000)

    def rows(self) -> list[tuple[bytes, bytes]]:
        start, stop = rows.tag_bounds(rows.COUNTS)
        return self.view.scan(start, stop, limit=1 << 30, max_bytes=1 << 30)


times = st.one_of(
    st.integers(0, 10_000), st.integers(0, 20 * HOUR_MS), st.integers(0, 9).map(lambda n: n * YEAR_MS + n * 1001)
)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), times, st.integers(1, 3)),
            st.tuples(st.just("each"), times, times, times),
            st.tuples(st.just("remove"), st.integers(0, 1 << 16)),
            st.tuples(st.just("advance"), st.sampled_from([1, 999, 1000, 70_000, HOUR_MS, 9 * HOUR_MS, YEAR_MS])),
            st.tuples(st.just("look"), times, times),
            st.tuples(st.sampled_from(["write", "restart"])),
        ),
        max_size=50,
    )
)
def test_counts_match_a_plain_dictionary(steps: list[tuple[str | int, ...]]) -> None:
    desk = Desk()
    with pytest.MonkeyPatch.context() as small:
        for name, value in (("HOT_HOURS", 2), ("FOLD_ROWS", 3), ("COUNTED_HOURS", 2)):
            small.setattr(counts, name, value)
        for step, *rest in steps:
            numbers = [int(number) for number in rest]
            match step:
                case "add":
                    desk.add(max(numbers[0], desk.now_ms), numbers[1])
                case "each":
                    desk.add_each([max(number, desk.now_ms) for number in numbers])
                case "remove" if any(desk.wanted.values()):
                    held = sorted(second for second, count in desk.wanted.items() if count)
                    desk.add(held[numbers[0] % len(held)] * 1000, -1)
                case "advance":
                    desk.advance(numbers[0])
                case "look":
                    desk.check(min(numbers) // 1000, max(numbers) // 1000)
                case "write":
                    desk.write()
                case "restart":
                    desk.restart()
            if step != "each":  # a check counts all changes; some steps must run with changes that are not counted yet
                desk.check()
        desk.check()


def test_years_apart() -> None:
    desk = Desk()
    for year in range(0, 200, 7):
        desk.add(year * YEAR_MS + 999)
    desk.add(offsets.U48_MAX)
    desk.restart()
    desk.check()
    desk.advance(100 * YEAR_MS)
    desk.check()
    desk.check(50 * YEAR_MS // 1000, 120 * YEAR_MS // 1000)


def test_memory_does_not_grow_with_the_number_of_counts() -> None:
    desk = Desk()
    for hour in range(3 * counts.COUNTED_HOURS // 100):
        desk.add(hour * HOUR_MS)
        desk.counts.seconds(hour * 3600, hour * 3600 + 3600, desk.view)
        desk.write()
        desk.advance(HOUR_MS // 2)
    assert len(desk.counts._hot) <= counts.HOT_HOURS
    assert len(desk.counts._rows) <= counts.COUNTED_HOURS
    assert not desk.counts._changes


def test_an_hour_that_changes_for_long_becomes_one_row() -> None:
    desk = Desk()
    for second in range(3 * counts.FOLD_ROWS):
        desk.add(second * 1000)
        desk.write()
    assert len(desk.rows()) <= counts.FOLD_ROWS
    desk.restart()
    desk.check()


def test_whole_hours_are_dropped_in_steps_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "DROP_ROWS", 2)
    desk = Desk()
    for hour in range(7):
        desk.add(hour * HOUR_MS + 5000, hour + 1)
    desk.write()
    desk.advance(10 * HOUR_MS)
    for _ in range(6):
        desk.counts.drop_before(step_at(desk.now_ms, desk.view), 5 * 3600 + 10)
        desk.restart()
    assert len(desk.rows()) == 2
    assert desk.counts.seconds(0, FOREVER_S, desk.view) == [(5 * 3600 + 5, 6), (6 * 3600 + 5, 7)]
    desk.counts.drop_before(step_at(desk.now_ms, desk.view), 5 * 3600 + 3599)
    assert len(desk.rows()) == 2, "never a part of an hour"


def test_removed_messages_leave_no_count() -> None:
    desk = Desk()
    desk.add(7 * HOUR_MS, 2)
    desk.write()
    desk.add(7 * HOUR_MS, -2)
    desk.restart()
    desk.check()
    assert desk.counts.later == 0
    assert desk.counts.seconds(0, FOREVER_S, desk.view) == []


@pytest.mark.parametrize("hours", [3, 4, 8, 50])
@pytest.mark.parametrize("restarts", [True, False])
def test_alternating_hours_do_not_grow(monkeypatch: pytest.MonkeyPatch, hours: int, restarts: bool) -> None:
    """The changes alternate between more hours than the table keeps row counts for."""
    monkeypatch.setattr(counts, "COUNTED_HOURS", 2)
    monkeypatch.setattr(counts, "FOLD_ROWS", 4)
    desk = Desk()
    for turn in range(400):
        for hour in range(hours):
            desk.add(hour * HOUR_MS + turn * 1000)
            desk.write()
        if restarts and turn % 100 == 0:
            desk.restart()
    assert len(desk.rows()) <= 2 * counts.FOLD_ROWS * hours, "of the 400 rows that each hour had"
    desk.check()


def test_many_hours_are_read_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads split the rows of an hour at any place. Some changes are in no row yet."""
    monkeypatch.setattr(counts, "ROWS_AT_ONCE", 3)
    desk = Desk()
    for round_ in range(4):
        for hour in range(10, 60, 1 + round_):
            desk.add(hour * HOUR_MS + 1000 * round_, 1 + hour % 5)
        if round_ < 3:
            desk.write()
    for hour in (3, 4, 35, 70, 71):
        desk.add(hour * HOUR_MS, hour)
    read: list[int] = []
    scan = desk.view.scan

    def counted(*bounds: bytes, limit: int, max_bytes: int) -> list[tuple[bytes, bytes]]:
        found = scan(*bounds, limit=limit, max_bytes=max_bytes)
        read.append(len(found))
        return found

    monkeypatch.setattr(desk.view, "scan", counted)
    desk.check()
    desk.check(20 * 3600 + 1, 45 * 3600 + 2)
    assert max(read) == 3 and sum(read) > 150
    hours = [*desk.counts.hours(0, FOREVER_S, desk.view)]
    assert all(len({second // 3600 for second, _ in hour}) <= 1 for hour in hours)


def test_forecast_yields_after_each_hour() -> None:
    bench = Bench()
    for hour in range(30):
        bench.append("x", due=[hour * HOUR_MS])
    yielded: list[bool] = []
    bench.machine.shared.yield_now = lambda: yielded.append(True)
    buckets, later = PartitionQueries(bench.machine, bench.view).forecast(3600, 20, T)
    assert sum(messages for _, messages in buckets) + later in (29, 30) and len(buckets) == 20
    assert len(yielded) >= 20
