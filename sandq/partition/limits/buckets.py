"""Parts of the token bucket of a group's rate, which partitions hold and hand on.

A rate has as many *units* as its burst. A partition that holds `u` of `b` units may give so many messages at once, and
`u / b` of the rate; it keeps the arrival time of its next message (`ready.pacing`). Units go from one partition to
another with what is in them: what a part has given out lately it owes, and the two parts that it is split into owe
that together. Rounding is always against who may give: all parts together give no more than the whole would.

What units owe goes along as a time that has to pass, and begins to pass once they are there: so it makes no difference
that the clocks of partitions differ, and what is lost on the way is lost to who may give.
"""

from __future__ import annotations

from typing import NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.partition.limits.pacing import Pace


class Part(NamedTuple):
    """Some units of a rate, and when their next message arrives (`Pace`)."""

    units: int
    arrival_us: int


NO_PART = Part(0, 0)


def pace_of(limit: GroupLimit, units: int) -> Pace:
    """How fast so many units of a rate go; at least one."""
    return Pace(-(-limit.window_us // units), units)


def owed_us(limit: GroupLimit, part: Part, now_us: int) -> int:
    """How far the next message of a part is ahead: never further than a whole burst puts it."""
    pace = pace_of(limit, part.units)
    return min(max(part.arrival_us - now_us, 0), pace.burst * pace.interval_us)


def split(limit: GroupLimit, part: Part, units: int, now_us: int) -> tuple[Part, Part]:
    """A part with so many of the units of this one, and one with the others."""
    if units in (0, part.units):
        return (NO_PART, part) if units == 0 else (part, NO_PART)
    return _piece(limit, part, units, now_us), _piece(limit, part, part.units - units, now_us)


def _piece(limit: GroupLimit, part: Part, units: int, now_us: int) -> Part:
    whole, pace = pace_of(limit, part.units), pace_of(limit, units)
    owed = owed_us(limit, part, now_us) * pace.interval_us * units
    return Part(units, now_us + -(-owed // (whole.interval_us * part.units)))


def merge(limit: GroupLimit, one: Part, other: Part, now_us: int) -> Part:
    """A part with the units of two."""
    if not one.units or not other.units:
        return one if one.units else other
    units = one.units + other.units
    interval_us, owed = pace_of(limit, units).interval_us, 0
    for part in (one, other):
        owed -= -(owed_us(limit, part, now_us) * interval_us) // pace_of(limit, part.units).interval_us
    return Part(units, now_us + owed)


def renewed(old: GroupLimit, part: Part, limit: GroupLimit, now_us: int) -> Part:
    """The whole of a limit in place of a part of an older one: no more is in it than was."""
    if limit.burst is None:
        return NO_PART
    if old.interval_us is None:
        return Part(limit.burst, 0)
    pace = pace_of(limit, limit.burst)
    whole_us, there_us = pace.burst * pace.interval_us, 0
    if part.units:
        was = pace_of(old, part.units)
        free_us = was.burst * was.interval_us - owed_us(old, part, now_us)
        there_us = free_us * pace.interval_us // was.interval_us
    return Part(limit.burst, now_us + max(whole_us - there_us, 0))
