"""Tests of the ends of pauses."""

from __future__ import annotations

import pytest

from sandq.model.errors import InvalidRequest, InvalidTime, TimedOut
from sandq.model.limits import FIXED
from sandq.model.pauses import NAMED, STEP_MS, consumer_pause_end_ms, incomplete_pause, pause_end_ms

NOW = 1_800_000_000_000


def test_an_end_is_an_instant_or_a_duration() -> None:
    assert pause_end_ms(None, None, NOW) is None
    assert pause_end_ms(NOW + 1, None, NOW) == NOW + 1
    assert pause_end_ms(None, 600_000, NOW) == NOW + 600_000
    assert pause_end_ms(None, FIXED.pause_most_ms, NOW) == NOW + FIXED.pause_most_ms


def test_wrong_ends_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"given twice: give an instant \(until\) or a duration \(for\)"):
        pause_end_ms(NOW + 1, 1, NOW)
    with pytest.raises(InvalidTime, match=r"a pause until 2027-01-15T07:59:59\.000Z would have ended already"):
        pause_end_ms(NOW - 1000, None, NOW)
    with pytest.raises(InvalidTime, match=r"a pause for 0s would have ended already"):
        pause_end_ms(None, 0, NOW)
    for until, for_ in ((NOW + FIXED.pause_most_ms + 1, None), (None, FIXED.pause_most_ms + 1)):
        with pytest.raises(InvalidTime, match=r"at most 366d are allowed \(pause_most_ms") as raised:
            pause_end_ms(until, for_, NOW)
        assert raised.value.details["limit"] == "pause_most_ms"


@pytest.mark.parametrize(
    ("for_ms", "now_ms", "end_ms"),
    [
        (1, NOW + 1, NOW + 2),
        (300, NOW + 1, NOW + 330),
        (10_000, NOW, NOW + 10_000),
        (10_000, NOW + 1, NOW + 11_000),
        (FIXED.consumer_pause_most_ms, NOW, NOW + FIXED.consumer_pause_most_ms),
        (FIXED.consumer_pause_most_ms, NOW + 1, NOW + FIXED.consumer_pause_most_ms),
        (FIXED.consumer_pause_most_ms - 1, NOW + 2, NOW + FIXED.consumer_pause_most_ms),
    ],
)
def test_end_of_a_pause_by_a_consumer_is_rounded(for_ms: int, now_ms: int, end_ms: int) -> None:
    assert consumer_pause_end_ms(for_ms, now_ms) == end_ms
    assert end_ms - now_ms <= FIXED.consumer_pause_most_ms


def test_consumers_that_pause_within_a_second_get_one_end() -> None:
    for for_ms in (600_000, FIXED.consumer_pause_most_ms):
        assert len({consumer_pause_end_ms(for_ms, NOW + at) for at in range(1, STEP_MS)}) == 1


@pytest.mark.parametrize("for_ms", [0, FIXED.consumer_pause_most_ms + 1])
def test_wrong_pause_by_a_consumer_is_refused(for_ms: int) -> None:
    with pytest.raises(InvalidTime, match="at most 1h are allowed"):
        consumer_pause_end_ms(for_ms, NOW)


def test_incomplete_pause_names_few_partitions() -> None:
    error = incomplete_pause(100, refused=[], silent=range(NAMED + 2))
    assert isinstance(error, TimedOut)
    assert "holds in 90 of 100 partitions: the leaders of partitions 0, 1, 2, 3, 4, 5, 6, 7 and 2 more" in error.message
    assert isinstance(incomplete_pause(3, refused=[2], reason="it is full"), InvalidRequest)
