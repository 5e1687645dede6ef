"""A producer waited for up to half a minute after the death of a leader.

The node that it asked about the topic still named the dead leader, and the client did not ask again."""

from __future__ import annotations

from typing import Any

import anyio

import sandq
from sandq.protocol.frames import Frame
from sandq.protocol.replies import Node
from tests.support.client.fake_server import FakeConnection, FakeServer
from tests.support.waiting import PATIENCE_S, until_holds


async def test_metadata_request_naming_dead_leader_is_repeated_until_new_leader() -> None:
    first, second = FakeServer("n1"), FakeServer("n2")
    asked: list[Frame] = []
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
            answer = first.do_metadata

            def noted(connection: FakeConnection, frame: Frame) -> Any:
                asked.append(frame)
                return answer(connection, frame)

            first.do_metadata = noted  # type: ignore[method-assign]
            receipt = await producer.send(b"y")
            # The first answer still named the dead leader.
            await until_holds(lambda: len(asked) >= 2)
            first.topics.clear()
            first.add_topic("t", 1, ["n1"])
            with anyio.fail_after(PATIENCE_S):
                await receipt
        await first.stop()
        tasks.cancel_scope.cancel()
