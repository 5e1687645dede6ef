"""The settings that limit how long dead letters stay, and how many. PERSISTED.

The record of a topic's settings has each of them only if it is set.
"""

from __future__ import annotations

from typing import Final

DEAD_RETENTION_MS: Final = "dead_retention_ms"
"""Maximum time for which a dead letter is kept after its death, in ms."""
MAX_DEAD_LETTERS: Final = "max_dead_letters"
"""Maximum number of dead letters of a group in a partition."""
DEAD_LIMITS: Final = (DEAD_RETENTION_MS, MAX_DEAD_LETTERS)
