"""How many messages of a key the consumers of a group may hold at a time, as read from the records of settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

MAX_IN_FLIGHT_PER_KEY: Final = "max_in_flight_per_key"
"""Name of this setting, for topics and groups."""
MOST_PER_KEY: Final = 1000
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})


def key_limit(topic: Mapping[str, Any], group: Mapping[str, Any] = NO_SETTINGS) -> int | None:
    """Return the limit that the records of a topic and of a group give. None if there is no limit; stored messages then
    have no ordering hash of their keys."""
    most: int | None = 1 if topic.get("ordering") == "key" else topic.get(MAX_IN_FLIGHT_PER_KEY)
    return None if most is None else min(most, group.get(MAX_IN_FLIGHT_PER_KEY, most))
