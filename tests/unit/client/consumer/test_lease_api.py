"""Leasing once, while leaders are looked for."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandq.client.client import Client
from sandq.model.errors import NotLeader, Unavailable
from sandq.protocol.frames import Type, encode_reply
from tests.support.client.fake_server import FakeServer
from tests.support.waiting import until_holds


def nothing(connection: Any, frame: Any) -> None:
    connection.send(encode_reply(frame[1], 0))


def leads(server: FakeServer, *partitions: int) -> None:
    server.add_topic("t", 2, leaders=[server.node_id if number in partitions else None for number in range(2)])


def test_nothing_is_said_only_of_the_whole_topic(with_client: Any) -> None:
    """What is in a partition that has no leader for a moment is not nothing."""

    async def body(server: FakeServer, client: Client) -> None:
        leads(server, 0)
        server.script[Type.LEASE] += [nothing] * 10_000
        found: list[Any] = []

        async def take() -> None:
            found.append(await client.leases("t", "g").take(1))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await until_holds(lambda: len(server.of_type(Type.LEASE)) >= 3)
            assert found == []
            leads(server, 0, 1)
        assert found == [[]]

    with_client(body, partitions=2)


def test_a_partition_without_a_leader_is_told_when_there_is_nothing_else(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        leads(server, 0)
        server.script[Type.LEASE] += [nothing] * 10_000
        for wait in (0, "100ms"):
            with pytest.raises(Unavailable, match="no leader of partition 1"):
                await client.leases("t", "g").take(1, wait=wait)
        leads(server)
        client._cluster.forget("t")
        with pytest.raises(Unavailable, match="no leader of partition 0, 1"):
            await client.leases("t", "g").take(1)

    with_client(body, partitions=2, timeout_s=0.2)


def test_it_is_asked_who_leads_before_a_node_is_asked_again(with_client: Any) -> None:
    """What was known is why the node refused: asked by that, it would wait without what another one leads."""

    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.LEASE].append(nothing)
        await client.leases("t", "g").take(1)
        kinds = (Type.METADATA, Type.LEASE)
        before = len([frame for frame in server.frames if frame[0] in kinds])
        server.script[Type.LEASE] += [NotLeader("another leads more by now"), nothing]
        assert await client.leases("t", "g").take(1) == []
        asked = [frame[0] for frame in server.frames if frame[0] in kinds][before:]
        first, *between, last = asked
        assert first == last == Type.LEASE and set(between) == {Type.METADATA}

    with_client(body)
