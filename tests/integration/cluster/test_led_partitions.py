"""The list of partitions that a node leads is kept up to date, without scanning all partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.errors import NotLeader
from tests.support.nodes.three import ThreeNodes, three_nodes
from tests.support.waiting import until_holds


def is_known(nodes: ThreeNodes, topic: str) -> bool:
    """Return whether all nodes know the topic, all partitions have leaders, and each node knows which ones it leads."""
    led = 0
    for serving in nodes.running.values():
        catalog = serving.broker.catalog
        found = list(catalog.led(topic))
        if found != list(catalog.topics[topic].led().values()):
            return False
        led += len(found)
    return led == len(next(iter(nodes.running.values())).broker.catalog.topics[topic].record.partitions)


async def test_led_partitions_follow_elections_moves_and_recreated_topics(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", partitions=3, replicas=3)
        await until_holds(lambda: is_known(nodes, "t"))
        for _ in range(4):
            first = await nodes.until_led()
            await nodes.hand_over(*[name for name in nodes.running if name != first])
            await until_holds(lambda: is_known(nodes, "t"))
        await nodes.stop("node3")
        await until_holds(lambda: is_known(nodes, "t"))
        await nodes.start("node3")
        await until_holds(lambda: is_known(nodes, "t"))

        await client.admin.delete_topic("t")
        topic = await client.admin.create_topic("t", replicas=1)
        await until_holds(lambda: is_known(nodes, "t"))
        (holder,) = topic.partitions[0].nodes
        for name, serving in nodes.running.items():
            if name == holder:
                (delivery,) = serving.broker.led("t")
                assert not delivery.closed
            else:
                with pytest.raises(NotLeader):
                    serving.broker.led("t")
