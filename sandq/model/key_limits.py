"""How many messages of a key may be with consumers of a group at once, as the records of settings have it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

MAX_IN_FLIGHT_PER_KEY: Final = "max_in_flight_per_key"
"""The setting, of a topic and of a group."""
MOST_PER_KEY: Final = 1000
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})


def key_limit(topic: Mapping[str, Any], group: Mapping[str, Any] = NO_SETTINGS) -> int | None:
    """The limit by the records of a topic and of a group; None: there is none, and what is stored of the messages does
    not tell their keys."""
    most: int | None = 1 if topic.get("ordering") == "key" else topic.get(MAX_IN_FLIGHT_PER_KEY)
    return None if most is None else min(most, group.get(MAX_IN_FLIGHT_PER_KEY, most))
