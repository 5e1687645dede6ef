"""Many LEASE requests wait for messages of one group while the leaders of its partitions change."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

import sandq
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.waiting import until_answer, until_holds, until_led

WAITING = 30


def waiting(nodes: ThreeNodes) -> int:
    """Return the number of waiting LEASE requests on all nodes."""
    waiters = [waiters for at in nodes.running.values() for waiters in at.broker._waiters.values()]
    return sum(len(one._waiting) for one in waiters)


async def led_by_each(nodes: ThreeNodes, client: sandq.Client) -> None:
    """Create topic "t" with one partition for each node, and wait until each node leads one."""
    await until_answer(client.admin.cluster, lambda info: len(info["nodes"]) == 3)
    await client.admin.create_topic("t", partitions=3, replicas=3)
    await until_answer(
        lambda: client.admin.topic("t"), lambda record: {row.leader for row in record.partitions} == {*NAMES}
    )


@pytest.mark.parametrize("ack", [False, True])
async def test_waiting_lease_ends_with_the_first_message_of_any_node(tmp_path: Path, ack: bool) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await led_by_each(nodes, client)
        leases = client.leases("t", "g")
        for number in range(3):
            got: list[sandq.LeasedMessage] = []

            async def take(got: list[sandq.LeasedMessage] = got) -> None:
                got += await leases.take(10, wait="1m", ack=ack)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                await until_holds(lambda: waiting(nodes) == 3)
                # Produce to each node's partition in turn.
                await client.produce("t", b"%d" % number, partition=number)
            assert [message.value for message in got] == [b"%d" % number]
            await until_holds(lambda: waiting(nodes) == 0)
            if not ack:
                assert await leases.ack(got) == []
        rows = await client.admin.groups("t")
        assert sum(row["leased"] + row["ready"] for row in rows) == 0


async def test_surplus_lease_is_given_back_and_taken_by_others(tmp_path: Path) -> None:
    """Two nodes lease a message for the same request. One message is given back, and its attempt does not count."""
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await led_by_each(nodes, client)
        leases = client.leases("t", "g")
        got: list[sandq.LeasedMessage] = []

        async def take() -> None:
            got.extend(await leases.take(1, wait="1m"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await until_holds(lambda: waiting(nodes) == 3)
            for partition in range(3):
                nursery.start_soon(partial(client.produce, "t", b"%d" % partition, partition=partition))
        while len(got) < 3:
            got += await leases.take(1, wait="1m")
        assert sorted(message.value for message in got) == [b"0", b"1", b"2"]
        assert [message.attempt for message in got] == [1, 1, 1]


async def test_waiting_leases_receive_messages_after_leadership_changes(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await until_answer(client.admin.cluster, lambda info: len(info["nodes"]) == 3)
        await client.admin.create_topic("t", partitions=2, replicas=3)
        got: list[bytes] = []

        async def take() -> None:
            leased: list[sandq.LeasedMessage] = []
            while not leased:
                leased = await client.leases("t", "g").take(1, wait="1m", ack=True)
            got.extend(message.value for message in leased)

        async with trio.open_nursery() as nursery:
            for _ in range(WAITING):
                nursery.start_soon(take)
            await until_holds(lambda: waiting(nodes) >= WAITING)
            for partition in (0, 1):
                leader = await until_led(client, partition=partition)
                other = next(name for name in NAMES if name != leader)
                await until_answer(
                    # type: ignore[misc]
                    lambda partition=partition, other=other: client.admin.transfer("t", partition, other)
                )
                await until_led(client, partition=partition, but=leader)
            sent = [b"%d" % number for number in range(WAITING)]
            for number, value in enumerate(sent):
                await client.produce("t", value, key=b"%d" % (number % 7))
        assert sorted(got) == sorted(sent), "each once"
        await until_holds(lambda: not any(at.broker._waiters for at in nodes.running.values()))
