"""Tests of recurrences: refused values, intervals, start and end, jitter, and records."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import InvalidRequest
from sandq.model.times import TIME_MAX_MS
from sandq.schedules.recurrence import COUNTED_MAX, JITTER_MAX_MS, Recurrence
from tests.support.schedules.brute_force import epoch_s

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def at(text: str) -> int:
    return epoch_s(text) * 1000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a schedule has either cron or every, and neither is given"),
        ({"cron": "@daily", "every_ms": 5000}, "a schedule has either cron or every, and both are given"),
        ({"cron": 5}, "cron: text is expected"),
        ({"every_ms": "5000"}, "every_ms: a whole number of milliseconds is expected"),
        ({"every_ms": True}, "every_ms: a whole number of milliseconds is expected"),
        ({"every_ms": 5000, "jitter_ms": None}, "jitter_ms: a whole number of milliseconds is expected"),
        ({"cron": "@daily", "zone": None}, "zone: text is expected"),
        ({"every_ms": 999}, "every: 999ms is given, 1s at least is allowed"),
        ({"every_ms": 5000, "start_ms": -1}, f"start_ms: -1 is not within 0 to {TIME_MAX_MS}"),
        ({"every_ms": 5000, "end_ms": 2**48}, f"end_ms: {2**48} is not within 0 to {TIME_MAX_MS}"),
        ({"every_ms": 2**48}, "every: 3257812d5h31m50s656ms is given"),
        ({"cron": "@daily", "jitter_ms": JITTER_MAX_MS + 1}, "jitter: 1h1ms is given, 1h at most is allowed"),
        ({"cron": "@daily", "jitter_ms": -5}, "jitter: -5ms is given, 0s at least is allowed"),
        ({"every_ms": 5000, "jitter_ms": 5000}, "jitter: 5s is not shorter than every 5s; one occurrence"),
        (
            {"every_ms": 5000, "start_ms": 7, "end_ms": 7},
            "end: 1970-01-01T00:00:00.007Z is not after the start, 1970-01-01T00:00:00.007Z",
        ),
        ({"every_ms": 5000, "zone": "Europe/Berlin"}, "zone: an interval has no time zone"),
        ({"cron": "@daily", "zone": "Berlin"}, 'zone: "Berlin" is not known; did you mean "Europe/Berlin"?'),
        ({"cron": "61 * * * *"}, 'cron: "61 * * * *": minute: "61" is not understood'),
        ({"cron": "0 0 30 2 *"}, 'cron: "0 0 30 2 *" never happens'),
        ({"cron": "@yearly", "start_ms": 1, "end_ms": DAY_MS}, "the schedule never happens: nothing falls between"),
        ({"every_ms": 5000, "anchor_ms": 9000, "end_ms": 9000}, "the schedule never happens"),
    ],
)
def test_a_wrong_recurrence_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Recurrence(**given).check()
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    "given",
    [
        {"cron": "* * * * * *", "jitter_ms": JITTER_MAX_MS, "zone": "Pacific/Apia"},
        {"every_ms": 1000, "jitter_ms": 999},
        {"every_ms": TIME_MAX_MS, "anchor_ms": 5},
        {"every_ms": 5000, "start_ms": 7, "end_ms": 8},
        {"cron": "@yearly", "start_ms": 0, "end_ms": 1},
        {"cron": "0 0 29 2 *", "start_ms": TIME_MAX_MS // 2},
    ],
)
def test_values_on_the_limits_are_accepted(given: dict[str, Any]) -> None:
    Recurrence(**given).check()


def test_an_interval_begins_with_its_anchor() -> None:
    every = Recurrence(every_ms=HOUR_MS, anchor_ms=500)
    assert every.next_ms(-1) == every.next_ms(499) == 500
    assert every.next_ms(500) == every.next_ms(HOUR_MS + 499) == HOUR_MS + 500
    assert every.occurrences(499, 2 * HOUR_MS + 500, 9) == [500, HOUR_MS + 500, 2 * HOUR_MS + 500]


def test_start_of_an_interval_is_its_anchor() -> None:
    every = Recurrence(every_ms=HOUR_MS, anchor_ms=500, start_ms=DAY_MS + 7)
    assert every.next_ms(0) == DAY_MS + 7
    assert every.next_ms(DAY_MS + 7) == DAY_MS + HOUR_MS + 7


def test_occurrences_lie_between_start_and_end() -> None:
    daily = Recurrence(cron="@daily", start_ms=5 * DAY_MS, end_ms=7 * DAY_MS)
    assert daily.occurrences(-1, TIME_MAX_MS, 9) == [5 * DAY_MS, 6 * DAY_MS]
    assert daily.next_ms(6 * DAY_MS) is None
    assert Recurrence(cron="@daily", start_ms=5 * DAY_MS + 1, end_ms=7 * DAY_MS + 1).occurrences(0, TIME_MAX_MS, 9) == [
        6 * DAY_MS,
        7 * DAY_MS,
    ]
    every = Recurrence(every_ms=DAY_MS, start_ms=5 * DAY_MS, end_ms=7 * DAY_MS)
    assert every.occurrences(-1, TIME_MAX_MS, 9) == [5 * DAY_MS, 6 * DAY_MS]


def test_occurrences_are_after_one_instant_and_up_to_another() -> None:
    daily = Recurrence(cron="@daily")
    assert daily.occurrences(0, 2 * DAY_MS, 9) == [DAY_MS, 2 * DAY_MS]
    assert daily.occurrences(0, 2 * DAY_MS - 1, 9) == [DAY_MS]
    assert daily.occurrences(0, 9 * DAY_MS, 3) == [DAY_MS, 2 * DAY_MS, 3 * DAY_MS]
    assert daily.occurrences(0, 9 * DAY_MS, 0) == []
    assert daily.occurrences(5, 5, 9) == daily.occurrences(9, 5, 9) == []
    # A wall clock shows whole seconds, a time has milliseconds.
    assert daily.next_ms(DAY_MS - 1) == DAY_MS
    assert daily.next_ms(DAY_MS + 1) == 2 * DAY_MS


@pytest.mark.parametrize("every", [Recurrence(cron="* * * * *"), Recurrence(every_ms=60_000)])
def test_latest_occurrence_is_right_for_any_number(every: Recurrence) -> None:
    now = at("2026-06-01 12:00")
    assert every.latest_ms(now, now - 3 * 60_000) == (now, 3)
    assert every.latest_ms(now + 59_999, now - 3 * 60_000) == (now, 3)
    assert every.latest_ms(now + 59_999, now) == (None, 0)
    assert every.latest_ms(now, now) == every.latest_ms(now, now + 5) == (None, 0)
    assert every.latest_ms(now, now - (COUNTED_MAX - 1) * 60_000) == (now, COUNTED_MAX - 1)
    assert every.latest_ms(now, now - COUNTED_MAX * 60_000) == (now, COUNTED_MAX)
    assert every.latest_ms(now, 0) == (now, COUNTED_MAX)
    assert every.latest_ms(now, 0, 1) == (now, 1)
    assert every.latest_ms(now + 59_999, now, 1) == (None, 0)


def test_latest_occurrence_is_before_the_end() -> None:
    end = at("2026-06-01 12:00")
    for every in (Recurrence(cron="* * * * *", end_ms=end), Recurrence(every_ms=60_000, end_ms=end)):
        assert every.latest_ms(end + DAY_MS, end - DAY_MS) == (end - 60_000, COUNTED_MAX)
        assert every.latest_ms(end + DAY_MS, end - 60_000) == (None, 0)


def test_latest_occurrence_is_found_in_a_repeated_hour() -> None:
    every = Recurrence(cron="*/7 2 * * *", zone="Europe/Berlin")
    now = at("2026-10-25 01:30")  # the second 02:30
    assert every.latest_ms(now, 0) == (at("2026-10-25 01:28"), COUNTED_MAX)
    fixed = Recurrence(cron="7,28 2 * * *", zone="Europe/Berlin")
    assert fixed.latest_ms(now, 0) == (at("2026-10-25 00:28"), COUNTED_MAX)


def test_jitter_never_changes() -> None:
    """Nodes of different versions must fire at the same time. So changed numbers here are a change of the format."""
    every = Recurrence(cron="@daily", jitter_ms=600_000)
    fired = [every.fire_ms("orders/nightly", 20_000 * DAY_MS + k * DAY_MS) - (20_000 + k) * DAY_MS for k in range(4)]
    assert fired == [239_003, 203_257, 203_326, 167_592]
    assert Recurrence(every_ms=HOUR_MS, jitter_ms=7).fire_ms("ü", 1_800_000_000_000) == 1_800_000_000_000 + 6


def test_jitter_ends_with_time() -> None:
    last = Recurrence(every_ms=HOUR_MS, start_ms=TIME_MAX_MS, jitter_ms=HOUR_MS - 1)
    assert [last.fire_ms(name, TIME_MAX_MS) for name in "abc"] == [TIME_MAX_MS] * 3


def test_jitter_spreads_evenly_and_is_never_early() -> None:
    every = Recurrence(every_ms=HOUR_MS, jitter_ms=1000)
    later = [every.fire_ms(f"s{name}", k * HOUR_MS) - k * HOUR_MS for name in range(100) for k in range(100)]
    assert min(later) >= 0
    assert max(later) < 1000
    for tenth in range(10):
        assert 850 < sum(tenth * 100 <= ms < (tenth + 1) * 100 for ms in later) < 1150


def test_without_jitter_an_occurrence_fires_at_its_time() -> None:
    assert Recurrence(cron="@daily").fire_ms("a", 12_345) == 12_345
    assert Recurrence(cron="@daily", jitter_ms=1).fire_ms("a", 12_345) == 12_345


@pytest.mark.parametrize(
    ("recurrence", "record"),
    [
        (Recurrence(cron="@daily"), {"cron": "@daily"}),
        (Recurrence(cron="0 2 * * *", zone="Europe/Berlin"), {"cron": "0 2 * * *", "zone": "Europe/Berlin"}),
        (
            Recurrence(every_ms=5000, start_ms=0, end_ms=9, anchor_ms=7, jitter_ms=8),
            {"every_ms": 5000, "start_ms": 0, "end_ms": 9, "anchor_ms": 7, "jitter_ms": 8},
        ),
    ],
)
def test_record_has_only_values_that_are_not_defaults(recurrence: Recurrence, record: dict[str, Any]) -> None:
    assert recurrence.record() == record
    assert Recurrence.from_record(record) == recurrence


def test_an_unknown_key_of_a_record_is_refused() -> None:
    with pytest.raises(InvalidRequest, match='"evry_ms" is no part of a recurrence; these are: cron, every_ms, zone'):
        Recurrence.from_record({"evry_ms": 5000})
