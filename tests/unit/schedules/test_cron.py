"""Tests of cron expressions: accepted expressions, and the errors of invalid ones."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from sandq.model.errors import InvalidRequest
from sandq.schedules.cron import ALIASES, EXPRESSION_CHARS_MAX, check_steps, parse

SATURDAY = datetime(2028, 1, 1)  # of a leap year


def times(text: str, count: int, after: datetime = SATURDAY) -> list[str]:
    expression, found = parse(text), []
    for _ in range(count):
        following = expression.after(after)
        assert following is not None
        after = following
        found.append(f"{after:%m-%d %H:%M:%S}")
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", ["01-01 00:01:00", "01-01 00:02:00"]),
        ("  5   4 * * *  ", ["01-01 04:05:00", "01-02 04:05:00"]),
        ("*/20 9-17 * * MON-FRI", ["01-03 09:00:00", "01-03 09:20:00"]),
        ("0 9-17/4 * * *", ["01-01 09:00:00", "01-01 13:00:00", "01-01 17:00:00", "01-02 09:00:00"]),
        ("0 20/2 * * *", ["01-01 20:00:00", "01-01 22:00:00", "01-02 20:00:00"]),
        ("0 5-5/3 * * *", ["01-01 05:00:00", "01-02 05:00:00"]),
        ("0 0 * JAN,mar *", ["01-02 00:00:00"]),
        ("0 0 1 * *", ["02-01 00:00:00", "03-01 00:00:00"]),
        ("0 0 L * *", ["01-31 00:00:00", "02-29 00:00:00", "03-31 00:00:00", "04-30 00:00:00"]),
        ("0 0 LW * *", ["01-31 00:00:00", "02-29 00:00:00", "03-31 00:00:00", "04-28 00:00:00"]),
        ("0 0 15,L 2 *", ["02-15 00:00:00", "02-29 00:00:00"]),
        ("0 0 * * 5L", ["01-28 00:00:00", "02-25 00:00:00"]),
        ("0 0 * * FRI#2", ["01-14 00:00:00", "02-11 00:00:00"]),
        ("0 0 * * 1#5", ["01-31 00:00:00", "05-29 00:00:00"]),
        ("0 0 * * 0", ["01-02 00:00:00", "01-09 00:00:00"]),
        ("0 0 * * 7", ["01-02 00:00:00", "01-09 00:00:00"]),
        ("0 0 * * SUN", ["01-02 00:00:00", "01-09 00:00:00"]),
        ("0 0 * * 5-7", ["01-02 00:00:00", "01-07 00:00:00", "01-08 00:00:00", "01-09 00:00:00"]),
        ("0 0 13 * FRI", ["01-07 00:00:00", "01-13 00:00:00", "01-14 00:00:00"]),  # either
        ("0 0 */13 * FRI", ["01-14 00:00:00"]),  # both fields must match, because one begins with a star
        ("0 0 13 * */5", ["02-13 00:00:00"]),
        ("0 0 29 2 *", ["02-29 00:00:00", "02-29 00:00:00"]),
        ("*/20 * * * * *", ["01-01 00:00:20", "01-01 00:00:40", "01-01 00:01:00"]),
        ("15 30 2 * * *", ["01-01 02:30:15", "01-02 02:30:15"]),
        ("59 59 23 31 12 *", ["12-31 23:59:59"]),
        ("@hourly", ["01-01 01:00:00"]),
        ("@Daily", ["01-02 00:00:00"]),
        ("@midnight", ["01-02 00:00:00"]),
        ("@weekly", ["01-02 00:00:00", "01-09 00:00:00"]),
        ("@monthly", ["02-01 00:00:00"]),
        ("@yearly", ["01-01 00:00:00"]),
        ("@annually", ["01-01 00:00:00"]),
    ],
)
def test_an_expression_means_these_times(text: str, expected: list[str]) -> None:
    assert times(text, len(expected)) == expected
    # The same occurrences in reverse.
    last = SATURDAY
    for _ in expected:
        following = parse(text).after(last)
        assert following is not None
        assert parse(text).at_or_before(following) == following
        if last != SATURDAY:
            assert parse(text).at_or_before(following - timedelta(seconds=1)) == last
        last = following


@pytest.mark.parametrize(
    ("text", "is_fixed"),
    [
        ("30 2 * * *", True),
        ("0,30 9-17 * * MON", True),
        ("0-59 0-23 * * *", True),
        ("*/10 30 2 * * *", True),  # for any seconds
        ("30 * * * *", False),
        ("30 */2 * * *", False),
        ("* 2 * * *", False),
        ("0 */5 3 * * *", False),
        ("@daily", True),
        ("@hourly", False),
    ],
)
def test_expression_with_fixed_hour_and_minute_is_fixed(text: str, is_fixed: bool) -> None:
    assert parse(text).is_fixed is is_fixed


FIVE = "five fields are expected (minute, hour, day of month, month, day of week), or six with the second first"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("* * * * * * *", f'cron: "* * * * * * *" has 7 fields; {FIVE}'),
        ("5", f'cron: "5" has 1 field; {FIVE}'),
        ("", f'cron: "" has 0 fields; {FIVE}'),
        (
            "75 * * * *",
            'cron: "75 * * * *": minute: "75" is not understood; 0 to 59 is expected, or ranges 1-5, steps */2 and '
            "1-9/2, and lists 1,3 of these",
        ),
        (
            "0 0 * * MON,TUES",
            'day of week: "TUES" is not understood; 0 to 7 or SUN to SAT (0 and 7 are Sunday), 5L for',
        ),
        ("0 22-6 * * *", 'hour: "22-6" is not understood; a range goes up: write 22-23,0-6'),
        ("0 0 L-3 * *", 'day of month: "L-3" is not understood; 1 to 31, L for the last day'),
        ("0 0 * NOV-FEB *", 'month: "NOV-FEB" is not understood; a range goes up: write NOV-12,1-FEB'),
        ("0 0 ? * MON", 'day of month: "?" is not understood; write * for any'),
        ("0 0 15W * *", 'day of month: "15W" is not understood; only LW is possible; name several days, as 1-3'),
        ("0 0 15w * *", 'day of month: "15w" is not understood; only LW is possible'),
        ("0 0 * 5W *", 'month: "5W" is not understood; 1 to 12'),
        ("0 0 W * *", 'day of month: "W" is not understood; 1 to 31, L for the last day, LW for'),
        ("0 0 0 * *", 'day of month: "0" is not understood'),
        ("0 0 1,,2 * *", 'day of month: "" is not understood'),
        ("0 0 * 13 *", 'month: "13" is not understood'),
        ("0 24 * * *", 'hour: "24" is not understood'),
        ("60 0 0 * * *", 'second: "60" is not understood'),
        ("*/0 * * * *", 'minute: "*/0" is not understood'),
        ("0 0 * * FRI#6", 'day of week: "FRI#6" is not understood'),
        ("0 0 * * L", 'day of week: "L" is not understood'),
        ("1-2-3 * * * *", 'minute: "1-2-3" is not understood'),
        ("٣ * * * *", 'minute: "٣" is not understood'),
        ("-1 * * * *", 'minute: "-1" is not understood'),
        ("@reboot", "cron: @reboot has no meaning here"),
        ("@fortnightly", 'cron: "@fortnightly" is not known; the aliases are @hourly, @daily, @midnight, @weekly,'),
        ("9" * (EXPRESSION_CHARS_MAX + 1), "cron: 257 characters are given, at most 256 are allowed"),
        ("0 0 31 2 *", 'cron: "0 0 31 2 *" never happens; name a day that these months have'),
        ("0 0 30,31 2 *", "never happens"),
        ("0 0 31 2,4,JUN *", "never happens"),
        ("0 0 31 2,4 */2", "never happens"),
        ("0 0 */31 * 5L", "never happens"),
    ],
)
def test_wrong_expression_is_refused_with_advice(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(text)
    assert message in refused.value.message


def test_expressions_advised_in_errors_are_valid() -> None:
    for text in ("0 22-23,0-6 * * *", "0 0 * NOV-12,1-FEB *", "0 0 * * FRI-7,0-MON"):
        parse(text)


def test_aliases_are_expressions() -> None:
    for alias, text in ALIASES.items():
        assert times(alias, 3) == times(text, 3)


def test_an_expression_ends_with_the_calendar() -> None:
    assert parse("0 0 1 1 *").after(datetime(9997, 1, 1)) == datetime(9998, 1, 1)
    assert parse("0 0 1 1 *").after(datetime(9998, 1, 1)) is None
    assert parse("0 0 31 12 *").after(datetime(9998, 12, 31)) is None
    assert parse("0 0 29 2 *").after(datetime(9998, 1, 1)) is None


@pytest.mark.parametrize("text", ["*/90 * * * *", "*/60 * * * *", "0 */24 * * *", "0-30/90 * * * *", "0 0 1 */12 *"])
def test_a_step_longer_than_its_field_is_refused_of_users_and_read_when_stored(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the step is longer than the range of the field"):
        check_steps(text)
    parse(text)


@pytest.mark.parametrize("text", ["*/59 * * * *", "0 */23 * * *", "@daily", "5/70 * * * *", "0 0 L * *"])
def test_other_steps_are_accepted(text: str) -> None:
    check_steps(text)
    parse(text)


@pytest.mark.parametrize(("text", "every"), [("@every 5m", "5m"), ("@every", "5m"), ("@EVERY 1h30m", "1h30m")])
def test_interval_given_as_cron_suggests_every(text: str, every: str) -> None:
    with pytest.raises(InvalidRequest, match=f'is an interval: give it as every "{every}", in place of cron'):
        parse(text)
