"""What an expression means in a time zone, where clocks are set forward and back.

Two rules, by whether an expression tells hour and minute (`CronExpression.is_fixed`) or has a star there:

    fixed     each of its times is once, at the first instant at which the clock shows that time or a later one:
              right after the gap for a time that the clock leaves out, the first of both for one that it shows twice
    starred   whenever the clock shows such a time: never for one that it leaves out, both times for one shown twice

The first instant at which a clock has come as far as a time never decreases with the time. So fixed times are found
through the furthest that the clock has been (`_reached`), starred ones in the stretch between two changes, one after
another. Instants are whole seconds since 1970 here, walls are datetimes without a zone.

A change is found by comparing the offsets of two instants; `_NEAR_S` apart at most, so that no two changes fall
between them. In the whole zone data since 1970 changes are seven days apart or more; a test looks.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from sandq.schedules.cron import CronExpression

# Longer than any clock was ever set back (a day, where the date line was moved).
_NEAR_S: Final = 2 * 86_400
_EPOCH: Final = datetime(1970, 1, 1)
_SECOND: Final = timedelta(seconds=1)
# The calendar of datetime ends soon after.
_END_S: Final = int(datetime(9998, 12, 1, tzinfo=UTC).timestamp())


def next_instant(expression: CronExpression, zone: ZoneInfo, after_s: int) -> int | None:
    """Return the first instant after this one, none before 1970; None when there is none up to the year 9998."""
    after_s = max(after_s, -1)
    if after_s >= _END_S:
        return None
    if expression.is_fixed:
        wall = expression.after(_reached(zone, after_s))
        return None if wall is None else _first_shown(zone, wall)
    return _next_starred(expression, zone, after_s)


def last_instant(expression: CronExpression, zone: ZoneInfo, at_s: int) -> int | None:
    """Return the last instant up to this one; None when there is none within 50 years."""
    at_s = min(at_s, _END_S)
    if expression.is_fixed:
        wall = expression.at_or_before(_reached(zone, at_s))
        return None if wall is None else _first_shown(zone, wall)
    return _last_starred(expression, zone, at_s)


def _next_starred(expression: CronExpression, zone: ZoneInfo, after_s: int) -> int | None:
    offset_s = _offset(zone, after_s)
    wall = expression.after(_wall(after_s + offset_s))
    # As if the clock were not set meanwhile.
    straight_s = _END_S if wall is None else _seconds(wall) - offset_s
    near_s = min(straight_s, after_s + _NEAR_S)
    if _offset(zone, near_s) != offset_s:
        change_s = _change(zone, after_s, near_s)
        # Before the change there is nothing; from there the clock shows again, or for the first time, what follows.
        offset_s = _offset(zone, change_s)
        wall = expression.after(_wall(change_s + offset_s) - _SECOND)
        straight_s = _END_S if wall is None else _seconds(wall) - offset_s
        near_s = min(straight_s, change_s + _NEAR_S)
    if wall is None:
        return None
    if straight_s <= near_s:
        return straight_s
    return _next_shown(expression, zone, wall)


def _next_shown(expression: CronExpression, zone: ZoneInfo, wall: datetime) -> int | None:
    """The first instant at which the clock shows this time, or else one of the next that it does show."""
    first_s = _first_shown(zone, wall)
    shown = _wall(first_s + _offset(zone, first_s))
    if shown == wall:
        return first_s
    # It is left out: first_s is the change, and what the clock shows then may be a time as well.
    after = expression.after(shown - _SECOND)
    return None if after is None else _next_shown(expression, zone, after)


def _last_starred(expression: CronExpression, zone: ZoneInfo, at_s: int) -> int | None:
    offset_s = _offset(zone, at_s)
    wall = expression.at_or_before(_wall(at_s + offset_s))
    if wall is None:
        return None
    straight_s = _seconds(wall) - offset_s
    near_s = max(straight_s, at_s - _NEAR_S)
    if _offset(zone, near_s) != offset_s:
        # Nothing since the change: go on with what the clock showed last before it.
        return _last_starred(expression, zone, _change(zone, near_s, at_s) - 1)
    if straight_s >= near_s:
        return straight_s
    return _last_shown(expression, zone, wall)


def _last_shown(expression: CronExpression, zone: ZoneInfo, wall: datetime) -> int | None:
    """The last instant at which the clock shows this time, or else one of those before it that it does show."""
    last_s = int(wall.replace(tzinfo=zone, fold=1).timestamp())
    if _wall(last_s + _offset(zone, last_s)) == wall:
        return last_s
    change_s = _first_shown(zone, wall)
    return _last_starred(expression, zone, change_s - 1)


def _reached(zone: ZoneInfo, at_s: int) -> datetime:
    """The furthest that the clock has been up to an instant: more than it shows after it was set back."""
    offset_s = _offset(zone, at_s)
    before_s = _offset(zone, at_s - _NEAR_S)
    shown_s = at_s + offset_s
    if before_s > offset_s:
        shown_s = max(shown_s, _change(zone, at_s - _NEAR_S, at_s) - 1 + before_s)
    return _wall(shown_s)


def _first_shown(zone: ZoneInfo, wall: datetime) -> int:
    """The first instant at which the clock shows this time or a later one."""
    first_s = int(wall.replace(tzinfo=zone, fold=0).timestamp())
    if _wall(first_s + _offset(zone, first_s)) == wall:
        return first_s
    # Of a time that is left out, the first fold lies after the change and the second before it (PEP 495).
    return _change(zone, int(wall.replace(tzinfo=zone, fold=1).timestamp()), first_s)


def _change(zone: ZoneInfo, low_s: int, high_s: int) -> int:
    """The first instant of the offset that holds at high_s; at low_s another one does, and there is one change."""
    offset_s = _offset(zone, high_s)
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _offset(zone, middle_s) == offset_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s


def _offset(zone: ZoneInfo, at_s: int) -> int:
    """Seconds that the clock is ahead of UTC at an instant."""
    offset = datetime.fromtimestamp(at_s, zone).utcoffset() or timedelta()
    return offset.days * 86_400 + offset.seconds


def _wall(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(wall: datetime) -> int:
    since = wall - _EPOCH
    return since.days * 86_400 + since.seconds
