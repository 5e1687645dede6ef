"""Tests of the next occurrence after an occurrence that fires late or in time."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.schedules import planning
from sandq.schedules.planning import Plan
from sandq.schedules.recurrence import Recurrence

HOUR_MS = 3_600_000
T = 500_000 * HOUR_MS
"""A full hour."""
GRACE_MS = 60_000
SECONDS = Recurrence(every_ms=1000, anchor_ms=T)


def following(recurrence: Recurrence, late_ms: int, **settings: Any) -> Plan:
    """Return the plan after the occurrence at T, which fires `late_ms` late."""
    return planning.following("s", recurrence, settings, 1, T, T + late_ms, (), GRACE_MS)


@pytest.mark.parametrize("misfire", ["one", "skip", "all"])
def test_occurrence_late_by_a_minute_is_not_missed(misfire: str) -> None:
    for late_ms in (0, 999, 1000, 2500, GRACE_MS + 1000):
        assert following(SECONDS, late_ms, misfire=misfire, misfire_most=1) == Plan(T + 1000, T + 1000, 0)


def test_later_occurrences_are_missed_as_configured() -> None:
    late_ms = GRACE_MS + 1001
    assert following(SECONDS, late_ms) == Plan(T + 62_000, T + 62_000, 61)
    assert following(SECONDS, late_ms, misfire="all", misfire_most=3) == Plan(T + 59_000, T + 59_000, 58)
    assert following(SECONDS, late_ms, count=1) == Plan(None, None, 0)


@pytest.mark.parametrize("misfire", ["one", "skip"])
def test_occurrence_delayed_by_jitter_is_not_missed(misfire: str) -> None:
    hourly = Recurrence(cron="0 * * * *", jitter_ms=HOUR_MS)
    for at in range(1, 20):
        occurrence_ms = T + at * HOUR_MS
        fire_ms = hourly.fire_ms("s", occurrence_ms)
        # No node could fire until just before.
        found = following(hourly, fire_ms - 1 - T, misfire=misfire)
        assert found == Plan(occurrence_ms, fire_ms, at - 1)


def test_missed_occurrences_of_cron_are_counted_up_to_a_limit() -> None:
    """Each computation takes about 20 us, so a hundred thousand schedules would block a node for long."""
    next_ms = T + 10 * HOUR_MS + 60_000
    for recurrence, missed in (
        (Recurrence(cron="* * * * *"), 100),
        (Recurrence(every_ms=60_000, anchor_ms=T), 600),
        (Recurrence(every_ms=1000, anchor_ms=T), 1000),
    ):
        found = following(recurrence, 10 * HOUR_MS)
        assert found.missed == missed
        assert found.next_ms == (next_ms if missed < 1000 else T + 10 * HOUR_MS + 1000)
