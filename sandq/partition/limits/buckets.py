"""Parts of the token bucket of a group's rate. Partitions hold these parts and exchange them.

A rate has as many *units* as its burst. A partition that holds `u` of `b` units may lease `u` messages at once, and
has `u / b` of the rate. The partition stores the theoretical arrival time of its next message (see `limits.pacing`). A
part owes time for the messages that were leased recently: its debt. If a part is split, the debt is divided between
the two new parts. So units keep their debt when they move to another partition. Rounding always reduces capacity, so
all parts together never exceed the whole rate.

The debt is sent as a duration, which begins to elapse when the units arrive. So differences between the clocks of
partitions do not matter, and a delay on the way only reduces capacity.
"""

from __future__ import annotations

from typing import NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.partition.limits.pacing import Pace


class Part(NamedTuple):
    """Units of a rate, and the arrival time of their next message in µs (see `Pace`)."""

    units: int
    arrival_us: int


NO_PART = Part(0, 0)


def pace_of(limit: GroupLimit, units: int) -> Pace:
    """Return the pace for `units` (at least 1) of the limit's rate."""
    return Pace(-(-limit.window_us // units), units)


def owed_us(limit: GroupLimit, part: Part, now_us: int) -> int:
    """Return the debt of a part: how far the arrival time of its next message is ahead, in µs, at most a whole
    burst."""
    pace = pace_of(limit, part.units)
    return min(max(part.arrival_us - now_us, 0), pace.burst * pace.interval_us)


def split(limit: GroupLimit, part: Part, units: int, now_us: int) -> tuple[Part, Part]:
    """Split a part into two: one with `units` units, one with the remaining units."""
    if units in (0, part.units):
        return (NO_PART, part) if units == 0 else (part, NO_PART)
    return _piece(limit, part, units, now_us), _piece(limit, part, part.units - units, now_us)


def _piece(limit: GroupLimit, part: Part, units: int, now_us: int) -> Part:
    """Return `units` units of a part, with their share of its debt."""
    whole, pace = pace_of(limit, part.units), pace_of(limit, units)
    owed = owed_us(limit, part, now_us) * pace.interval_us * units
    return Part(units, now_us + -(-owed // (whole.interval_us * part.units)))


def merge(limit: GroupLimit, one: Part, other: Part, now_us: int) -> Part:
    """Return a part with the units of both parts."""
    if not one.units or not other.units:
        return one if one.units else other
    units = one.units + other.units
    interval_us, owed = pace_of(limit, units).interval_us, 0
    for part in (one, other):
        owed -= -(owed_us(limit, part, now_us) * interval_us) // pace_of(limit, part.units).interval_us
    return Part(units, now_us + owed)


def renewed(old: GroupLimit, part: Part, limit: GroupLimit, now_us: int) -> Part:
    """Return a part with all units of a new limit, to replace `part` of an older limit. At present, it allows at most
    as many messages as the old part."""
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
