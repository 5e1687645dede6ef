"""What tests of the client use beside the fixtures."""

from __future__ import annotations

from sandq.client.consumer.message import Message
from sandq.client.consumer.subscription import Subscription

QUICK = {"back_off_first_s": 0.005, "back_off_max_s": 0.05, "timeout_s": 5.0, "close_timeout_s": 2.0}
"""Options of a client whose pauses a test can wait for."""


async def take(subscription: Subscription, count: int) -> list[Message]:
    """The next messages."""
    return [await subscription.__anext__() for _ in range(count)]
