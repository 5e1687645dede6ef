"""Occurrences of random expressions equal those of a brute-force search, tick by tick, around changes of clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.errors import InvalidRequest
from sandq.schedules.cron import parse
from sandq.schedules.recurrence import Recurrence
from sandq.schedules.wall_clock import last_instant
from sandq.schedules.zones import zone
from tests.support.examples import IS_RANDOM, examples
from tests.support.schedules.brute_force import DAY_S, BruteForce, Ticks, epoch_s
from tests.support.schedules.expressions import DATES, TIMES, TIMES_WITH_SECONDS

# A zone, and a time in UTC near a change of its clocks or a special date. Comments name what is special.
MOMENTS = [
    ("Europe/Berlin", "2026-03-29 01:00"),
    ("Europe/Berlin", "2026-10-25 01:00"),
    ("Europe/Berlin", "2100-03-28 01:00"),
    ("Europe/Dublin", "2026-10-25 01:00"),
    ("America/New_York", "2026-03-08 07:00"),
    ("America/New_York", "2026-11-01 06:00"),
    ("America/New_York", "2099-11-01 06:00"),
    ("America/St_Johns", "2006-04-02 03:31"),  # the change is a minute past midnight
    ("America/St_Johns", "2006-10-29 02:31"),
    ("America/Havana", "2024-03-10 05:00"),  # the change is at midnight
    ("America/Havana", "2024-11-03 05:00"),
    ("America/Sao_Paulo", "2018-11-04 03:00"),
    ("America/Sao_Paulo", "2019-02-17 02:00"),
    ("America/Sao_Paulo", "2019-11-03 03:00"),  # the first year without a change
    ("America/Caracas", "2007-12-09 07:00"),  # by half an hour
    ("America/Caracas", "2016-05-01 07:00"),
    ("Africa/Casablanca", "2025-02-23 02:00"),  # because of Ramadan
    ("Africa/Casablanca", "2025-04-06 02:00"),
    ("Africa/Cairo", "2024-04-25 22:00"),  # the change is at midnight
    ("Africa/Cairo", "2024-10-31 21:00"),
    ("Antarctica/Troll", "2026-03-29 01:00"),  # by two hours
    ("Antarctica/Troll", "2026-10-25 01:00"),
    ("Antarctica/Casey", "2020-10-03 16:01"),  # by three hours
    ("Antarctica/Casey", "2021-03-13 13:00"),
    ("Asia/Beirut", "2024-03-30 22:00"),
    ("Asia/Kathmandu", "1985-12-31 18:30"),  # by 15 minutes
    ("Asia/Pyongyang", "2015-08-14 15:00"),
    ("Asia/Pyongyang", "2018-05-04 15:00"),
    ("Asia/Kolkata", "2028-02-29 12:00"),
    ("Atlantic/Azores", "2026-03-29 01:00"),
    ("Australia/Lord_Howe", "2026-04-04 15:00"),  # by half an hour
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
    ("Pacific/Chatham", "2026-04-04 14:00"),
    ("Pacific/Chatham", "2026-09-26 14:00"),
    ("Pacific/Apia", "2011-12-30 10:00"),  # the clocks skip a whole day
    ("Pacific/Kwajalein", "1993-08-21 12:00"),
    ("UTC", "2100-02-28 23:00"),
    ("UTC", "2027-12-31 23:00"),
]
BY_SECONDS = [
    ("Africa/Monrovia", "1972-01-07 00:44:30"),  # by 44 minutes and 30 seconds
    ("Australia/Lord_Howe", "2026-04-04 15:00"),
    ("Europe/Berlin", "2026-03-29 01:00"),
    ("Europe/Berlin", "2026-10-25 01:00"),
]
BEFORE_S, ASKED_S, AFTER_S = 2 * DAY_S, DAY_S // 2, 2 * DAY_S
SHOWN = 30


NOT_SET = {"Asia/Kolkata", "UTC"}


@cache
def ticks_at(name: str, moment: str, step_s: int = 60, before_s: int = BEFORE_S, after_s: int = AFTER_S) -> Ticks:
    around_s = epoch_s(moment)
    return Ticks(zone(name), around_s - before_s, around_s + after_s, step_s)


def agree(text: str, ticks: Ticks, after_s: int) -> None:
    """Check that the schedule and the brute-force search find the same occurrences after and before an instant."""
    expected = ticks.occurrences(BruteForce(text))
    recurrence = Recurrence(cron=text, zone=ticks.zone.key or "")
    following = [instant for instant in expected if instant > after_s]
    found = recurrence.occurrences(after_s * 1000, (ticks.end_s - 1) * 1000, SHOWN)
    assert [instant // 1000 for instant in found] == following[:SHOWN], (text, ticks.zone.key, after_s)
    before = [instant for instant in expected if instant <= after_s]
    last_s = last_instant(parse(text), ticks.zone, after_s)
    if before:
        assert last_s == before[-1], (text, ticks.zone.key, after_s)
    else:
        assert last_s is None or last_s <= ticks.start_s, (text, ticks.zone.key, after_s)


def happens(text: str) -> bool:
    try:
        parse(text)
    except InvalidRequest as error:
        assert "never happens" in error.message  # each expression of this test is valid
        return False
    return True


def test_clocks_are_set_at_these_moments() -> None:
    """Newer time zone data may change clock changes in the future."""
    for name, moment in {*MOMENTS, *BY_SECONDS} - {("America/Sao_Paulo", "2019-11-03 03:00")}:
        before, after = (datetime.fromtimestamp(epoch_s(moment) - shift, zone(name)).utcoffset() for shift in (1, 0))
        assert (before == after) is (name in NOT_SET), (name, moment)


@settings(max_examples=6000 if IS_RANDOM else 350)
@given(TIMES, st.lists(st.tuples(st.sampled_from(MOMENTS), st.integers(-ASKED_S, ASKED_S)), min_size=2, max_size=3))
def test_occurrences_equal_brute_force(text: str, asked: list[tuple[tuple[str, str], int]]) -> None:
    if happens(text):
        for (name, moment), shift_s in asked:
            agree(text, ticks_at(name, moment), epoch_s(moment) + shift_s)


@settings(max_examples=examples(240))
@given(TIMES_WITH_SECONDS, st.sampled_from(BY_SECONDS), st.integers(-1800, 5400))
def test_occurrences_with_seconds_equal_brute_force(text: str, at: tuple[str, str], shift_s: int) -> None:
    ticks = ticks_at(*at, 1, 2 * 3600, 4 * 3600)
    agree(text, ticks, epoch_s(at[1]) + shift_s)


FRAGMENTS = st.sampled_from([*"0123456789*/-,#LW@? ", "MON", "jan", "5L", "FRI#2", "*/", " * ", "² ", "\n", "٣"])


@settings(max_examples=examples(600))
@given(
    st.lists(FRAGMENTS, max_size=40).map("".join)
    | st.text(max_size=300)
    | st.lists(FRAGMENTS, min_size=5).map(" ".join)
)
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        expression = parse(text)
    except InvalidRequest as error:
        assert error.message.startswith("cron: ")
        assert len(error.message) < 900
    else:
        assert expression.after(datetime(2026, 1, 1)) is not None


@settings(max_examples=examples(300))
@given(DATES, st.dates(date(1970, 1, 1), date(2100, 12, 31)))
def test_dates_are_those_of_the_calendar(text: str, first: date) -> None:
    if not happens(text):
        return
    oracle, days = BruteForce(text), 800
    dates = [day for day in (first + timedelta(days=n) for n in range(days)) if oracle.has_date(day)][:SHOWN]
    start = int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp() * 1000)
    found = Recurrence(cron=text).occurrences(start, start + days * DAY_S * 1000, SHOWN)
    assert [datetime.fromtimestamp(ms / 1000, UTC).date() for ms in found] == dates
    assert all(ms % (DAY_S * 1000) == 12 * 3_600_000 for ms in found)


RARE = [
    ("0 12 29 2 *", 20),  # 2100 is no leap year
    ("0 12 * 2 MON#5", 2),
    ("0 12 29 2 */7", 3),
    ("0 12 L 2 *", 81),
    ("0 12 LW 12 *", 81),
    ("0 12 */13 2,11 5L", None),
    ("0 12 13 */6 FRI", None),
    ("0 12 31 * *", 81 * 7),
    ("0 12 */100,13 10 *", 162),
]


@pytest.mark.parametrize(("text", "count"), RARE)
@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin"])
def test_rare_dates_up_to_2100(text: str, count: int | None, name: str) -> None:
    oracle, clock = BruteForce(text), zone(name)
    days = (date(2020, 1, 1) + timedelta(days=n) for n in range(81 * 365 + 20))
    at_noon = [datetime(day.year, day.month, day.day, 12, tzinfo=clock) for day in days if oracle.has_date(day)]
    found = Recurrence(cron=text, zone=name).occurrences(
        epoch_s("2020-01-01") * 1000, epoch_s("2101-01-01") * 1000, 5000
    )
    assert found == [int(noon.timestamp()) * 1000 for noon in at_noon]
    assert count is None or len(found) == count


@settings(max_examples=examples(300))
@given(
    TIMES.filter(happens),
    st.sampled_from(MOMENTS),
    st.integers(-ASKED_S * 1000, ASKED_S * 1000),
    st.integers(1, 10 * DAY_S * 1000),
)
def test_each_occurrence_is_after_the_last(text: str, at: tuple[str, str], shift_ms: int, range_ms: int) -> None:
    recurrence = Recurrence(cron=text, zone=at[0])
    after = epoch_s(at[1]) * 1000 + shift_ms
    found, now = [], after
    for _ in range(SHOWN):
        following = recurrence.next_ms(now)
        if following is None or following > after + range_ms:
            break
        assert following > now
        assert recurrence.next_ms(following - 1) == following
        found.append(following)
        now = following
    assert found == recurrence.occurrences(after, after + range_ms, SHOWN)
    if len(found) < SHOWN:
        assert recurrence.latest_ms(after + range_ms, after) == (found[-1] if found else None, len(found))


@settings(max_examples=examples(300))
@given(
    st.integers(1000, 10**10),
    st.integers(0, 10**13),
    st.integers(-(10**11), 10**11),
    st.integers(0, 10**11),
    st.integers(1, 10**11) | st.none(),
)
def test_intervals_are_multiples(every: int, anchor: int, shift: int, range_ms: int, length: int | None) -> None:
    recurrence = Recurrence(every_ms=every, anchor_ms=anchor, end_ms=None if length is None else anchor + length)
    after, until = anchor + shift, anchor + shift + range_ms
    end = until if length is None else min(until, anchor + length - 1)
    # The first and the last k for which anchor + k * every is in the range.
    least, most = max(shift // every + 1, 0), (end - anchor) // every
    expected = [anchor + k * every for k in range(least, min(most + 1, least + SHOWN))]
    assert recurrence.occurrences(after, until, SHOWN) == expected
    count = max(most + 1 - least, 0)
    assert recurrence.latest_ms(until, after) == (anchor + most * every if count else None, min(count, 1000))
    assert recurrence.next_ms(after) == (anchor + least * every if length is None or least * every < length else None)
