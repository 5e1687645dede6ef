"""Slow down who shows wrong tokens: by where it comes from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import trio

FAILED_LOGINS_PER_S: Final = 1.0
"""Of one source, that are answered without a pause ..."""
FAILED_LOGINS_BURST: Final = 20.0
"""... after so many that are."""
PAUSE_S: Final = 5.0
"""The longest that the answer to one waits."""
SOURCES: Final = 4096
"""That are kept: of more, the one that failed longest ago is forgotten."""


class FailedLogins:
    """Those of one node."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        """`clock`: monotonic, in seconds."""
        self._clock = clock
        self._sources: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By source: how many may fail at once, and when that was looked at."""
        self.count = 0

    def pause_s(self, source: str) -> float:
        """Note that one failed; how long its answer is to wait, in seconds."""
        self.count += 1
        now_s = self._clock()
        left, since_s = self._sources.pop(source, (FAILED_LOGINS_BURST, now_s))
        left = min(FAILED_LOGINS_BURST, left + (now_s - since_s) * FAILED_LOGINS_PER_S) - 1
        self._sources[source] = (max(left, -PAUSE_S * FAILED_LOGINS_PER_S), now_s)
        if len(self._sources) > SOURCES:
            self._sources.popitem(last=False)
        return min(PAUSE_S, max(0.0, -left / FAILED_LOGINS_PER_S))
