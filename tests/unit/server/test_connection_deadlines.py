"""Tests of the time limits for a client to introduce itself and to read its replies."""

from __future__ import annotations

import socket
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sandq.broker.memory_budget import MemoryBudget
from sandq.model.errors import Overloaded
from sandq.protocol.frames import FrameReader
from sandq.server.client_stats import ClientStats
from sandq.server.connection import HELLO_S, Connection
from sandq.server.output import CROWDED_STALL_S, SEND_BYTES, SEND_STALL_S
from tests.support.nodes.one_connection import NothingTogether, one_connection

BUFFER_BYTES = 16 << 10
"""Size of a socket buffer. The system doubles it."""
LARGE = 16 * SEND_BYTES


class Session(NothingTogether):
    def __init__(self, greeted: bool) -> None:
        self.greeted = greeted

    def handle(self, frame: Any) -> None: ...

    def handled(self) -> None: ...

    def drained(self) -> None: ...

    async def closed(self) -> None: ...


async def advance(clock: MockClock, seconds: float) -> None:
    """Let all tasks run until this time."""
    await wait_all_tasks_blocked()
    clock.jump(seconds)
    await wait_all_tasks_blocked()


def connected(
    greeted: bool = True, **options: Any
) -> AbstractAsyncContextManager[tuple[Connection, trio.SocketStream]]:
    return one_connection(lambda connection: Session(greeted), **options)


async def test_a_client_must_say_hello_in_time(mock_clock: MockClock) -> None:
    stats = ClientStats()
    async with connected(greeted=False, stats=stats) as (connection, client):
        await advance(mock_clock, HELLO_S - 0.1)
        assert connection.open and not stats.errors
        await advance(mock_clock, 0.2)
        (error,) = FrameReader().feed(await client.receive_some(1000))
        assert error[:4] == [255, 0, "PROTOCOL", "no HELLO within 10 s"]
        assert await client.receive_some(1000) == b""
        assert not connection.open and stats.errors == {"PROTOCOL": 1}


async def test_a_client_that_has_said_hello_may_be_silent(mock_clock: MockClock) -> None:
    async with connected() as (connection, _):
        await advance(mock_clock, 2 * HELLO_S)
        assert connection.open


def shrink_buffers(connection: Connection, client: trio.SocketStream) -> None:
    """Make the system buffer less than one piece of the unread bytes."""
    connection._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)


async def test_a_client_that_takes_nothing_is_cut_off(mock_clock: MockClock) -> None:
    memory = MemoryBudget(1 << 30)
    async with connected(memory=memory) as (connection, client):
        shrink_buffers(connection, client)
        connection.send(bytes(LARGE))
        await advance(mock_clock, SEND_STALL_S - 1)
        taken = 0
        while taken < 2 * SEND_BYTES:
            taken += len(await client.receive_some(SEND_BYTES))
        await advance(mock_clock, SEND_STALL_S - 1)
        assert connection.open and memory.answers.bytes > 0, (
            "the client has read a piece, and the next piece has its own time limit"
        )
        await advance(mock_clock, 2)
        assert not connection.open and memory.answers.bytes == 0, "the connection holds no memory any more"


async def test_a_client_that_takes_nothing_while_others_wait_is_cut_off_soon(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    memory = MemoryBudget(1 << 30)
    full_bytes = int(memory.answers.share_bytes)
    async with connected(memory=memory) as (connection, client):
        shrink_buffers(connection, client)
        memory.answers.take(full_bytes)
        nursery.start_soon(memory.answers.wait_for_capacity)
        await wait_all_tasks_blocked()
        connection.send(bytes(LARGE))
        await advance(mock_clock, CROWDED_STALL_S - 0.1)
        assert connection.open
        await advance(mock_clock, 0.2)
        assert not connection.open and memory.answers.bytes == full_bytes
        memory.answers.give_back(full_bytes)


async def test_a_connection_that_is_ended_at_once_does_not_wait_for_a_client_that_takes_nothing(
    mock_clock: MockClock,
) -> None:
    memory = MemoryBudget(1 << 30)
    async with connected(memory=memory) as (connection, client):
        shrink_buffers(connection, client)
        connection.send(bytes(LARGE))
        await wait_all_tasks_blocked()
        connection.end_at_once(Overloaded("another one has its place"))
        await wait_all_tasks_blocked()
        assert connection._stream.socket.fileno() == -1, "the socket is closed without delay"
        assert not connection.open and memory.answers.bytes == 0


async def test_a_connection_that_is_ended_at_once_says_why_if_its_client_takes_it(mock_clock: MockClock) -> None:
    async with connected() as (connection, client):
        await wait_all_tasks_blocked()
        connection.end_at_once(Overloaded("another one has its place"))
        (error,) = FrameReader().feed(await client.receive_some(1000))
        assert error[:4] == [255, 0, "OVERLOADED", "another one has its place"]
        assert await client.receive_some(1000) == b""
