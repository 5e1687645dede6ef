"""Compute the occurrences of a schedule: the times that a cron expression matches, or equal intervals.

An occurrence is a nominal time in epoch milliseconds, which identifies it. It fires at `fire_ms`: the nominal time plus
a jitter. No clock is read: the result depends only on the fields and on the version of the zone data
(`zones.data_version`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import xxhash

from sandq.model.errors import InvalidRequest
from sandq.model.times import TIME_MAX_MS, format_duration, format_instant
from sandq.schedules.cron import parse
from sandq.schedules.wall_clock import last_instant, next_instant
from sandq.schedules.zones import zone

EVERY_MIN_MS: Final = 1000
JITTER_MAX_MS: Final = 3_600_000
# Default limit of the count in `latest_ms`: 5 to 30 ms of work.
COUNTED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The recurrence of a schedule. PERSISTED (`record`), including the meaning of the fields.

    cron: an expression (`cron.parse`); exactly one of cron and every_ms is set
    every_ms: the interval; occurrences are at the anchor and each whole number of intervals after it
    zone: the IANA name of the time zone of the expression
    start_ms: no occurrence is before this time; also the anchor of an interval
    end_ms: no occurrence is at or after this time
    anchor_ms: the anchor of an interval without a start: the time when the schedule was created
    jitter_ms: each occurrence fires later, by less than this
    """

    cron: str | None = None
    every_ms: int | None = None
    zone: str = "UTC"
    start_ms: int | None = None
    end_ms: int | None = None
    anchor_ms: int = 0
    jitter_ms: int = 0

    def check(self) -> None:
        """Raise InvalidRequest if a field is invalid or no occurrence exists. The error says how to fix it."""
        self._check_types()
        if (self.cron is None) == (self.every_ms is None):
            given = "neither is given" if self.cron is None else "both are given"
            raise InvalidRequest(f"a schedule has either cron or every, and {given}")
        for name in ("start_ms", "end_ms", "anchor_ms"):
            _check_instant(name, getattr(self, name))
        _check_length("jitter", self.jitter_ms, 0, JITTER_MAX_MS)
        if self.every_ms is not None:
            _check_length("every", self.every_ms, EVERY_MIN_MS, TIME_MAX_MS)
            if self.jitter_ms >= self.every_ms:
                jitter, every = format_duration(self.jitter_ms), format_duration(self.every_ms)
                raise InvalidRequest(
                    f"jitter: {jitter} is not shorter than every {every}; one occurrence would fire after the next"
                )
        if self.start_ms is not None and self.end_ms is not None and self.end_ms <= self.start_ms:
            start, end = format_instant(self.start_ms), format_instant(self.end_ms)
            raise InvalidRequest(f"end: {end} is not after the start, {start}")
        if self.cron is not None:
            parse(self.cron)
            zone(self.zone)
        elif self.zone != "UTC":
            raise InvalidRequest("zone: an interval has no time zone; leave it out, or use cron for times of the day")
        # `parse` has checked that the expression matches some time, so only start and end can exclude all.
        if (self.start_ms, self.end_ms) != (None, None) and self.next_ms(-1) is None:
            raise InvalidRequest("the schedule never happens: nothing falls between its start and its end")

    def next_ms(self, after_ms: int) -> int | None:
        """Return the first occurrence after `after_ms`, None if there is none."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        if self.every_ms is None:
            found = self._next_on_a_clock(after_ms)
        else:
            found = self._first_ms + max((after_ms - self._first_ms) // self.every_ms + 1, 0) * self.every_ms
        return found if found is not None and found <= self._last_allowed_ms else None

    def occurrences(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """Return the first `limit` occurrences after `after_ms` and up to `until_ms`, in order."""
        found: list[int] = []
        while len(found) < limit:
            following = self.next_ms(after_ms)
            if following is None or following > until_ms:
                break
            found.append(following)
            after_ms = following
        return found

    def latest_ms(self, before_or_at_ms: int, after_ms: int, counted_max: int = COUNTED_MAX) -> tuple[int | None, int]:
        """Return (last occurrence, number of occurrences) after `after_ms` and up to `before_or_at_ms`.

        The number is at most `counted_max` (1 or more), which means "this many or more"; the last occurrence is correct
        even then. Return (None, 0) if the range contains no occurrence. The work is at most `counted_max` calls of
        `next_ms`.
        """
        at_ms = min(before_or_at_ms, self._last_allowed_ms)
        if self.every_ms is not None:
            following = self.next_ms(after_ms)
            if following is None or following > at_ms:
                return None, 0
            more = (at_ms - following) // self.every_ms
            return following + more * self.every_ms, min(more + 1, counted_max)
        found = self.occurrences(after_ms, at_ms, counted_max)
        if len(found) < counted_max:
            return (found[-1] if found else None), len(found)
        assert self.cron is not None
        last_s = last_instant(parse(self.cron), zone(self.zone), at_ms // 1000)
        assert last_s is not None
        return last_s * 1000, counted_max

    def fire_ms(self, name: str, occurrence_ms: int) -> int:
        """Return the time at which an occurrence of the schedule `name` fires: its nominal time, plus
        a delay below `jitter`.
        PERSISTED

        The delay is a hash, so it is the same on every machine and in each call. Schedules with different names, and
        the occurrences of one schedule, are spread evenly.
        """
        if not self.jitter_ms:
            return occurrence_ms
        hashed: int = xxhash.xxh3_64_intdigest(f"{name}/{occurrence_ms}".encode())
        return min(occurrence_ms + hashed % self.jitter_ms, TIME_MAX_MS)

    def record(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults. PERSISTED"""
        values = [(name, getattr(self, name)) for name in _FIELDS]
        return {name: value for name, value in values if value != _FIELDS[name]}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Recurrence:
        """Return the recurrence of a `record`. Raise InvalidRequest if this version does not know one of its keys."""
        for key in record:
            if key not in _FIELDS:
                raise InvalidRequest(f'"{key}" is no part of a recurrence; these are: {", ".join(_FIELDS)}')
        return cls(**record)

    @property
    def _first_ms(self) -> int:
        """The anchor of the interval."""
        return self.anchor_ms if self.start_ms is None else self.start_ms

    @property
    def _last_allowed_ms(self) -> int:
        return TIME_MAX_MS if self.end_ms is None else self.end_ms - 1

    def _next_on_a_clock(self, after_ms: int) -> int | None:
        assert self.cron is not None
        found_s = next_instant(parse(self.cron), zone(self.zone), after_ms // 1000)
        return None if found_s is None else found_s * 1000

    def _check_types(self) -> None:
        for name, default in _FIELDS.items():
            value = getattr(self, name)
            expected = str if name in ("cron", "zone") else int
            if type(value) is not expected and (value is not None or default is not None):
                wanted = "text" if expected is str else "a whole number of milliseconds"
                raise InvalidRequest(f"{name}: {wanted} is expected")


# Computed once: a call of `fields` takes 6 us.
_FIELDS: Final = {field.name: field.default for field in fields(Recurrence)}
"""Default of each field by its name."""


def _check_instant(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= TIME_MAX_MS:
        raise InvalidRequest(f"{name}: {value} is not within 0 to {TIME_MAX_MS}")


def _check_length(name: str, value: int, least: int, greatest: int) -> None:
    if not least <= value <= greatest:
        shown = format_duration(value) if value >= 0 else f"{value}ms"
        bound = f"{format_duration(least)} at least" if value < least else f"{format_duration(greatest)} at most"
        raise InvalidRequest(f"{name}: {shown} is given, {bound} is allowed")
