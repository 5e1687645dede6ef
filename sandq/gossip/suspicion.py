"""The timeout of a suspicion, and a member's awareness of its own health (Lifeguard)."""

from __future__ import annotations

import math
from typing import Final


class Suspicion:
    """A suspicion that began at `began` (the core's clock). `wanted`: confirmations after which it lasts `least_s`."""

    def __init__(self, suspecter: str, wanted: int, least_s: float, most_s: float, began: float) -> None:
        self._agreed = {suspecter}
        self._wanted = wanted
        self._least_s = least_s
        self._most_s = most_s if wanted else least_s
        self._began = began
        self._confirmed = 0

    @property
    def ends_at(self) -> float:
        """The end of the suspicion. Each confirmation shortens it, the first ones most: by the logarithm of their
        number."""
        if not self._wanted:
            return self._began + self._least_s
        share = math.log(self._confirmed + 1) / math.log(self._wanted + 1)
        return self._began + max(self._least_s, self._most_s - share * (self._most_s - self._least_s))

    def confirm(self, suspecter: str) -> bool:
        """Record a confirmation; return whether it counts: more are needed, and this member has not confirmed
        before."""
        if self._confirmed >= self._wanted or suspecter in self._agreed:
            return False
        self._agreed.add(suspecter)
        self._confirmed += 1
        return True


SCORE_MOST: Final = 8


class Awareness:
    """The health of this member. `score`: 0 is healthy."""

    def __init__(self) -> None:
        self.score = 0

    def add(self, delta: int) -> None:
        """Change the score: positive for signs of local problems, negative for signs of health."""
        self.score = min(max(0, self.score + delta), SCORE_MOST - 1)

    def scaled(self, seconds: float) -> float:
        """Return how long this member should wait if a healthy one would wait for `seconds`."""
        return seconds * (self.score + 1)
