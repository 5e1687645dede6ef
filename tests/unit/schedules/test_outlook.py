"""Tests of the number of messages that schedules will send per time unit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sandq.schedules import outlook, planning
from sandq.schedules.outlook import Ahead, Outlook, count_ahead
from sandq.schedules.recurrence import Recurrence

HOUR = 3_600_000
T = 1_800_000_000_000 // HOUR * HOUR


def ahead(name: str = "s", after_ms: int = T - 1, most: int | None = None, **fields: Any) -> Ahead:
    return Ahead(name, Recurrence(**fields), after_ms, most)


def one_by_one(schedules: list[Ahead], unit_ms: int, count: int) -> dict[int, int]:
    """A simple model that counts all occurrences one by one."""
    found = Counter[int]()
    stop_ms = T + unit_ms * count
    for one in schedules:
        times = one.recurrence.occurrences(max(one.after_ms, T - 1), stop_ms - 1, 100_000)
        for at_ms in times[: one.most]:
            fire_ms = planning.first(one.name, one.recurrence, {}, 0, at_ms - 1).fire_ms
            if fire_ms is not None and fire_ms < stop_ms:
                found[fire_ms - fire_ms % unit_ms] += 1
    return found


MANY = [
    ahead(every_ms=7 * 60_000, anchor_ms=T - 13),
    ahead(every_ms=1500, anchor_ms=5),
    ahead(every_ms=1000, start_ms=T + HOUR + 1, end_ms=T + 2 * HOUR),
    ahead(every_ms=1000, anchor_ms=1, most=4000),
    ahead(every_ms=HOUR, anchor_ms=0, most=2),
    ahead(every_ms=HOUR, anchor_ms=0, most=0),
    ahead(every_ms=HOUR, anchor_ms=T + 100 * HOUR),
    ahead(every_ms=HOUR, anchor_ms=0, jitter_ms=HOUR - 1),
    ahead(cron="*/10 * * * *"),
    ahead("t", cron="*/10 * * * *", jitter_ms=300_000),
    ahead("u", cron="*/10 * * * *", jitter_ms=HOUR),
    ahead(cron="*/10 * * * *", after_ms=T + HOUR),
    ahead(cron="0 9 * * *", zone="Asia/Kolkata", most=1),
    ahead(cron="0 0 1 1 *"),
]


@pytest.mark.parametrize(("unit_ms", "count"), [(HOUR, 30), (60_000, 240), (1000, 3600), (HOUR, 1)])
def test_outlook_equals_counting_one_by_one(unit_ms: int, count: int) -> None:
    for schedules in (MANY, *[[one] for one in MANY]):
        found = count_ahead(schedules, T, unit_ms, count)
        assert found == Outlook(one_by_one(schedules, unit_ms, count), True), schedules


def test_excess_is_omitted_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "LOOKED_UP_MOST", 10)
    monkeypatch.setattr(outlook, "COUNTED_MOST", 25)
    alike = [ahead(f"s{number}", cron="*/30 * * * *") for number in range(3)]
    found = count_ahead(alike, T, HOUR, 4)
    assert found == Outlook({T + hour * HOUR: 6 for hour in range(4)}, True), (
        "the occurrences of one expression are computed once"
    )
    others = count_ahead([ahead(cron="*/30 * * * *"), ahead(cron="*/20 * * * *")], T, HOUR, 4)
    assert not others.is_complete and sum(others.messages.values()) == 10
    assert not count_ahead([*alike, *alike], T, HOUR, 4).is_complete
    dense = count_ahead([ahead(every_ms=1000)], T, 60_000, 60)
    assert dense == Outlook({T + minute * 60_000: 60 for minute in range(25)}, False)


def test_schedule_with_an_unknown_zone_is_omitted_and_reported() -> None:
    strange = Ahead("s", Recurrence(cron="@hourly", zone="Mars/Phobos"), 0, None)
    known = Ahead("k", Recurrence(cron="@hourly"), 0, None)
    found = count_ahead([strange, known], 0, 3_600_000, 3)
    assert dict(found.messages) == {3_600_000: 1, 7_200_000: 1} and not found.is_complete
