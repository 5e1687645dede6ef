"""Restore named limits: their definitions, not how much of them was used.

The topic `sandq.limits` has the definitions in its settings. It is never restored itself: each definition is set in the
cluster, which creates the topic with its first limit. A limit that exists in the cluster stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sandq.backup.chain import Topic
from sandq.backup.manifest import TopicPart
from sandq.model.errors import InvalidRequest, NotFound
from sandq.model.group_limits import GroupLimit, limits_of, names_used
from sandq.model.limits import FIXED
from sandq.model.names import LIMITS_TOPIC, TIMER
from sandq.model.stored_settings import checked_record


class LimitPlan(NamedTuple):
    """The limits that a restore sets."""

    new: Mapping[str, GroupLimit]
    """Definitions of the limits that the cluster does not have."""
    warnings: Sequence[str]
    """A warning for each limit that the cluster has with another definition."""


def defined_limits(topics: Iterable[TopicPart | Topic]) -> dict[str, GroupLimit]:
    """Return the named limits that a backup of these topics defines. Raises InvalidSetting."""
    for topic in topics:
        if topic.name == LIMITS_TOPIC:
            return _definitions(checked_record(topic.settings, TIMER))
    return {}


def plan_limits(
    topics: Sequence[TopicPart], defined: Mapping[str, GroupLimit], there: Mapping[str, Any] | None, *, all_limits: bool
) -> LimitPlan:
    """Return the limits to set before `topics` are restored: those that their groups use, or all that the backup
    defines.

    `there`: record of settings of the cluster's topic `sandq.limits`; None if the cluster has no limits. Raises
    NotFound if neither the backup nor the cluster has a limit that a group uses; InvalidRequest if there would be too
    many limits; InvalidSetting.
    """
    existing = {} if there is None else _definitions(there)
    wanted = set(defined) if all_limits else set[str]()
    for topic in topics:
        for name in sorted(names_used(checked_record(topic.settings, topic.kind))):
            if name not in defined and name not in existing:
                raise NotFound(
                    f"topic {topic.name!r} has a group with the limit {name!r}, which neither the backup nor the "
                    f"cluster has; set it first (sandctl limit set {name})",
                    limit=name,
                    topic=topic.name,
                )
            wanted.add(name)
    new = {name: defined[name] for name in sorted(wanted - existing.keys())}
    if len(existing) + len(new) > FIXED.named_limits:
        raise InvalidRequest(
            f"there are {len(existing)} named limits, and {len(new)} more are not possible (named_limits, which is "
            f"fixed, is {FIXED.named_limits})",
            limit="named_limits",
            maximum=FIXED.named_limits,
        )
    return LimitPlan(
        new, [_difference(name, existing[name]) for name in sorted(wanted) if _differs(name, defined, existing)]
    )


def _definitions(record: Mapping[str, Any]) -> dict[str, GroupLimit]:
    return {name: limit for name, limit in limits_of(record).items() if limit.is_named}


def _differs(name: str, defined: Mapping[str, GroupLimit], existing: Mapping[str, GroupLimit]) -> bool:
    """Return whether both have the limit, with different definitions."""
    return name in defined and name in existing and defined[name].shown() != existing[name].shown()


def _difference(name: str, existing: GroupLimit) -> str:
    shown = ", ".join(f"{field} {value}" for field, value in existing.shown().items() if value is not None)
    return f"limit {name} is different in the backup, and stays as it is in the cluster: {shown}"
