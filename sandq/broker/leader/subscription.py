"""A consumer that messages are pushed to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sandq.broker.replication.replica import Delivery
from sandq.model.errors import SandqError


class DeliveryReceiver(Protocol):
    """The connection of a consumer, as a subscription sees it: `server.subscriptions` implements it."""

    @property
    def congested(self) -> bool:
        """Whether the connection takes nothing now."""

    def push(self, delivery: Delivery) -> None:
        """Send a lease."""

    def ended(self, error: SandqError) -> None:
        """Report the end of the subscription: its topic was deleted, for example."""


class Subscription:
    """A consumer's room on this node: one pool of credit for all partitions of the topic."""

    def __init__(
        self,
        *,
        group: str,
        consumer: str,
        credit: int,
        lease_ms: int,
        receiver: DeliveryReceiver,
        epoch: int = 0,
        handlers: int = 0,
        address: str | None = None,
        since_ms: int = 0,
    ) -> None:
        """`epoch`: of the consumer; 0: it has none. `handlers`: messages that it works on at the same time at most; 0:
        it did not say. `address`: of its connection. `since_ms`: when it subscribed."""
        self.group = group
        self.consumer = consumer
        self.credit = credit
        """Whoever raises it calls `notify_room` then: a partition that found no room does not look again by itself."""
        self.lease_ms = lease_ms
        self.receiver = receiver
        self.epoch = epoch
        self.handlers = handlers
        self.address = address
        self.since_ms = since_ms
        self.partitions = 0
        """How many partitions share this pool."""
        self._starved: dict[Callable[[Subscription], None], None] = {}
        self.closed = False
        self.moved = False
        """It ended because partitions are led elsewhere now: its consumer comes back, and still holds what it held."""

        self.fenced = False
        """It ended because a later process has taken over what its consumer holds: what is granted to it yet is given
        back."""

    def fence(self, error: SandqError) -> None:
        """End it: a later process of its consumer has come."""
        self.closed = self.fenced = True
        self.receiver.ended(error)

    @property
    def room(self) -> int:
        return 0 if self.closed or self.receiver.congested else max(self.credit, 0)

    def when_room(self, lease: Callable[[Subscription], None]) -> None:
        """Have a partition that found no room call `lease(subscription)` once there may be room again."""
        self._starved[lease] = None

    def notify_room(self) -> None:
        """Let the partitions that found no room try again."""
        starved, self._starved = self._starved, {}
        for lease in starved:
            lease(self)
