"""A clock that stands still while this process does."""

from __future__ import annotations

from collections.abc import Callable

STALL_S = 0.25
"""A turn that comes so late was held up by this process or its machine."""


class AwakeClock:
    """Seconds. A stall is taken out of it: what others sent meanwhile lies unread, and is no silence of theirs."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lost_s = 0.0
        self.stalls = 0

    def now(self) -> float:
        return self._monotonic() - self._lost_s

    def woke(self, planned: float) -> float:
        """Now, at the begin of a turn that was planned for no later than `planned`."""
        late_s = self.now() - planned
        if late_s > STALL_S:
            self._lost_s += late_s
            self.stalls += 1
        return self.now()

    def real(self, instant: float) -> float:
        """The instant on the clock below, if nothing stalls until then."""
        return instant + self._lost_s
