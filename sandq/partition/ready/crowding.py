"""Which tenants have so much that waits for another attempt that they get nothing new for now.

What may wait in a group is bounded. That one tenant whose messages fail does not take all of it, each of which
something waits may have as much there, and in flight, as is free (Choudhury and Hahne, "Dynamic Queue Length Thresholds
for Shared-Memory Packet Switches", 1998): one alone comes to a half, two to a third each, and others have room.

All that a tenant has in flight may come to wait at once. So a half is the most of
what waits of a tenant and is in flight together, also while nothing of it waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from sandq.model.limits import FIXED


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
        self._half: int | None = None
        """So many ranges of a tenant may wait and be in flight; None: any number."""
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

    def decide(
        self,
        most: int | None,
        in_flight: Mapping[str, int],
        all_in_flight: int,
        many: Collection[str] | None = None,
    ) -> set[str]:
        """Decide who is stopped where so many ranges may wait (None: any number), with so many messages in flight: by
        tenant, and in all once the lease is filled. `many`: who has a half of that in flight, which a tenant has at
        most then, also while nothing of it waits. Return those for whom that has changed."""
        before, self.stopped, self._is_less = self.stopped, set(), False
        self._free = None if most is None else most - self._total
        if self._free is not None and self._total + all_in_flight < self._free:
            self._free = None
        self._half = most // 2 if most is not None and many is not None else None
        if self._half is not None and self._total + all_in_flight < self._half:
            self._half = None
        if self._free is not None or self._half is not None:
            tenants = [*self.waits, *(many or ())]
            self.stopped = {tenant for tenant in tenants if self.room(tenant, in_flight.get(tenant, 0)) == 0}
        return before ^ self.stopped

    def may_stop(self, tenant: str, in_flight: int) -> bool:
        """Return whether a tenant, with so many in flight, may come to be stopped by what it is given in this lease."""
        if self._free is not None and tenant in self.waits:
            return True
        # Else nothing of it is counted until the lease is full.
        in_all = self.waits.get(tenant, 0) + in_flight
        return self._half is not None and in_all + FIXED.grant_messages >= self._half

    def room(self, tenant: str, in_flight: int) -> int | None:
        """Return how many new messages of a tenant may be given, with so many in flight; None: any number."""
        waits = self.waits.get(tenant, 0)
        most = self._half
        if self._free is not None and waits:
            most = self._free if most is None else min(most, self._free)
        return None if most is None else max(most - waits - in_flight, 0)
