"""Tests of single lease requests while leaders change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from sandq.client.client import Client
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import NotLeader, Unavailable
from sandq.model.piece import LeasedPieces, Piece
from sandq.protocol.frames import Type, encode_reply
from sandq.protocol.replies import encode_deliver
from sandq.protocol.requests import Lease
from tests.support.client.fake_server import GROUP_NUMBER, SILENCE, FakeServer
from tests.support.client.helpers import two_nodes
from tests.support.waiting import until_holds


def nothing(connection: Any, frame: Any) -> None:
    connection.send(encode_reply(frame[1], 0))


def gives(partition: int, *values: bytes) -> Any:
    """Answer a LEASE with these messages."""

    def react(connection: Any, frame: Any) -> None:
        batch = encode({Column.VALUE: list(values)})
        piece = Piece(offsets.pack(connection.server.now_ms, 200, 0, partition), None, 0, None, batch)
        lease = LeasedPieces(GROUP_NUMBER + partition, partition, 5 << 16, 1, connection.server.now_ms, [piece])
        for pushed in encode_deliver(frame[1], lease, last=True):
            connection.send(pushed)
        connection.send(encode_reply(frame[1], len(values)))

    return react


def leads(server: FakeServer, *partitions: int) -> None:
    server.add_topic("t", 2, leaders=[server.node_id if number in partitions else None for number in range(2)])


def test_empty_result_needs_all_partitions(with_client: Any) -> None:
    """A partition that temporarily has no leader may have messages."""

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


def test_partition_without_leader_is_reported_when_nothing_else_is_ready(with_client: Any) -> None:
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


def test_leader_is_looked_up_before_a_retry(with_client: Any) -> None:
    """The known leader refused the request.

    A retry with the same leader would not see the messages at the new leader.
    """

    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.LEASE].append(nothing)
        await client.leases("t", "g").take(1)
        kinds = (Type.METADATA, Type.LEASE)
        before = len([frame for frame in server.frames if frame[0] in kinds])
        server.script[Type.LEASE] += [NotLeader("another leads more by now"), nothing]
        assert await client.leases("t", "g").take(1) == []
        asked = [frame[0] for frame in server.frames if frame[0] in kinds][before:]
        # Metadata requests may also come from a timer, at any moment on a slow machine.
        refused, again = [at for at, kind in enumerate(asked) if kind == Type.LEASE]
        assert Type.METADATA in asked[refused:again]

    with_client(body)


def waiting(server: FakeServer) -> list[Any]:
    """Requests that wait or waited at this server."""
    return [frame for frame in server.of_type(Type.LEASE) if Lease.parse(frame).wait_ms]


def let_wait(connection: Any, frame: Any) -> None:
    if not Lease.parse(frame).wait_ms:
        nothing(connection, frame)


@asynccontextmanager
async def waiting_at_two(found: list[bytes], **wanted: Any) -> AsyncIterator[tuple[FakeServer, FakeServer]]:
    """Request two messages and wait at two leaders that have none yet, inside the block."""
    async with two_nodes() as (one, two, client):
        for server in (one, two):
            server.script[Type.LEASE] += [let_wait] * 10_000

        async def take() -> None:
            found.extend([message.value for message in await client.leases("t", "g").take(2, wait="1m", **wanted)])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            yield one, two


def give(server: FakeServer, partition: int, *values: bytes) -> None:
    """Give the messages to the waiting request."""
    for connection in server.connections:
        gives(partition, *values)(connection, waiting(server)[-1])


@pytest.mark.parametrize("quick", [0, 1])
def test_first_leader_with_messages_ends_the_wait(run: Any, quick: int) -> None:
    """The other leaders get a cancellation and no further request."""

    async def main() -> None:
        found: list[bytes] = []
        async with waiting_at_two(found) as servers:
            await until_holds(lambda: all(map(waiting, servers)))
            give(servers[quick], quick, b"a")
            other = servers[1 - quick]
            await until_holds(lambda: other.unsubscribed == [waiting(other)[0][1]])
        assert found == [b"a"]
        assert [len(waiting(server)) for server in servers] == [1, 1]

    run(main)


def test_lease_from_several_leaders_never_exceeds_the_requested_number(run: Any) -> None:
    """Surplus messages are released one by one, or all of them if the reply came too late."""

    async def main() -> None:
        found: list[bytes] = []
        async with waiting_at_two(found) as (one, two):
            await until_holds(lambda: waiting(one) and waiting(two))
            give(one, 0, b"a", b"b")
            give(two, 1, b"c", b"d")
        assert found in ([b"a", b"b"], [b"c", b"d"])
        assert len(one.nacks + two.nacks) + len(one.unsubscribed + two.unsubscribed) == 1

    run(main)


def test_ack_waits_until_the_owner_is_known(run: Any) -> None:
    """A node cannot undo an ack."""

    async def main() -> None:
        found: list[bytes] = []
        async with waiting_at_two(found, ack=True) as (one, two):
            await until_holds(lambda: waiting(one) and waiting(two))
            assert not any(Lease.parse(frame).ack for frame in waiting(one) + waiting(two))
            give(two, 1, b"a", b"b")
        assert found == [b"a", b"b"] and not one.nacks + two.nacks
        assert len(two.of_type(Type.ACK)) == 1 and not one.of_type(Type.ACK)

    run(main)


def test_an_ack_that_fails_at_one_leader_loses_nothing_of_the_other(run: Any) -> None:
    """Acked messages are returned, because they are never redelivered."""

    async def main() -> None:
        async with two_nodes(timeout_s=0.3) as (one, two, client):
            for server in (one, two):
                server.script[Type.LEASE] += [let_wait] * 10_000
            two.script[Type.ACK] += [Unavailable("no quorum")] * 10_000
            found: list[bytes] = []

            async def take() -> None:
                taken = await client.leases("t", "g").take(2, wait="1m", ack=True)
                found.extend(message.value for message in taken)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                await until_holds(lambda: waiting(one) and waiting(two))
                give(two, 1, b"c")
                give(one, 0, b"a")
                await until_holds(lambda: found or two.of_type(Type.ACK))
                if not one.of_type(Type.ACK) and not found:
                    tasks.cancel_scope.cancel()  # only the other ack was in time
            assert found in ([], [b"a"])
            assert bool(found) == bool(one.of_type(Type.ACK))

    run(main)


def test_cancelled_lease_request_gives_messages_back(run: Any) -> None:
    async def main() -> None:
        async with two_nodes() as (one, two, client):
            for server in (one, two):
                server.script[Type.LEASE] += [nothing] * 10_000
            assert await client.leases("t", "g").take() == [], "the client is connected to both nodes"
            two.frames.clear()
            one.script[Type.LEASE].appendleft(gives(0, b"a"))
            two.script[Type.LEASE].appendleft(SILENCE)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.leases("t", "g").take, 3)
                await until_holds(lambda: two.of_type(Type.LEASE))
                tasks.cancel_scope.cancel()
            ((row,),) = [nack.items for nack in one.nacks]
            assert row[0] == 5 << 16 and row[4] is False
            await until_holds(lambda: two.unsubscribed)

    run(main)
