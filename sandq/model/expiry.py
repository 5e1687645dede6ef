"""The setting `on_expiry`: how a group ends messages whose ttl has passed. PERSISTED.

The record of settings has it only if it is set, and a topic without it uses `DEAD`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ON_EXPIRY: Final = "on_expiry"
KEY_TTL_MS: Final = "key_ttl_ms"
"""Key that only the record of a compacted topic has: its ttl deletes keys, so `on_expiry` does not apply."""
DEAD: Final = "dead"
"""An expired message becomes a dead letter."""
DROP: Final = "drop"
"""An expired message is dropped: the group is done with it as with an acked message, and counts it."""


def expiry_rule(topic: Mapping[str, Any], group: Mapping[str, Any]) -> str:
    """Return `DEAD` or `DROP`, from the records of the settings of a topic and of a group."""
    rule: str = group.get(ON_EXPIRY, topic.get(ON_EXPIRY, DEAD))
    return rule
