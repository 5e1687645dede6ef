"""Provide functions for tests of the client, in addition to the fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from sandq.client.client import Client, connect_with
from sandq.client.consumer.message import Message
from sandq.client.consumer.message_batch import MessageBatch
from sandq.client.consumer.subscription import Subscription
from sandq.client.options import Options
from sandq.protocol.replies import Node
from tests.support.client.fake_server import FakeServer
from tests.support.waiting import until_holds

QUICK = {"back_off_first_s": 0.005, "back_off_max_s": 0.05, "timeout_s": 5.0, "close_timeout_s": 2.0}
"""Options of a client with pauses that are short enough for tests."""


async def take(subscription: Subscription, count: int) -> list[Message]:
    """Return the next messages."""
    return [await subscription.__anext__() for _ in range(count)]


async def take_batches(subscription: Subscription, count: int) -> list[MessageBatch]:
    """Return the next batches."""
    found: list[MessageBatch] = []
    async for batch in subscription.batches():
        found.append(batch)
        if len(found) == count:
            break
    return found


@asynccontextmanager
async def running(client: Client, handler: Any, **options: Any) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Run `client.run` in the background of a block; cancel it at the end."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.run, "t", "g", handler, **options))
        await anyio.lowlevel.checkpoint()
        yield tasks
        tasks.cancel_scope.cancel()


async def subscribed(server: FakeServer) -> Any:
    """Wait for a subscription and return it."""
    await until_holds(lambda: any(connection.subscriptions for connection in server.connections))
    return server.subscription()


@asynccontextmanager
async def two_nodes(**options: Any) -> AsyncIterator[tuple[FakeServer, FakeServer, Client]]:
    """Start two servers. Each server leads one partition of topic "t"."""
    async with anyio.create_task_group() as tasks:
        one, two = FakeServer("n1"), FakeServer("n2")
        for server in (one, two):
            server.add_topic("t", 2, leaders=["n1", "n2"])
            await server.start(tasks)
        one.nodes = two.nodes = [Node("n1", "127.0.0.1", one.port), Node("n2", "127.0.0.1", two.port)]
        async with connect_with(Options(**{**QUICK, **options}), (one.address,), "test") as client:
            yield one, two, client
        tasks.cancel_scope.cancel()
