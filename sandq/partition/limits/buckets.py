"""Parts of the token bucket of a group's rate. Partitions hold these parts and exchange them.

A rate has as many *units* as its burst. A partition that holds `u` of `b` units may lease `u` messages at once, and
has `u / b` of the rate. If the limit has a unit, messages have costs, and the partition may lease messages with a total
cost of `u` at once.

The partition stores the theoretical arrival time of its next message (the generic cell rate algorithm, as in
`limits.pacing`). While this time is ahead, the part has a debt, which is the time until then. A debt of one *window*,
the time in which the rate gives a whole burst, means that the bucket of the part is empty. If a part is split, both
new parts have the same debt. If parts are merged, the debt is the mean of their debts, weighted by their units. So
units keep their debt when they move to another partition. Rounding always reduces capacity, so all parts together never
exceed the whole rate.

A message whose cost is above the burst is leased when the whole bucket is full, by a partition that holds all units.
The debt is then more than a window, and nothing more is leased until the rate has paid it.

The debt is sent as a duration, which begins to elapse when the units arrive. So differences between the clocks of
partitions do not matter, and a delay on the way only reduces capacity.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sandq.model.group_limits import GroupLimit

MOST_OWED_US: Final = 1 << 60
"""Maximum debt of a part in µs: so the arrival time always fits into 63 bits."""


class Part(NamedTuple):
    """Units of a rate, and the arrival time of their next message in µs."""

    units: int
    arrival_us: int


NO_PART = Part(0, 0)


def owed_us(limit: GroupLimit, part: Part, now_us: int) -> int:
    """Return the debt of a part: how far the arrival time of its next message is ahead, in µs.

    Without a unit, the debt is at most a window: a later arrival time comes from a clock that was ahead."""
    most_us = limit.window_us if limit.unit is None else MOST_OWED_US
    return min(max(part.arrival_us - now_us, 0), most_us)


def available(limit: GroupLimit, part: Part, now_us: int) -> int:
    """Return how many units the part has now."""
    window_us = limit.window_us
    return max((window_us - owed_us(limit, part, now_us)) * part.units // window_us, 0)


def free_us(limit: GroupLimit, part: Part, units: int, now_us: int) -> int:
    """Return when the part has this many of its units, in µs: now, or later."""
    return now_us + max(owed_us(limit, part, now_us) + _price_us(limit, part, units) - limit.window_us, 0)


def served(limit: GroupLimit, part: Part, units: int, now_us: int) -> Part:
    """Return the part after messages with this total cost are leased."""
    owed = owed_us(limit, part, now_us) + _price_us(limit, part, units)
    return Part(part.units, now_us + min(owed, MOST_OWED_US))


def _price_us(limit: GroupLimit, part: Part, units: int) -> int:
    """Return the time in which the part gets this many units, in µs."""
    return -(-units * limit.window_us // part.units)


def split(limit: GroupLimit, part: Part, units: int, now_us: int) -> tuple[Part, Part]:
    """Split a part into two: one with `units` units, one with the remaining units."""
    if units in (0, part.units):
        return (NO_PART, part) if units == 0 else (part, NO_PART)
    arrival_us = now_us + owed_us(limit, part, now_us)
    return Part(units, arrival_us), Part(part.units - units, arrival_us)


def merge(limit: GroupLimit, one: Part, other: Part, now_us: int) -> Part:
    """Return a part with the units of both parts."""
    if not one.units or not other.units:
        return one if one.units else other
    units = one.units + other.units
    owed = sum([owed_us(limit, part, now_us) * part.units for part in (one, other)])
    return Part(units, now_us - (-owed // units))


def renewed(old: GroupLimit, part: Part, limit: GroupLimit, now_us: int) -> Part:
    """Return a part with all units of a new limit, to replace `part` of an older limit. At present, it allows at most
    as many messages as the old part, or the same total cost."""
    if limit.interval_us is None or limit.burst is None:
        return NO_PART
    if old.interval_us is None:
        return Part(limit.burst, 0)
    there_us = 0
    if part.units:
        unused_us = old.window_us - owed_us(old, part, now_us)
        there_us = unused_us * part.units * limit.interval_us // old.window_us
    return Part(limit.burst, now_us + min(max(limit.window_us - there_us, 0), MOST_OWED_US))
