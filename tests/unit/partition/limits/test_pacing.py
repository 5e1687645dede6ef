"""Tests of the pace of a tenant's messages: never more in any period than the rate and the burst allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandq.partition.limits.pacing import Pace, Pacing

US = st.integers(0, 5_000_000)


@given(st.integers(10, 1_000_000), st.integers(1, 20), st.lists(st.tuples(US, st.integers(1, 30)), max_size=40))
def test_pacing_keeps_rate_and_burst(interval_us: int, burst: int, asked: list[tuple[int, int]]) -> None:
    pace, pacing, now_us = Pace(interval_us, burst), Pacing(), 1_000_000_000
    went: list[tuple[int, int]] = []
    for pause_us, wanted in asked:
        now_us += pause_us
        pacing.forget(now_us)
        count = min(pacing.available("a", pace, now_us), wanted)
        assert (pacing.free_us("a", pace, now_us) == now_us) == (pacing.available("a", pace, now_us) > 0)
        if count:
            pacing.serve("a", pace, count, now_us)
            went.append((now_us, count))
    for at, (first_us, _) in enumerate(went):
        total = 0
        for then_us, count in went[at:]:
            total += count
            assert total <= burst + (then_us - first_us) // interval_us


@given(st.integers(10, 1_000_000), st.integers(1, 20), US)
def test_message_is_available_at_free_us(interval_us: int, burst: int, pause_us: int) -> None:
    pace, pacing, now_us = Pace(interval_us, burst), Pacing(), 1_000_000_000
    pacing.serve("a", pace, pacing.available("a", pace, now_us), now_us)
    free_us = pacing.free_us("a", pace, now_us)
    assert free_us == now_us + interval_us
    assert pacing.available("a", pace, free_us) == 1
    assert pacing.available("a", pace, free_us - 1) == 0
    assert pacing.available("a", pace, free_us + pause_us) == min(1 + pause_us // interval_us, burst)


def test_saved_pacing_continues_after_load() -> None:
    pace, pacing = Pace(1000, 1), Pacing()
    pacing.serve("a", pace, 1, 5000)
    (told,) = pacing.changes()
    assert told == ("a", 6000)
    again = Pacing()
    again.load(*told)
    assert again.available("a", pace, 5999) == 0 and again.available("a", pace, 6000) == 1
    again.forget(6000)
    assert [*again.changes()] == [("a", None)]


def test_debt_is_limited_after_slower_pace_or_clock_reset() -> None:
    pace, pacing = Pace(1000, 1), Pacing()
    pacing.serve("a", pace, 1, 10**12)
    pacing.limit("a", pace, 5000)
    assert pacing.free_us("a", pace, 5000) == 6000
    pacing.limit("a", pace, 5500)
    assert pacing.available("a", pace, 6000) == 1
