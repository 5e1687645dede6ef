"""Tests of parts of a rate: after any splits and merges all parts together give no more than the whole rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandq.model.group_limits import GroupLimit
from sandq.partition.limits.buckets import (
    MOST_OWED_US,
    NO_PART,
    Part,
    available,
    free_us,
    merge,
    renewed,
    served,
    split,
)

NOW_US = 1_000_000_000


def limit_of(interval_us: int, burst: int, unit: str | None = None) -> GroupLimit:
    return GroupLimit(1, 2, None, interval_us, burst, unit)


@given(
    st.integers(10, 2_000_000),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 30), st.integers(0, 500_000)), max_size=60),
)
def test_parts_allow_no_more_than_the_whole(
    interval_us: int, burst: int, steps: list[tuple[int, int, int, int]]
) -> None:
    limit, now_us, ahead_us, last_us = limit_of(interval_us, burst), NOW_US, 0, NOW_US
    parts = [Part(burst, 0), NO_PART, NO_PART, NO_PART]
    for giver, taker, units, pause_us in steps:
        now_us += pause_us
        part = parts[giver]
        if part.units:
            count = min(available(limit, part, now_us), units)
            parts[giver] = part = served(limit, part, count, now_us) if count else part
            ahead_us = max(ahead_us - (now_us - last_us), 0) + count * interval_us
            last_us = now_us
            assert ahead_us <= burst * interval_us
        if giver != taker and part.units:
            parts[giver], given_part = split(limit, part, max(part.units - units, 0), now_us)
            parts[taker] = merge(limit, parts[taker], given_part, now_us)
        assert sum(part.units for part in parts) == burst


@given(
    st.integers(10, 2_000_000),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 90), st.integers(0, 5_000_000))),
)
def test_costs_exceed_the_rate_by_no_more_than_one_message(
    interval_us: int, burst: int, steps: list[tuple[int, int, int, int]]
) -> None:
    """A message needs units for its cost, or all units if its cost is above the burst."""
    limit, now_us, ahead_us, last_us = limit_of(interval_us, burst, "tokens"), NOW_US, 0, NOW_US
    parts = [Part(burst, 0), NO_PART, NO_PART, NO_PART]
    for giver, taker, cost, pause_us in steps:
        now_us += pause_us
        part, needed = parts[giver], min(cost, burst)
        if part.units >= needed:
            free = free_us(limit, part, needed, now_us)
            assert (free <= now_us) == (available(limit, part, now_us) >= needed)
            assert available(limit, part, free) >= needed > available(limit, part, free - 1) or free == now_us
            if free == now_us:
                parts[giver] = part = served(limit, part, cost, now_us)
                ahead_us = max(ahead_us - (now_us - last_us), 0) + cost * interval_us
                last_us = now_us
                assert ahead_us <= max(burst, cost) * interval_us
        if giver != taker and part.units:
            parts[giver], given_part = split(limit, part, max(part.units - cost, 0), now_us)
            parts[taker] = merge(limit, parts[taker], given_part, now_us)
        assert sum(part.units for part in parts) == burst


def test_debt_of_the_largest_cost_at_the_lowest_rate_is_bounded() -> None:
    limit = limit_of(86_400_000_000, 1, "tokens")
    part = served(limit, Part(1, 0), 10**9, NOW_US)
    assert part == Part(1, NOW_US + MOST_OWED_US)
    assert served(limit, part, 10**9, NOW_US) == part
    assert renewed(limit, part, limit_of(86_400_000_000, 10**6, "tokens"), NOW_US).arrival_us < 1 << 62


def test_split_part_keeps_its_debt() -> None:
    limit = limit_of(1000, 4)
    kept, given_part = split(limit, Part(4, NOW_US + 2000), 1, NOW_US)
    # Two of four messages were given out. So three units owe one and a half, and one unit owes a half.
    assert (kept, given_part) == (Part(1, NOW_US + 2000), Part(3, NOW_US + 2000))
    assert merge(limit, kept, given_part, NOW_US).units == 4
    assert split(limit, kept, 0, NOW_US) == (NO_PART, kept)


def test_renewed_limit_starts_with_no_more_than_before() -> None:
    old, new = limit_of(1000, 4), limit_of(500, 10)
    assert renewed(old, Part(4, 0), new, NOW_US) == Part(10, NOW_US + 6 * 500)
    assert renewed(old, NO_PART, new, NOW_US) == Part(10, NOW_US + 10 * 500)
    assert renewed(new, Part(10, 0), old, NOW_US) == Part(4, NOW_US)
    assert renewed(GroupLimit(1, 2, 5, None, None), NO_PART, new, NOW_US) == Part(10, 0)
    assert renewed(old, Part(4, 0), GroupLimit(2, 2, 5, None, None), NOW_US) == NO_PART
