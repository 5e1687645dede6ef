"""Partitions that move: a node that comes takes its share, one that is drained holds nothing, one that stays away is
replaced. Whatever was acknowledged meanwhile is there, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import trio

from sandq.metadata.records import Topic
from sandq.node import Serving
from tests.scenarios.cluster.found import FoundNodes, found_nodes
from tests.scenarios.cluster.three import eventually

PARTITIONS = 12


def topics(serving: Serving) -> Iterable[Topic]:
    return list(serving.broker.metadata.topics.values())


def held(nodes: FoundNodes) -> Counter[str]:
    """How many replicas are on each node, as far as each knows itself."""
    return Counter({name: len(serving.broker.catalog.by_group) for name, serving in nodes.running.items()})


def is_settled(nodes: FoundNodes) -> bool:
    """Nothing is on its way, and everything is where it is to be."""
    for name, serving in nodes.running.items():
        wanted = [part for topic in topics(serving) for part in topic.partitions]
        if any(part.moving for part in wanted):
            return False
        here = {part.group for part in wanted if name in part.nodes}
        if here != serving.broker.catalog.by_group.keys():
            return False
    return True


async def until_settled(nodes: FoundNodes) -> None:
    with trio.fail_after(60):
        while not is_settled(nodes):  # noqa: ASYNC110 - it is several nodes
            await trio.sleep(0.05)


async def produced(nodes: FoundNodes, count: int, topic: str = "t") -> None:
    async with nodes.connect(*nodes.running) as client, client.producer(topic) as producer:
        for number in range(count):
            await producer.send(b"%d" % number, key=b"%d" % number)


async def values(nodes: FoundNodes, count: int, topic: str = "t") -> Counter[bytes]:
    """Everything that is in a topic, by a new group."""
    found: Counter[bytes] = Counter()
    async with nodes.connect(*nodes.running) as client:
        async with client.subscribe(topic, group="all", credit=1000) as subscription:
            with trio.move_on_after(20):
                async for message in subscription:
                    found[message.value] += 1
                    message.ack()
                    if sum(found.values()) >= count:
                        break
    return found


async def test_a_new_node_takes_its_share(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", "node2", "node3") as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3)
        await produced(nodes, 200)
        assert set(held(nodes).values()) == {PARTITIONS}
        await nodes.start("node4")
        await nodes.until_registered("node1", "node2", "node3", "node4")
        await eventually(lambda: any(part.epoch for t in topics(nodes.running["node1"]) for part in t.partitions))
        await until_settled(nodes)
        assert set(held(nodes).values()) == {PARTITIONS * 3 // 4}
        await nodes.stop("node1")
        assert await values(nodes, 200) == Counter({b"%d" % number: 1 for number in range(200)})
