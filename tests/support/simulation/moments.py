"""Provide delays for batches whose messages are all due at one moment. The log stores them as batch rows (ADR 29)."""

from __future__ import annotations

import random

CHANCE = 0.3
DELAYS_MS = (7, 50, 400, 3000)
WHOLE_MESSAGES = 2
"""Value of `appends.WHOLE_MESSAGES` in a world. It is low, because the batches of worlds are small."""


class Moments:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"moments of {seed}")
        """Random numbers only for moments, so that they do not change the rest of the world."""

    def delay_ms(self) -> int | None:
        """Return the common delay of all messages of a batch. None: the messages have no common delay."""
        return self._rng.choice(DELAYS_MS) if self._rng.random() < CHANCE else None
