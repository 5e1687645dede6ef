"""How many messages schedules are going to send in each unit of time, beside those that are made already.

The work is bounded: expressions are gone through once, however many schedules share one, and a dense interval is
counted unit by unit. What does not fit is left out, and that is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Final, NamedTuple

from sandq.model.errors import InvalidRequest
from sandq.schedules.planning import delivery_ms
from sandq.schedules.recurrence import Recurrence

LOOKED_UP_MOST: Final = 10_000
"""Occurrences of expressions that are computed, some 50 us each."""
COUNTED_MOST: Final = 200_000
"""Occurrences, or units of dense intervals, that are counted, about 1 us each."""
DENSE: Final = 1000
"""An interval of more occurrences is counted unit by unit, without its jitter."""


class Ahead(NamedTuple):
    """A schedule, as far as it is to come."""

    name: str
    recurrence: Recurrence
    after_ms: int
    """Occurrences behind it are counted."""
    most: int | None
    """So many at most; None: there is no end to them."""


class Outlook(NamedTuple):
    """Messages by the start (ms) of the unit in which they are due, and whether these are all."""

    messages: Mapping[int, int]
    is_complete: bool


def count_ahead(schedules: Iterable[Ahead], first_ms: int, unit_ms: int, count: int) -> Outlook:
    """Count what schedules send in units of time from an instant on."""
    counting = _Counting(first_ms, unit_ms, count)
    for schedule in schedules:
        if schedule.recurrence.every_ms is None:
            counting.add_expression(schedule)
        else:
            counting.add_interval(schedule, schedule.recurrence.every_ms)
    return Outlook(counting.found, counting.is_complete)


class _Counting:
    def __init__(self, first_ms: int, unit_ms: int, count: int) -> None:
        self.found = Counter[int]()
        self.is_complete = True
        self._first_ms, self._unit_ms = first_ms, unit_ms
        self._stop_ms = first_ms + unit_ms * count
        self._looked_up, self._counted = LOOKED_UP_MOST, COUNTED_MOST
        self._known: dict[Recurrence, list[int]] = {}

    def add_expression(self, schedule: Ahead) -> None:
        plain = replace(schedule.recurrence, jitter_ms=0)
        times = self._known.get(plain)
        if times is None:
            try:
                times = plain.occurrences(self._first_ms - 1, self._stop_ms - 1, self._looked_up)
            except InvalidRequest:
                # Made by a node that knows other zones.
                times, self.is_complete = [], False
            self._looked_up -= len(times)
            self.is_complete = self.is_complete and self._looked_up > 0
            self._known[plain] = times
        start = bisect_right(times, schedule.after_ms)
        self._add(schedule, times[start : None if schedule.most is None else start + schedule.most])

    def add_interval(self, schedule: Ahead, every_ms: int) -> None:
        first_ms = schedule.recurrence.next_ms(max(schedule.after_ms, self._first_ms - 1))
        if first_ms is None or first_ms >= self._stop_ms:
            return
        stop_ms = min(self._stop_ms, schedule.recurrence.end_ms or self._stop_ms)
        number = (stop_ms - 1 - first_ms) // every_ms + 1
        if schedule.most is not None:
            number = min(number, schedule.most)
        if number <= DENSE:
            self._add(schedule, range(first_ms, first_ms + number * every_ms, every_ms))
        else:
            self._add_dense(first_ms, every_ms, number)

    def _add(self, schedule: Ahead, times: list[int] | range) -> None:
        if len(times) > self._counted:
            times, self.is_complete = times[: self._counted], False
        self._counted -= len(times)
        for occurrence_ms, following_ms in zip_longest(times, times[1:]):
            fire_ms = delivery_ms(schedule.name, schedule.recurrence, occurrence_ms, following_ms)
            if fire_ms < self._stop_ms:
                self.found[self._unit_of(fire_ms)] += 1

    def _add_dense(self, first_ms: int, every_ms: int, number: int) -> None:
        counted = 0
        start_ms = self._unit_of(first_ms)
        while counted < number:
            if self._counted == 0:
                self.is_complete = False
                return
            self._counted -= 1
            until = min((start_ms + self._unit_ms - 1 - first_ms) // every_ms + 1, number)
            if until > counted:
                self.found[start_ms] += until - counted
            counted, start_ms = until, start_ms + self._unit_ms

    def _unit_of(self, ms: int) -> int:
        return ms - (ms - self._first_ms) % self._unit_ms
