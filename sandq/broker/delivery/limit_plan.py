"""Plan how a group's limits are shared among the partitions of its topic. No I/O.

A partition is starved while due messages in it wait for the limits. Starved partitions get equal shares, but no more
than they can use. A partition that is not starved gives up half of its unused share. If it used nothing lately, it
gives up its whole unused share. If the limits are too low for all starved partitions, these partitions take turns. A
turn lasts at least `ROTATION_MS`, and does not end before messages were leased in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.partition.groups.group_limits import HOME

ROTATION_MS: Final = 250
"""Minimum time in ms between two changes that reduce shares of partitions: each change costs some log entries."""
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
    """Number of messages leased since the limits were set; -1 if unknown."""
    wants_in_flight: int = 0
    """Number of due messages that wait because too many are in flight."""
    wants_rate: bool = False
    """True if a due message waits for the rate."""
    is_open: bool = True
    """True if the partition has confirmed its last share. Before that, the partition gets no other share."""

    @property
    def is_starved(self) -> bool:
        """True if messages of the partition wait for the limits."""
        return self.wants_in_flight > 0 or self.wants_rate


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

    def plan(self, limit: GroupLimit, uses: Mapping[int, PartitionUse], now_ms: int) -> dict[int, Target]:
        """Return the new targets of the partitions whose share should change.

        `uses` includes the home partition, which gets the remainder."""
        starved = [partition for partition, use in uses.items() if use.is_starved]
        if not starved:
            return {}
        may_take = self._taken_ms is None or not 0 <= now_ms - self._taken_ms < ROTATION_MS
        targets: dict[int, Target] = {}
        left = _Left(
            _ANY if limit.max_in_flight is None else limit.max_in_flight, _ANY if limit.burst is None else limit.burst
        )
        # First, partitions that are not starved keep a part of their shares. The rest is for the starved partitions.
        for partition, use in uses.items():
            if not use.is_starved:
                kept = targets[partition] = self._kept(partition, use, may_take and use.is_open, now_ms)
                left = left.less(max(kept[0], use.leased), kept[1])
        # A partition with a turn needs at least one message in flight and one unit, so `min(left)` can have a turn.
        with_turn = self._served_now(starved, uses, min(left), may_take, now_ms)
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

    def _kept(self, partition: int, use: PartitionUse, may_take: bool, now_ms: int) -> Target:
        """Return the target of a partition that is not starved.

        `may_take`: True if the share of the partition may be reduced now. The home partition's share always may."""
        is_idle = use.used == self._used.get(partition, 0)
        began_ms, _ = self._began.get(partition, (now_ms - ROTATION_MS, 0))
        has_turn = 0 <= now_ms - began_ms < ROTATION_MS  # in its turn, a partition may lack due messages for a moment
        if has_turn or (partition != HOME and not may_take):
            return use.in_flight, use.units
        spare = max(use.in_flight - use.leased, 0)
        if is_idle:
            return min(use.in_flight, use.leased), 0
        return min(use.in_flight, use.leased + spare // 2), use.units // 2

    def _served_now(
        self, starved: Sequence[int], uses: Mapping[int, PartitionUse], most: int, may_take: bool, now_ms: int
    ) -> list[int]:
        """Return the starved partitions that have a turn: at most `most`, so that each can get something.

        `may_take`: True if partitions whose turn is over lose their shares now."""
        if len(starved) <= most:
            return list(starved)

        def order(partition: int) -> tuple[bool, int, int]:
            """Return a partition's sort key: first partitions whose turn goes on, then partitions that have waited
            longest."""
            use = uses[partition]
            has_share = use.in_flight > 0 or use.units > 0
            goes_on = has_share and (not may_take or not self._is_over(partition, use, now_ms))
            # A partition whose turn has just ended comes after all other partitions, even after those that never had a
            # turn.
            return not goes_on, now_ms if has_share else self._ended_ms.get(partition, 0), partition

        return sorted(starved, key=order)[: max(most, 0)]

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
            or ((use.wants_rate or not use.units) and targets[partition][1] > use.units)
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


def _divided(left: _Left, uses: Mapping[int, PartitionUse], may_take: bool) -> dict[int, Target]:
    """Divide the remainder among the starved partitions that have a turn, by the amounts that they can use.

    `may_take`: True if the current shares of these partitions may be reduced."""
    in_flight = _filled(
        left.in_flight,
        [(_floor(partition, use.in_flight, use.leased, may_take), _wanted(use)) for partition, use in uses.items()],
    )
    # A partition that does not wait for the rate keeps half of its units, but at least one.
    units = _filled(
        left.units,
        [
            (_floor(partition, use.units, 0, may_take), _ANY if use.wants_rate else max(use.units // 2, 1))
            for partition, use in uses.items()
        ],
    )
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
