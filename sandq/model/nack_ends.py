"""Ways in which a nack ends an attempt. PERSISTED, and part of the protocol."""

from __future__ import annotations

from typing import Final

RETRY: Final = 0
"""The attempt failed. The message is retried, or dead if this was the last attempt."""
DEAD: Final = 1
"""The message cannot be processed. It is dead at once, even if attempts are left."""
SNOOZE: Final = 2
"""The message is retried later, and the attempt is not counted."""
ENDS: Final = (RETRY, DEAD, SNOOZE)

MAX_SNOOZES: Final = "max_snoozes"
"""The setting for how often a message may be snoozed; further snoozes count as `RETRY`."""
