"""Tests of pages from the newest message: they have the same messages as ascending pages, in reverse order."""

from __future__ import annotations

import random
from functools import partial

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.queries import backwards
from sandq.partition.queries.queries import NEWEST, PartitionQueries
from tests.support.partition.bench import Bench
from tests.support.partition.key_bench import KeyBench
from tests.support.partition.ranked_bench import RankedBench
from tests.support.simulation.seeds import few_of

ALL_TIMES = (0, 1 << 47)
STATES = (None, "delayed", "ready", "leased", "waiting", "acked")


Listed = list[tuple[bytes, bytes | None]]


def listed(bench: Bench, state: str | None, limit: int, order: str | None, window: tuple[int, int]) -> Listed:
    """Return the offsets and values of all pages."""
    queries = PartitionQueries(bench.machine, bench.view)
    found: Listed = []
    after: bytes | None = None
    while True:
        page, after = queries.page(state, *window, None, limit, after, True, order=order)
        assert len(page) <= limit
        found += [(row["offset"], row["value"]) for row in page]
        if after is None:
            return found


def filled(rng: random.Random) -> Bench:
    """Return a partition with batches and single messages in all states, and holes in the batches."""
    bench = Bench()
    bench.open()
    ids: list[bytes] = []
    for step in range(30):
        at = 10 * step
        if rng.random() < 0.5:
            base, count = bench.append(*"abcdefgh"[: rng.randint(2, 8)], at=at)
            ids.append(offsets.shift(base, rng.randrange(count)))
        else:
            ids.append(bench.put("x", at=at, due=at + rng.choice([0, 0, 50, 5_000])))
    for message_id in rng.sample(ids, len(ids) // 3):
        bench.cancel(message_id, at=300)
    for lease in bench.lease(at=300, limit=rng.randint(1, 40)):
        end = rng.random()
        if end < 0.3:
            bench.ack(lease.token, at=301)
        elif end < 0.6:
            bench.nack(lease.token, at=301, delay=60_000)
    ready = [offset for offset, _ in listed(bench, "ready", 100, None, ALL_TIMES)]
    rng.shuffle(ready)
    for number, offset in enumerate(ready[:9]):
        if number % 3 == 0:
            bench.cancel(offset, at=302)
        elif number % 3 == 1:
            bench.update(offset, "another and longer value", at=302)
        else:
            bench.move(offset, 4_000 + number, at=302)
    return bench


@pytest.mark.parametrize("seed", few_of(range(40), 6))
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_newest_pages_hold_the_messages_of_rising_pages_reversed(seed: int, limit: int) -> None:
    rng = random.Random(seed)
    bench = filled(rng)
    check(bench, rng, limit)


def check(bench: Bench, rng: random.Random, limit: int) -> None:
    """Compare pages of one size in both orders, for each state and several time windows."""
    everything = [offset for offset, _ in listed(bench, None, 100, None, ALL_TIMES)]
    assert everything
    middle = offsets.deliver_ms(rng.choice(everything))
    for window in (ALL_TIMES, (middle, 1 << 47), (0, middle), (middle, middle + 1)):
        for state in STATES:
            rising = listed(bench, state, 100, None, window)
            assert listed(bench, state, limit, NEWEST, window) == rising[::-1], (state, window)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_newest_pages_of_a_compacted_topic(limit: int) -> None:
    bench, rng = KeyBench(), random.Random(limit)
    bench.open()
    for number in range(40):
        bench.set(rng.choice("abcdef"), rng.choice(["1", "2", None]), at=1000 * number)
    for later in range(0, 40_000, 1000):
        bench.upkeep(at=3_600_000 + later)
    bench.lease(at=3_700_000, limit=3)
    check(bench, rng, limit)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_newest_pages_of_a_topic_with_priorities(limit: int) -> None:
    bench, rng = RankedBench(), random.Random(limit)
    bench.open()
    for number in range(30):
        bench.add(f"{number}", priority=rng.randint(0, 3))
    bench.take(5, at=1)
    check(bench, rng, limit)


def test_newest_page_begins_within_a_batch_and_ends_at_the_trimmed_part() -> None:
    bench = Bench()
    bench.open()
    bench.append(*"abcdef")
    rising = [offset for offset, _ in listed(bench, None, 100, None, ALL_TIMES)]
    bench.lease(limit=2)
    queries = PartitionQueries(bench.machine, bench.view)
    page, after = queries.page(None, *ALL_TIMES, None, 100, rising[3], False, order=NEWEST)
    assert [row["offset"] for row in page] == rising[2::-1] and after is None
    bench.machine.log.state.trimmed = rising[1]
    page, after = queries.page(None, *ALL_TIMES, None, 100, None, False, order=NEWEST)
    assert [row["offset"] for row in page] == rising[:1:-1] and after is None


def test_newest_page_reads_a_bounded_part_and_says_where_to_go_on() -> None:
    bench = Bench()
    for number in range(20):
        bench.put(f"{number}", due=number)
    yielded: list[bool] = []
    read = partial(backwards.read, bench.view, offsets.FIRST, offsets.LAST)
    ranges, end = read(7, 1 << 20, lambda: yielded.append(True))
    assert sum([one.length for one in ranges]) == 7 and end == ranges[-1].base and yielded == [True]
    ranges, end = read(100, 1, lambda: None)
    assert 0 < len(ranges) <= backwards.READ_ROWS and end == ranges[-1].base


def test_values_of_a_page_are_cut_to_the_bytes_asked_for() -> None:
    bench = Bench()
    bench.put("a long value")
    queries = PartitionQueries(bench.machine, bench.view)
    for order in (None, NEWEST):
        ((row,), _) = queries.page(None, *ALL_TIMES, None, 10, None, True, order=order, value_bytes=6)
        assert (row["value"], row["size"]) == (b"a long", 12)
        ((row,), _) = queries.page(None, *ALL_TIMES, None, 10, None, False, order=order, value_bytes=6)
        assert row["value"] is None


def test_newest_dead_letters_are_those_of_rising_pages_reversed() -> None:
    bench = Bench(max_attempts=1)
    bench.open()
    for number in range(9):
        bench.put(f"{number}", due=number)
    for number in range(9):
        bench.nack(bench.one(at=20, limit=1).token, at=21, error="odd" if number % 2 else "even")
    queries = PartitionQueries(bench.machine, bench.view)

    def dead(limit: int, order: str | None, error: str | None = None) -> list[bytes]:
        found: list[bytes] = []
        after: bytes | None = None
        while True:
            page, after = queries.dead_page("g", None, limit, after, True, until_ms=1 << 47, error=error, order=order)
            found += [row["value"] for row in page]
            if after is None:
                return found

    assert dead(100, None) == [b"%d" % number for number in range(9)]
    for limit in (1, 2, 100):
        assert dead(limit, NEWEST) == dead(100, None)[::-1]
        assert dead(limit, NEWEST, "odd") == [b"7", b"5", b"3", b"1"]


def test_move_of_a_message_is_seen_by_a_newest_page() -> None:
    bench = Bench()
    first, second = bench.put("a", due=1_000), bench.put("b", due=2_000)
    bench.apply(0, c.Move([[[0, first], offsets.deliver_ms(second) + 1_000, False]]))
    queries = PartitionQueries(bench.machine, bench.view)
    page, _ = queries.page(None, *ALL_TIMES, None, 10, None, True, order=NEWEST)
    assert [row["value"] for row in page] == [b"a", b"b"]
