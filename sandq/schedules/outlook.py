"""Count the messages that schedules will send in each unit of time. Messages that exist already are not counted.

The work is bounded. Each expression is evaluated once, even if several schedules share it, and a dense interval is
counted per unit, not per occurrence. If the work exceeds the bounds, the rest is omitted and `is_complete` is False.
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
"""Maximum number of occurrences of expressions that are computed, at about 50 us each."""
COUNTED_MOST: Final = 200_000
"""Maximum number of occurrences, or of units of dense intervals, that are counted, at about 1 us each."""
DENSE: Final = 1000
"""An interval with more occurrences than this is counted per unit, without its jitter."""


class Ahead(NamedTuple):
    """A schedule with its future occurrences."""

    name: str
    recurrence: Recurrence
    after_ms: int
    """Only occurrences after this time are counted."""
    most: int | None
    """Maximum number of occurrences that remain; None if it is unlimited."""


class Outlook(NamedTuple):
    """Messages by the start (ms) of the unit in which they are due. `is_complete`: no messages were omitted."""

    messages: Mapping[int, int]
    is_complete: bool


def count_ahead(schedules: Iterable[Ahead], first_ms: int, unit_ms: int, count: int) -> Outlook:
    """Count the messages of schedules in `count` units of `unit_ms` each, from `first_ms` on."""
    counting = _Counting(first_ms, unit_ms, count)
    for schedule in schedules:
        if schedule.recurrence.every_ms is None:
            counting.add_expression(schedule)
        else:
            counting.add_interval(schedule, schedule.recurrence.every_ms)
    return Outlook(counting.found, counting.is_complete)


class _Counting:
    """One run of `count_ahead`."""

    def __init__(self, first_ms: int, unit_ms: int, count: int) -> None:
        self.found = Counter[int]()
        self.is_complete = True
        self._first_ms, self._unit_ms = first_ms, unit_ms
        self._stop_ms = first_ms + unit_ms * count
        self._look_ups_left, self._counts_left = LOOKED_UP_MOST, COUNTED_MOST
        """Numbers of occurrences that may still be computed from expressions, and counted."""
        self._known: dict[Recurrence, list[int]] = {}

    def add_expression(self, schedule: Ahead) -> None:
        plain = replace(schedule.recurrence, jitter_ms=0)
        times = self._known.get(plain)
        if times is None:
            try:
                times = plain.occurrences(self._first_ms - 1, self._stop_ms - 1, self._look_ups_left)
            except InvalidRequest:
                # A node with different zone data created the schedule.
                times, self.is_complete = [], False
            self._look_ups_left -= len(times)
            self.is_complete = self.is_complete and self._look_ups_left > 0
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
        """Add one message per occurrence, in the unit in which it fires. Omit those beyond `_counts_left`."""
        if len(times) > self._counts_left:
            times, self.is_complete = times[: self._counts_left], False
        self._counts_left -= len(times)
        for occurrence_ms, following_ms in zip_longest(times, times[1:]):
            fire_ms = delivery_ms(schedule.name, schedule.recurrence, occurrence_ms, following_ms)
            if fire_ms < self._stop_ms:
                self.found[self._unit_of(fire_ms)] += 1

    def _add_dense(self, first_ms: int, every_ms: int, number: int) -> None:
        """Add `number` messages, one each `every_ms` from `first_ms` on: unit by unit, not message by message."""
        counted = 0
        start_ms = self._unit_of(first_ms)
        while counted < number:
            if self._counts_left == 0:
                self.is_complete = False
                return
            self._counts_left -= 1
            until = min((start_ms + self._unit_ms - 1 - first_ms) // every_ms + 1, number)
            if until > counted:
                self.found[start_ms] += until - counted
            counted, start_ms = until, start_ms + self._unit_ms

    def _unit_of(self, ms: int) -> int:
        return ms - (ms - self._first_ms) % self._unit_ms
