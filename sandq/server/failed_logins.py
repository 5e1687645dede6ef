"""Delay replies to sources that send wrong credentials repeatedly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import trio

FAILED_LOGINS_PER_S: Final = 1.0
"""Failed logins per second and source that are answered without a pause, once the burst is used up."""
FAILED_LOGINS_BURST: Final = 20.0
"""Burst: number of failed logins of a source that are answered without a pause at first."""
PAUSE_S: Final = 5.0
"""Longest pause before the reply to a failed login, in seconds."""
SOURCES: Final = 4096
"""Number of sources that are remembered. With more, the source that failed longest ago is forgotten."""


class FailedLogins:
    """The failed logins of one node, by source."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        """`clock`: monotonic, in seconds."""
        self._clock = clock
        self._sources: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By source: number of failed logins that are still answered without a pause, and the time of this count, in
        seconds.

        A negative number is the debt of a source. Ordered by the last failure, oldest first."""
        self.count = 0

    def pause_s(self, source: str) -> float:
        """Count a failed login, and return how long to delay its reply, in seconds."""
        self.count += 1
        now_s = self._clock()
        left, since_s = self._sources.pop(source, (FAILED_LOGINS_BURST, now_s))
        left = min(FAILED_LOGINS_BURST, left + (now_s - since_s) * FAILED_LOGINS_PER_S) - 1
        self._sources[source] = (max(left, -PAUSE_S * FAILED_LOGINS_PER_S), now_s)
        if len(self._sources) > SOURCES:
            self._sources.popitem(last=False)
        return min(PAUSE_S, max(0.0, -left / FAILED_LOGINS_PER_S))
