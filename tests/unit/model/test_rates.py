"""Tests of rates: a rate is never faster than configured, and shown rates can be parsed."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.rates import interval_us, rate_text


@pytest.mark.parametrize(
    ("rate", "interval", "shown"),
    [
        (3, 333_334, "3/s"),
        ("7/m", 8_571_429, "7/m"),
        (1.5, 666_667, "90/m"),
        ("0.3/s", 3_333_334, "18/m"),
        (0.1, 10_000_000, "6/m"),
        ("13/h", 276_923_077, "13/h"),
        ("1/d", 86_400_000_000, "1/d"),
        ("100000/s", 10, "100000/s"),
        (70_000, 15, "66667/s"),
        (99_999.9, 11, "90910/s"),
    ],
)
def test_rate_is_never_faster_than_written(rate: Any, interval: int, shown: str) -> None:
    assert (interval_us(rate), rate_text(interval)) == (interval, shown)


@pytest.mark.parametrize("interval", [10, 11, 13, 333_333, 8_571_428, 276_923_076, 86_399_999_999, 43_200_000_001])
def test_rate_is_read_again_as_it_is_shown(interval: int) -> None:
    assert interval_us(rate_text(interval)) == interval


@pytest.mark.parametrize(
    "rate",
    [0, -1, 0.0, float("nan"), float("inf"), -float("inf"), True, None, [], "", "NaN", "1e3", "1/w", "1 / s", "0/s"],
)
def test_invalid_rate_is_refused(rate: Any) -> None:
    with pytest.raises(ValueError, match="a rate is expected"):
        interval_us(rate)


@pytest.mark.parametrize("rate", ["100001/s", "0.5/d", 10**30, 1e-13, 5e-324, 1e308])
def test_rates_have_bounds(rate: Any) -> None:
    with pytest.raises(ValueError, match="between 1/d and 100000/s"):
        interval_us(rate)
