"""Decides which tenants get no new messages for now, because too many of their messages wait for their next attempt.

The number of waiting messages in a group is bounded. One tenant whose messages fail must not use up this bound. So a
tenant with waiting messages may have at most as many messages waiting and in flight as the bound has free (Choudhury
and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). A single tenant then gets up to a
half, two tenants get up to a third each, and some capacity is always left for other tenants.

All messages that a tenant has in flight may fail and wait at the same time. So its waiting messages and its messages in
flight together may be at most half of the bound, even while none waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from sandq.model.limits import FIXED


class Crowding:
    """The tenants of one group that have messages waiting to be retried."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        """Tenants that get no new messages, as of the last decision. They get only returned messages."""
        self.waits: Counter[str] = Counter()
        """Number of waiting ranges of messages, by tenant."""
        self._total = 0
        self._free: int | None = None
        """Free part of the bound as of the last decision. None if no tenant could reach it."""
        self._half: int | None = None
        """Maximum number of ranges of a tenant that wait or are in flight. None if there is no maximum."""
        self._is_less = False
        """Whether fewer ranges wait than at the last decision."""

    def count(self, tenant: str, ranges: int) -> None:
        """Count additional waiting ranges of a tenant. `ranges` may be negative."""
        self._total += ranges
        self.waits[tenant] += ranges
        if not self.waits[tenant]:
            del self.waits[tenant]
        self._is_less = self._is_less or ranges < 0

    @property
    def is_stale(self) -> bool:
        """Return whether the next decision may release a stopped tenant."""
        return self._is_less and bool(self.stopped)

    def decide(
        self,
        most: int | None,
        in_flight: Mapping[str, int],
        all_in_flight: int,
        many: Collection[str] | None = None,
    ) -> set[str]:
        """Decide which tenants are stopped. Return the tenants for which the decision has changed.

        `most`: maximum number of waiting ranges in the group; None if there is no maximum. `in_flight`: messages in
        flight by tenant. `all_in_flight`: messages in flight of all tenants once the lease is filled. `many`: tenants
        with at least half of `most` in flight. If given, each tenant may have at most half, even while none of its
        messages waits. None: no such maximum.
        """
        before, self.stopped, self._is_less = self.stopped, set(), False
        self._free = None if most is None else most - self._total
        if self._free is not None and self._total + all_in_flight < self._free:
            self._free = None
        self._half = most // 2 if most is not None and many is not None else None
        if self._half is not None and self._total + all_in_flight < self._half:
            self._half = None
        if self._free is not None or self._half is not None:
            tenants = [*self.waits, *(many or ())]
            self.stopped = {tenant for tenant in tenants if self.available(tenant, in_flight.get(tenant, 0)) == 0}
        return before ^ self.stopped

    def may_stop(self, tenant: str, in_flight: int) -> bool:
        """Return whether this lease may stop a tenant that has `in_flight` messages in flight."""
        if self._free is not None and tenant in self.waits:
            return True
        # If not, the caller need not count the tenant's messages before the lease is full.
        in_all = self.waits.get(tenant, 0) + in_flight
        return self._half is not None and in_all + FIXED.grant_messages >= self._half

    def available(self, tenant: str, in_flight: int) -> int | None:
        """Return how many new messages of a tenant with `in_flight` messages in flight may be leased. None if there is
        no limit."""
        waits = self.waits.get(tenant, 0)
        most = self._half
        if self._free is not None and waits:
            most = self._free if most is None else min(most, self._free)
        return None if most is None else max(most - waits - in_flight, 0)
