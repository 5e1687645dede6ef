"""A member that did not answer, and how long it has left to say that it lives."""

from __future__ import annotations

import math


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
