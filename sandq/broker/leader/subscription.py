"""The subscription of a consumer to which messages are pushed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sandq.broker.replication.replica import Delivery
from sandq.model.errors import SandqError


class DeliveryReceiver(Protocol):
    """The connection of a consumer, as seen by a subscription. `server.subscriptions` implements it."""

    @property
    def congested(self) -> bool:
        """True if the connection accepts no data now."""

    def push(self, delivery: Delivery) -> None:
        """Send a lease."""

    def ended(self, error: SandqError) -> None:
        """Report the end of the subscription, for example because its topic was deleted."""


class Subscription:
    """A consumer's subscription on this node: one pool of credit for all partitions of the topic."""

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
        """`epoch`: epoch of the consumer; 0: none. `handlers`: maximum number of messages that the consumer handles at
        the same time; 0: unknown. `address`: address of the consumer's connection. `since_ms`: time of the
        subscription, in ms."""
        self.group = group
        self.consumer = consumer
        self.credit = credit
        """Number of messages that the consumer may still receive.

        After raising the credit, call `notify_credit`, so that partitions that found no credit check again."""
        self.lease_ms = lease_ms
        self.receiver = receiver
        self.epoch = epoch
        self.handlers = handlers
        self.address = address
        self.since_ms = since_ms
        self.partitions = 0
        """Number of partitions that share this pool."""
        self._starved: dict[Callable[[Subscription], None], None] = {}
        self.closed = False
        self.moved = False
        """True if the subscription ended because other nodes lead its partitions now.

        The consumer will subscribe again, and still holds its leases."""

        self.fenced = False
        """True if the subscription ended because a later process has taken over the leases of its consumer.

        Messages that are still granted to this subscription are given back."""

    def fence(self, error: SandqError) -> None:
        """End the subscription, because a later process of the consumer has subscribed."""
        self.closed = self.fenced = True
        self.receiver.ended(error)

    @property
    def free_credit(self) -> int:
        """Number of messages that may be granted now: the credit, or 0 if the subscription is closed or its connection
        is congested."""
        return 0 if self.closed or self.receiver.congested else max(self.credit, 0)

    def when_free(self, lease: Callable[[Subscription], None]) -> None:
        """Register a partition that found no free credit. When credit may be free again, `lease(subscription)` is
        called."""
        self._starved[lease] = None

    def notify_credit(self) -> None:
        """Let the partitions that found no free credit try again."""
        starved, self._starved = self._starved, {}
        for lease in starved:
            lease(self)
