"""Tell work that stands still from work that takes long: by its progress, not by its age."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOOK_S = 0.25
"""How often it is looked."""
GAP_MOST_S = 2 * LOOK_S
"""Between two looks no more is counted: whoever was stopped himself knows nothing of what others did meanwhile."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Work that may stand still.

    `what` it is, for people; `label`, for metrics. `limit_s`: for so long it may make no progress. `progress()` changes
    with each step of it, and is None while there is nothing to do.
    """

    label: str
    what: str
    limit_s: float
    progress: Callable[[], object | None]


class Stalls:
    """Looks at everything watched, again and again; needs no clock of its own."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched = watched
        self._seen: dict[str, object] = {}
        self._looked_s: float | None = None
        self.ages_s = {one.label: 0.0 for one in watched}
        """By label: for how long there was no progress."""

    def look(self, now_s: float) -> None:
        """Look at all of them, at this time of a monotonic clock."""
        gap_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, GAP_MOST_S)
        self._looked_s = now_s
        for one in self._watched:
            progress = one.progress()
            if progress is None or progress != self._seen.get(one.label):
                self.ages_s[one.label] = 0.0
            else:
                self.ages_s[one.label] += gap_s
            self._seen[one.label] = progress

    def stalled(self) -> list[Watched]:
        """What has stood still for too long."""
        return [one for one in self._watched if self.ages_s[one.label] >= one.limit_s]
