"""Topics that are created on use, requested on several nodes at the same time."""

from __future__ import annotations

from pathlib import Path

import trio

import sandq
from tests.support.nodes.three import NAMES, ThreeNodes
from tests.support.waiting import PATIENCE_S

MADE = {"AUTO_CREATE_TOPICS__PATTERNS": "made.*"}


async def test_concurrent_requests_create_one_topic(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nodes = ThreeNodes(tmp_path, nursery, **MADE)
            await nodes.start()

            async def use(name: str, topic: str) -> None:
                async with nodes.connect(name) as client:
                    async with trio.open_nursery() as using:
                        using.start_soon(client.produce, topic, name.encode())
                        using.start_soon(client.produce, "made.b", name.encode())
                    async with client.subscribe(topic, group="g"):
                        pass

            async with trio.open_nursery() as users:
                for name in NAMES:
                    for _ in range(2):
                        users.start_soon(use, name, "made.a")
            assert sum(one.broker.administration.topics.auto_created for one in nodes.running.values()) == 2
            async with nodes.connect() as client:
                stored = [found async for found in client.messages("made.a").list()]
                assert len(stored) == 6
                await _after_another_node_leads(nodes, client)
            nursery.cancel_scope.cancel()


async def _after_another_node_leads(nodes: ThreeNodes, client: sandq.Client) -> None:
    """Auto-created topics are kept, and count for the limit."""
    leader = next(name for name, one in nodes.running.items() if one.broker.metadata_host.ready)
    await nodes.stop(leader)
    await client.produce("made.c", b"x")
    await client.produce("made.a", b"x")
    topics = {topic.name: topic for topic in await client.admin.list_topics()}
    assert sorted(topics) == ["made.a", "made.b", "made.c"]
