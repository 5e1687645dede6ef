"""Simulate whole nodes that have topics of all kinds at once, each with one partition."""

from __future__ import annotations

from typing import Any, ClassVar

from sandq.broker.broker import Broker
from sandq.broker.replication.replica import Delivery
from sandq.model.batch import Column
from sandq.model.names import COMPACTED, FAIR, PRIORITY, TIMER
from tests.support.simulation.membership_world import DRIFT_S, MembershipWorld
from tests.support.simulation.order import Order
from tests.support.simulation.whole_node import Life

LEASE_MS = 2000
PRIORITIES = (-5, 0, 0, 3)
TENANTS = (b"a", b"a.x", b"b", b"default")
TOGETHER_MS = 3000
"""Ranked messages are due at multiples of this time in ms, so that several messages are ready at once."""
IN_FLIGHT = 3
"""Maximum number of leased messages of a tenant."""


class KindsWorld(MembershipWorld):
    topics: ClassVar = {f"of-{kind}": kind for kind in (TIMER, PRIORITY, FAIR, COMPACTED)}
    partitions = 1

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        margin_ms = int(2 * DRIFT_S * 1000) + 1
        self.orders = {
            topic: Order(None, LEASE_MS, margin_ms) for topic, kind in self.topics.items() if kind in (PRIORITY, FAIR)
        }
        self.delivered_of = dict.fromkeys(self.topics, 0)
        """Number of delivered messages, by topic."""

    def _settings(self, kind: str) -> dict[str, Any]:
        if kind == COMPACTED:
            return {"lease": "2s", "max_attempts": "none"}
        settings = super()._settings(kind)
        return settings | ({"tenants": {"*": {"max_in_flight": IN_FLIGHT}}} if kind == FAIR else {})

    def _cells(self, kind: str, payload: bytes) -> dict[int, list[Any]]:
        cells = super()._cells(kind, payload)
        if kind in (PRIORITY, FAIR):
            cells[Column.PRIORITY] = [self.rng.choice(PRIORITIES)]
            cells[Column.DELIVER_MS] = [-(-cells[Column.DELIVER_MS][0] // TOGETHER_MS) * TOGETHER_MS]
        if kind == FAIR:
            cells[Column.TENANT] = [self.rng.choice(TENANTS)]
        if kind == COMPACTED:
            cells[Column.KEY] = [payload]  # unique keys, so that compaction deletes none of the messages
            del cells[Column.DELIVER_MS]
        return cells

    def _pushed(self, life: Life, broker: Broker, topic: str, delivery: Delivery) -> None:
        if not life.is_lost:
            self.delivered_of[topic] += delivery.count
            if topic in self.orders:
                self.orders[topic].delivered(topic, delivery)
        super()._pushed(life, broker, topic, delivery)

    def check_order(self) -> None:
        """Check that no message was leased before a ready message with a better rank."""
        for order in self.orders.values():
            order.check()
