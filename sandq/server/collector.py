"""Python's collector of cycles, as suits a process that serves."""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 5_000
"""More objects made than freed, before the youngest are looked at, which takes some ms if all of them are in use: of
requests that wait they are. An answer of 1,000 messages is some thousands: by Python's own bound of 700 the collector
goes through all objects there are every few answers, and stops the process for a tenth of a second and more."""
YOUNG_ROUNDS: Final = 5
"""Of the youngest, before those that outlived one are looked at with them ..."""
ROUNDS: Final = 500
"""... and of those, before all are: for a tenth of a second where there are many."""


def collect_rarely() -> None:
    """Have the collector leave alone what there is now, the modules above all, and look less often at what comes.
    Nothing of a request is in a cycle but by the way of an error, so little waits for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, ROUNDS)
