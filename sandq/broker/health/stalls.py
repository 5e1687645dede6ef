"""Distinguish work that is stalled from work that takes long, by its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

CHECK_S = 0.25
"""Interval in s between two checks."""
GAP_MOST_S = 2 * CHECK_S
"""Maximum time in s that is counted between two checks.

If more time has passed, this process itself was stopped, and the time says nothing about the work."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Work that may stall.

    `what`: description for people. `label`: name for metrics. `limit_s`: maximum time without progress. `progress()`
    changes with each step of the work, and is None while there is nothing to do.
    """

    label: str
    what: str
    limit_s: float
    progress: Callable[[], object | None]


class Stalls:
    """Checks all watched work repeatedly. It needs no clock of its own."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched = watched
        self._seen: dict[str, object] = {}
        self._checked_s: float | None = None
        self.ages_s = {work.label: 0.0 for work in watched}
        """Time in s without progress, by label."""

    def check(self, now_s: float) -> None:
        """Check all work at this time of a monotonic clock."""
        gap_s = 0.0 if self._checked_s is None else min(now_s - self._checked_s, GAP_MOST_S)
        self._checked_s = now_s
        for work in self._watched:
            progress = work.progress()
            if progress is None or progress != self._seen.get(work.label):
                self.ages_s[work.label] = 0.0
            else:
                self.ages_s[work.label] += gap_s
            self._seen[work.label] = progress

    def stalled(self) -> list[Watched]:
        """Return the work that has made no progress for too long."""
        return [work for work in self._watched if self.ages_s[work.label] >= work.limit_s]
