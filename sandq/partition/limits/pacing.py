"""How fast messages of a tenant are given out: so many a second, and so many at once after a pause.

Of each tenant the *theoretical arrival time* of its next message is kept (the generic cell rate algorithm, ITU-T
I.371): each message puts it `interval_us` further, from now on at the earliest, and one may go when it is no more than
`burst - 1` intervals ahead. One number, moved by the stamps of entries alone: so a rate holds across consumers and
leaders. One that is not ahead says nothing, and is forgotten.

PERSISTED: the number, in microseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from sandq.partition.base.stale_heaps import is_overgrown


class Pace(NamedTuple):
    """What holds for a tenant, or for a share of a group's rate. Methods take the arrival time of the next message."""

    interval_us: int
    """Between two messages, on average."""
    burst: int
    """So many may go at once."""

    def latest_us(self, now_us: int) -> int:
        """The arrival time of the next message when a whole burst has just gone: it is never later."""
        return now_us + self.burst * self.interval_us

    def room(self, arrival_us: int, now_us: int) -> int:
        """How many messages may go now."""
        return max((self.latest_us(now_us) - max(arrival_us, now_us)) // self.interval_us, 0)

    def free_us(self, arrival_us: int, now_us: int) -> int:
        """When the next message may go: now, if it may."""
        return max(max(arrival_us, now_us) - (self.burst - 1) * self.interval_us, now_us)

    def after(self, arrival_us: int, messages: int, now_us: int) -> int:
        """The arrival time of the next message once so many have gone."""
        return max(arrival_us, now_us) + messages * self.interval_us


class Pacing:
    """The paces of one group in one partition."""

    def __init__(self) -> None:
        self._arrivals_us: dict[str, int] = {}
        """By tenant, those that are ahead."""
        self._heap: list[tuple[int, str]] = []
        """The same in order; those that are others by now are skipped when met."""
        self._changed: set[str] = set()

    def load(self, tenant: str, arrival_us: int) -> None:
        """Go on with what `changes` told."""
        self._put(tenant, arrival_us)

    def _put(self, tenant: str, arrival_us: int) -> None:
        self._arrivals_us[tenant] = arrival_us
        if is_overgrown(len(self._heap), len(self._arrivals_us)):
            self._heap = [(at_us, name) for name, at_us in self._arrivals_us.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (arrival_us, tenant))

    def room(self, tenant: str, pace: Pace, now_us: int) -> int:
        """How many messages of a tenant may go now."""
        return pace.room(self._arrival_us(tenant), now_us)

    def free_us(self, tenant: str, pace: Pace, now_us: int) -> int:
        """When the next message of a tenant may go: now, if it may."""
        return pace.free_us(self._arrival_us(tenant), now_us)

    def serve(self, tenant: str, pace: Pace, messages: int, now_us: int) -> None:
        """So many messages of a tenant go."""
        self._put(tenant, pace.after(self._arrival_us(tenant), messages, now_us))
        self._changed.add(tenant)

    def _arrival_us(self, tenant: str) -> int:
        return self._arrivals_us.get(tenant, 0)

    def limit(self, tenant: str, pace: Pace, now_us: int) -> None:
        """Let the next message of a tenant be no further ahead than a whole burst puts it: else it is of a slower pace
        that was, or of a clock that was set back since."""
        latest_us = pace.latest_us(now_us)
        if self._arrivals_us.get(tenant, 0) > latest_us:
            self._put(tenant, latest_us)
            self._changed.add(tenant)

    def forget(self, now_us: int) -> None:
        """Forget what is not ahead any more."""
        while self._heap and self._heap[0][0] <= now_us:
            at_us, tenant = heapq.heappop(self._heap)
            if self._arrivals_us.get(tenant) == at_us:
                del self._arrivals_us[tenant]
                self._changed.add(tenant)

    def changes(self) -> Iterator[tuple[str, int | None]]:
        """Yield the tenants whose number is another one than at the last call; None: it is forgotten."""
        changed, self._changed = self._changed, set()
        for tenant in sorted(changed):
            yield tenant, self._arrivals_us.get(tenant)
