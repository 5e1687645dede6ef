"""Which tenants have so much that waits for another attempt that they get nothing new for now.

What may wait in a group is bounded. That one tenant whose messages fail does not take all of it, each of which
something waits may have as much there, and in flight, as is free (Choudhury and Hahne, "Dynamic Queue Length Thresholds
for Shared-Memory Packet Switches", 1998): one alone comes to a half, two to a third each, and others have room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class Crowding:
    """Of the tenants of one group."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        """They get nothing new, as was decided last: only what was given back."""
        self.is_stale = False
        """Less waits since then: it may be otherwise."""
        self.waits: Counter[str] = Counter()
        """By tenant: ranges of messages that wait."""
        self._total = 0
        self._free: int | None = None
        """Of what may wait, when it was decided last; None: any number may."""

    def count(self, tenant: str, ranges: int) -> None:
        """So many more ranges of a tenant wait, or fewer."""
        self._total += ranges
        self.waits[tenant] += ranges
        if not self.waits[tenant]:
            del self.waits[tenant]
        self.is_stale = self.is_stale or (ranges < 0 and bool(self.stopped))

    def decide(self, most: int | None, in_flight: Mapping[str, int], total_in_flight: int) -> set[str]:
        """Decide who is stopped where so many ranges may wait (None: any number), with so many messages in flight, by
        tenant and in all; return those who are, or were."""
        before, self.stopped, self.is_stale = self.stopped, set(), False
        self._free = None if most is None else most - self._total
        if self._free is not None and self._total + total_in_flight >= self._free:  # else nobody has as much
            self.stopped = {tenant for tenant in self.waits if self.room(tenant, in_flight.get(tenant, 0)) == 0}
        return before | self.stopped

    def room(self, tenant: str, in_flight: int) -> int | None:
        """Return how many new messages of a tenant may be given, with so many in flight; None: any number."""
        waits = self.waits.get(tenant)
        return None if self._free is None or waits is None else max(self._free - waits - in_flight, 0)
