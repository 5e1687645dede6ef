"""A pause by the holder of a lease holds in the partitions of all nodes."""

from __future__ import annotations

import pytest

import sandq
from sandq.client import Client
from sandq.client.consumer.lease_api import LeasedMessage
from sandq.model.errors import TimedOut
from tests.support.nodes.three import ThreeNodes
from tests.support.waiting import until_answer


def node_of(nodes: ThreeNodes, partition: int) -> str:
    """Return the node with the only replica of a partition."""
    topics = {name: serving.broker.catalog.topics["t"] for name, serving in nodes.running.items()}
    return next(name for name, topic in topics.items() if partition in topic.partitions)


async def lease_on_three_nodes(nodes: ThreeNodes, client: Client, kind: str) -> LeasedMessage:
    """Create a topic with a partition on each node, and its group in each. Return a leased message."""
    await client.admin.create_topic("t", kind=kind, partitions=3, replicas=1)
    assert {node_of(nodes, partition) for partition in range(3)} == {"node1", "node2", "node3"}
    for partition in range(3):
        await client.leases("t", "g").take(1, partitions=[partition])
    await client.produce("t", b"m", partition=None if kind == "fair" else 0)
    (message,) = await client.leases("t", "g").take(1, wait="10s")
    return message


async def ends(client: Client) -> list[int | None]:
    rows = await client.admin.groups("t")
    return [row.get("paused_until_ms") for row in sorted(rows, key=lambda row: int(row["partition"]))]


async def test_lease_pauses_group_and_tenant_on_three_nodes(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        message = await lease_on_three_nodes(nodes, client, "fair")
        leases = client.leases("t", "g")
        tenant_ms = await leases.pause_tenant(message, for_="20m")
        assert await client.admin.pauses("t", "g") == ([("tenant", "default", None, tenant_ms, 3)], 0)
        group_ms = await leases.pause_group(message, for_="10m")
        assert await ends(client) == [group_ms] * 3
        assert await leases.pause_group(message, for_="1m") == group_ms
        assert await ends(client) == [group_ms] * 3, "a pause is never shortened"


async def test_pause_without_the_leader_of_a_partition_is_incomplete_until_it_is_repeated(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        message = await lease_on_three_nodes(nodes, client, "timer")
        stopped = node_of(nodes, 1)
        await nodes.stop(stopped)
        leases = client.leases("t", "g")
        leader = f"127.0.0.1:{nodes.client_ports[node_of(nodes, 0)]}"
        async with sandq.connect(leader, timeout="2s") as impatient:
            with pytest.raises(TimedOut, match="in 2 of 3 partitions: the leaders of partition 1 did not answer"):
                await impatient.leases("t", "g").pause_group(message, for_="10m")
        await nodes.start(stopped)
        end_ms = await leases.pause_group(message, for_="10m")
        await until_answer(lambda: ends(client), lambda found: found == [end_ms] * 3)
