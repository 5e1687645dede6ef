"""The list of a group's consumers is combined from the nodes that lead its partitions."""

from __future__ import annotations

from tests.support.nodes.three import ThreeNodes
from tests.support.nodes.working import take


async def test_a_consumer_of_partitions_of_three_nodes_has_one_row(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await client.admin.create_topic("t", partitions=6, replicas=1)
        async with client.subscribe("t", group="g", consumer_id="ada", credit=60) as ada:
            for partition in range(6):
                await client.produce("t", b"x", partition=partition)
            await take(ada, 6, ack=False)
            (row,) = (await client.admin.consumers("t", "g")).consumers
            assert (row.consumer, row.partitions, row.messages) == ("ada", 6, 6)
