"""A member that does not answer, how long it has to say that it lives, and how much a member doubts itself."""

from __future__ import annotations

import math
from typing import Final


class Suspicion:
    """Begun at `began` (the core's clock). `wanted`: how many others must agree for the time to be `least_s`."""

    def __init__(self, suspecter: str, wanted: int, least_s: float, most_s: float, began: float) -> None:
        self._agreed = {suspecter}
        self._wanted = wanted
        self._least_s = least_s
        self._most_s = most_s if wanted else least_s
        self._began = began
        self._confirmed = 0

    @property
    def ends_at(self) -> float:
        """Each who agrees makes it shorter, the first ones by most: it falls with the logarithm of their number."""
        if not self._wanted:
            return self._began + self._least_s
        share = math.log(self._confirmed + 1) / math.log(self._wanted + 1)
        return self._began + max(self._least_s, self._most_s - share * (self._most_s - self._least_s))

    def confirm(self, suspecter: str) -> bool:
        """Whether this is news: another one who suspects it, and not more than are wanted."""
        if self._confirmed >= self._wanted or suspecter in self._agreed:
            return False
        self._agreed.add(suspecter)
        self._confirmed += 1
        return True


SCORE_MOST: Final = 8


class Awareness:
    """`score`: 0 is healthy."""

    def __init__(self) -> None:
        self.score = 0

    def add(self, delta: int) -> None:
        """Positive: a sign that something is wrong here; negative: that all is well."""
        self.score = min(max(0, self.score + delta), SCORE_MOST - 1)

    def scaled(self, seconds: float) -> float:
        """How long to wait for what a healthy member would wait for so long."""
        return seconds * (self.score + 1)
