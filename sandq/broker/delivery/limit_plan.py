"""How the limits of a group are to be shared among the partitions of its topic: pure reckoning, without messages.

Whoever has something due and waits for the limits gets as much as any other who does, as far as it has use for it. One
that does not wait gives half of what it does not use, and all of it when it used nothing lately. When those who wait
are more than the limits have messages or units for, they take turns: a turn ends once something was leased in it, and
after `TURN_MS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.partition.groups.group_limits import HOME

TURN_MS: Final = 250
"""Before something is taken from a partition again: each time costs some entries."""
_ANY: Final = 1 << 40


class Standing(NamedTuple):
    """How the limits of a group stand in one partition."""

    leased: int
    """Messages in flight."""
    in_flight: int
    """That it is to have at most."""
    units: int
    """Of the rate."""
    used: int
    """Messages that were leased since the limits were set."""
    wants_in_flight: int = 0
    """Messages that are due and wait for those in flight."""
    wants_rate: bool = False
    """Something that is due waits for the rate."""
    is_open: bool = True
    """It has said that it goes by what it was told last; until then it gets no other share."""

    @property
    def is_starved(self) -> bool:
        """Whether it waits for the limits."""
        return self.wants_in_flight > 0 or self.wants_rate


Target = tuple[int, int]
"""Messages in flight, and units of the rate, that a partition is to have."""


class LimitPlan:
    """Of one group, by who leads the home partition; what it remembers may be lost at any time."""

    def __init__(self) -> None:
        self._took_ms: int | None = None
        """When something was taken from somebody last."""
        self._used: dict[int, int] = {}
        """By partition, as it was seen last."""
        self._began: dict[int, tuple[int, int]] = {}
        """By partition: when its turn began, and what it had used by then."""
        self._ended_ms: dict[int, int] = {}
        """By partition: when its last turn ended."""

    def plan(self, limit: GroupLimit, standings: Mapping[int, Standing], now_ms: int) -> dict[int, Target]:
        """What partitions are to have that have something else. The home partition has what is left, and is in
        `standings` with what it has."""
        starved = [partition for partition, one in standings.items() if one.is_starved]
        if not starved:
            return {}
        may_take = self._took_ms is None or not 0 <= now_ms - self._took_ms < TURN_MS
        in_flight_left = _ANY if limit.max_in_flight is None else limit.max_in_flight
        units_left = _ANY if limit.burst is None else limit.burst
        targets: dict[int, Target] = {}
        for partition, one in standings.items():
            if not one.is_starved:
                kept = self._kept(partition, one, may_take and one.is_open, now_ms)
                targets[partition] = kept
                in_flight_left -= max(kept[0], one.leased)
                units_left -= kept[1]
        seated = self._seated(starved, standings, min(in_flight_left, units_left), may_take, now_ms)
        targets |= {partition: (0, 0) for partition in starved if partition not in seated}
        if not may_take:
            for partition in [one for one in starved if one not in seated and one != HOME]:
                targets[partition] = standings[partition].in_flight, standings[partition].units
                in_flight_left, units_left = in_flight_left - targets[partition][0], units_left - targets[partition][1]
        in_flight = _filled(
            in_flight_left,
            [
                (_floor(partition, one.in_flight, one.leased, may_take), _wanted(one))
                for partition in seated
                for one in [standings[partition]]
            ],
        )
        units = _filled(
            units_left,
            [
                (_floor(partition, one.units, 0, may_take), _ANY if one.wants_rate else max(one.units // 2, 1))
                for partition in seated
                for one in [standings[partition]]
            ],
        )
        for partition, *target in zip(seated, in_flight, units, strict=True):
            targets[partition] = (
                0 if limit.max_in_flight is None else target[0],
                0 if limit.burst is None else target[1],
            )
        return self._changes(limit, standings, starved, targets, now_ms)

    def _kept(self, partition: int, one: Standing, may_take: bool, now_ms: int) -> Target:
        """What a partition that does not wait is to keep."""
        is_idle = one.used == self._used.get(partition, 0)
        began_ms, _ = self._began.get(partition, (now_ms - TURN_MS, 0))
        has_turn = 0 <= now_ms - began_ms < TURN_MS  # and is between two of its messages, perhaps
        if has_turn or (partition != HOME and not may_take):
            return one.in_flight, one.units
        spare = max(one.in_flight - one.leased, 0)
        if is_idle:
            return min(one.in_flight, one.leased), 0
        return min(one.in_flight, one.leased + spare // 2), one.units // 2

    def _seated(
        self, starved: Sequence[int], standings: Mapping[int, Standing], seats: int, may_take: bool, now_ms: int
    ) -> list[int]:
        """Those that have a turn, of all that wait."""
        if len(starved) <= seats:
            return list(starved)

        def order(partition: int) -> tuple[bool, int, int]:
            one = standings[partition]
            has_some = one.in_flight > 0 or one.units > 0
            is_on = has_some and (not may_take or not self._is_over(partition, one, now_ms))
            # Who had a turn until now comes behind all others, also behind those that never had one.
            return not is_on, now_ms if has_some else self._ended_ms.get(partition, 0), partition

        return sorted(starved, key=order)[: max(seats, 0)]

    def _is_over(self, partition: int, one: Standing, now_ms: int) -> bool:
        """Whether a partition has had its turn."""
        began_ms, used = self._began.setdefault(partition, (now_ms, one.used))
        return not 0 <= now_ms - began_ms < TURN_MS and one.used > used

    def _changes(
        self,
        limit: GroupLimit,
        standings: Mapping[int, Standing],
        starved: Sequence[int],
        targets: dict[int, Target],
        now_ms: int,
    ) -> dict[int, Target]:
        """What is other than it was, if somebody who waits is better off by it."""
        others = [target for partition, target in targets.items() if partition != HOME]
        targets[HOME] = (
            (limit.max_in_flight or 0) - sum([target[0] for target in others]),
            (limit.burst or 0) - sum([target[1] for target in others]),
        )
        better = [
            partition
            for partition in starved
            for one in [standings[partition]]
            if (one.wants_in_flight and targets[partition][0] > one.in_flight)
            or ((one.wants_rate or not one.units) and targets[partition][1] > one.units)
        ]
        if not better:
            return {}
        changes = {}
        for partition, target in targets.items():
            one = standings[partition]
            had = one.in_flight, one.units
            if target == had:
                continue
            if partition != HOME:
                changes[partition] = target
                if target[0] < had[0] or target[1] < had[1]:
                    self._took_ms = now_ms
            if had[0] + had[1] == 0:
                self._began[partition] = now_ms, one.used
            elif sum(target) == 0:
                self._began.pop(partition, None)
                self._ended_ms[partition] = now_ms
        self._used = {partition: one.used for partition, one in standings.items()}
        return changes


def _floor(partition: int, has: int, leased: int, may_take: bool) -> int:
    """What a partition keeps: all, while nothing may be taken; of the home partition what it has leased."""
    if partition == HOME:
        return 0 if may_take else min(has, leased)
    return 0 if may_take else has


def _wanted(one: Standing) -> int:
    """Messages in flight that a partition which waits has use for."""
    if one.wants_in_flight:
        return one.leased + one.wants_in_flight
    return max(one.leased + max(one.in_flight - one.leased, 0) // 2, 1)


def _filled(total: int, bounds: Sequence[tuple[int, int]]) -> list[int]:
    """Share out so much, to each between its bounds `(least, most)`, as evenly as that goes; what is left over by one
    each, in order."""
    low, high = 0, max([most for _, most in bounds], default=0)
    while low < high:
        level = (low + high + 1) // 2
        if sum([max(least, min(most, level)) for least, most in bounds]) <= total:
            low = level
        else:
            high = level - 1
    given = [max(least, min(most, low)) for least, most in bounds]
    left = total - sum(given)
    for at, (_, most) in enumerate(bounds):
        if left > 0 and given[at] == low and given[at] < most:
            given[at] += 1
            left -= 1
    return given
