"""Find the next occurrence of a schedule. The leader of its partition does this."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sandq.schedules.recurrence import Recurrence

MISSED_MOST: Final = 100
"""Maximum number of missed occurrences that a schedule may catch up on."""
_COUNT_MOST: Final = 1_000
"""Missed occurrences are counted up to this number, which then means "this many or more"."""
_COUNT_CRON_MOST: Final = 100
"""Missed occurrences of an expression are counted up to this number.

This limits the work to 2 to 15 ms per schedule after a long time without a leader."""


class Plan(NamedTuple):
    """The next occurrence to fire."""

    next_ms: int | None
    """Nominal time of the occurrence; None if no occurrence remains."""
    fire_ms: int | None
    """Delivery time of its message."""
    missed: int = 0
    """Number of skipped occurrences before this occurrence; a lower bound if there were too many to count."""


_NONE: Final = Plan(None, None)


Done = Sequence[Sequence[int]]
"""Ranges (first, last) of occurrences that fired before their time, because the clock was ahead then."""


def first(
    name: str, recurrence: Recurrence, settings: Mapping[str, Any], fired: int, after_ms: int, done: Done = ()
) -> Plan:
    """Return the first occurrence after `after_ms` of a schedule that has fired `fired` times."""
    return _plan(name, recurrence, settings, fired, _next_ms(recurrence, after_ms, done), 0)


def following(
    name: str,
    recurrence: Recurrence,
    settings: Mapping[str, Any],
    fired: int,
    occurrence_ms: int,
    now_ms: int,
    done: Done = (),
    grace_ms: int = 0,
) -> Plan:
    """Return the occurrence after `occurrence_ms`. The occurrence at `occurrence_ms` fires now, and `fired` counts it.

    If occurrences after `occurrence_ms` were missed, the setting `misfire` decides which of them still fire.
    `grace_ms`: an occurrence that is late by at most this much is not missed."""
    found = _plan(name, recurrence, settings, fired, _next_ms(recurrence, occurrence_ms, done), 0)
    if found.fire_ms is None or found.fire_ms >= now_ms - grace_ms:
        return found
    if settings.get("misfire") != "all":
        counted = _COUNT_MOST if recurrence.cron is None else _COUNT_CRON_MOST
        latest_ms, missed = recurrence.latest_ms(now_ms, occurrence_ms, counted)
        if latest_ms is not None and delivery_ms(name, recurrence, latest_ms) > now_ms:
            # The nominal time of the latest occurrence has passed, but its jitter puts its delivery in the future.
            return _plan(name, recurrence, settings, fired, _next_ms(recurrence, latest_ms - 1, done), missed - 1)
        return _plan(name, recurrence, settings, fired, _next_ms(recurrence, now_ms, done), missed)
    most = settings.get("misfire_most", MISSED_MOST)
    left_out, last = _last_of(recurrence, occurrence_ms, now_ms, most)
    if done:
        last = [one for one in last if not any([start <= one <= end for start, end in done])] or [now_ms]
    return _plan(name, recurrence, settings, fired, _next_ms(recurrence, last[0] - 1, done), left_out)


def _next_ms(recurrence: Recurrence, after_ms: int, done: Done) -> int | None:
    """Return the first occurrence after `after_ms` that has not fired yet (`done`)."""
    next_ms = recurrence.next_ms(after_ms)
    for start_ms, end_ms in done:
        if next_ms is not None and start_ms <= next_ms <= end_ms:
            next_ms = recurrence.next_ms(end_ms)
    return next_ms


def _last_of(recurrence: Recurrence, after_ms: int, until_ms: int, most: int) -> tuple[int, list[int]]:
    """Return the last `most` occurrences of a range, and the approximate number of occurrences before these.

    The range contains at least one occurrence. The result is (number, occurrences)."""
    found = recurrence.occurrences(after_ms, until_ms, _COUNT_MOST)
    if len(found) < _COUNT_MOST:
        return max(len(found) - most, 0), found[-most:]
    # There are very many occurrences: search back from the end, in a window that doubles until it contains enough.
    width_ms = max((found[-1] - found[0]) // _COUNT_MOST, 1) * most
    while True:
        start_ms = max(until_ms - width_ms, after_ms)
        last = deque[int](maxlen=most)
        while part := recurrence.occurrences(start_ms, until_ms, _COUNT_MOST):
            last.extend(part)
            start_ms = part[-1]
        if len(last) >= most or until_ms - width_ms <= after_ms:
            return _COUNT_MOST, [*last]
        width_ms *= 2


def _plan(
    name: str, recurrence: Recurrence, settings: Mapping[str, Any], fired: int, next_ms: int | None, missed: int
) -> Plan:
    count = settings.get("count")
    if next_ms is None or (count is not None and fired >= count):
        return _NONE._replace(missed=missed)
    return Plan(next_ms, delivery_ms(name, recurrence, next_ms), missed)


def delivery_ms(name: str, recurrence: Recurrence, occurrence_ms: int, following_ms: int | None = None) -> int:
    """Return the time at which an occurrence fires: its time plus its jitter, but always before the next occurrence.

    `following_ms`: the next occurrence, if the caller knows it."""
    fire_ms = recurrence.fire_ms(name, occurrence_ms)
    if fire_ms > occurrence_ms:
        next_ms = recurrence.next_ms(occurrence_ms) if following_ms is None else following_ms
        if next_ms is not None and fire_ms >= next_ms:
            fire_ms = occurrence_ms + (fire_ms - occurrence_ms) % (next_ms - occurrence_ms)
    return fire_ms
