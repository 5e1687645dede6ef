"""Find the instants of an expression in a time zone, where clocks are set forward and back.

There are two rules. An expression is fixed if it sets hour and minute (`CronExpression.is_fixed`). It is starred if one
of them begins with a star:

    fixed     Each matching time occurs once, at the first instant at which the clock shows that time or a later one.
              For a skipped time, this is right after the gap; for a time that is shown twice, the first of both.
    starred   An occurrence is at each instant at which the clock shows a matching time: none for a skipped time, and
              two for a time that is shown twice.

A clock first reaches a later time at a later instant, or at the same instant if both times are skipped. So fixed times
are searched from the highest time that the clock has shown so far (`_reached`). Starred times are searched in the
periods between changes of the clock, one after the other. Instants are whole seconds since 1970, and walls are
datetimes without a zone.

A change is found by comparing the offsets at two instants. They are at most `_NEAR_S` apart, so that at most one change
is between them: in all zone data since 1970, changes are at least seven days apart, which a test checks.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from sandq.schedules.cron import CronExpression

# More than any clock was ever set back. The maximum was one day, where the date line was moved.
_NEAR_S: Final = 2 * 86_400
_EPOCH: Final = datetime(1970, 1, 1)
_SECOND: Final = timedelta(seconds=1)
# Shortly before the end of the calendar of `datetime`.
_END_S: Final = int(datetime(9998, 12, 1, tzinfo=UTC).timestamp())


def next_instant(expression: CronExpression, zone: ZoneInfo, after_s: int) -> int | None:
    """Return the first occurrence after `after_s`, not before 1970; None if there is none up to the year 9998."""
    after_s = max(after_s, -1)
    if after_s >= _END_S:
        return None
    if expression.is_fixed:
        wall = expression.after(_reached(zone, after_s))
        return None if wall is None else _first_shown(zone, wall)
    return _next_starred(expression, zone, after_s)


def last_instant(expression: CronExpression, zone: ZoneInfo, at_s: int) -> int | None:
    """Return the last occurrence at or before `at_s`, None if there is none within 50 years."""
    at_s = min(at_s, _END_S)
    if expression.is_fixed:
        wall = expression.at_or_before(_reached(zone, at_s))
        return None if wall is None else _first_shown(zone, wall)
    return _last_starred(expression, zone, at_s)


def _next_starred(expression: CronExpression, zone: ZoneInfo, after_s: int) -> int | None:
    offset_s = _offset(zone, after_s)
    wall = expression.after(_wall(after_s + offset_s))
    # This is the result if the clock is not changed before that instant.
    unchanged_s = _END_S if wall is None else _seconds(wall) - offset_s
    near_s = min(unchanged_s, after_s + _NEAR_S)
    if _offset(zone, near_s) != offset_s:
        change_s = _change(zone, after_s, near_s)
        # No occurrence is before the change. Search again from the time that the clock shows right after it.
        offset_s = _offset(zone, change_s)
        wall = expression.after(_wall(change_s + offset_s) - _SECOND)
        unchanged_s = _END_S if wall is None else _seconds(wall) - offset_s
        near_s = min(unchanged_s, change_s + _NEAR_S)
    if wall is None:
        return None
    if unchanged_s <= near_s:
        return unchanged_s
    # The clock may change again before `unchanged_s`: find the first instant at which it shows `wall`.
    return _next_shown(expression, zone, wall)


def _next_shown(expression: CronExpression, zone: ZoneInfo, wall: datetime) -> int | None:
    """Return the first instant at which the clock shows `wall`. If the clock skips `wall`, use the next matching
    time."""
    first_s = _first_shown(zone, wall)
    shown = _wall(first_s + _offset(zone, first_s))
    if shown == wall:
        return first_s
    # The clock skips `wall`: `first_s` is the instant of the change. Search from the time right after it, inclusively.
    after = expression.after(shown - _SECOND)
    return None if after is None else _next_shown(expression, zone, after)


def _last_starred(expression: CronExpression, zone: ZoneInfo, at_s: int) -> int | None:
    offset_s = _offset(zone, at_s)
    wall = expression.at_or_before(_wall(at_s + offset_s))
    if wall is None:
        return None
    unchanged_s = _seconds(wall) - offset_s
    near_s = max(unchanged_s, at_s - _NEAR_S)
    if _offset(zone, near_s) != offset_s:
        # No occurrence since the change: continue with the last time that the clock showed before it.
        return _last_starred(expression, zone, _change(zone, near_s, at_s) - 1)
    if unchanged_s >= near_s:
        return unchanged_s
    return _last_shown(expression, zone, wall)


def _last_shown(expression: CronExpression, zone: ZoneInfo, wall: datetime) -> int | None:
    """Return the last instant at which the clock shows `wall`. If the clock skips `wall`, return the occurrence before
    it."""
    last_s = int(wall.replace(tzinfo=zone, fold=1).timestamp())
    if _wall(last_s + _offset(zone, last_s)) == wall:
        return last_s
    change_s = _first_shown(zone, wall)
    return _last_starred(expression, zone, change_s - 1)


def _reached(zone: ZoneInfo, at_s: int) -> datetime:
    """Return the highest time that the clock has shown up to an instant.

    After the clock was set back, the result is later than the time that the clock shows."""
    offset_s = _offset(zone, at_s)
    before_s = _offset(zone, at_s - _NEAR_S)
    shown_s = at_s + offset_s
    if before_s > offset_s:
        shown_s = max(shown_s, _change(zone, at_s - _NEAR_S, at_s) - 1 + before_s)
    return _wall(shown_s)


def _first_shown(zone: ZoneInfo, wall: datetime) -> int:
    """Return the first instant at which the clock shows `wall` or a later time."""
    first_s = int(wall.replace(tzinfo=zone, fold=0).timestamp())
    if _wall(first_s + _offset(zone, first_s)) == wall:
        return first_s
    # For a skipped time, fold=0 gives an instant after the change, and fold=1 one before it (PEP 495).
    return _change(zone, int(wall.replace(tzinfo=zone, fold=1).timestamp()), first_s)


def _change(zone: ZoneInfo, low_s: int, high_s: int) -> int:
    """Return the first instant with the offset of `high_s`, by binary search.

    The offset at `low_s` must be different, with exactly one change in between."""
    offset_s = _offset(zone, high_s)
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _offset(zone, middle_s) == offset_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s


def _offset(zone: ZoneInfo, at_s: int) -> int:
    """Return the seconds by which the clock is ahead of UTC at an instant."""
    offset = datetime.fromtimestamp(at_s, zone).utcoffset() or timedelta()
    return offset.days * 86_400 + offset.seconds


def _wall(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(wall: datetime) -> int:
    since = wall - _EPOCH
    return since.days * 86_400 + since.seconds
