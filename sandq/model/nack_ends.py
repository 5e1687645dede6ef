"""How a nack may end an attempt. PERSISTED, and of the protocol."""

from __future__ import annotations

from typing import Final

RETRY: Final = 0
"""The attempt has failed: the message comes again, or is dead at the last one."""
DEAD: Final = 1
"""The message cannot be done: it is dead at once, whatever attempts are left."""
SNOOZE: Final = 2
"""Not now: the message comes again, and the attempt is not counted."""
ENDS: Final = (RETRY, DEAD, SNOOZE)

MAX_SNOOZES: Final = "max_snoozes"
"""The setting that says how often a message may be snoozed; further snoozes are as `RETRY`."""
