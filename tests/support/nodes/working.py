"""Provide steps of scenarios with the Python client: receive messages, wait for a state of the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio

import sandq
from sandq.errors import TooLate
from sandq.node.running import Serving
from tests.support.waiting import PATIENCE_S, until_answer

T = TypeVar("T")


@asynccontextmanager
async def connected(node: Serving, **options: str) -> AsyncIterator[sandq.Client]:
    """Connect a client to a node in this process."""
    async with sandq.connect(f"127.0.0.1:{node.client_port}", **options) as client:
        yield client


@asynccontextmanager
async def with_topic(client: sandq.Client, **options: Any) -> AsyncIterator[None]:
    """Create topic "t" before the block."""
    await client.admin.create_topic("t", **options)
    yield


async def take(subscription: sandq.Subscription, count: int, *, ack: bool = True) -> list[sandq.Message]:
    """Return the next `count` messages. If `ack`, ack each message and wait for the confirmation."""
    taken: list[sandq.Message] = []
    with trio.fail_after(PATIENCE_S):
        while len(taken) < count:
            message = await anext(subscription)
            taken.append(message)
            if ack:
                await message.ack()
    return taken


async def take_until(subscription: sandq.Subscription, last: bytes) -> list[sandq.Message]:
    """Ack all messages up to the message with value `last`. Return the messages before `last`."""
    taken: list[sandq.Message] = []
    while True:
        (message,) = await take(subscription, 1)
        if message.value == last:
            return taken
        taken.append(message)


def values(messages: list[sandq.Message]) -> list[bytes]:
    return [message.value for message in messages]


async def stored_messages(client: sandq.Client, topic: str = "t") -> int:
    """Return the number of messages in the log of a topic."""
    return sum(row["messages"] for row in await client.admin.stats(topic))


async def waits_until_trimmed(client: sandq.Client, topic: str = "t", left: int = 0) -> None:
    async def ask() -> int:
        return await stored_messages(client, topic)

    await until_answer(ask, lambda count: count == left)


async def refusals(messages: sandq.Messages, message_id: str, unique_key: str) -> set[object]:
    """Try to cancel and to move a message, by id and by unique key. Return the states in the errors."""
    states = set()
    for named in ({"id": message_id}, {"unique_key": unique_key}):
        with pytest.raises(TooLate) as refused:
            await messages.cancel(**named)
        states.add(refused.value.details["state"])
        with pytest.raises(TooLate) as refused:
            await messages.move(**named, delay="1h")
        states.add(refused.value.details["state"])
    return states
