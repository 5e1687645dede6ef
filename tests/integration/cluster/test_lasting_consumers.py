"""A worker with a permanent consumer id holds leases on several nodes, and one node stops. The worker's successor gets
all its leases at once."""

from __future__ import annotations

import pytest
import trio

import sandq
from sandq.errors import ConsumerFenced, LeaseLost
from tests.integration.cluster.test_three_nodes import created
from tests.support.nodes.three import NAMES, ThreeNodes
from tests.support.nodes.working import take
from tests.support.waiting import PATIENCE_S

PARTITIONS = 6


async def test_leases_of_all_nodes_are_its_successors(nodes: ThreeNodes) -> None:
    async with nodes.connect() as producing, nodes.connect() as first, nodes.connect() as second:
        await created(nodes, producing, PARTITIONS, lease="10m")
        for name, partition in zip(2 * NAMES, range(PARTITIONS), strict=True):
            await producing.produce("t", b"%d" % partition, partition=partition)
            await nodes.hand_over(name, partition=partition)
        async with first.subscribe("t", group="g", credit=100, consumer_id="w") as zombie:
            held = await take(zombie, PARTITIONS, ack=False)
            await nodes.stop(NAMES[0])
            async with second.subscribe("t", group="g", credit=100, consumer_id="w") as again:
                messages = await take(again, PARTITIONS)
                await until_fenced(zombie)
            for message in held:
                with pytest.raises(LeaseLost):
                    await message.ack()
        assert {message.id for message in messages} == {message.id for message in held}
        assert {message.attempt for message in messages} == {1}


async def until_fenced(subscription: sandq.Subscription) -> None:
    with pytest.raises(ConsumerFenced), trio.fail_after(PATIENCE_S):
        await anext(subscription)
