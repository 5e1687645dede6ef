"""List the consumers of a consumer group, over all partitions that this node leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandq.broker.leader.subscription import Subscription

CONSUMERS_MAX: Final = 1000
"""Maximum number of consumers in one answer."""


class ConsumerTable:
    """Subscriptions and leases of one group, by consumer."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}
        self._partitions: dict[str, int] = {}
        self._held: dict[str, tuple[int, int]] = {}

    def add(self, subscriptions: Mapping[str, Subscription], held: Mapping[str, tuple[int, int]]) -> None:
        """Add the data of one partition.

        `subscriptions`: subscriptions by consumer. `held`: by consumer, the number of messages that it has leased, and
        the time in ms at which its oldest lease was granted."""
        for consumer, subscription in subscriptions.items():
            self._subscriptions[consumer] = subscription
            self._partitions[consumer] = self._partitions.get(consumer, 0) + 1
        for consumer, (messages, leased_ms) in held.items():
            before, oldest_ms = self._held.get(consumer, (0, leased_ms))
            self._held[consumer] = before + messages, min(oldest_ms, leased_ms)

    def rows(self) -> tuple[list[dict[str, Any]], int]:
        """Return up to `CONSUMERS_MAX` rows, one per consumer, and the number of omitted consumers.

        Consumers with the most leased messages come first."""
        names = sorted({*self._subscriptions, *self._held}, key=lambda name: (-self._held.get(name, (0, 0))[0], name))
        return [self._row(name) for name in names[:CONSUMERS_MAX]], max(len(names) - CONSUMERS_MAX, 0)

    def _row(self, consumer: str) -> dict[str, Any]:
        """Return the row of a consumer: the fields of its subscription, if it has one, and its leased messages."""
        subscription = self._subscriptions.get(consumer)
        messages, leased_ms = self._held.get(consumer, (0, None))
        return {
            "consumer": consumer,
            "address": None if subscription is None else subscription.address,
            "since_ms": None if subscription is None else subscription.since_ms,
            "credit": None if subscription is None else max(subscription.credit, 0),
            "partitions": self._partitions.get(consumer, 0),
            "messages": messages,
            "leased_ms": leased_ms,
        }
