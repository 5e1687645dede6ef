"""Tests of requests that are sent together: all requests of one loop turn, and acks with the credit for the next
lease."""

from __future__ import annotations

from typing import Any

import anyio

from sandq.client.client import Client
from sandq.protocol.frames import FrameReader, Type
from tests.support.client.fake_keys import Write
from tests.support.client.fake_server import FakeServer
from tests.support.client.helpers import take

BY_THE_CLOCK = (Type.METADATA, Type.PING)
"""Frames that a client sends by a timer, at any moment on a slow machine."""


class CountedStream:
    """A stream that records the frame types of each send, except `BY_THE_CLOCK`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.sends: list[list[int]] = []

    async def send(self, data: bytes) -> None:
        types = [frame[0] for frame in FrameReader().feed(data) if frame[0] not in BY_THE_CLOCK]
        if types:
            self.sends.append(types)
        await self._stream.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def count_sends(client: Client) -> list[list[int]]:
    """Record the frame types of each send from now on, over the only connection."""
    (connection,) = client._cluster.connections()
    stream = CountedStream(connection._stream)
    connection._stream = stream  # type: ignore[assignment]
    return stream.sends


def test_requests_of_one_loop_iteration_are_sent_together_across_topics(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("u")
        for topic in ("k", "l"):
            server.add_topic(topic, kind="compacted")
            server.writes[topic, 0].append(Write(b"%016d" % 1, b"key", b"value"))

        async def produce() -> None:
            async with anyio.create_task_group() as tasks:
                for topic in ("t", "u", "t"):
                    tasks.start_soon(client.produce, topic, b"v")

        async def get() -> None:
            async with anyio.create_task_group() as tasks:
                for topic in ("k", "l", "k"):
                    tasks.start_soon(client.kv(topic).get, "key")

        await produce()  # now the client knows the topics
        await get()
        sends = count_sends(client)
        await produce()
        await get()
        assert sends == [[Type.PRODUCE] * 2, [Type.KV_GET] * 2]

    with_client(body)


def test_acks_travel_with_the_credit_for_the_next_lease(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            server.deliver(server.subscription(), [b"v"] * 100, last=True)
            messages = await take(subscription, 100)
            sends = count_sends(client)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take, subscription, 1)
                for message in messages:
                    settlement = message.ack()
                await settlement
                tasks.cancel_scope.cancel()
            assert sends == [[Type.ACK, Type.CREDIT]]

    with_client(body)
