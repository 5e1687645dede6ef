"""Tests of the ends of pauses."""

from __future__ import annotations

import pytest

from sandq.model.errors import InvalidRequest, InvalidTime
from sandq.model.limits import FIXED
from sandq.model.pauses import pause_end_ms

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
