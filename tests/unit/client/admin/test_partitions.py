"""Tests of the client's requests and replies for added and moved partitions and drained nodes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandq.client import offset_text
from sandq.client.admin.partitions import partition_rows, steps
from sandq.client.client import Client, connect_with
from sandq.client.options import Options
from sandq.errors import InvalidRequest, NotFound, NotLeader, UnknownPartition
from sandq.model.offsets import pack
from sandq.protocol.frames import Type, encode_error
from sandq.protocol.replies import Node, Partition
from tests.support.client.fake_server import FakeServer
from tests.support.client.helpers import QUICK
from tests.support.waiting import until_holds


def add_behind_its_back(server: FakeServer, partitions: int) -> None:
    """Add partitions to the topic on behalf of a different client."""
    before = server.topics["t"]
    server.add_topic("t", partitions)
    server.topics["t"] = server.topics["t"]._replace(number=before.number, initial_partitions=before.initial_partitions)


def test_added_partitions_are_used_immediately(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            with pytest.raises(UnknownPartition):
                await producer.send(b"x", partition=3)
            record = await client.admin.update_topic("t", partitions=4, replicas=3, ttl="1h")
            assert (len(record.partitions), record.initial_partitions, record.replicas) == (4, 1, 3)
            assert server.of_type(Type.TOPIC_UPDATE)[0][2:] == ["t", {"ttl": "1h"}, 4, 3]
            assert client._cluster.record("t") == record, "the answer contained the new partitions"
            await (await producer.send(b"y", partition=3))
        assert [row.value for row in server.stored["t", 3]] == [b"y"]
        for wrong in ({"partitions": 0}, {"replicas": -1}, {"partitions": "2"}, {"replicas": True}):
            with pytest.raises(InvalidRequest, match=next(iter(wrong))):
                await client.admin.update_topic("t", **wrong)  # type: ignore[arg-type]

    with_client(body)


def test_outdated_record_does_not_replace_a_recreated_topic(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"0")
        known = client._cluster.record("t")
        assert known is not None
        older = known._replace(number=known.number - 1, partitions=known.partitions * 4)
        # Another METADATA reply would replace the record, so no request is sent meanwhile.
        client._cluster.learn_all([older], client._cluster.generation)
        assert client._cluster.record("t") == known

    with_client(body)


def test_more_partitions_are_looked_for_before_one_is_said_not_to_be_there(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"0")
        add_behind_its_back(server, 3)
        await client.produce("t", b"1", partition=2)
        add_behind_its_back(server, 4)
        async with client.producer("t") as producer:
            await producer.send_many([b"2", b"3"], partition=3)
        assert [len(server.stored["t", partition]) for partition in range(4)] == [1, 0, 1, 2]
        with pytest.raises(UnknownPartition):
            await client.produce("t", b"x", partition=4)

    with_client(body)


def test_topic_requests_cover_partitions_added_meanwhile(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"0", delay="1h")
        messages = client.messages("t")
        for partitions, work in (
            (2, lambda: messages.cancel_all()),
            (3, lambda: messages.move_all(shift="1h")),
        ):
            add_behind_its_back(server, partitions)
            await work()
            asked = {frame[3] for frame in server.of_type(Type.JOB_START)}
            assert asked == set(range(partitions))
        add_behind_its_back(server, 4)
        assert len([message async for message in messages.list()]) <= 1
        assert {frame[3] for frame in server.of_type(Type.LIST)} == set(range(4))

    with_client(body)


def test_a_message_of_a_partition_that_was_not_known_is_found(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"0")
        add_behind_its_back(server, 2)
        async with connect_with(Options(), (server.address,), "another") as another:
            message_id = await another.produce("t", b"x", partition=1, delay="1h")
        assert await client.messages("t").cancel(message_id) == message_id
        with pytest.raises(NotFound):
            await client.messages("t").get(offset_text(pack(5, 5, 5, 7)))

    with_client(body)


def test_nodes_are_drained_and_removed(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.admin.drain_node("n3")
        assert server.registered["n3"]["standing"] == "draining"
        await client.admin.drain_node("n3", undo=True)
        await client.admin.remove_node("n3")
        assert [frame[2:] for frame in server.of_type(Type.NODE_CHANGE)] == [
            ["n3", "drain"],
            ["n3", "undrain"],
            ["n3", "remove"],
        ]
        with pytest.raises(NotFound):
            await client.admin.drain_node("nobody")
        for wrong in ("", "no node", None):
            with pytest.raises(InvalidRequest):
                await client.admin.remove_node(wrong)  # type: ignore[arg-type]
        assert (await client.admin.reset_clock("t", 0))["outcome"] == "begun"
        assert server.of_type(Type.CLOCK_RESET)[0][2:] == ["t", 0]
        await client.admin.transfer("t", 0, "n3")
        assert server.of_type(Type.TRANSFER)[0][2:] == ["t", 0, "n3"]
        await client.admin.rebuild("t", 0, "n3")
        assert server.of_type(Type.REBUILD)[0][2:] == ["t", 0, "n3"]
        for partition in (-1, 4096, "0"):
            with pytest.raises(InvalidRequest, match="partition"):
                await client.admin.transfer("t", partition, "n3")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="partition"):
                await client.admin.rebuild("t", partition, "n3")  # type: ignore[arg-type]

    with_client(body)


def test_a_certain_node_is_asked_about_the_cluster(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        other = FakeServer("n3")
        other.registered = server.registered
        async with anyio.create_task_group() as tasks:
            await other.start(tasks)
            server.registered["n3"]["client"] = other.address
            assert (await client.admin.cluster())["node"] == "n1"
            assert (await client.admin.cluster("n3"))["node"] == "n3"
            assert (await client.admin.cluster("n1"))["node"] == "n1"
            with pytest.raises(NotFound, match="'n7'"):
                await client.admin.cluster("n7")
            tasks.cancel_scope.cancel()

    with_client(body)


def test_rows_of_partitions(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("u", 2)
        assert [row["topic"] for row in await partition_rows(client.admin)] == ["t", "u", "u"]
        assert [row["topic"] for row in await partition_rows(client.admin, most=1)] == ["t"]
        (row, _) = await partition_rows(client.admin, "u")
        assert (row["partition"], row["leader"], row["moving"], row["steps"], row["messages"]) == (
            0,
            "n1",
            False,
            [],
            3,
        )

    with_client(body)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (None, ["waiting for a leader"]),
        ([("n1", True, {}), ("n2", True, {})], ["recording the result"]),
        ([("n1", True, {})], ["n2 will be added"]),
        ([("n1", True, {}), ("n2", False, {"behind": 1200})], ["n2 is catching up, 1,200 entries behind"]),
        ([("n1", True, {}), ("n2", False, {"behind": 1})], ["n2 is catching up, 1 entry behind"]),
        ([("n1", True, {}), ("n2", False, {"behind": 0})], ["n2 is catching up"]),
        (
            [
                ("n3", True, {}),
                ("n1", False, {"snapshot_sent": 63, "snapshot_bytes": 100, "behind": 9}),
                ("n2", True, {}),
            ],
            ["n3 is being removed", "n1 is catching up 63 %"],
        ),
        ([("n1", True, {}), ("n2", False, {"snapshot_sent": 500, "snapshot_bytes": 100})], ["n2 is catching up 99 %"]),
        ([("n1", True, {}), ("n2", False, {"snapshot_sent": 5, "snapshot_bytes": 0})], ["n2 is catching up"]),
    ],
)
def test_steps_of_a_move_are_described(
    members: list[tuple[str, bool, dict[str, int]]] | None, words: list[str]
) -> None:
    rows = None if members is None else [{"node": node, "voter": voter, **more} for node, voter, more in members]
    assert steps(Partition(0, 7, "n1", ("n1", "n2"), True), rows, 2) == words
    assert steps(Partition(0, 7, "n1", ("n1", "n2"), False), rows, 2) == []


def test_missing_replicas_are_named_before_nodes_are_chosen_for_them() -> None:
    row = Partition(0, 7, "n1", ("n1",), False)
    assert steps(row, [{"node": "n1", "voter": True}], 3) == ["2 of 3 replicas have no node yet"]


def test_error_of_ended_subscription_has_the_reason(run: Any) -> None:
    """Another node may not have heard of the new partitions yet."""

    async def main() -> None:
        first, leader = FakeServer("n1"), FakeServer("n2")
        async with anyio.create_task_group() as tasks:
            for server in (first, leader):
                await server.start(tasks)
            for server in (first, leader):
                server.nodes = [Node(one.node_id, "127.0.0.1", one.port) for one in (first, leader)]
                server.add_topic("t", leaders=["n2"])
            options = Options(**QUICK)  # type: ignore[arg-type]
            async with connect_with(options, (first.address,), "test") as client, client.subscribe("t", group="g"):
                assert not first.subscribed
                subscription_id = leader.subscription().request.subscription_id
                cluster = client._cluster
                await until_holds(lambda: not cluster._wanted and cluster._refresh_now._event)  # no request is sent
                leader.topics.clear()
                leader.add_topic("t", 2, leaders=["n2", "n1"])
                ended = encode_error(subscription_id, NotLeader("topic 't' has more partitions now"))
                leader.connections[0].send(ended)
                await until_holds(lambda: len(first.subscribed) == 1)
            tasks.cancel_scope.cancel()

    run(main)
