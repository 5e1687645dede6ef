"""What all parts of a partition go by: the topic's settings, the next sequence number, what was counted."""

from __future__ import annotations

from typing import Any

from sandq.model.features import FIRST_LEVEL
from sandq.partition.metrics import Totals


class SharedState:
    """Holds what every part of a partition reads, and counts into."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        """The topic's, replaced as a whole."""
        self.next_seq = 1
        """For what comes in an order of its own: waiting entries, ends of leases, jobs."""
        self.level = FIRST_LEVEL
        """The feature level whose rules the partition goes by (ADR 19): replicated, so that all replicas change at the
        same entry, and raised by `RaiseLevel` alone."""
        self.now_ms = 0
        """The partition's time: the greatest stamp that was applied since its clock was set back last."""
        self.stamp_ms = 0
        """The stamp of the entry that is being applied: what a delay counts from. Below the level `CLOCK_RESET` the
        partition's time."""
        self.totals = Totals()

    @property
    def ahead_ms(self) -> int:
        """How far the partition's time is ahead of the entry that is being applied."""
        return self.now_ms - self.stamp_ms

    @property
    def is_ordered(self) -> bool:
        """Whether messages of one key are delivered one after the other."""
        return bool(self.settings["ordering"] == "key")
