"""Tests of a closed connection with many subscriptions: they end in turns and get no pushes meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from sandq.broker.event_loop import SLICE_WORK
from sandq.broker.leader.subscription import Subscription
from sandq.server.subscriptions import PARTITIONS_OF_WORK, Subscriptions
from tests.support.nodes.fake_receiver import FakeReceiver

SUBSCRIPTIONS, PARTITIONS = 100, 1024


class Steps(trio.abc.Instrument):
    number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


class Broker:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.at: list[int] = []
        self.made: list[Subscription] = []

    def detach(self, topic: str, subscription: Subscription) -> list[None]:
        assert all(one.closed for one in self.made), "before any other work"
        self.at.append(self._steps.number)
        return PARTITIONS * [None]


async def test_subscriptions_end_in_time_slices() -> None:
    steps = Steps()
    broker: Any = Broker(steps)
    connection: Any = SimpleNamespace()
    subscriptions = Subscriptions(broker, connection)
    for number in range(SUBSCRIPTIONS):
        one = Subscription(
            group="g",
            consumer=f"c{number}",
            credit=1,
            lease_ms=1000,
            receiver=FakeReceiver(),
        )
        broker.made.append(one)
        subscriptions._subscriptions[number] = "t", one
    trio.lowlevel.add_instrument(steps)
    try:
        await subscriptions.close()
    finally:
        trio.lowlevel.remove_instrument(steps)
    assert len(broker.at) == SUBSCRIPTIONS
    assert max(broker.at.count(step) for step in set(broker.at)) <= SLICE_WORK // (PARTITIONS // PARTITIONS_OF_WORK) + 1
