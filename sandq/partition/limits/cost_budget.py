"""The total cost of the messages that one lease command may lease, for a group whose rate has a unit."""

from __future__ import annotations


class CostBudget:
    """Counts the costs of leased messages.

    A message fits if the units that it needs are free: its cost, but at most the whole burst. So a message whose cost
    is above the burst fits when the whole burst is free, and makes `left` negative. If a message does not fit, the
    lease command leases no later messages either, so that large messages get their turn.
    """

    def __init__(self, units: int, burst: int) -> None:
        """`units`: number of units that are free now."""
        self.left = units
        self.spent = 0
        """Total cost of the leased messages."""
        self.needed: int | None = None
        """Number of units that the next message needs. None unless it did not fit."""
        self._burst = burst

    def most(self, cost: int) -> int:
        """Return how many messages with this cost fit, and note how many units the first of them needs if none
        fits."""
        needed = min(cost, self._burst)
        if needed > self.left:
            self.needed = needed
            return 0
        return max(self.left // cost, 1)

    def spend(self, cost: int) -> None:
        """Count messages with this total cost."""
        self.left -= cost
        self.spent += cost

    def copy(self) -> CostBudget:
        """Return a budget for messages that perhaps are not leased."""
        return CostBudget(self.left, self._burst)
