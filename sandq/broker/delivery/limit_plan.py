"""Plan how a group's limits are shared among the partitions of its topic. No I/O.

A partition is starved while due messages in it wait for the limits. Starved partitions get equal shares, but no more
than they can use. A partition that is not starved gives up half of its unused share. If it used nothing lately, it
gives up its whole unused share. If the limits are too low for all starved partitions, these partitions take turns. A
turn lasts at least `ROTATION_MS`, and does not end before messages were leased in it.

If the rate has a unit, the next message of a partition may need many units at once. A partition with a turn gets at
least these. If the next partition needs more units than are free, no other turn begins before its own, and partitions
that are not starved give up all unused units. So large messages are not starved by small ones. Turns are then in the
order of the units that partitions have used (start-time fair queueing), so small messages are not starved by large
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.partition.groups.group_limits import HOME

ROTATION_MS: Final = 250
"""Minimum time in ms between two changes that reduce shares of partitions: each change costs some log entries."""
IDLE_MS: Final = 1000
"""Time in ms after which a partition that was not starved no longer catches up with the units that others used."""
_ANY: Final = 1 << 40


class PartitionUse(NamedTuple):
    """The use of a group's limits in one partition."""

    leased: int
    """Number of messages in flight."""
    in_flight: int
    """The partition's current share of `max_in_flight`: the target that was last set for it."""
    units: int
    """The partition's current share of the rate, in units."""
    used: int
    """Number of messages leased since the limits were set, or their total cost if the limit has a unit; -1 if unknown.
    """
    wants_in_flight: int = 0
    """Number of due messages that wait because too many are in flight."""
    wants_units: int = 0
    """Number of units of the rate that the next due message needs. 0 if it does not wait for the rate."""
    is_open: bool = True
    """True if the partition has confirmed its last share. Before that, the partition gets no other share."""

    @property
    def is_starved(self) -> bool:
        """True if messages of the partition wait for the limits."""
        return self.wants_in_flight > 0 or self.wants_units > 0

    @property
    def needed(self) -> int:
        """Number of units without which the partition cannot lease a message."""
        return max(self.wants_units, 1)


Target = tuple[int, int]
"""(number of messages in flight, units of the rate) that a partition should get."""


class _Left(NamedTuple):
    """The remainder of a group's limits while they are divided."""

    in_flight: int
    units: int

    def less(self, in_flight: int, units: int) -> _Left:
        """Return the remainder without these amounts."""
        return _Left(self.in_flight - in_flight, self.units - units)


class LimitPlan:
    """The plan for one group, on the leader of the home partition. A new, empty plan may replace it at any time."""

    def __init__(self) -> None:
        self._taken_ms: int | None = None
        """Time in ms at which the share of a partition was last reduced."""
        self._used: dict[int, int] = {}
        """Value of `PartitionUse.used` at the last change of the plan, by partition."""
        self._began: dict[int, tuple[int, int]] = {}
        """By partition: start of its current turn in ms, and the value of `used` at that time."""
        self._ended_ms: dict[int, int] = {}
        """By partition: time in ms at which its last turn ended."""
        self._counted: dict[int, int] = {}
        """Last known value of `PartitionUse.used`, by partition."""
        self._served: dict[int, int] = {}
        """By partition: the units that count as used by it, when starved partitions are compared."""
        self._starved_ms: dict[int, int] = {}
        """By partition: time in ms at which it was last starved."""

    def plan(self, limit: GroupLimit, uses: Mapping[int, PartitionUse], now_ms: int) -> dict[int, Target]:
        """Return the new targets of the partitions whose share should change.

        `uses` includes the home partition, which gets the remainder."""
        starved = [partition for partition, use in uses.items() if use.is_starved]
        if not starved:
            return {}
        self._count(uses, starved, now_ms)
        may_take = self._taken_ms is None or not 0 <= now_ms - self._taken_ms < ROTATION_MS
        targets: dict[int, Target] = {}
        left = _Left(
            _ANY if limit.max_in_flight is None else limit.max_in_flight, _ANY if limit.burst is None else limit.burst
        )
        order = self._order(limit, {partition: uses[partition] for partition in starved}, may_take, now_ms)
        # First, partitions that are not starved keep a part of their shares. The rest is for the starved partitions.
        idle = {partition: use for partition, use in uses.items() if not use.is_starved}
        keeping = {partition for partition in idle if self._keeps_share(limit, partition, now_ms)}
        kept = self._kept_by_all(idle, keeping, may_take, left.units - uses[order[0]].needed)
        for partition, target in kept.items():
            targets[partition] = target
            left = left.less(max(target[0], uses[partition].leased), target[1])
        with_turn = _served_now(order, uses, left)
        for partition in [other for other in starved if other not in with_turn]:
            if may_take or partition == HOME:
                targets[partition] = 0, 0
            else:
                targets[partition] = uses[partition].in_flight, uses[partition].units
                left = left.less(*targets[partition])
        shares = _divided(left, {partition: uses[partition] for partition in with_turn}, may_take)
        for partition, (in_flight, units) in shares.items():
            targets[partition] = 0 if limit.max_in_flight is None else in_flight, 0 if limit.burst is None else units
        return self._changes(limit, uses, starved, targets, now_ms)

    def _keeps_share(self, limit: GroupLimit, partition: int, now_ms: int) -> bool:
        """Return whether the turn of a partition goes on although it is not starved: for a moment, it may lack due
        messages, or all its due messages may be allowed."""
        began_ms, _ = self._began.get(partition, (now_ms - ROTATION_MS, 0))
        starved_ms = self._starved_ms.get(partition, now_ms - ROTATION_MS) if limit.unit is not None else began_ms
        return 0 <= now_ms - max(began_ms, starved_ms) < ROTATION_MS

    def _kept_by_all(
        self, idle: Mapping[int, PartitionUse], keeping: Set[int], may_take: bool, most: int
    ) -> dict[int, Target]:
        """Return the targets of the partitions that are not starved. `keeping`: those that keep their shares. `most`:
        number of units that all may keep; if they would keep more, they give up all unused units."""
        kept = dict[int, Target]()
        for takes_all in (False, True):
            for partition, use in idle.items():
                if partition in keeping or (partition != HOME and not (may_take and use.is_open)):
                    kept[partition] = use.in_flight, use.units
                else:
                    kept[partition] = self._kept(partition, use, takes_all=takes_all)
            if sum([units for _, units in kept.values()]) <= most:
                break
        return kept

    def _kept(self, partition: int, use: PartitionUse, *, takes_all: bool) -> Target:
        """Return the target of a partition that is not starved and gives up a part of its share. `takes_all`: whether
        it gives up all its units."""
        if use.used == self._used.get(partition, 0):  # it is idle
            return min(use.in_flight, use.leased), 0
        spare = max(use.in_flight - use.leased, 0)
        return min(use.in_flight, use.leased + spare // 2), 0 if takes_all else use.units // 2

    def _count(self, uses: Mapping[int, PartitionUse], starved: Sequence[int], now_ms: int) -> None:
        """Count the units that partitions have used. A partition that was not starved for a while has at least as many
        as the starved partition with the fewest, so that it does not catch up."""
        for partition, use in uses.items():
            if use.used >= 0:
                more = use.used - self._counted.get(partition, use.used)
                self._served[partition] = self._served.get(partition, 0) + max(more, 0)
                self._counted[partition] = use.used
        new = {one for one in starved if not 0 <= now_ms - self._starved_ms.get(one, -IDLE_MS) < IDLE_MS}
        least = min([self._served.get(partition, 0) for partition in starved if partition not in new], default=0)
        for partition in starved:
            self._served[partition] = max(self._served.get(partition, 0), least if partition in new else 0)
            self._starved_ms[partition] = now_ms

    def _order(self, limit: GroupLimit, starved: Mapping[int, PartitionUse], may_take: bool, now_ms: int) -> list[int]:
        """Return the starved partitions that may have turns, in their order: first partitions whose turn goes on, then
        partitions that have waited longest, or have used the fewest units if the limit has a unit.

        `may_take`: True if partitions whose turn is over lose their shares now."""
        with_share = {partition for partition, use in starved.items() if use.in_flight > 0 or use.units > 0}
        go_on = {one for one in with_share if not (may_take and self._is_over(one, starved[one], now_ms))}
        if limit.unit is not None and limit.burst is not None:
            found = [one for one in self._fair(starved, limit.burst) if one not in go_on]
            return [*sorted(go_on), *sorted(found, key=lambda partition: (self._served[partition], partition))]

        def order(partition: int) -> tuple[bool, int, int]:
            """Return a partition's sort key."""
            # A partition whose turn has just ended comes after all other partitions, even after those that never had a
            # turn.
            waits_ms = now_ms if partition in with_share else self._ended_ms.get(partition, 0)
            return partition not in go_on, waits_ms, partition

        return sorted(starved, key=order)

    def _fair(self, starved: Mapping[int, PartitionUse], burst: int) -> list[int]:
        """Return the starved partitions without those that would get more than their share of the rate: their next
        message needs more units than an equal part, and they have used more units than others that wait for the rate.
        """
        # A partition that waits for acks, not for the rate, would not use the units that others leave to it.
        served = [self._served[one] for one, use in starved.items() if use.wants_units and not use.wants_in_flight]
        if not served:
            return list(starved)
        most = min(served) + max([use.needed for use in starved.values()])
        return [
            partition
            for partition, use in starved.items()
            if use.needed * len(starved) <= burst or self._served[partition] <= most
        ]

    def _is_over(self, partition: int, use: PartitionUse, now_ms: int) -> bool:
        """Return whether the turn of a partition is over."""
        began_ms, used = self._began.setdefault(partition, (now_ms, use.used))
        return not 0 <= now_ms - began_ms < ROTATION_MS and use.used > used

    def _changes(
        self,
        limit: GroupLimit,
        uses: Mapping[int, PartitionUse],
        starved: Sequence[int],
        targets: dict[int, Target],
        now_ms: int,
    ) -> dict[int, Target]:
        """Return the targets that differ from the current shares. If no starved partition benefits, return no
        targets."""
        others = [target for partition, target in targets.items() if partition != HOME]
        targets[HOME] = (
            (limit.max_in_flight or 0) - sum([target[0] for target in others]),
            (limit.burst or 0) - sum([target[1] for target in others]),
        )
        # Change the ledger only if a starved partition gets more than it has: each change costs log entries.
        benefiting = [
            partition
            for partition in starved
            for use in [uses[partition]]
            if (use.wants_in_flight and targets[partition][0] > use.in_flight)
            or ((use.wants_units or not use.units) and targets[partition][1] > use.units)
        ]
        if not benefiting:
            return {}
        changes = {}
        for partition, target in targets.items():
            use = uses[partition]
            current = use.in_flight, use.units
            if target == current:
                continue
            if partition != HOME:  # the home partition has the remainder, so its share is not set
                changes[partition] = target
                if target[0] < current[0] or target[1] < current[1]:
                    self._taken_ms = now_ms
            # A turn begins with the first share, and ends when the partition has no share.
            if current[0] + current[1] == 0:
                self._began[partition] = now_ms, use.used
            elif sum(target) == 0:
                self._began.pop(partition, None)
                self._ended_ms[partition] = now_ms
        self._used = {partition: use.used for partition, use in uses.items()}
        return changes


def _served_now(order: Sequence[int], uses: Mapping[int, PartitionUse], left: _Left) -> list[int]:
    """Return the starved partitions that have a turn: the first ones of `order` that can each get a message in flight
    and the units for their next messages. The first partition has a turn even if its units are not free yet."""
    served: list[int] = []
    if min(left) < 1:
        return served
    for partition in order:
        left = left.less(1, uses[partition].needed)
        if served and min(left) < 0:
            break
        served.append(partition)
    return served


def _divided(left: _Left, uses: Mapping[int, PartitionUse], may_take: bool) -> dict[int, Target]:
    """Divide the remainder among the starved partitions that have a turn, by the amounts that they can use.

    `may_take`: True if the current shares of these partitions may be reduced."""
    in_flight = _filled(
        left.in_flight,
        [(_floor(partition, use.in_flight, use.leased, may_take), _wanted(use)) for partition, use in uses.items()],
    )
    # A partition that does not wait for the rate keeps half of its units, but at least one.
    most = [_ANY if use.wants_units else max(use.units // 2, 1) for use in uses.values()]
    floors = [_floor(partition, use.units, 0, may_take) for partition, use in uses.items()]
    # Each partition gets the units for its next message, unless other partitions keep these at present.
    least = [max(floor, use.needed) for floor, use in zip(floors, uses.values(), strict=True)]
    units = _filled(left.units, list(zip(least if sum(least) <= left.units else floors, most, strict=True)))
    return dict(zip(uses, zip(in_flight, units, strict=True), strict=True))


def _floor(partition: int, has: int, leased: int, may_take: bool) -> int:
    """Return how much of its share a partition keeps at least.

    0 if `may_take` is True. Otherwise the home partition keeps the part that it has leased, and any other partition
    keeps its whole share."""
    if partition == HOME:
        return 0 if may_take else min(has, leased)
    return 0 if may_take else has


def _wanted(use: PartitionUse) -> int:
    """Return the number of messages in flight that a starved partition can use."""
    if use.wants_in_flight:
        return use.leased + use.wants_in_flight
    return max(use.leased + max(use.in_flight - use.leased, 0) // 2, 1)


def _filled(total: int, bounds: Sequence[tuple[int, int]]) -> list[int]:
    """Divide `total` as evenly as possible (max-min fairness).

    Each part is within its bounds `(least, most)`. The remainder is given one by one, in order."""
    # Binary search for the highest level: each part is the level, limited to its bounds, and the sum fits into `total`.
    low, high = 0, max([most for _, most in bounds], default=0)
    while low < high:
        level = (low + high + 1) // 2
        if sum([max(least, min(most, level)) for least, most in bounds]) <= total:
            low = level
        else:
            high = level - 1
    given = [max(least, min(most, low)) for least, most in bounds]
    # Give the remainder to parts that are at the level and may grow, one unit each.
    left = total - sum(given)
    for at, (_, most) in enumerate(bounds):
        if left > 0 and given[at] == low and given[at] < most:
            given[at] += 1
            left -= 1
    return given
