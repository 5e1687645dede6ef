"""Python's collector of cycles, as suits a process that serves."""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 2_000
"""More objects made than freed, before the youngest are looked at, which takes a ms or two if all of them are in use:
of requests that wait they are."""
YOUNG_ROUNDS: Final = 1
"""Of the youngest, before those that outlived one are looked at with them: 6,000 at a time, for some ms. What outlives
that as well is freed once nothing refers to it, as almost everything is."""
ROUNDS: Final = 2_500
"""Of those, before all are looked at: for a tenth of a second where there are many. An answer of 1,000 messages is some
thousands of objects: by Python's own bounds that would be every few answers."""


def collect_rarely() -> None:
    """Have the collector leave alone what there is now, the modules above all, and look less often at what comes.
    Nothing of a request is in a cycle but by the way of an error, so little waits for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, ROUNDS)
