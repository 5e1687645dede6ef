"""A clock that stands still while this process does."""

from __future__ import annotations

import math
from collections.abc import Callable

STALL_S = 0.25
"""A turn that comes so late was held up by this process or its machine."""


class AwakeClock:
    """Seconds. A stall is taken out of it: what others sent meanwhile lies unread, and is no silence of theirs.

    Whoever asks first after a stall finds it: that need not be the one whose turn was planned.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lost_s = 0.0
        self._planned = math.inf
        self.stalls = 0

    def now(self) -> float:
        now = self._monotonic() - self._lost_s
        if now - self._planned <= STALL_S:
            return now
        self._lost_s += now - self._planned
        self.stalls += 1
        return self._planned

    def plan(self, instant: float) -> float:
        """The next turn begins then at the latest. When that is on the clock below, if nothing stalls until then."""
        self._planned = instant
        return instant + self._lost_s
