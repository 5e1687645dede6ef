"""The settings about dead letters: whether expired messages become dead letters, and how many of these stay, for how
long. PERSISTED.

The record of a topic's settings has each of them only if it is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ON_EXPIRY: Final = "on_expiry"
"""How a group ends messages whose ttl has passed: `DEAD`, the default, or `DROP`."""
KEY_TTL_MS: Final = "key_ttl_ms"
"""Key that only the record of a compacted topic has: its ttl deletes keys, so `on_expiry` does not apply."""
DEAD: Final = "dead"
"""An expired message becomes a dead letter."""
DROP: Final = "drop"
"""An expired message is dropped: the group is done with it as with an acked message, and counts it."""


DEAD_RETENTION_MS: Final = "dead_retention_ms"
"""Maximum time for which a dead letter is kept after its death, in ms."""
MAX_DEAD_LETTERS: Final = "max_dead_letters"
"""Maximum number of dead letters of a group in a partition."""
DEAD_LIMITS: Final = (DEAD_RETENTION_MS, MAX_DEAD_LETTERS)


def expiry_rule(topic: Mapping[str, Any], group: Mapping[str, Any]) -> str:
    """Return `DEAD` or `DROP`, from the records of the settings of a topic and of a group."""
    rule: str = group.get(ON_EXPIRY, topic.get(ON_EXPIRY, DEAD))
    return rule
