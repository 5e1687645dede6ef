"""The partitions of a large topic are opened a few at a time, so that other tasks run meanwhile."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

import sandq
from sandq.broker.controller import reconciler
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.replication.node_log import NodeLog
from sandq.errors import InvalidRequest, TooLarge
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.server.topic_records import TopicRecords
from tests.integration.conftest import Dial
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S

PARTITIONS = 200


async def test_other_tasks_run_while_partitions_are_opened(api: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = 0
    opened: list[int] = []
    ended = 0
    open_partition, end_subscriptions = NodeLog.open_partition, PartitionLeader.end_subscriptions

    def noted(self: NodeLog, *args: Any) -> Any:
        opened.append(turn)
        return open_partition(self, *args)

    def counted(self: PartitionLeader, error: sandq.errors.SandqError) -> None:
        nonlocal ended
        ended += 1
        end_subscriptions(self, error)

    monkeypatch.setattr(NodeLog, "open_partition", noted)
    monkeypatch.setattr(PartitionLeader, "end_subscriptions", counted)

    async def another() -> None:
        nonlocal turn
        while True:
            turn += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(another)
        with trio.fail_after(PATIENCE_S):
            await api.admin.create_topic("t", partitions=PARTITIONS)
        nursery.cancel_scope.cancel()
    assert len(opened) == PARTITIONS
    assert max(opened.count(at) for at in set(opened)) <= 2 * reconciler.OPENED_AT_ONCE
    assert ended == 0, "a new leader must not cause a scan of all idle partitions"
    await api.produce("t", b"x", partition=PARTITIONS - 1)


async def test_subscription_receives_from_partitions_added_later(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    async with api.subscribe("t", group="g") as subscription:
        with trio.fail_after(PATIENCE_S):
            await api.produce("t", b"a", partition=0)
            assert (await anext(subscription)).value == b"a"
            await api.admin.update_topic("t", partitions=20)
            await api.produce("t", b"b", partition=19)
            assert (await anext(subscription)).value == b"b"


async def test_topics_and_partitions_of_cluster_are_limited(tmp_path: Path) -> None:
    config = small_config(tmp_path, LIMITS__TOPICS="2", LIMITS__PARTITIONS="5")
    async with run_node(config) as node, connected(node) as api:
        await api.admin.create_topic("a", partitions=3)
        with pytest.raises(TooLarge, match=r"6 partitions; 5 are allowed \(limits.partitions\)"):
            await api.admin.create_topic("b", partitions=3)
        await api.admin.create_topic("b", partitions=1)
        with pytest.raises(TooLarge, match=r"3 topics; 2 are allowed \(limits.topics\)"):
            await api.admin.create_topic("c")
        with pytest.raises(TooLarge, match="6 partitions"):
            await api.admin.update_topic("b", partitions=3)
        await api.admin.update_topic("b", partitions=2, retention="1h")
        await api.admin.delete_topic("a")
        await api.admin.create_topic("c", partitions=3)


async def test_partitions_per_node_are_limited(tmp_path: Path) -> None:
    refused = (
        r"the nodes cannot hold 2 more replicas of partitions: node1 holds 3, and a node holds 4 at most "
        r"\(limits.partitions_per_node\): add nodes, .* or raise it"
    )
    config = small_config(tmp_path, LIMITS__PARTITIONS_PER_NODE="4")
    async with run_node(config) as node, connected(node) as api:
        await api.admin.create_topic("a", partitions=3)
        with pytest.raises(TooLarge, match=refused) as found:
            await api.admin.create_topic("b", partitions=2)
        assert found.value.details["limit"] == "partitions_per_node"
        with pytest.raises(TooLarge, match=refused):
            await api.admin.update_topic("a", partitions=5)
        await api.admin.create_topic("b", partitions=1)
    async with run_node(small_config(tmp_path, LIMITS__PARTITIONS_PER_NODE="2")) as node, connected(node) as api:
        assert len(await api.admin.list_topics()) == 2, "existing partitions must open and continue"
        await api.produce("a", b"m", partition=2)
        await api.admin.update_topic("a", retention="1h")
        with pytest.raises(TooLarge, match=r"1 more replicas of partitions: node1 holds 4, .* 2 at most"):
            await api.admin.create_topic("c")
        await api.admin.delete_topic("a")
        await api.admin.create_topic("c")


async def test_partitions_per_topic_are_limited(tmp_path: Path) -> None:
    refused = r"a topic of 3 partitions; 1 to 2 are allowed \(limits.partitions_per_topic\): take fewer, or raise it"
    async with run_node(small_config(tmp_path, LIMITS__PARTITIONS_PER_TOPIC="2")) as node, connected(node) as api:
        with pytest.raises(InvalidRequest, match=refused):
            await api.admin.create_topic("a", partitions=3)
        await api.admin.create_topic("a", partitions=2)
        with pytest.raises(InvalidRequest, match=refused):
            await api.admin.update_topic("a", partitions=3)
    async with run_node(small_config(tmp_path, LIMITS__PARTITIONS_PER_TOPIC="1")) as node, connected(node) as api:
        await api.produce("a", b"m", partition=1)


async def test_a_topic_that_is_asked_for_again_and_again_is_encoded_once(
    node: Serving, api: sandq.Client, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    encode = TopicRecords._encode

    async def counted(self: TopicRecords, record: Any, turn: Any) -> bytes:
        nonlocal made
        made += 1
        return await encode(self, record, turn)

    await api.admin.create_topic("t", partitions=PARTITIONS)
    await node.broker.routes.until_led(
        [partition.group for partition in node.broker.catalog.topic("t").record.partitions]
    )
    monkeypatch.setattr(TopicRecords, "_encode", counted)
    client, asked = await dial(node), 500
    one = await client.call(Type.METADATA, ["t"])
    assert [row[2] is not None for row in one[3][0]["partitions"]] == PARTITIONS * [True]
    body = msgpack.packb([Type.METADATA, 9, ["t"]])
    await client.send_bytes(asked * (struct.pack(">I", len(body)) + body))
    for _ in range(asked):
        assert (await client.receive())[2:] == one[2:]
    assert made <= 1
