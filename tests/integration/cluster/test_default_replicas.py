"""How many replicas a topic gets for which no number is given, on one, two and three nodes."""

from __future__ import annotations

from pathlib import Path

from tests.support.nodes.found import found_nodes
from tests.support.waiting import until_answer

MADE = {"AUTO_CREATE_TOPICS__PATTERNS": "made.*"}


async def test_default_replicas_follow_the_number_of_nodes(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", **MADE) as nodes, nodes.connect() as client:
        assert (await client.admin.create_topic("one")).replicas == 1
        await client.produce("made.one", b"")
        await nodes.start("node2")
        await nodes.until_registered("node1", "node2")
        assert (await client.admin.create_topic("two")).replicas == 1, (
            "with two replicas, the loss of either node would stop the partition"
        )
        await nodes.start("node3")
        await nodes.until_registered("node1", "node2", "node3")
        assert (await client.admin.create_topic("three")).replicas == 3
        assert (await client.admin.create_topic("chosen", replicas=1)).replicas == 1
        await client.produce("made.three", b"")
        found = {topic.name: topic.replicas for topic in await client.admin.list_topics()}
        assert found == {"one": 1, "made.one": 1, "two": 1, "three": 3, "made.three": 3, "chosen": 1}

        assert (await client.admin.update_topic("one", replicas=3)).replicas == 3
        await until_answer(
            lambda: client.admin.topic("one"),
            lambda topic: len(topic.partitions[0].nodes) == 3 and not topic.partitions[0].moving,
        )


async def test_a_draining_node_counts_for_no_default(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", "node2", "node3") as nodes, nodes.connect() as client:
        await client.admin.drain_node("node3")
        assert (await client.admin.create_topic("t")).replicas == 1
