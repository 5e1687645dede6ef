"""Consumers that receive messages only from some partitions of a topic."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import sandq
from sandq.errors import InvalidRequest, UnknownPartition
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.working import take, values
from tests.support.waiting import PATIENCE_S, until_holds


@pytest.fixture
async def topic(api: sandq.Client) -> str:
    """Topic with four partitions. Each message contains the number of its partition."""
    await api.admin.create_topic("t", partitions=4, lease="10m")
    for partition in range(4):
        for number in range(2):
            await api.produce("t", b"%d-%d" % (partition, number), partition=partition)
    return "t"


async def test_a_subscription_to_some(api: sandq.Client, topic: str) -> None:
    async with api.subscribe(topic, group="g", partitions=[3, 0, 3], credit=100) as some:
        assert sorted(values(await take(some, 4))) == [b"0-0", b"0-1", b"3-0", b"3-1"]
        async with api.subscribe(topic, group="g", credit=100) as others:
            assert sorted(values(await take(others, 4))) == [b"1-0", b"1-1", b"2-0", b"2-1"]
            await api.produce(topic, b"more", partition=1)
            assert values(await take(others, 1)) == [b"more"]


async def test_group_is_created_only_in_chosen_partitions(api: sandq.Client, topic: str) -> None:
    async with api.subscribe(topic, group="h", partitions={2}):
        assert [row["partition"] for row in await api.admin.groups(topic) if row["group"] == "h"] == [2]


async def test_a_run_over_some(api: sandq.Client, topic: str) -> None:
    got: list[bytes] = []

    async def handle(message: sandq.Message) -> None:
        got.append(message.value)
        if len(got) == 2:
            nursery.cancel_scope.cancel()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: api.run(topic, "g", handle, partitions=[2]))
    assert sorted(got) == [b"2-0", b"2-1"]


async def test_taking_from_some(api: sandq.Client, topic: str) -> None:
    leases = api.leases(topic, "g")
    found = await leases.take(100, partitions=[1, 2], ack=True)
    assert sorted(message.value for message in found) == [b"1-0", b"1-1", b"2-0", b"2-1"]
    assert await leases.take(100, partitions=[1, 2]) == []


async def test_waiting_lease_is_woken_only_by_its_partitions(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    leases = api.leases("t", "g")
    got: dict[int, list[bytes]] = {}

    async def wait(partition: int) -> None:
        found = await leases.take(1, wait="1m", partitions=[partition])
        got[partition] = [message.value for message in found]

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for partition in range(2):
                nursery.start_soon(wait, partition)
            await until_holds(lambda: sum(waiters.in_use for waiters in node.broker._waiters.values()) == 2)
            await api.produce("t", b"second", partition=1)
            await until_holds(lambda: got == {1: [b"second"]})
            await api.produce("t", b"first", partition=0)
    assert got[0] == [b"first"]


async def test_missing_partitions_are_rejected(api: sandq.Client, topic: str) -> None:
    with pytest.raises(UnknownPartition, match="no partition 4: it has 4"):
        async with api.subscribe(topic, group="g", partitions=[1, 4]):
            pass
    with pytest.raises(UnknownPartition, match="no partition 4"):
        await api.leases(topic, "g").take(partitions=[4])


async def test_a_partition_that_is_new(api: sandq.Client, node: Serving, topic: str) -> None:
    async with sandq.connect(f"127.0.0.1:{node.client_port}") as other:
        await other.admin.update_topic(topic, partitions=5)
    await until_holds(lambda: len(node.broker.catalog.led(topic)) == 5)
    async with api.subscribe(topic, group="g", partitions=[4]) as subscription:
        await api.produce(topic, b"new", partition=4)
        assert values(await take(subscription, 1)) == [b"new"]


@pytest.mark.parametrize("partitions", [[], [-1], [4096], ["1"], [True], "12", 3])
async def test_invalid_partition_lists_are_rejected(api: sandq.Client, partitions: Any) -> None:
    with pytest.raises(InvalidRequest, match="partitions"):
        api.subscribe("t", group="g", partitions=partitions)
    with pytest.raises(InvalidRequest, match="partitions"):
        await api.leases("t", "g").take(partitions=partitions)


async def test_node_rejects_missing_partitions(node: Serving, dial: Dial) -> None:
    raw = await dial(node)
    await raw.create()
    answer = await raw.call(Type.SUBSCRIBE, 1, "t", "g", "c", 10, None, "earliest", [], None, [1])
    assert (answer[0], answer[2]) == (Type.ERROR, "UNKNOWN_PARTITION")
    answer = await raw.call(Type.LEASE, "t", "g", "c", 10, 0, None, "earliest", False, [0, 9])
    assert (answer[0], answer[2]) == (Type.ERROR, "UNKNOWN_PARTITION")
