"""Detect stalled work. Work that takes long but still makes progress is not stalled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

CHECK_S = 0.25
"""Interval in s between two checks."""
GAP_MOST_S = 2 * CHECK_S
"""Maximum time in s that is counted between two checks.

If more time has passed, this process itself was stopped. So the rest of that time must not count against the work."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Work that may stall.

    `what`: description for people. `label`: name for metrics. `limit_s`: maximum time without progress. `progress()`:
    return a value that changes with each step of the work; None while there is no work.
    """

    label: str
    what: str
    limit_s: float
    progress: Callable[[], object | None]


class Stalls:
    """Measures how long each kind of watched work has made no progress. The caller of `check` gives the time."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched = watched
        self._seen: dict[str, object] = {}
        self._checked_s: float | None = None
        self.ages_s = {work.label: 0.0 for work in watched}
        """By label of the work: time in s since its last progress."""

    def check(self, now_s: float) -> None:
        """Check the progress of all work. `now_s`: current time of a monotonic clock."""
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
        """Return the kinds of work that have made no progress for at least `limit_s`."""
        return [work for work in self._watched if self.ages_s[work.label] >= work.limit_s]
