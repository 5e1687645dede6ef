"""How much a member doubts itself.

Who hears little may be the one with a fault (after the Lifeguard extensions of SWIM). It then gives others more time,
before it suspects them.
"""

from __future__ import annotations

from typing import Final

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
