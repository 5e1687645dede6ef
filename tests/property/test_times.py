from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.errors import InvalidTime
from sandq.model.times import SECONDS_MOST, duration_ms, format_duration, format_instant, instant_ms
from tests.support.examples import examples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_10000_MS = 253_402_300_800_000
ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(min_value=datetime(1970, 1, 3), timezones=ZONES)

few = settings(max_examples=examples(200), deadline=None)


def exact_ms(delta: timedelta) -> Fraction:
    return Fraction(delta.days * 86_400_000_000 + delta.seconds * 1_000_000 + delta.microseconds, 1000)


@few
@given(st.integers(0, 2**48 - 1))
def test_durations_round_trip(ms: int) -> None:
    assert duration_ms(format_duration(ms)) == ms
    assert duration_ms(timedelta(milliseconds=ms)) == ms


@few
@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3_000_000)))
def test_timedeltas_round_up(delta: timedelta) -> None:
    assert duration_ms(delta) == math.ceil(exact_ms(delta))


@few
@given(st.floats(0, SECONDS_MOST))
def test_float_seconds_round_up_the_number_one_sees(seconds: float) -> None:
    assert duration_ms(seconds) == math.ceil(Fraction(repr(seconds)) * 1000)


@few
@given(st.integers(0, 10**9), st.text("0123456789", min_size=1, max_size=9), st.sampled_from(["ms", "s", "m", "h"]))
def test_decimals_round_up(whole: int, fraction: str, unit: str) -> None:
    unit_ms = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[unit]
    text = f"{whole}.{fraction}"
    exact = Fraction(text) * unit_ms
    try:
        assert duration_ms(text + unit) == math.ceil(exact)
    except InvalidTime:
        assert exact > 2**48 - 1


@few
@given(st.integers(0, 2**48 - 1))
def test_instants_round_trip(ms: int) -> None:
    text = format_instant(ms)
    if ms < YEAR_10000_MS:
        assert instant_ms(text) == ms
        assert len(text) == 24
    else:
        assert text.startswith("+10")
        # The date must be valid. `datetime` supports only four digits of the year.
        assert datetime.fromisoformat("1" + text[3:]).year >= 1000


@few
@given(MOMENTS)
def test_an_instant_is_never_early(moment: datetime) -> None:
    ms = instant_ms(moment)
    assert ms == math.ceil(exact_ms(moment - EPOCH))
    assert instant_ms(moment.isoformat()) == ms


@few
@given(st.integers(10**11, 2**48 - 1))
def test_integers_are_returned_unchanged(ms: int) -> None:
    assert instant_ms(ms) == instant_ms(str(ms)) == ms


ANYTHING: st.SearchStrategy[Any] = (
    st.text(max_size=40)
    | st.from_regex(r"\A[0-9]{1,4}(\.[0-9]{1,3})?(ms|s|m|h|d|w)?\Z")
    | st.from_regex(r"\A[0-9]{4}-[01][0-9]-[0-3][0-9][Tt ][0-9:]{8}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})?\Z")
    | st.floats()
    | st.integers()
    | st.timedeltas()
    | st.datetimes()
    | st.datetimes(timezones=ZONES)
    | st.none()
    | st.binary(max_size=5)
)


@settings(max_examples=examples(400), deadline=None)
@given(ANYTHING)
def test_any_value_is_a_valid_time_or_refused(value: Any) -> None:
    for function in (duration_ms, instant_ms):
        try:
            ms = function(value)
        except InvalidTime:
            continue
        assert type(ms) is int
        assert 0 <= ms < 2**48
