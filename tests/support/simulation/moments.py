"""Provide delays for batches whose messages are all due at one moment, which are batch rows in the log (ADR 29)."""

from __future__ import annotations

import random

CHANCE = 0.3
DELAYS_MS = (7, 50, 400, 3000)
WHOLE_MESSAGES = 2
"""Value of `appends.WHOLE_MESSAGES` in a world, whose batches are small."""


class Moments:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"moments of {seed}")
        """Random numbers for moments only, so that they do not change the rest of the world."""

    def delay_ms(self) -> int | None:
        """Return the common delay of all messages of a batch; None if each has a delay of its own, or none."""
        return self._rng.choice(DELAYS_MS) if self._rng.random() < CHANCE else None
