"""Tests of the suspicion time by number of confirmations, and of the local health of a member."""

from __future__ import annotations

import pytest

from sandq.gossip.suspicion import SCORE_MOST, Awareness, Suspicion

BEGAN = 100.0


def lasts_s(wanted: int, agreeing: int) -> float:
    suspicion = Suspicion("first", wanted, 4.0, 24.0, BEGAN)
    for number in range(agreeing):
        suspicion.confirm(f"other {number}")
    return suspicion.ends_at - BEGAN


@pytest.mark.parametrize(
    ("wanted", "agreeing", "seconds"),
    [
        (0, 0, 4.0),
        (0, 3, 4.0),
        (1, 0, 24.0),
        (1, 1, 4.0),
        (2, 0, 24.0),
        (2, 1, 24 - 20 * 0.63093),
        (2, 2, 4.0),
        (2, 9, 4.0),
        (3, 1, 14.0),
        (3, 3, 4.0),
    ],
)
def test_each_confirmation_shortens_the_suspicion(wanted: int, agreeing: int, seconds: float) -> None:
    assert lasts_s(wanted, agreeing) == pytest.approx(seconds, abs=1e-3)


def test_repeated_confirmation_is_no_news() -> None:
    suspicion = Suspicion("first", 2, 4.0, 24.0, BEGAN)
    assert [suspicion.confirm(name) for name in ("first", "a", "a", "b", "c")] == [False, True, False, True, False]


@pytest.mark.parametrize("wanted", range(5))
def test_suspicion_never_becomes_longer(wanted: int) -> None:
    times = [lasts_s(wanted, agreeing) for agreeing in range(7)]
    assert times == sorted(times, reverse=True) and times[-1] == 4.0


def test_doubt_grows_and_falls_within_its_bounds() -> None:
    awareness = Awareness()
    awareness.add(-1)
    assert (awareness.score, awareness.scaled(2.0)) == (0, 2.0)
    awareness.add(3)
    assert (awareness.score, awareness.scaled(2.0)) == (3, 8.0)
    awareness.add(100)
    assert awareness.score == SCORE_MOST - 1
    awareness.add(-100)
    assert awareness.score == 0
