"""Limits of consumer groups: how many messages a group has in flight at most, and how fast it gets them.

They belong to the topic, for they hold over all its partitions, also where the group is made later. The record of a
topic's settings has them, if there ever were some, as `[next epoch, {group: [epoch, partitions, max_in_flight or nil,
microseconds between two messages or nil, burst or nil]}]`. PERSISTED.

Each change of a group's limits has an epoch of its own: what was allowed under another one counts no more. The next
epoch rises with each change, also one that takes limits away: so the records of a topic have an order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.limits import FIXED
from sandq.model.rates import interval_us, rate_text

GROUP_LIMITS: Final = "group_limits"
"""Where the record of a topic's settings has them."""
MOST: Final = 1_000_000
"""Of `max_in_flight`, and of a burst."""
BURST_OF_S: Final = 10
"""Without a burst of its own a rate lets so much of what it gives in a second go at once."""


class GroupLimit(NamedTuple):
    """What holds for a group, over all partitions of the topic."""

    epoch: int
    """Another one with each change, rising within the topic."""
    partitions: int
    """How many the topic had when this was set: those that came later have had nothing of the group before."""
    max_in_flight: int | None
    interval_us: int | None
    """Between two messages, on average; None: as fast as it likes."""
    burst: int | None
    """So many may go at once after a pause; with a rate only."""

    @property
    def window_us(self) -> int:
        """In which a whole burst comes back."""
        return 0 if self.interval_us is None or self.burst is None else self.interval_us * self.burst

    def shown(self) -> dict[str, Any]:
        """What a user would write for it."""
        return {
            "max_in_flight": self.max_in_flight,
            "rate": None if self.interval_us is None else rate_text(self.interval_us),
            "burst": self.burst,
        }


def limits_of(settings: Mapping[str, Any]) -> dict[str, GroupLimit]:
    """The limits in the record of a topic's settings, by group."""
    _, groups = settings.get(GROUP_LIMITS) or (0, {})
    return {name: GroupLimit(*row) for name, row in groups.items()}


def next_epoch(settings: Mapping[str, Any]) -> int:
    """The epoch that the next change gets: of two records of a topic, the one with the higher is the newer; 0: there
    were never limits."""
    found: int = (settings.get(GROUP_LIMITS) or (0,))[0]
    return found


def with_newest_limits(now: Mapping[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The record `settings` in place of `now`, but with the limits of `now` where those are newer: who sends it may not
    have heard of them yet. What was allowed under limits must not be allowed once more because they went and came."""
    return {**settings, GROUP_LIMITS: now[GROUP_LIMITS]} if next_epoch(settings) < next_epoch(now) else settings


def with_limit(
    settings: Mapping[str, Any], group: str, partitions: int, limit: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The record of settings in which a group has other limits; None: it has none. Raises InvalidRequest when more
    groups than may have limits would."""
    epoch, groups = settings.get(GROUP_LIMITS) or (1, dict[str, Any]())
    others = {name: row for name, row in groups.items() if name != group}
    if limit is None:
        return {**settings, GROUP_LIMITS: [epoch + 1, others]} if group in groups else dict(settings)
    if len(others) >= FIXED.limited_groups:
        raise InvalidRequest(
            f"{len(others)} groups of the topic have limits, and no more may (limited_groups, which is fixed)",
            limit="limited_groups",
            maximum=FIXED.limited_groups,
        )
    row = [epoch, partitions, limit["max_in_flight"], limit["interval_us"], limit["burst"]]
    if group in groups and groups[group][2:] == row[2:]:
        return dict(settings)
    return {**settings, GROUP_LIMITS: [epoch + 1, {**others, group: row}]}


def parse_limit(given: Mapping[str, object]) -> dict[str, Any] | None:
    """What a user wrote, checked: None without any limit. One InvalidSetting names every mistake."""
    known = ("rate", "burst", "max_in_flight")
    mistakes = [f"{name}: is no limit of a group; there are {', '.join(known)}" for name in given if name not in known]
    rate, found = _plain(given.get("rate")), dict[str, Any]()
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
    if mistakes:
        raise InvalidSetting("; ".join(mistakes), mistakes=mistakes)
    if found["interval_us"] is not None and found["burst"] is None:
        found["burst"] = max(1_000_000 // BURST_OF_S // found["interval_us"], 1)
    return found if found["max_in_flight"] is not None or found["interval_us"] is not None else None


def _plain(value: object) -> object:
    return None if value == "none" else value
