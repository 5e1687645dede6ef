"""A pause of a named limit holds in the partitions of all nodes, and while its home or a member has no leader."""

from __future__ import annotations

import pytest

import sandq
from sandq.client import Client
from sandq.client.consumer.lease_api import LeasedMessage
from sandq.errors import TimedOut
from tests.integration.cluster.test_lease_pauses import node_of
from tests.support.nodes.three import ThreeNodes
from tests.support.waiting import until_answer


async def lease_on_three_nodes(nodes: ThreeNodes, client: Client) -> LeasedMessage:
    """Create a topic with a partition on each node, whose group uses a limit in each. Return a leased message."""
    await client.admin.set_limit("llm", max_in_flight=9)
    await client.admin.create_topic("t", partitions=3, replicas=1)
    await client.admin.limit_group("t", "g", limit="llm")
    leases = client.leases("t", "g")
    held: list[LeasedMessage] = []
    for partition in range(3):
        await client.produce("t", b"first", partition=partition)
        held += await leases.take(1, partitions=[partition], wait="1m")
        await client.produce("t", b"second", partition=partition)
    return next(message for message in held if message.partition == 0)


async def reasons(client: Client) -> list[str]:
    return [row["reason"] or "" for row in await client.admin.groups("t")]


async def test_pause_holds_on_three_nodes_after_the_home_stopped(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        message = await lease_on_three_nodes(nodes, client)
        leases = client.leases("t", "g")
        end_ms = await leases.pause_limit(message, for_="30m")
        limit = await client.admin.limit("llm")
        assert (limit["paused_until_ms"], limit["unpaused"], len(limit["members"])) == (end_ms, 0, 3)
        assert await leases.take(9) == []
        assert all("the limit llm is paused until" in reason for reason in await reasons(client))
        home = await nodes.until_led(topic="sandq.limits", partition=0)
        await nodes.hand_over(*{"node1", "node2", "node3"} - {home}, topic="sandq.limits", partition=0)
        await until_answer(lambda: client.admin.limit("llm"), lambda one: one["unpaused"] == 0)
        assert await leases.pause_limit(message, for_="1m") == end_ms, "the new leader of the home knows the pause"
        await client.admin.resume_limit("llm")
        assert len(await leases.take(1, wait="1m")) == 1


async def test_pause_is_incomplete_until_a_member_has_a_leader_again(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        message = await lease_on_three_nodes(nodes, client)
        stopped = node_of(nodes, 1)
        await nodes.stop(stopped)
        leader = f"127.0.0.1:{nodes.client_ports[node_of(nodes, 0)]}"
        async with sandq.connect(leader, timeout="2s") as impatient:
            with pytest.raises(TimedOut, match="2 of 3 partitions of its groups"):
                await impatient.leases("t", "g").pause_limit(message, for_="10m")
        limit = await client.admin.limit("llm")
        assert (limit["paused"], limit["unpaused"]) == (True, 1)
        await nodes.start(stopped)
        await until_answer(lambda: client.admin.limit("llm"), lambda one: one["unpaused"] == 0)
        assert all("the limit llm is paused until" in reason for reason in await reasons(client))
