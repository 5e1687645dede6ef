"""The part of a group's limits that one partition may use at present."""

from __future__ import annotations

from typing import Any, NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.partition.limits.buckets import NO_PART, Part, available, free_us, merge, owed_us, served, split


class Definition(NamedTuple):
    """The definition of a named limit, as its home sends it to the partitions that use it."""

    max_in_flight: int | None
    interval_us: int | None
    burst: int | None
    unit: str | None

    @classmethod
    def of(cls, limit: GroupLimit) -> Definition:
        """Return the definition in a limit."""
        return cls(limit.max_in_flight, limit.interval_us, limit.burst, limit.unit)


class LimitPause(NamedTuple):
    """The last pause of a named limit, or its end. The home sends it to the partitions that use the limit."""

    version: int
    """Increases with each change. 0 if the limit was never paused."""
    until_ms: int
    """End of the pause in ms. 0 if the limit was resumed."""
    by: str
    """The operator, or the group of the lease, that has paused or resumed the limit, as a text for people."""


NO_PAUSE = LimitPause(0, 0, "")


class AllowanceStatus(NamedTuple):
    """An immutable copy of an allowance."""

    epoch: int
    version: int
    """Version of the last change by the home partition. 0 if the home partition has allowed nothing yet."""
    in_flight: int | None
    """Maximum number of messages in flight. None if there is no such limit."""
    units: int
    returned_us: int
    """Debt of the units that the partition returned with this version, in µs."""
    used: int
    """Number of messages leased since the limits were set, or their total cost if the limit has a unit."""
    needed: int = 1
    """Number of units that the next message needs: its cost, at most the burst."""
    name: str | None = None
    """Name of the named limit that the group uses. None if the limits are its own."""
    assigned: int = 0
    """Epoch of the group's row in the settings of the topic."""
    pause: LimitPause = NO_PAUSE
    """Pause of the named limit, as far as the partition knows it."""


class Allowance:
    """The allowance of one group in one partition. It changes only when entries are applied.

    If the group uses a named limit, the definition of this limit arrives with the first share. Until then, `limit` has
    epoch 0, and nothing may be leased."""

    def __init__(self, limit: GroupLimit, in_flight: int, part: Part) -> None:
        """`limit`: row of the group in the settings of the topic."""
        self.assigned = limit.epoch
        self.limit = limit
        self.version = 0
        self.in_flight = in_flight
        self.part = part
        self.returned_us = 0
        self.used = 0
        self.needed = 1
        """Number of units that the next message needs, as far as the last lease has found it."""
        self.is_waiting = False
        """True in the home partition until all other partitions have reported what they hold, and everywhere else until
        the definition of a named limit is known. While it is True, nothing may be leased."""
        self.pause = NO_PAUSE
        """Pause of the named limit. A change of the limit keeps it."""
        if limit.name is not None:
            self.limit, self.is_waiting = limit._replace(epoch=0), True

    def define(self, epoch: int, definition: Definition) -> None:
        """Set the definition of the named limit, and begin with a share of nothing."""
        self.limit = self.limit._replace(epoch=epoch, **definition._asdict())
        self.version, self.in_flight, self.part, self.returned_us = 0, 0, NO_PART, 0
        self.needed = 1  # the next message may have needed more than the new burst
        self.is_waiting = False

    def row(self) -> tuple[Any, ...]:
        """Return the stored fields."""
        part = self.part
        is_defined = self.limit.name is not None and not self.is_waiting
        return (
            self.limit.epoch,
            self.version,
            self.in_flight,
            part.units,
            part.arrival_us,
            self.returned_us,
            self.used,
            self.needed,
            Definition.of(self.limit) if is_defined else None,
            self.pause if self.pause.version else None,
        )

    @classmethod
    def load(cls, limit: GroupLimit, row: tuple[Any, ...]) -> Allowance:
        """Restore an allowance from its stored fields. `limit`: row of the group in the settings of the topic."""
        epoch, version, in_flight, units, arrival_us, returned_us, used, needed, definition, pause = row
        allowance = cls(limit, in_flight, Part(units, arrival_us))
        if limit.name is not None and definition is not None:
            allowance.define(epoch, Definition(*definition))
            allowance.in_flight, allowance.part = in_flight, Part(units, arrival_us)
        allowance.version, allowance.returned_us, allowance.used = version, returned_us, used
        allowance.needed = needed
        if pause is not None:
            allowance.pause = LimitPause(*pause)
        return allowance

    def status(self) -> AllowanceStatus:
        """Return an immutable copy."""
        most = None if self.limit.max_in_flight is None else self.in_flight
        units, returned_us = self.part.units, self.returned_us
        return AllowanceStatus(
            epoch=self.limit.epoch,
            version=self.version,
            in_flight=most,
            units=units,
            returned_us=returned_us,
            used=self.used,
            needed=self.needed,
            name=self.limit.name,
            assigned=self.assigned,
            pause=self.pause,
        )

    def allow(self, version: int, in_flight: int, units: int, given_us: int, now_us: int) -> None:
        """Set the allowance. Additional units have the debt `given_us`. If units are returned, record their debt in
        `returned_us`."""
        more = units - self.part.units
        if more > 0:
            self.part, self.returned_us = merge(self.limit, self.part, Part(more, now_us + given_us), now_us), 0
        else:
            self.part, back = split(self.limit, self.part, units, now_us)
            self.returned_us = owed_us(self.limit, back, now_us) if back.units else 0
        self.version, self.in_flight = version, in_flight

    def is_paused(self, now_ms: int) -> bool:
        """Return whether the named limit is paused. Then nothing may be leased."""
        return now_ms < self.pause.until_ms

    def has_capacity(self, in_flight: int) -> bool:
        """Return whether one more message may be leased while `in_flight` are in flight."""
        return not self.is_waiting and (self.limit.max_in_flight is None or in_flight < self.in_flight)

    def available(self, in_flight: int, now_us: int, most: int) -> int:
        """Return how many more messages may be leased now, up to `most`, while `in_flight` are in flight. If the limit
        has a unit, this is the number of messages whose cost is 1."""
        if self.is_waiting or self.is_paused(now_us // 1000):
            return 0
        if self.limit.max_in_flight is not None:
            most = min(most, self.in_flight - in_flight)
        if self.limit.interval_us is not None:
            most = min(most, self.available_units(now_us))
        return max(most, 0)

    def available_units(self, now_us: int) -> int:
        """Return how many units of the rate there are now."""
        return available(self.limit, self.part, now_us) if self.part.units else 0

    def free_ms(self, now_us: int, units: int | None = None) -> int | None:
        """Return when the rate allows the next message, in ms. 0: now, or there is no rate. None: the home partition
        must allow units first. `units`: number of units that the message needs; by default, `needed`."""
        if self.limit.interval_us is None:
            return 0
        units = self.needed if units is None else units
        if self.part.units < units:
            return None
        at_us = free_us(self.limit, self.part, units, now_us)
        return 0 if at_us <= now_us else -(-at_us // 1000)

    def serve(self, units: int, now_us: int) -> None:
        """Count leased messages, or their total cost if the limit has a unit."""
        self.used += units
        if self.limit.interval_us is not None:
            self.part = served(self.limit, self.part, units, now_us)

    def set_back(self, old_us: int, now_us: int) -> None:
        """Keep the debt when a clock reset sets the time back from `old_us` to `now_us`."""
        self.part = self.part._replace(arrival_us=now_us + max(self.part.arrival_us - old_us, 0))


def fresh(limit: GroupLimit, is_home: bool) -> Allowance:
    """Return the first allowance of a partition, when limits are set for the first time. The home partition gets the
    whole limits, other partitions get nothing. A group with a named limit gets nothing anywhere."""
    if not is_home or limit.name is not None:
        return Allowance(limit, 0, NO_PART)
    return Allowance(limit, limit.max_in_flight or 0, Part(limit.burst or 0, 0))
