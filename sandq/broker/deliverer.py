"""Leases what is due to consumers with credit, and pushes it when its time has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sandq.model.errors import SandqError
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.timer import GroupStatus, Status

from .clock import GuardedClock
from .host import GroupHost
from .replica import Delivery
from .timers import Timers

MAX_GRANTS = 64
SHARED_GRANT_MESSAGES = 64
"""Of one grant while several consumers have room, so that what is due is spread."""
RETRY_MS = 50
"""After a refusal (overload, leadership not settled)."""
FIRST_WINDOW = 8
TRIM_INTERVAL_MS = 100
TRIM_ROWS = 1000


class Subscription:
    """A consumer's room on this node: one pool of credit for all partitions of the topic."""

    def __init__(
        self,
        group: str,
        consumer: str,
        credit: int,
        lease_ms: int,
        push: Callable[[int, int, Delivery], None],
        congested: Callable[[], bool],
        ended: Callable[[SandqError], None],
    ) -> None:
        """`push(group number, partition, delivery)` sends; `congested()`: its connection takes nothing now;
        `ended(error)`: the topic was deleted."""
        self.group = group
        self.consumer = consumer
        self.credit = credit
        self.lease_ms = lease_ms
        self.push = push
        self.congested = congested
        self.ended = ended
        self.partitions = 0
        """How many partitions share this pool."""
        self.hungry: dict[PartitionDelivery, None] = {}
        """Partitions with something due that found no room here."""
        self.closed = False

    @property
    def room(self) -> int:
        return 0 if self.closed or self.congested() else max(self.credit, 0)

    def feed(self) -> None:
        """There is room again: serve the partitions that went without."""
        hungry, self.hungry = self.hungry, {}
        for delivery in hungry:
            delivery.pump(self.group)


class _GroupPump:
    """Delivery of one group in one partition: at most one lease command is under way."""

    def __init__(self) -> None:
        self.subscriptions: deque[Subscription] = deque()
        self.busy = False
        self.timer_ms: int | None = None
        self.window = 1
        """Messages to ask for at once while the credit is shared with other partitions: it doubles while it is
        filled, so that those with little to give keep nothing from the others."""


class PartitionDelivery:
    """Everything a partition's leader does by the clock: leases, expiry, trimming."""

    def __init__(
        self, host: GroupHost, partition: int, clock: GuardedClock, timers: Timers, lease_ahead_ms: int
    ) -> None:
        self.host = host
        self.partition = partition
        self._clock = clock
        self._timers = timers
        self._lease_ahead_ms = lease_ahead_ms
        self._pumps: dict[str, _GroupPump] = {}
        self._groups: dict[str, GroupStatus] = {}
        self._expiring = False
        self._expiry_timer_ms: int | None = None
        self._trimming = False
        self.closed = False
        host.on_status = self.status_changed

    def attach(self, subscription: Subscription) -> None:
        """From now on the subscription takes part; one of the same consumer is replaced."""
        pump = self._pumps.setdefault(subscription.group, _GroupPump())
        subscription.partitions += 1
        for old in [s for s in pump.subscriptions if s.consumer == subscription.consumer]:
            pump.subscriptions.remove(old)
        pump.subscriptions.append(subscription)
        self.pump(subscription.group)

    def detach(self, subscription: Subscription) -> bool:
        """False: it was replaced meanwhile."""
        pump = self._pumps.get(subscription.group)
        if pump is None or subscription not in pump.subscriptions:
            return False
        pump.subscriptions.remove(subscription)
        return True

    def close(self, error: SandqError) -> None:
        """The partition is gone: nothing more is leased or pushed."""
        for pump in self._pumps.values():
            for subscription in pump.subscriptions:
                if not subscription.closed:
                    subscription.closed = True
                    subscription.ended(error)
        self._pumps.clear()
        self.closed = True
        self.host.on_status = lambda: None

    def status_changed(self) -> None:
        if self.closed:
            return
        status: Status = self.host.status
        self._groups = {group.name: group for group in status.groups}
        for name in self._pumps:
            self.pump(name)
        self._expire(status)
        if status.trim_due and not self._trimming:
            self._trimming = True
            self._timers.at(self._clock.now_ms() + TRIM_INTERVAL_MS, self._trim)

    # -- leasing --------------------------------------------------------------------------------------------------

    def pump(self, name: str) -> None:
        """Lease what is due, or set a timer for when it will be."""
        pump, group = self._pumps.get(name), self._groups.get(name)
        if pump is None or pump.busy or group is None or group.next_ms is None:
            return
        now_ms = self._clock.now_ms()
        wake_ms = group.next_ms - self._lease_ahead_ms
        if wake_ms > now_ms:
            self._wake_at(name, pump, wake_ms)
            return
        grants, reserved = self._grants(pump)
        if not grants:
            for subscription in pump.subscriptions:
                subscription.hungry[self] = None
            return
        command = c.Lease(name, now_ms + self._lease_ahead_ms, tuple(grants))
        pump.busy = True
        try:
            self.host.submit(command, lambda result: self._leased(name, pump, reserved, result))
        except SandqError:
            self._refused(name, pump, reserved)

    def _wake_at(self, name: str, pump: _GroupPump, at_ms: int) -> None:
        if pump.timer_ms is not None and pump.timer_ms <= at_ms:
            return
        pump.timer_ms = at_ms

        def wake() -> None:
            if pump.timer_ms == at_ms:
                pump.timer_ms = None
            self.pump(name)

        self._timers.at(at_ms, wake)

    def _grants(self, pump: _GroupPump) -> tuple[list[c.Grant], dict[Subscription, int]]:
        """Round robin over the consumers with room; what is granted is taken off their credit."""
        room = {s: self._share(pump, s) for s in pump.subscriptions}
        takers = deque(s for s in pump.subscriptions if room[s] > 0)
        most = SHARED_GRANT_MESSAGES if len(takers) > 1 else FIXED.grant_messages
        grants: list[c.Grant] = []
        reserved: dict[Subscription, int] = {}
        while takers and len(grants) < MAX_GRANTS:
            taker = takers.popleft()
            limit = min(room[taker], most)
            grants.append(c.Grant(taker.consumer, limit, taker.lease_ms))
            reserved[taker] = reserved.get(taker, 0) + limit
            taker.credit -= limit
            room[taker] -= limit
            if room[taker] > 0:
                takers.append(taker)
        if grants:
            pump.subscriptions.rotate(-1)
        return grants, reserved

    def _share(self, pump: _GroupPump, subscription: Subscription) -> int:
        """What of a consumer's room this partition may ask for at once."""
        room = subscription.room
        if subscription.partitions <= 1:
            return room
        return min(room, max(pump.window, min(room // subscription.partitions, FIRST_WINDOW)))

    def _leased(self, name: str, pump: _GroupPump, reserved: dict[Subscription, int], result: Any) -> None:
        if isinstance(result, SandqError):
            self._refused(name, pump, reserved)
            return
        pump.busy = False
        by_consumer = {s.consumer: s for s in reserved}
        for subscription, limit in reserved.items():
            subscription.credit += limit
        granted = sum(delivery.count for delivery in result)
        pump.window = 2 * granted if granted >= sum(reserved.values()) else max(granted, 1)
        for delivery in result:
            subscription = by_consumer[delivery.consumer]
            subscription.credit -= delivery.count
            self.push(subscription, delivery)
        if result:
            self.pump(name)
        else:
            # Nothing could be granted (a consumer with too many leases, say): no reason to ask again at once.
            self._wake_at(name, pump, self._clock.now_ms() + RETRY_MS)
        for subscription in reserved:
            subscription.feed()

    def _refused(self, name: str, pump: _GroupPump, reserved: dict[Subscription, int]) -> None:
        pump.busy = False
        for subscription, limit in reserved.items():
            subscription.credit += limit
        if self.host.failed is None:
            self._wake_at(name, pump, self._clock.now_ms() + RETRY_MS)
        for subscription in reserved:
            subscription.feed()

    def push(self, subscription: Subscription, delivery: Delivery) -> None:
        """Send once the latest of it is due. A lease whose consumer has gone meanwhile runs out, or is pushed
        again when the consumer returns."""

        def send() -> None:
            if not subscription.closed:
                subscription.push(self.host.number, self.partition, delivery)

        if delivery.due_ms <= self._clock.now_ms():
            send()
        else:
            self._timers.at(delivery.due_ms, send)

    # -- expiry and trimming --------------------------------------------------------------------------------------

    def _expire(self, status: Status) -> None:
        at_ms = status.next_expiry_ms
        if at_ms is None or self._expiring or self.closed:
            return
        now_ms = self._clock.now_ms()
        if at_ms > now_ms:
            if self._expiry_timer_ms is None or at_ms < self._expiry_timer_ms:
                self._expiry_timer_ms = at_ms
                self._timers.at(at_ms, self._expiry_due)
            return
        self._expiring = True
        try:
            self.host.submit(c.Expire(), self._expired)
        except SandqError:
            self._expired(None)

    def _expiry_due(self) -> None:
        self._expiry_timer_ms = None
        self._expire(self.host.status)

    def _expired(self, result: Any) -> None:
        self._expiring = False
        if self.closed:
            return
        if isinstance(result, int):
            self._expire(self.host.status)
        elif self.host.failed is None:
            self._timers.at(self._clock.now_ms() + RETRY_MS, self._expiry_due)

    def _trim(self) -> None:
        if self.closed:
            return
        try:
            self.host.submit(c.Trim(TRIM_ROWS), self._trimmed)
        except SandqError:
            self._trimming = False

    def _trimmed(self, result: Any) -> None:
        if result is True:
            self._trim()  # there is more
        else:
            self._trimming = False
            self.status_changed()
