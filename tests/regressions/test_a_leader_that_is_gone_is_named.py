"""A producer waited for up to half a minute after the death of a leader: the node that it asked about the topic still
named that one, and nobody asked again."""

from __future__ import annotations

import anyio

import sandq
from sandq.protocol.replies import Node
from tests.support.client.fake_server import FakeServer
from tests.support.waiting import PATIENCE_S


async def test_it_is_asked_again_until_another_one_leads() -> None:
    first, second = FakeServer("n1"), FakeServer("n2")
    async with anyio.create_task_group() as tasks:
        await first.start(tasks)
        await second.start(tasks)
        for server in (first, second):
            server.nodes = [Node("n1", "127.0.0.1", first.port), Node("n2", "127.0.0.1", second.port)]
            server.add_topic("t", 1, ["n2"])
        async with sandq.connect(first.address, second.address) as client, client.producer("t") as producer:
            await (await producer.send(b"x"))
            second.cut_all()
            await second.stop()
            receipt = await producer.send(b"y")
            await anyio.sleep(0.5)  # it has asked, and was told the same as before
            first.topics.clear()
            first.add_topic("t", 1, ["n1"])
            with anyio.fail_after(PATIENCE_S):
                await receipt
        await first.stop()
        tasks.cancel_scope.cancel()
