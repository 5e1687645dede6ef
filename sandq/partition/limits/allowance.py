"""What a partition may have of the limits of a group at present."""

from __future__ import annotations

from typing import NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.partition.limits.buckets import NO_PART, Part, merge, owed_us, pace_of, split


class AllowanceStatus(NamedTuple):
    """An immutable copy of an allowance."""

    epoch: int
    version: int
    """Of what the home partition allowed last; 0: it has allowed nothing yet."""
    in_flight: int | None
    """None: there is no such limit."""
    units: int
    returned_us: int
    """What the units owe that it gave back with this version."""
    used: int
    """Messages that were leased since the limits were set."""


class Allowance:
    """Of one group in one partition; changed by entries alone."""

    def __init__(self, limit: GroupLimit, in_flight: int, part: Part) -> None:
        self.limit = limit
        self.version = 0
        self.in_flight = in_flight
        self.part = part
        self.returned_us = 0
        self.used = 0
        self.is_waiting = False
        """In the home partition: what others may have is not known yet, so nothing is given out."""

    def row(self) -> tuple[int, ...]:
        """What is stored of it."""
        part = self.part
        return (
            self.limit.epoch,
            self.version,
            self.in_flight,
            part.units,
            part.arrival_us,
            self.returned_us,
            self.used,
        )

    @classmethod
    def load(cls, limit: GroupLimit, row: tuple[int, ...]) -> Allowance:
        """Go on with what was stored."""
        _, version, in_flight, units, arrival_us, returned_us, used = row
        allowance = cls(limit, in_flight, Part(units, arrival_us))
        allowance.version, allowance.returned_us, allowance.used = version, returned_us, used
        return allowance

    def status(self) -> AllowanceStatus:
        """A copy."""
        most = None if self.limit.max_in_flight is None else self.in_flight
        return AllowanceStatus(self.limit.epoch, self.version, most, self.part.units, self.returned_us, self.used)

    def allow(self, version: int, in_flight: int, units: int, given_us: int, now_us: int) -> None:
        """Have so much from now on. Units that are new come with what they owe, `given_us`; of others that is
        noted."""
        more = units - self.part.units
        if more > 0:
            self.part, self.returned_us = merge(self.limit, self.part, Part(more, now_us + given_us), now_us), 0
        else:
            self.part, back = split(self.limit, self.part, units, now_us)
            self.returned_us = owed_us(self.limit, back, now_us) if back.units else 0
        self.version, self.in_flight = version, in_flight

    def has_room(self, in_flight: int) -> bool:
        """Whether another message may be in flight, beside so many."""
        return not self.is_waiting and (self.limit.max_in_flight is None or in_flight < self.in_flight)

    def room(self, in_flight: int, now_us: int, most: int) -> int:
        """How many messages may be leased now, beside those in flight: `most` at most."""
        if self.is_waiting:
            return 0
        if self.limit.max_in_flight is not None:
            most = min(most, self.in_flight - in_flight)
        if self.limit.interval_us is not None:
            most = min(most, self._paced(now_us))
        return max(most, 0)

    def _paced(self, now_us: int) -> int:
        part = self.part
        if not part.units:
            return 0
        pace = pace_of(self.limit, part.units)
        return pace.room(min(part.arrival_us, pace.latest_us(now_us)), now_us)

    def free_ms(self, now_us: int) -> int | None:
        """When the rate lets the next message go: 0 without a rate, or if it may go now; None: not before the home
        partition allows it."""
        if self.limit.interval_us is None:
            return 0
        if not self.part.units:
            return None
        pace = pace_of(self.limit, self.part.units)
        free_us = pace.free_us(min(self.part.arrival_us, pace.latest_us(now_us)), now_us)
        return 0 if free_us <= now_us else -(-free_us // 1000)

    def serve(self, messages: int, now_us: int) -> None:
        """So many messages are leased."""
        self.used += messages
        if self.limit.interval_us is not None:
            pace = pace_of(self.limit, self.part.units)
            arrival_us = min(self.part.arrival_us, pace.latest_us(now_us))
            self.part = Part(self.part.units, pace.after(arrival_us, messages, now_us))


def fresh(limit: GroupLimit, is_home: bool) -> Allowance:
    """What a partition has when limits are set for the first time: the home partition all, the others nothing."""
    if not is_home:
        return Allowance(limit, 0, NO_PART)
    return Allowance(limit, limit.max_in_flight or 0, Part(limit.burst or 0, 0))
