"""Limits of consumer groups: the maximum number of messages in flight, and the maximum rate of deliveries.

These limits belong to the topic, because they apply across all its partitions, and because a group may be created after
its limits. Once a topic has had group limits, its record of settings has `[next epoch, {group: [epoch, partitions,
max_in_flight or nil, microseconds between two messages or nil, burst or nil, unit or nil]}]`. PERSISTED.

Groups of several topics can share a *named limit*. The record of the topic `sandq.limits` has the named limits, each in
the place of a group, with 0 partitions. A group that uses a named limit has the row `[epoch, partitions, name]`.

A rate with a *unit* counts the costs of messages, for example tokens, and a burst is then a number of these units. A
rate without a unit counts each message as 1.

Each change of a group's limits gets a new epoch: deliveries allowed under an older epoch no longer count. The next
epoch rises with each change, including removals, so that the records of a topic are ordered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import InvalidName, InvalidRequest, InvalidSetting
from sandq.model.limits import FIXED
from sandq.model.names import check_name
from sandq.model.rates import interval_us, rate_text

GROUP_LIMITS: Final = "group_limits"
"""Key of the limits in the record of a topic's settings."""
MOST: Final = 1_000_000
"""Greatest value of `max_in_flight` and of a burst."""
BURST_OF_S: Final = 10
"""Without a burst, a rate allows a burst of the messages of 1/BURST_OF_S second. A rate with a unit allows a burst of
one second."""
USES_FIELDS: Final = 3
"""Number of fields of the row of a group that uses a named limit."""
_UNIT: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}", re.ASCII)


class GroupLimit(NamedTuple):
    """Limits of a group, across all partitions of the topic."""

    epoch: int
    """Number of this change; each change gets a greater one within the topic."""
    partitions: int
    """Number of partitions that the topic had at this change. Partitions added later have delivered nothing to the
    group before. 0 for the definition of a named limit."""
    max_in_flight: int | None
    interval_us: int | None
    """Average time between two messages, in microseconds; None if there is no rate."""
    burst: int | None
    """Number of messages that may be delivered at once after a pause; set only with a rate."""
    unit: str | None = None
    """Name of the unit of the messages' costs, which the rate and the burst then count instead of messages. Set only
    with a rate."""
    name: str | None = None
    """Name of the named limit that the group uses. None if the limits are its own."""

    @property
    def is_named(self) -> bool:
        """Return whether this is the definition of a named limit."""
        return self.partitions == 0

    @property
    def window_us(self) -> int:
        """Time after which a whole burst is available again, in microseconds."""
        return 0 if self.interval_us is None or self.burst is None else self.interval_us * self.burst

    def shown(self) -> dict[str, Any]:
        """Return the limits as a user would write them."""
        return {
            **({} if self.name is None else {"limit": self.name}),
            "max_in_flight": self.max_in_flight,
            "rate": None if self.interval_us is None else rate_text(self.interval_us),
            "burst": self.burst,
            **({} if self.unit is None else {"unit": self.unit}),
        }


def limits_of(settings: Mapping[str, Any]) -> dict[str, GroupLimit]:
    """Return the limits in the record of a topic's settings, by group."""
    _, groups = settings.get(GROUP_LIMITS) or (0, {})
    return {name: _load(row) for name, row in groups.items()}


def _load(row: Sequence[Any]) -> GroupLimit:
    """Return the limits in a row of a record."""
    if len(row) == USES_FIELDS:
        epoch, partitions, name = row
        return GroupLimit(epoch, partitions, None, None, None, name=name)
    return GroupLimit(*row)


def limit_used(settings: Mapping[str, Any], group: str) -> tuple[int, str] | None:
    """Return (epoch, name) of the named limit that a group uses; None if it uses none."""
    groups: Mapping[str, Sequence[Any]] = (settings.get(GROUP_LIMITS) or (0, {}))[1]
    row = groups.get(group, ())
    return (row[0], row[2]) if len(row) == USES_FIELDS else None


def names_used(settings: Mapping[str, Any]) -> set[str]:
    """Return the names of the limits that groups of a topic use."""
    _, groups = settings.get(GROUP_LIMITS) or (0, {})
    return {row[2] for row in groups.values() if len(row) == USES_FIELDS}


def next_epoch(settings: Mapping[str, Any]) -> int:
    """Return the epoch that the next change gets; 0 if there never were limits.

    A record with a greater next epoch is newer."""
    found: int = (settings.get(GROUP_LIMITS) or (0,))[0]
    return found


def with_newest_limits(now: Mapping[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the record `settings`, but with the group limits of `now` if these limits are newer.

    The sender of `settings` perhaps does not know the newer limits yet. If the limits were removed and added again, a
    group could use twice the deliveries that they allow.
    """
    return {**settings, GROUP_LIMITS: now[GROUP_LIMITS]} if next_epoch(settings) < next_epoch(now) else settings


def with_limit(
    settings: Mapping[str, Any], group: str, partitions: int, limit: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the record of settings with new limits of a group; None removes them. `partitions`: 0 for a named limit.

    Raise InvalidRequest if more groups would have limits than `limited_groups` allows, or if there would be more named
    limits than `named_limits`."""
    epoch, groups = settings.get(GROUP_LIMITS) or (1, dict[str, Any]())
    others = {name: row for name, row in groups.items() if name != group}
    if limit is None:
        return {**settings, GROUP_LIMITS: [epoch + 1, others]} if group in groups else dict(settings)
    most = FIXED.limited_groups if partitions else FIXED.named_limits
    if len(others) >= most:
        found = f"{len(others)} groups of the topic have limits, and no more may (limited_groups, which is fixed)"
        if not partitions:
            found = f"there are {len(others)} named limits, and no more are possible (named_limits, which is fixed)"
        raise InvalidRequest(found, limit="limited_groups" if partitions else "named_limits", maximum=most)
    row = [epoch, partitions, limit["max_in_flight"], limit["interval_us"], limit["burst"], limit["unit"]]
    if limit.get("limit") is not None:
        row[2:] = [limit["limit"]]
    # Unchanged limits keep their epoch, so that deliveries allowed under this epoch still count.
    if group in groups and groups[group][2:] == row[2:]:
        return dict(settings)
    return {**settings, GROUP_LIMITS: [epoch + 1, {**others, group: row}]}


def parse_limit(given: Mapping[str, object]) -> dict[str, Any] | None:
    """Check the limits that a user wrote, and return them; None if there is no limit in them. Raise InvalidSetting,
    which names every mistake."""
    known = ("rate", "burst", "max_in_flight", "unit", "limit")
    mistakes = [f"{name}: is no limit of a group; there are {', '.join(known)}" for name in given if name not in known]
    rate, found = _plain(given.get("rate")), dict[str, Any]()
    found["limit"] = _plain(given.get("limit"))
    if found["limit"] is not None:
        mistakes += _mistakes_of_use(given, found["limit"])
    for name in ("max_in_flight", "burst"):
        value = _plain(given.get(name))
        if value is not None and (type(value) is not int or not 1 <= value <= MOST):
            mistakes.append(f"{name}: a whole number from 1 to {MOST}, or none, is expected, not {value!r}")
        found[name] = value
    found["interval_us"] = None
    if rate is not None:
        try:
            found["interval_us"] = interval_us(rate)
        except ValueError as error:
            mistakes.append(f"rate: {error}")
    elif found["burst"] is not None:
        mistakes.append("burst: it goes with a rate only")
    unit = found["unit"] = _plain(given.get("unit"))
    if unit is not None and not is_unit(unit):
        mistakes.append(f"unit: a name of up to 32 letters, digits, - and _ is expected, or none, not {unit!r:.60}")
    elif unit is not None and rate is None:
        mistakes.append("unit: it goes with a rate only")
    if mistakes:
        raise InvalidSetting("; ".join(mistakes), mistakes=mistakes)
    if found["interval_us"] is not None and found["burst"] is None:
        interval = found["interval_us"]
        found["burst"] = max(1_000_000 // BURST_OF_S // interval, 1) if unit is None else -(-1_000_000 // interval)
    return found if any(found[name] is not None for name in ("max_in_flight", "interval_us", "limit")) else None


def _mistakes_of_use(given: Mapping[str, object], name: object) -> list[str]:
    """Return the mistakes in limits that name the named limit of a group."""
    others = [other for other, value in given.items() if other != "limit" and _plain(value) is not None]
    mistakes = [f"limit: a group with a named limit has no limits of its own ({', '.join(others)})"] if others else []
    try:
        check_name("limit", name)
    except (InvalidName, InvalidRequest) as error:
        mistakes.append(f"limit: {error.message}")
    return mistakes


def is_unit(value: object) -> bool:
    """Return whether this is a name of a unit: a letter, then letters, digits, - and _."""
    return isinstance(value, str) and _UNIT.fullmatch(value) is not None


def _plain(value: object) -> object:
    """Return None for `none`, and any other value unchanged."""
    return None if value == "none" else value
