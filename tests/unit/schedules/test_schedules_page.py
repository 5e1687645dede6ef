"""Tests that the tables of docs/schedules.md match the code."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

import pytest

from sandq.schedules.cron import ALIASES, EXPRESSION_CHARS_MAX, parse
from sandq.schedules.recurrence import Recurrence
from sandq.schedules.zones import zone
from tests.support.documents import document

PAGE: Final = document("schedules")
CLOCK: Final = re.compile(r"\d\d:\d\d(?::\d\d)?")
MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?")


def table(*heads: str) -> list[list[str]]:
    """Return the cells of the rows below a head."""
    head = f"| {' | '.join(heads)} |\n"
    assert PAGE.count(head) == 1, head
    lines = PAGE.partition(head)[2].splitlines()[1:]
    rows = lines[: next(n for n, line in enumerate([*lines, ""]) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def shown(text: str, name: str, first: datetime, until: datetime) -> list[datetime]:
    """Return the wall-clock times of the occurrences from `first` until `until`."""
    clock = zone(name)
    low, high = (int(wall.replace(tzinfo=clock).timestamp()) * 1000 for wall in (first, until))
    found = Recurrence(cron=text, zone=name).occurrences(low - 1, high - 1, 1000)
    return [datetime.fromtimestamp(ms // 1000, clock).replace(tzinfo=None) for ms in found]


def test_expressions_of_the_page_are_understood() -> None:
    rows = table("Expression", "When")
    assert len(rows) > 10
    for text, _ in rows:
        parse(text.strip("`"))
    assert f"at most {EXPRESSION_CHARS_MAX} characters" in PAGE


def test_aliases_of_the_page_are_those_of_the_code() -> None:
    rows = table("Alias", "Means")
    told = {alias.strip("`"): text.strip("`") for aliases, text in rows for alias in aliases.split(", ")}
    assert told == ALIASES


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_daylight_saving_is_as_on_the_page(day: str) -> None:
    rows = table("Expression", "On 2026-03-29", "On 2026-10-25")
    assert len(rows) >= 7
    for text, spring, autumn in rows:
        told = spring if day == "2026-03-29" else autumn
        first = datetime.fromisoformat(day)
        found = [f"{wall:%H:%M}" for wall in shown(text.strip("`"), "Europe/Berlin", first, first + timedelta(days=1))]
        times = CLOCK.findall(told)
        assert found[: len(times)] == times
        assert len(found) == len(times) or told.endswith("and so on")


def test_zones_with_a_history_are_as_on_the_page() -> None:
    rows = table("Zone", "Event", "Expression", "Occurrences")
    assert len(rows) >= 6
    for name, _, text, told in rows:
        walls = [datetime.fromisoformat(moment) for moment in MOMENT.findall(told)]
        first = walls[0].replace(hour=0, minute=0, second=0)
        assert shown(text.strip("`"), name.strip("`"), first, walls[-1] + timedelta(seconds=1)) == walls
