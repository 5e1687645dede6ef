"""Provide a lease window whose length changes at random."""

from __future__ import annotations

import random
from typing import Any

from sandq.broker.leader.lease_window import LeaseWindow
from sandq.broker.stats.node_stats import NodeStats

SPANS_MS = (0, 1, 3, 8, 20)


class AnyWindow(LeaseWindow):
    """A window that changes after each lease, whatever the number of messages. Same seed, same windows."""

    def __init__(self, timers: Any, *, ahead_ms: int, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        super().__init__(timers, ahead_ms=ahead_ms, stats=NodeStats())

    def leased(self, messages: int, now_ms: int) -> None:
        self._set(self._rng.choice(SPANS_MS))
