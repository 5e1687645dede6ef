"""The rate at which messages of a tenant are leased: messages per second, and a burst after a pause.

For each tenant, this keeps the *theoretical arrival time* of its next message (the generic cell rate algorithm, ITU-T
I.371). Each message moves the arrival time by `interval_us`, counted from the present if it is in the past. A message
may be leased if the arrival time is at most `burst - 1` intervals ahead. This single number changes only with the time
stamps of entries, so a rate holds across consumers and leaders. An arrival time in the past has no effect and is
forgotten.

PERSISTED: the arrival time, in microseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from sandq.partition.base.stale_heaps import is_overgrown


class Pace(NamedTuple):
    """The pace of a tenant, or of a share of a group's rate. The methods take the arrival time of the next message."""

    interval_us: int
    """Average interval between two messages, in µs."""
    burst: int
    """Maximum number of messages that may be leased at once."""

    def latest_us(self, now_us: int) -> int:
        """Return the latest possible arrival time of the next message: its time after a whole burst."""
        return now_us + self.burst * self.interval_us

    def available(self, arrival_us: int, now_us: int) -> int:
        """Return how many messages may be leased now."""
        return max((self.latest_us(now_us) - max(arrival_us, now_us)) // self.interval_us, 0)

    def free_us(self, arrival_us: int, now_us: int) -> int:
        """Return when the next message may be leased, in µs: now, or later."""
        return max(max(arrival_us, now_us) - (self.burst - 1) * self.interval_us, now_us)

    def after(self, arrival_us: int, messages: int, now_us: int) -> int:
        """Return the arrival time of the next message after `messages` are leased."""
        return max(arrival_us, now_us) + messages * self.interval_us


class Pacing:
    """The paces of one group in one partition."""

    def __init__(self) -> None:
        self._arrivals_us: dict[str, int] = {}
        """Arrival times that are ahead, by tenant."""
        self._heap: list[tuple[int, str]] = []
        """The same arrival times, as a heap. Outdated entries are skipped at the top."""
        self._changed: set[str] = set()

    def load(self, tenant: str, arrival_us: int) -> None:
        """Restore an arrival time that `changes` has yielded."""
        self._put(tenant, arrival_us)

    def _put(self, tenant: str, arrival_us: int) -> None:
        """Set the arrival time of a tenant's next message."""
        self._arrivals_us[tenant] = arrival_us
        if is_overgrown(len(self._heap), len(self._arrivals_us)):
            self._heap = [(at_us, name) for name, at_us in self._arrivals_us.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (arrival_us, tenant))

    def available(self, tenant: str, pace: Pace, now_us: int) -> int:
        """Return how many messages of a tenant may be leased now."""
        return pace.available(self._arrival_us(tenant), now_us)

    def free_us(self, tenant: str, pace: Pace, now_us: int) -> int:
        """Return when the next message of a tenant may be leased, in µs: now, or later."""
        return pace.free_us(self._arrival_us(tenant), now_us)

    def serve(self, tenant: str, pace: Pace, messages: int, now_us: int) -> None:
        """Count leased messages of a tenant."""
        self._put(tenant, pace.after(self._arrival_us(tenant), messages, now_us))
        self._changed.add(tenant)

    def _arrival_us(self, tenant: str) -> int:
        """Return the arrival time of a tenant's next message; 0 if it is not ahead."""
        return self._arrivals_us.get(tenant, 0)

    def limit(self, tenant: str, pace: Pace, now_us: int) -> None:
        """Lower the arrival time of a tenant's next message to the latest that the pace allows: after a whole burst. A
        later time comes from an earlier, slower pace, or from before a clock reset."""
        latest_us = pace.latest_us(now_us)
        if self._arrivals_us.get(tenant, 0) > latest_us:
            self._put(tenant, latest_us)
            self._changed.add(tenant)

    def forget(self, now_us: int) -> None:
        """Forget arrival times that are no longer ahead."""
        while self._heap and self._heap[0][0] <= now_us:
            at_us, tenant = heapq.heappop(self._heap)
            if self._arrivals_us.get(tenant) == at_us:
                del self._arrivals_us[tenant]
                self._changed.add(tenant)

    def changes(self) -> Iterator[tuple[str, int | None]]:
        """Yield (tenant, arrival time) for each change since the last call. None: the arrival time was forgotten."""
        changed, self._changed = self._changed, set()
        for tenant in sorted(changed):
            yield tenant, self._arrivals_us.get(tenant)
