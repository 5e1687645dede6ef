"""Provide the connection of a consumer, whose methods are functions of the test."""

from __future__ import annotations

from collections.abc import Callable

from sandq.broker.replication.replica import Delivery
from sandq.model.errors import SandqError


class FakeReceiver:
    """A `leader.subscription.DeliveryReceiver`."""

    def __init__(
        self,
        push: Callable[[Delivery], None] = lambda delivery: None,
        *,
        is_congested: Callable[[], bool] = lambda: False,
        ended: Callable[[SandqError], None] = lambda error: None,
    ) -> None:
        self.push = push
        self.ended = ended
        self._is_congested = is_congested

    @property
    def congested(self) -> bool:
        return self._is_congested()
