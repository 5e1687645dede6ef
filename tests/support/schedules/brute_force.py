"""Find the occurrences of an expression by stepping through a wall clock, tick by tick.

This module shares no code with sandq.schedules, nor with the library that sandq.schedules uses. The documents define
when a schedule occurs:

    a star in hour or minute   whenever the clock shows a time of the expression
    otherwise                  when the clock shows such a time, or steps over such a time, for the first time"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

DAY_S = 86_400
EPOCH_DATE = date(1970, 1, 1)
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = ["", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]


def epoch_s(text: str) -> int:
    """Return an instant in seconds since 1970. The text, such as "2026-03-29 01:00", is UTC unless it has an offset."""
    instant = datetime.fromisoformat(text)
    return int((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp())


def _number(text: str, names: list[str]) -> int:
    return names.index(text) if text in names else int(text)


def _expanded(field: str, low: int, high: int, names: Iterable[str] = ()) -> set[int]:
    """Return the numbers of a field, without its other parts (L, LW, 5L, FRI#2)."""
    known, found = list(names), set()
    for part in field.split(","):
        if "#" in part or (part.endswith("L") and part not in known) or part == "LW":
            continue
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if first == "*":
            start, end = low, high
        else:
            start = _number(first, known)
            end = _number(last, known) if last else high if step else start
        found |= {number for number in range(start, end + 1) if (number - start) % int(step or 1) == 0}
    return found


class BruteForce:
    """An expression, split into sets of numbers and conditions on a date."""

    def __init__(self, text: str) -> None:
        fields = text.upper().split()
        second, minute, hour, self._day, month, self._weekday = fields if len(fields) == 6 else ["0", *fields]
        self.is_fixed = minute[0] != "*" and hour[0] != "*"
        self.seconds = _expanded(second, 0, 59)
        self.minutes = _expanded(minute, 0, 59)
        self.hours = _expanded(hour, 0, 23)
        self.days = _expanded(self._day, 1, 31)
        self.months = _expanded(month, 1, 12, MONTHS)
        self.weekdays = {number % 7 for number in _expanded(self._weekday, 0, 7, DAYS)}
        # (position in the month, or 0 for the last; weekday): FRI#2 gives (2, 5), and 5L gives (0, 5).
        self.nth = [
            (number, _number(part.partition("#")[0].removesuffix("L") if "#" not in part else part.split("#")[0], DAYS))
            for part in self._weekday.split(",")
            if "#" in part or part.endswith("L")
            for number in [int(part.split("#")[1]) if "#" in part else 0]
        ]

    def has_date(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = self._has_day(day), self._has_weekday(day)
        if self._day[0] == "*" or self._weekday[0] == "*":
            return by_day and by_weekday
        return by_day or by_weekday

    def _has_day(self, day: date) -> bool:
        parts = self._day.split(",")
        is_last = (day + timedelta(days=1)).day == 1
        if day.day in self.days or (is_last and any(part.split("/")[0] == "L" for part in parts)):
            return True
        if "LW" not in parts or day.weekday() > 4:
            return False
        # No later day of its month is between Monday and Friday.
        rest = [day + timedelta(days=more) for more in range(1, 7)]
        return not any(later.month == day.month and later.weekday() < 5 for later in rest)

    def _has_weekday(self, day: date) -> bool:
        weekday = (day.weekday() + 1) % 7
        if weekday in self.weekdays:
            return True
        for number, wanted in self.nth:
            if wanted % 7 != weekday:
                continue
            same = [on for on in (day.replace(day=1) + timedelta(days=n) for n in range(31)) if on.month == day.month]
            same = [on for on in same if on.weekday() == day.weekday()]
            if same.index(day) + 1 == number or (number == 0 and same[-1] == day):
                return True
        return False


class Ticks:
    """The wall-clock times between two instants: each second, or each minute if it shows whole minutes."""

    def __init__(self, zone: ZoneInfo, start_s: int, end_s: int, step_s: int) -> None:
        self.zone, self.start_s, self.end_s, self.step_s = zone, start_s, end_s, step_s
        self.instants = range(start_s, end_s, step_s)
        # Ticks of the wall clock since it showed 1970-01-01.
        self.shown = [self._shown(instant) for instant in self.instants]
        per_day = DAY_S // step_s
        self.dates = {n: EPOCH_DATE + timedelta(days=n) for n in {tick // per_day for tick in self.shown}}
        for n in range(min(self.dates), max(self.dates)):  # a day that the clock skipped
            self.dates.setdefault(n, EPOCH_DATE + timedelta(days=n))

    def _shown(self, instant: int) -> int:
        offset = datetime.fromtimestamp(instant, UTC).astimezone(self.zone).utcoffset()
        assert offset is not None
        shown_s = instant + round(offset.total_seconds())
        assert shown_s % self.step_s == 0, "walk by seconds here"
        return shown_s // self.step_s

    def occurrences(self, expression: BruteForce) -> list[int]:
        """Return all occurrences after the first tick."""
        step_s, per_day = self.step_s, DAY_S // self.step_s
        assert step_s == 1 or expression.seconds == {0}
        ticks_of_day = {
            (hour * 3600 + minute * 60 + second) // step_s
            for hour in expression.hours
            for minute in expression.minutes
            for second in expression.seconds
        }
        dates = {n for n, day in self.dates.items() if expression.has_date(day)}
        if not dates:
            return []
        found, furthest = [], self.shown[0]
        for instant, shown in zip(self.instants, self.shown, strict=True):
            if expression.is_fixed:
                ticks: Iterable[int] = range(furthest + 1, shown + 1)
                furthest = max(furthest, shown)
            else:
                ticks = (shown,)
            if any(tick % per_day in ticks_of_day and tick // per_day in dates for tick in ticks):
                found.append(instant)
        return found
