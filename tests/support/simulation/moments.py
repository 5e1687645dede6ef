"""Batches of a simulated world whose messages are all due at one moment, which are log rows of their own (ADR 29)."""

from __future__ import annotations

import random

CHANCE = 0.3
DELAYS_MS = (7, 50, 400, 3000)
WHOLE_MESSAGES = 2
"""What `appends.WHOLE_MESSAGES` is in a world: its batches are small."""


class Moments:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"moments of {seed}")
        """Of its own: what is drawn of it leaves the rest of the world as it is."""

    def delay_ms(self) -> int | None:
        """Draw the one delay of all messages of a batch; None: of this batch each has one of its own, or none."""
        return self._rng.choice(DELAYS_MS) if self._rng.random() < CHANCE else None
