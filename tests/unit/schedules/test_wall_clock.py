"""Tests of clocks that are set forward and back: the table of docs/schedules.md, and the assumptions of the search."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import pairwise

import pytest

from sandq.schedules.cron import parse
from sandq.schedules.recurrence import Recurrence
from sandq.schedules.wall_clock import last_instant, next_instant
from sandq.schedules.zones import zone, zone_names
from tests.support.schedules.brute_force import DAY_S, epoch_s


def local(text: str, name: str, start: str, count: int) -> list[str]:
    """Return the next occurrences in local time with the UTC offset."""
    found = Recurrence(cron=text, zone=name).occurrences(epoch_s(start) * 1000, 2**48, count)
    return [f"{datetime.fromtimestamp(ms // 1000, zone(name)):%d %H:%M:%S%z}" for ms in found]


FORWARD = ("Europe/Berlin", "2026-03-28 12:00")  # 02:00 to 03:00 on the 29th
BACK = ("Europe/Berlin", "2026-10-24 12:00")  # 03:00 to 02:00 on the 25th


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A skipped local time fires right after the gap and is never lost.
        ("30 2 * * *", ["29 03:00:00+0200", "30 02:30:00+0200"]),
        ("0 2 * * *", ["29 03:00:00+0200", "30 02:00:00+0200"]),
        ("15 30 2 * * *", ["29 03:00:00+0200", "30 02:30:15+0200"]),
        # Several skipped times fire once, also together with a regular time.
        ("10,50 2 * * *", ["29 03:00:00+0200", "30 02:10:00+0200", "30 02:50:00+0200"]),
        ("0 2,3 * * *", ["29 03:00:00+0200", "30 02:00:00+0200", "30 03:00:00+0200"]),
        ("30 1-3 * * *", ["29 01:30:00+0100", "29 03:00:00+0200", "29 03:30:00+0200"]),
        # With a star only existing hours fire.
        ("30 * * * *", ["28 13:30:00+0100", "28 14:30:00+0100"]),
        ("*/30 2 * * *", ["30 02:00:00+0200", "30 02:30:00+0200"]),
        ("30 */2 29 * *", ["29 00:30:00+0100", "29 04:30:00+0200"]),
        ("*/20 1-3 29 * *", [f"29 0{h}:{m}:00+0{h - 1 or 1}00" for h in (1, 3) for m in ("00", "20", "40")]),
        ("*/15 30 2 * * *", ["29 03:00:00+0200", "30 02:30:00+0200"]),
    ],
)
def test_times_where_the_clock_is_set_forward(text: str, expected: list[str]) -> None:
    assert local(text, *FORWARD, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A repeated local time fires once, at its first occurrence.
        ("30 2 * * *", ["25 02:30:00+0200", "26 02:30:00+0100"]),
        ("0 2 * * *", ["25 02:00:00+0200", "26 02:00:00+0100"]),
        ("0 3 * * *", ["25 03:00:00+0100", "26 03:00:00+0100"]),
        ("15 30 2 * * *", ["25 02:30:15+0200", "26 02:30:15+0100"]),
        ("10,50 2 * * *", ["25 02:10:00+0200", "25 02:50:00+0200", "26 02:10:00+0100"]),
        ("59 59 2 * * *", ["25 02:59:59+0200", "26 02:59:59+0100"]),
        # With a star the time fires in both hours.
        (
            "*/30 2 * * *",
            ["25 02:00:00+0200", "25 02:30:00+0200", "25 02:00:00+0100", "25 02:30:00+0100", "26 02:00:00+0100"],
        ),
        ("30 */2 25 * *", ["25 00:30:00+0200", "25 02:30:00+0200", "25 02:30:00+0100", "25 04:30:00+0100"]),
    ],
)
def test_times_where_the_clock_is_set_back(text: str, expected: list[str]) -> None:
    assert local(text, *BACK, len(expected)) == expected


def test_an_hourly_schedule_is_hourly() -> None:
    for name, start in (FORWARD, BACK):
        found = Recurrence(cron="@hourly", zone=name).occurrences(epoch_s(start) * 1000, 2**48, 48)
        assert {after - before for before, after in pairwise(found)} == {3_600_000}


def test_occurrence_is_not_repeated_in_the_repeated_hour_after_restart() -> None:
    schedule = Recurrence(cron="30 2 * * *", zone="Europe/Berlin")
    within = epoch_s("2026-10-25 01:10") * 1000  # the second 02:10
    assert schedule.next_ms(within) == epoch_s("2026-10-26 01:30") * 1000
    assert schedule.latest_ms(within, within - DAY_S * 1000) == (epoch_s("2026-10-25 00:30") * 1000, 1)


@pytest.mark.parametrize(
    ("name", "start", "text", "expected"),
    [
        # Lord Howe sets its clocks by half an hour.
        ("Australia/Lord_Howe", "2026-10-03 00:00", "15 2 * * *", ["04 02:30:00+1100", "05 02:15:00+1100"]),
        ("Australia/Lord_Howe", "2026-10-03 14:30", "*/10 2 * * *", ["04 02:30:00+1100", "04 02:40:00+1100"]),
        ("Australia/Lord_Howe", "2026-10-03 14:30", "*/10 3 * * *", ["04 03:00:00+1100", "04 03:10:00+1100"]),
        ("Australia/Lord_Howe", "2026-04-04 00:00", "45 1 * * *", ["05 01:45:00+1100", "06 01:45:00+1030"]),
        (
            "Australia/Lord_Howe",
            "2026-04-04 13:30",
            "*/45 1 * * *",
            ["05 01:00:00+1100", "05 01:45:00+1100", "05 01:45:00+1030"],
        ),
        # Samoa left out 2011-12-30.
        ("Pacific/Apia", "2011-12-29 12:00", "0 9 * * *", ["29 09:00:00-1000", "31 00:00:00+1400", "31 09:00:00+1400"]),
        (
            "Pacific/Apia",
            "2011-12-30 00:00",
            "0 */8 * * *",
            ["29 16:00:00-1000", "31 00:00:00+1400", "31 08:00:00+1400"],
        ),
        ("Pacific/Apia", "2011-12-29 12:00", "0 9 30 12 *", ["31 00:00:00+1400", "30 09:00:00+1400"]),
        # Morocco leaves its summer time for Ramadan.
        ("Africa/Casablanca", "2025-02-22 12:00", "30 2 * * *", ["23 02:30:00+0100", "24 02:30:00+0000"]),
        ("Africa/Casablanca", "2025-04-05 12:00", "30 2 * * *", ["06 03:00:00+0100", "07 02:30:00+0100"]),
        # Sao Paulo's midnight was missing until daylight saving ended there.
        ("America/Sao_Paulo", "2018-11-03 12:00", "0 0 * * *", ["04 01:00:00-0200", "05 00:00:00-0200"]),
        ("America/Sao_Paulo", "2019-11-02 12:00", "0 0 * * *", ["03 00:00:00-0300", "04 00:00:00-0300"]),
        # Midnight occurs twice.
        ("America/Havana", "2024-11-02 12:00", "0 0 * * *", ["03 00:00:00-0400", "04 00:00:00-0500"]),
        (
            "America/Havana",
            "2024-11-02 12:00",
            "0 * 3 * *",
            ["03 00:00:00-0400", "03 00:00:00-0500", "03 01:00:00-0500"],
        ),
        # Offsets had seconds.
        ("Africa/Monrovia", "1972-01-06 12:00", "0 0 * * *", ["07 00:44:30+0000", "08 00:00:00+0000"]),
        ("Africa/Monrovia", "1972-01-06 00:00", "0 0 * * *", ["06 00:00:00-004430", "07 00:44:30+0000"]),
        # The rule of a zone also holds for years without an entry.
        ("America/New_York", "2099-03-07 12:00", "30 2 * * *", ["08 03:00:00-0400", "09 02:30:00-0400"]),
        ("Europe/Berlin", "2100-10-30 12:00", "30 2 * * *", ["31 02:30:00+0200", "01 02:30:00+0100"]),
        ("UTC", "2096-02-29 12:00", "0 0 29 2 *", ["29 00:00:00+0000", "29 00:00:00+0000"]),
    ],
)
def test_times_of_zones_with_a_history(name: str, start: str, text: str, expected: list[str]) -> None:
    assert local(text, name, start, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        # The search runs forward from a month before, and back from a month after.
        ("*/30 2 25 10 *", "2026-10-25 00:00", "2026-10-25 01:30"),  # each of the two hours has two occurrences
        ("30 2 25 10 *", "2026-10-25 00:30", "2026-10-25 00:30"),
        ("*/30 2-3 29 3 *", "2026-03-29 01:00", "2026-03-29 01:30"),
        ("*/30 1-2 29 3 *", "2026-03-29 00:00", "2026-03-29 00:30"),
        ("*/30 2 29 3 *", "2027-03-29 00:00", "2025-03-29 01:30"),  # not in this year
        ("*/30 2 28,29 3 *", "2026-03-28 01:00", "2026-03-28 01:30"),
        ("30 2 29 3 *", "2026-03-29 01:00", "2026-03-29 01:00"),
    ],
)
def test_changes_are_seen_from_afar(text: str, first: str, last: str) -> None:
    month_s = 30 * DAY_S
    change_s = epoch_s("2026-10-25 01:00" if " 10 " in text else "2026-03-29 01:00")
    clock, expression = zone("Europe/Berlin"), parse(text)
    assert next_instant(expression, clock, change_s - month_s) == epoch_s(first)
    assert last_instant(expression, clock, change_s + month_s) == epoch_s(last)


def test_occurrences_begin_in_1970() -> None:
    schedule = Recurrence(cron="0 0 * * *")
    assert schedule.next_ms(-(10**15)) == schedule.next_ms(-1) == 0
    assert schedule.next_ms(0) == DAY_S * 1000


def test_occurrences_end_with_the_calendar() -> None:
    schedule = Recurrence(cron="0 0 1 1 *", zone="Europe/Berlin")
    last = schedule.next_ms(epoch_s("9997-06-01") * 1000)
    assert last == epoch_s("9997-12-31 23:00") * 1000
    assert schedule.next_ms(last) is None
    assert schedule.next_ms(2**48 - 1) is None
    assert Recurrence(cron="* * * * * *").next_ms(epoch_s("9998-12-31") * 1000) is None


def _changes(name: str) -> Iterator[int]:
    """Return the times of offset changes from the file (RFC 8536), without zoneinfo."""
    data = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    place = 0
    for width in (4, 8):
        utc, standard, leaps, count, kinds, letters = struct.unpack_from(">6l", data, place + 20)
        place += 44
        if width == 8:
            times = struct.unpack_from(f">{count}q", data, place)
            kind_of = data[place + 8 * count : place + 9 * count]
            offsets = [struct.unpack_from(">l", data, place + 9 * count + 6 * kind)[0] for kind in range(kinds)]
            offset = offsets[0]
            for instant, kind in zip(times, kind_of, strict=True):
                if offsets[kind] != offset:
                    yield instant
                offset = offsets[kind]
        place += count * (width + 1) + kinds * 6 + letters + leaps * (width + 4) + standard + utc


def test_changes_are_far_apart_in_all_zones() -> None:
    """The search compares two times that are two days apart. It assumes at most one change between them."""
    closest = 10**9
    for name in zone_names():
        changes = [instant for instant in _changes(name) if instant > -7 * DAY_S]
        closest = min([closest, *(after - before for before, after in pairwise(changes))])
    assert closest >= 6 * DAY_S


def test_zones_change_by_at_most_one_day() -> None:
    for name in zone_names():
        for instant in _changes(name):
            if instant > -7 * DAY_S:
                before, after = (
                    datetime.fromtimestamp(instant + shift, UTC).astimezone(zone(name)).utcoffset() for shift in (-1, 0)
                )
                assert before is not None and after is not None
                assert abs(after - before) <= timedelta(days=1)
