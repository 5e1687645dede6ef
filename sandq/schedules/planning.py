"""Which occurrence of a schedule comes next, as its partition's leader finds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sandq.schedules.recurrence import Recurrence

MISSED_MOST: Final = 100
"""Occurrences that a schedule may catch up on, at most."""
_COUNT_MOST: Final = 1_000
"""So many that were missed stand for so many or more, ..."""
_COUNT_CRON_MOST: Final = 100
"""... and of an expression so many: 2 to 15 ms of work, for each schedule after a long time without a leader."""


class Plan(NamedTuple):
    """What is to fire next."""

    next_ms: int | None
    """The occurrence; None: there is none any more."""
    fire_ms: int | None
    """When its message is to be delivered."""
    missed: int = 0
    """Occurrences before it that are left out, as far as they are counted."""


_NONE: Final = Plan(None, None)


Done = Sequence[Sequence[int]]
"""The first and the last of occurrences that are over although they are yet to come; some such, in their order."""


def first(
    name: str, recurrence: Recurrence, settings: Mapping[str, Any], fired: int, after_ms: int, done: Done = ()
) -> Plan:
    """Return the first occurrence behind an instant, of a schedule that has fired so many times."""
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
    """Return the occurrence after one that fires now, which is counted in `fired`; of those that were missed since, as
    many as the settings say. `grace_ms`: one that is late by no more is not missed."""
    found = _plan(name, recurrence, settings, fired, _next_ms(recurrence, occurrence_ms, done), 0)
    if found.fire_ms is None or found.fire_ms >= now_ms - grace_ms:
        return found
    if settings.get("misfire") != "all":
        counted = _COUNT_MOST if recurrence.cron is None else _COUNT_CRON_MOST
        latest_ms, missed = recurrence.latest_ms(now_ms, occurrence_ms, counted)
        if latest_ms is not None and delivery_ms(name, recurrence, latest_ms) > now_ms:
            # It is over on the clock, and by its jitter yet to come.
            return _plan(name, recurrence, settings, fired, _next_ms(recurrence, latest_ms - 1, done), missed - 1)
        return _plan(name, recurrence, settings, fired, _next_ms(recurrence, now_ms, done), missed)
    most = settings.get("misfire_most", MISSED_MOST)
    left_out, last = _last_of(recurrence, occurrence_ms, now_ms, most)
    if done:
        last = [one for one in last if not any([start <= one <= end for start, end in done])] or [now_ms]
    return _plan(name, recurrence, settings, fired, _next_ms(recurrence, last[0] - 1, done), left_out)


def _next_ms(recurrence: Recurrence, after_ms: int, done: Done) -> int | None:
    """The first occurrence behind an instant that is not over."""
    next_ms = recurrence.next_ms(after_ms)
    for start_ms, end_ms in done:
        if next_ms is not None and start_ms <= next_ms <= end_ms:
            next_ms = recurrence.next_ms(end_ms)
    return next_ms


def _last_of(recurrence: Recurrence, after_ms: int, until_ms: int, most: int) -> tuple[int, list[int]]:
    """Return the last occurrences within a range that has some, and about how many came before them in it."""
    found = recurrence.occurrences(after_ms, until_ms, _COUNT_MOST)
    if len(found) < _COUNT_MOST:
        return max(len(found) - most, 0), found[-most:]
    # Very many: look from the end, in a window that grows until it has enough.
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
    """Return when an occurrence fires: later by its jitter, and always before the occurrence that follows.
    `following_ms`: that one, where it is known."""
    fire_ms = recurrence.fire_ms(name, occurrence_ms)
    if fire_ms > occurrence_ms:
        next_ms = recurrence.next_ms(occurrence_ms) if following_ms is None else following_ms
        if next_ms is not None and fire_ms >= next_ms:
            fire_ms = occurrence_ms + (fire_ms - occurrence_ms) % (next_ms - occurrence_ms)
    return fire_ms
