"""Tests that delivery lateness is kept per minute and per hour, and survives a restart."""

from __future__ import annotations

import random

import pytest

from sandq.broker.stats.histogram import LATENESS
from sandq.broker.stats.node_stats import NodeStats
from sandq.broker.stats.slo_book import (
    BOUNDS_US,
    BURN_MS,
    HOUR_MS,
    MAGIC,
    MINUTE_MS,
    MINUTES_MOST,
    VERSION,
    SloBook,
)
from sandq.model.errors import Corruption
from sandq.storage import small_file

T = 1_800_000_000_000 // HOUR_MS * HOUR_MS
DAY_MS = 24 * HOUR_MS


class Bed:
    def __init__(self, window_ms: int = 30 * DAY_MS, now_ms: int = T, kept: bytes | None = None) -> None:
        self.stats = NodeStats()
        self.now_ms = now_ms
        self.book = SloBook(self.stats, window_ms, now_ms, kept)

    def deliver(self, count: int, *, late_s: float = 0.001, after_ms: int = 0, is_trusted: bool = True) -> None:
        self.now_ms += after_ms
        self.stats.slo.observe(late_s, count)
        self.book.take(self.now_ms, is_trusted=is_trusted)

    def within(self, over_ms: int) -> int:
        return sum(self.book.over(self.now_ms, over_ms).counts)


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_windows_forget_older_deliveries(bed: Bed) -> None:
    bed.deliver(1)
    bed.deliver(10, after_ms=30 * MINUTE_MS)
    bed.deliver(100, after_ms=29 * MINUTE_MS)
    assert [bed.within(over) for over in (5 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, 30 * DAY_MS)] == [100, 111, 111, 111]
    bed.now_ms += 2 * MINUTE_MS
    assert [bed.within(over) for over in (5 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS)] == [100, 110, 111]
    bed.now_ms += 31 * DAY_MS
    assert bed.within(30 * DAY_MS) == 0


def test_each_delivery_is_in_its_bucket_and_early_ones_are_counted(bed: Bed) -> None:
    bed.deliver(3, late_s=0.05)
    bed.deliver(2, late_s=61)
    bed.stats.early += 1
    bed.deliver(1, late_s=-0.5)
    found = bed.book.over(bed.now_ms, HOUR_MS)
    assert {BOUNDS_US[at] if at < len(BOUNDS_US) else None: n for at, n in enumerate(found.counts) if n} == {
        50_000: 3,
        None: 2,
        -100_000: 1,
    }
    assert (found.early, found.unproven) == (1, 0)


def test_counts_by_an_untrusted_clock_are_separate(bed: Bed) -> None:
    bed.deliver(5)
    bed.deliver(7, is_trusted=False)
    bed.deliver(1)
    assert bed.book.over(bed.now_ms, HOUR_MS).unproven == 7 and bed.within(HOUR_MS) == 13


def test_memory_is_bounded_in_a_long_run() -> None:
    bed = Bed(window_ms=4 * DAY_MS)
    for _ in range(1000):
        bed.deliver(1, after_ms=7 * MINUTE_MS)
    assert len(bed.book._minutes.slots) <= MINUTES_MOST and len(bed.book._hours.slots) <= 97
    assert bed.within(4 * DAY_MS) == pytest.approx(4 * DAY_MS / (7 * MINUTE_MS), abs=HOUR_MS / (7 * MINUTE_MS) + 1)


def test_counts_survive_the_node(bed: Bed) -> None:
    bed.deliver(5, late_s=0.3)
    bed.deliver(2, after_ms=3 * DAY_MS, is_trusted=False)
    assert bed.book.changed
    again = Bed(now_ms=bed.now_ms + HOUR_MS, kept=bed.book.encode())
    assert not bed.book.changed
    assert again.book.since_ms == T and again.book.over(again.now_ms, 30 * DAY_MS).unproven == 2
    assert again.within(30 * DAY_MS) == 7 and again.within(6 * HOUR_MS) == 2
    again.deliver(1)
    assert again.within(30 * DAY_MS) == 8
    assert Bed(window_ms=DAY_MS, now_ms=again.now_ms, kept=again.book.encode()).within(DAY_MS) == 3, "a shorter window"


def test_a_clock_that_was_set_back_loses_nothing(bed: Bed) -> None:
    bed.deliver(5, after_ms=2 * DAY_MS)
    bed.now_ms -= 2 * DAY_MS
    bed.deliver(1)
    assert bed.within(5 * MINUTE_MS) == bed.within(30 * DAY_MS) == 6
    bed.deliver(1, after_ms=HOUR_MS)
    assert bed.within(5 * MINUTE_MS) == 1


def test_damaged_file_is_refused(bed: Bed) -> None:
    bed.deliver(5)
    whole = bed.book.encode()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        with pytest.raises(Corruption):
            Bed(kept=bytes(damaged))


COUNTS = [0] * (len(BOUNDS_US) + 1)


@pytest.mark.parametrize(
    "content",
    [
        None,
        [BOUNDS_US, T, []],
        [BOUNDS_US, T, [], [[T // HOUR_MS, COUNTS[1:], 0, 0]]],
        [BOUNDS_US, T, [[T // MINUTE_MS, [*COUNTS, 1], 0, 0]], []],
        [BOUNDS_US, T, [], [[T // HOUR_MS, COUNTS, 0, -1]]],
        [BOUNDS_US, T, [], [[T // HOUR_MS, COUNTS, 0, float("inf")]]],
        [BOUNDS_US, T, [], [[T // HOUR_MS, "many", 0, 0]]],
    ],
)
def test_invalid_content_is_refused(content: object) -> None:
    with pytest.raises(Corruption):
        Bed(kept=small_file.encode(MAGIC, VERSION, content))


def test_burn_rates_are_of_all_their_time_when_the_window_is_shorter() -> None:
    bed = Bed(window_ms=HOUR_MS)
    for _ in range(72):
        bed.deliver(1, after_ms=HOUR_MS)
    assert [bed.within(over_ms) for over_ms in BURN_MS] == [1, 1, 6, 72]


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_those_of_all_that_was_delivered(seed: int) -> None:
    rng, bed, told = random.Random(seed), Bed(), []
    for _ in range(300):
        count = rng.randint(1, 9)
        bed.deliver(count, late_s=rng.choice(LATENESS), after_ms=rng.choice((0, 1000, 200_000, 3 * HOUR_MS)))
        told.append((bed.now_ms, count))
    for over_ms in (5 * MINUTE_MS, 6 * HOUR_MS, 30 * DAY_MS):
        least = sum(
            count
            for at, count in told
            if at >= bed.now_ms - over_ms + (MINUTE_MS if over_ms <= 6 * HOUR_MS else HOUR_MS)
        )
        most = sum(count for at, count in told if at >= bed.now_ms - over_ms)
        assert least <= bed.within(over_ms) <= most
