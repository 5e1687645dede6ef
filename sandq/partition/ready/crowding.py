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
        self.waits: Counter[str] = Counter()
        """By tenant: ranges of messages that wait."""
        self._total = 0
        self._free: int | None = None
        """Of what may wait, when it was decided last; None: nobody could have as much by then."""
        self._is_less = False
        """Less waits since then."""

    def count(self, tenant: str, ranges: int) -> None:
        """Count so many more ranges of a tenant that wait, or fewer."""
        self._total += ranges
        self.waits[tenant] += ranges
        if not self.waits[tenant]:
            del self.waits[tenant]
        self._is_less = self._is_less or ranges < 0

    @property
    def is_stale(self) -> bool:
        """Whether somebody who is stopped may be so no longer."""
        return self._is_less and bool(self.stopped)

    def decide(self, most: int | None, in_flight: Mapping[str, int], all_in_flight: int) -> set[str]:
        """Decide who is stopped where so many ranges may wait (None: any number), with so many messages in flight: by
        tenant, and in all once the lease is filled. Return those for whom that has changed."""
        before, self.stopped, self._is_less = self.stopped, set(), False
        self._free = None if most is None else most - self._total
        if self._free is not None and self._total + all_in_flight < self._free:
            self._free = None
        if self._free is not None:
            self.stopped = {tenant for tenant in self.waits if self.room(tenant, in_flight.get(tenant, 0)) == 0}
        return before ^ self.stopped

    def may_stop(self, tenant: str) -> bool:
        """Return whether a tenant may come to be stopped by what it is given in this lease."""
        return self._free is not None and tenant in self.waits

    def room(self, tenant: str, in_flight: int) -> int | None:
        """Return how many new messages of a tenant may be given, with so many in flight; None: any number."""
        if self._free is None or tenant not in self.waits:
            return None
        return max(self._free - self.waits[tenant] - in_flight, 0)
