"""A consumer that messages are pushed to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sandq.broker.replication.replica import Delivery
from sandq.model.errors import SandqError

if TYPE_CHECKING:
    from sandq.broker.delivery.partition_leader import PartitionLeader


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
        self.hungry: dict[PartitionLeader, None] = {}
        """Partitions with something due that found no room here."""
        self.closed = False
        self.moved = False
        """It ended because partitions are led elsewhere now: its consumer comes back, and still holds what it held."""

    @property
    def room(self) -> int:
        return 0 if self.closed or self.congested() else max(self.credit, 0)

    def feed(self) -> None:
        """There is room again: serve the partitions that went without."""
        hungry, self.hungry = self.hungry, {}
        for delivery in hungry:
            delivery.pump(self.group)
