"""A clock that stops while this process is stalled."""

from __future__ import annotations

import math
from collections.abc import Callable

STALL_S = 0.25
"""If a planned wake-up is later than this (in seconds), the process or its machine was stalled."""


class AwakeClock:
    """A clock in seconds that leaves out stalls: during a stall, this process reads nothing, but others are not silent.

    The first call of `now` after a stall detects it, even if it is not the planned call.
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
        """Plan the next call of `now` for this instant at the latest; return it on the underlying clock (without
        stalls)."""
        self._planned = instant
        return instant + self._lost_s
