"""While a partition is shut, the other partitions of its topic continue (docs/operations/failures.md)."""

from __future__ import annotations

from pathlib import Path

from sandq.model.batch import Column, encode
from sandq.node import run_node
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.planted import POISON, Plan, planted
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, values
from tests.support.waiting import until_holds


async def test_topic_with_a_shut_partition_serves_the_others_and_can_be_changed_and_deleted(
    tmp_path: Path, dial: Dial
) -> None:
    with planted(Plan("first")):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t", partitions=2)
            raw = await dial(node)
            await raw.call(Type.PRODUCE, "t", 0, 0, 0, 0, 0, encode({Column.VALUE: [POISON]}))
            await until_holds(lambda: node.broker.catalog.partition("t", 0).raft_group.shut is not None)
            async with client.subscribe("t", group="g") as subscription:
                stored = await raw.call(Type.PRODUCE, "t", 1, 0, 0, 0, 0, encode({Column.VALUE: [b"served"]}))
                assert stored[0] == 0, stored
                assert values(await take(subscription, 1)) == [b"served"]
            await client.admin.update_topic("t", retention="1h")
            await client.admin.delete_topic("t")
            assert "t" not in {topic.name for topic in await client.admin.list_topics()}
            await client.admin.create_topic("t")
            await client.produce("t", b"anew")
