"""The lists of a group's consumers and pauses are combined from the nodes that lead its partitions."""

from __future__ import annotations

from tests.support.nodes.three import ThreeNodes
from tests.support.nodes.working import take


async def test_consumer_and_paused_key_of_three_nodes_have_one_row_each(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await client.admin.create_topic("t", partitions=6, replicas=1, ordering="key")
        async with client.subscribe("t", group="g", consumer_id="ada", credit=60) as ada:
            for partition in range(6):
                await client.produce("t", b"x", partition=partition)
            await take(ada, 6, ack=False)
            (row,) = (await client.admin.consumers("t", "g")).consumers
            assert (row.consumer, row.partitions, row.messages) == ("ada", 6, 6)
        await client.admin.pause_group("t", "g", key="k")
        assert await client.admin.pauses("t", "g") == ([("key", None, b"k", None, 6)], 0)
