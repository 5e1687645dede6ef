"""A topic gets more partitions while it is in use: running consumers get the messages of the new ones, unique keys are
found before and after, and requests about the whole topic cover all of it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import trio

import sandq
from sandq.client import client as client_module
from sandq.client import offset_bytes
from sandq.client.options import Options
from sandq.errors import DuplicateKey, InvalidRequest, TooLarge
from sandq.model.offsets import unpack
from sandq.model.partitioning import partition_for
from tests.support.nodes.three import ThreeNodes, three_nodes
from tests.support.waiting import until_answer, until_holds

FEW, MANY = 2, 7
KEYS = [b"key%d" % number for number in range(40)]


def partition_of(message_id: str) -> int:
    return unpack(offset_bytes(message_id)).partition


async def raised(nodes: ThreeNodes, partitions: int = MANY, name: str = "node2") -> None:
    """Raise the number of partitions, and wait until replicas and leaders are spread over all nodes."""
    async with nodes.connect(name) as client:
        record = await client.admin.update_topic("t", partitions=partitions)
        assert (len(record.partitions), record.initial_partitions) == (partitions, FEW)
        assert all(len(row.nodes) == 2 for row in record.partitions)
        await until_answer(
            lambda: client.admin.topic("t"),
            lambda topic: {row.leader for row in topic.partitions} == set(nodes.running),  # replicas are spread
        )


async def until_registered(nodes: ThreeNodes) -> None:
    await until_holds(lambda: all(len(s.broker.metadata.nodes) == 3 for s in nodes.running.values()))


@pytest.mark.parametrize("met", ["node1", "node2", "node3"])
async def test_running_consumer_receives_from_new_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, met: str
) -> None:
    """Clients do not refresh their topics periodically during this test."""
    monkeypatch.setattr(client_module, "Options", partial(Options, metadata_interval_s=math.inf))
    got: set[tuple[int, bytes]] = set()

    async def consume(client: sandq.Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            async for message in subscription:
                assert (message.partition, message.value) not in got, "once"
                got.add((message.partition, message.value))
                await message.ack()

    async with three_nodes(tmp_path) as nodes, nodes.connect(met) as client, trio.open_nursery() as nursery:
        await until_registered(nodes)
        await client.admin.create_topic("t", partitions=FEW, replicas=2)
        nursery.start_soon(consume, client)
        async with nodes.connect(met) as running, running.producer("t") as producer:
            await (await producer.send(b"before", partition=1))
            await until_holds(lambda: (1, b"before") in got)
            await raised(nodes)
            for partition in range(MANY):
                # The client knows two partitions. It refreshes its metadata before it reports an unknown partition.
                await (await producer.send(b"after", partition=partition))
            await until_holds(lambda: len(got) >= 1 + MANY)
        assert got == {(1, b"before"), *[(partition, b"after") for partition in range(MANY)]}
        nursery.cancel_scope.cancel()


async def test_unique_keys_are_found_before_and_after(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as old:
        await until_registered(nodes)
        await old.admin.create_topic("t", partitions=FEW, replicas=2)
        before = {key: await old.produce("t", b"1", unique_key=key, delay="1h") for key in KEYS}
        await raised(nodes)
        async with nodes.connect("node3") as new:
            for number, client in enumerate((old, new)):
                mine = KEYS[number::4]
                messages = client.messages("t")
                for key in mine:
                    with pytest.raises(DuplicateKey) as taken:
                        await client.produce("t", b"2", unique_key=key, delay="1h")
                    assert taken.value.details["id"] == before[key]
                    replaced = await client.produce("t", b"3", unique_key=key, delay="1h", on_conflict="replace")
                    assert partition_of(replaced) == partition_of(before[key]) == partition_for(key, FEW)
                    assert (await messages.get(unique_key=key)).value == b"3"
                    assert await messages.cancel(unique_key=key) == replaced
            left = [message.unique_key async for message in new.messages("t").list()]
            assert sorted(filter(None, left)) == sorted(set(KEYS) - set(KEYS[0::4]) - set(KEYS[1::4]))


async def test_keys_go_to_all_partitions_and_keep_their_order(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect("node1") as client:
        await until_registered(nodes)
        await client.admin.create_topic("t", partitions=FEW, replicas=2)
        async with client.producer("t") as producer:
            for round_ in range(2):
                receipts = [await producer.send(b"%d" % round_, key=key) for key in KEYS]
                partitions = {key: partition_of(await receipt) for key, receipt in zip(KEYS, receipts, strict=True)}
                assert partitions == {key: partition_for(key, (FEW, MANY)[round_]) for key in KEYS}
                if not round_:
                    await client.admin.update_topic("t", partitions=MANY)
                    # the producer learns of the new partitions
                    await until_holds(lambda: producer._partitioner.partitions == MANY)


async def test_topic_requests_cover_new_partitions(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect("node1") as client, nodes.connect("node3") as other:
        await until_registered(nodes)
        await client.admin.create_topic("t", partitions=FEW, replicas=2)
        await client.produce("t", b"x", delay="1h")
        await raised(nodes)
        ids = [await other.produce("t", b"x", partition=partition, delay="1h") for partition in range(MANY)]
        assert len([message async for message in client.messages("t").list()]) == MANY + 1
        assert (await client.messages("t").get(ids[-1])).partition == MANY - 1
        assert (await client.messages("t").cancel_all()).done == MANY + 1


async def test_invalid_partition_and_replica_counts_are_rejected(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await until_registered(nodes)
        await client.admin.create_topic("t", partitions=FEW, replicas=2)
        for counts, words in (
            ({"partitions": 1}, "they cannot become fewer"),
            ({"partitions": 5000}, "4096"),
            ({"replicas": 4}, "4 replicas, and 3 nodes"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                await client.admin.update_topic("t", **counts)  # type: ignore[arg-type]
        record = await client.admin.update_topic("t", partitions=FEW, replicas=3, ttl="1h")
        assert (len(record.partitions), record.replicas, record.settings["ttl_ms"]) == (FEW, 3, 3_600_000)
        await until_holds(
            lambda: all(
                len(placed.nodes) == 3 and not placed.moving
                for serving in nodes.running.values()
                for placed in serving.broker.metadata.topics["t"].partitions
            )
        )


async def test_partitions_per_node_are_limited(tmp_path: Path) -> None:
    refused = (
        r"the nodes cannot hold \d more replicas .* node[123] holds \d, .* "
        r"4 at most \(limits.partitions_per_node\): add nodes"
    )
    async with three_nodes(tmp_path, LIMITS__PARTITIONS_PER_NODE="4") as nodes, nodes.connect() as client:
        await until_registered(nodes)
        await client.admin.create_topic("t", partitions=6, replicas=2)
        with pytest.raises(TooLarge, match=refused):
            await client.admin.create_topic("one")
        with pytest.raises(TooLarge, match=refused):
            await client.admin.update_topic("t", replicas=3)
        await client.admin.delete_topic("t")
        await client.admin.create_topic("t", partitions=3, replicas=2)
        with pytest.raises(TooLarge, match=refused):
            await client.admin.update_topic("t", partitions=5, replicas=3)
        record = await client.admin.update_topic("t", partitions=4, replicas=3)
        assert (len(record.partitions), record.replicas) == (4, 3)
