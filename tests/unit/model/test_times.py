from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo

import pytest

from sandq.model.errors import InvalidTime
from sandq.model.times import duration_ms, format_duration, format_instant, instant_ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (90, 90_000),
        (1.5, 1500),
        (1.1, 1100),  # not 1101, though 1.1 * 1000 is a little more
        (0.0001, 1),
        (1e-300, 1),
        (2.0005, 2001),
        (timedelta(days=3), 259_200_000),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=5, microseconds=1), 6),
        ("90s", 90_000),
        ("5m", 300_000),
        ("3d", 259_200_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("2w", 1_209_600_000),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("1.5h", 5_400_000),
        ("0.0001ms", 1),
        ("1m250ms", 60_250),
        ("90", 90_000),
        ("0.25", 250),
        ("0s", 0),
        (3660 * 86_400, 3660 * 86_400_000),
        ("4000d", 345_600_000_000),
        ("281474976710655ms", 2**48 - 1),
        (timedelta(days=4000), 345_600_000_000),
    ],
)
def test_durations(value: timedelta | float | str, ms: int) -> None:
    assert duration_ms(value) == ms


@pytest.mark.parametrize(
    "value",
    [
        *(-1, -0.001, timedelta(microseconds=-1), -1e-300, float("nan"), float("inf"), float("-inf")),
        *(True, False, None, b"5m", [5], 2**48, 10**400, 1e308, "281474976710656ms", timedelta.max),
        *("", " ", "s", " 5m", "5m ", "5 m", "-5m", "+5m", "5x", "5M", "5min", "1e3s", ".5s", "5.s", "1_0s"),
        *("30m1h", "1m1m", "5ms1s", "nan", "inf", "\u0665m", "5m\n", "9" * 63 + "s", "9" * 5000 + "s"),
    ],
)
def test_invalid_duration_is_refused(value: object) -> None:
    with pytest.raises(InvalidTime) as caught:
        duration_ms(value)  # type: ignore[arg-type]
    assert "is not a duration" in caught.value.message
    assert len(caught.value.message) < 250


@pytest.mark.parametrize("value", [2_000_000_000, 2e9, "2000000000", 3660 * 86_400 + 1, "316224000.001"])
def test_a_bare_number_of_more_than_ten_years_is_another_unit(value: float | str) -> None:
    """A Go duration of two seconds; milliseconds of three weeks."""
    with pytest.raises(
        InvalidTime, match=r'a bare number is seconds, .* more than ten years; say another unit: "5000ms"'
    ):
        duration_ms(value)


class _NoOffset(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (1_700_000_000_000, 1_700_000_000_000),
        (10**11, 10**11),
        (2**48 - 1, 2**48 - 1),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14t22:13:20z", 1_700_000_000_000),
        ("2023-11-14 22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14T16:43:20-05:30", 1_700_000_000_000),
        ("2023-11-14T22:13:20.000Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20.0001Z", 1_700_000_000_001),
        ("2023-11-14T22:13:20.000000000001Z", 1_700_000_000_001),
        ("2023-11-14T22:13:20.9999Z", 1_700_000_001_000),
        ("1970-01-01T00:00:00Z", 0),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),  # a leap second: the second after
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("9999-12-31T23:59:59.9991Z", 253_402_300_800_000),
        ("9999-12-31T23:59:59-12:00", 253_402_343_999_000),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), 1_700_000_000_000),
        (datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), 1_700_000_000_001),
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), 1_700_000_000_000),
        (datetime.max.replace(tzinfo=UTC), 253_402_300_800_000),
    ],
)
def test_instants(value: datetime | int | str, ms: int) -> None:
    assert instant_ms(value) == ms


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1_700_000_000, "looks like seconds"),
        ("1700000000", "looks like seconds"),
        (10**11 - 1, "looks like seconds"),
        (0, "looks like seconds"),
        (1_700_000_000.5, "looks like seconds"),
        (1_700_000_000_000.0, "a whole number: 1700000000000"),
        (-1, "before 1970"),
        (2**48, "looks like microseconds; epoch milliseconds are expected"),
        (1_700_000_000_000_000, "looks like microseconds"),
        (1_700_000_000_000_000_000, "looks like nanoseconds; epoch milliseconds are expected"),
        ("1700000000000000000", "looks like nanoseconds"),
        (10**400, "looks like nanoseconds"),
        (True, "expected"),
        (None, "expected"),
        (b"2023-11-14T22:13:20Z", "expected"),
        (date(2023, 11, 14), "expected"),
        (datetime(2023, 11, 14), "no time zone"),
        (datetime(2023, 11, 14, tzinfo=_NoOffset()), "no time zone"),
        (datetime(1969, 12, 31, tzinfo=UTC), "before 1970"),
        ("2023-11-14T22:13:20", "no time zone"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ("2023-11-14", "expected"),
        ("tomorrow", "expected"),
        ("", "expected"),
        ("2023-11-14T22:13Z", "expected"),
        (" 2023-11-14T22:13:20Z", "expected"),
        ("2023-11-14T22:13:20Z\n", "expected"),
        ("2023-11-14T22:13:20.Z", "expected"),
        ("2023-13-14T22:13:20Z", "month"),
        ("2023-02-29T22:13:20Z", "day"),
        ("2023-11-14T24:00:00Z", "hour"),
        ("2023-11-14T22:13:61Z", "second"),
        ("2023-11-14T22:13:20+24:00", "offset"),
        ("2023-11-14T22:13:20+01:60", "offset"),
        ("0000-01-01T00:00:00Z", "year"),
        ("2023-11-14T22:13:20." + "0" * 60 + "Z", "expected"),
    ],
)
def test_invalid_instant_is_refused(value: object, why: str) -> None:
    with pytest.raises(InvalidTime, match=why) as caught:
        instant_ms(value)  # type: ignore[arg-type]
    assert "is not an instant" in caught.value.message
    assert len(caught.value.message) < 250


def test_finer_datetimes_than_pythons_round_up_too() -> None:
    class Delta(timedelta):
        nanoseconds = 1

    class Stamp(datetime):
        def __sub__(self, other: object) -> timedelta:  # type: ignore[override]
            return Delta(seconds=1_700_000_000)

    assert instant_ms(Stamp(2023, 11, 14, tzinfo=UTC)) == 1_700_000_000_001
    assert duration_ms(Delta(milliseconds=5)) == 6


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "+10000-01-01T00:00:00.000Z"),
        (2**48 - 1, "+10889-08-02T05:31:50.655Z"),
    ],
)
def test_instants_are_formatted(ms: int, text: str) -> None:
    assert format_instant(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (250, "250ms"), (90_000, "1m30s"), (93_784_005, "1d2h3m4s5ms"), (604_800_000, "7d")],
)
def test_durations_are_formatted(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_times_out_of_range_are_refused() -> None:
    for wrong in (-1, 2**48):
        with pytest.raises(InvalidTime):
            format_instant(wrong)
    with pytest.raises(InvalidTime):
        format_duration(-1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-3d", "it must not be negative"),
        ("-90", "it must not be negative"),
        ("3 days", 'it is written "3d"'),
        ("1 hour 30 mins", 'it is written "1h30m"'),
        ("1.5 Hours", 'it is written "1.5h"'),
        ("5 m", 'it is written "5m"'),
        ("3 foo", "seconds, or text like"),
        ("30 mins 1 hour", "seconds, or text like"),
        ("-", "seconds, or text like"),
        ("", "seconds, or text like"),
    ],
)
def test_a_text_that_is_close_to_a_duration_is_named(text: str, words: str) -> None:
    with pytest.raises(InvalidTime) as raised:
        duration_ms(text)
    assert raised.value.message.endswith(words) or words in raised.value.message


def test_milliseconds_with_a_fraction_are_not_taken_for_seconds() -> None:
    with pytest.raises(InvalidTime, match="epoch milliseconds are a whole number: 1900000000001"):
        instant_ms(1_900_000_000_000.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidTime, match="it looks like seconds"):
        instant_ms(1_900_000_000.5)  # type: ignore[arg-type]
