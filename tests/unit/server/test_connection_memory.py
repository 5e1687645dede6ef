"""Tests of the memory that partial frames and unread replies may hold, per connection and in total."""

from __future__ import annotations

import struct
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sandq.broker.memory_budget import MemoryBudget
from sandq.model.caller import ANONYMOUS, Caller
from sandq.model.errors import Overloaded
from sandq.protocol.frames import FrameReader, Type
from sandq.server import connection as connection_module
from sandq.server.caller_requests import WAITING_BYTES
from sandq.server.connection import HELLO_BYTES, Connection
from sandq.server.output import Sender
from tests.support.nodes.one_connection import NothingTogether, one_connection
from tests.support.stopped_time import loop_clock
from tests.support.waiting import until_holds

__all__ = ["loop_clock"]

LARGE = 1 << 20


class Session(NothingTogether):
    greeted = True

    def __init__(self) -> None:
        self.frames: list[int] = []
        """Sizes of the received frames."""
        self.came = trio.Event()
        self.drains = 0
        self.answers = True
        """Whether the session answers at once."""
        self.connection: Connection

    def handle(self, frame: Any) -> None:
        self.frames.append(len(frame[2]))
        if self.answers:
            self.connection.reply(frame[1], b"")

    def handled(self) -> None:
        if self.frames:
            self.came.set()

    def drained(self) -> None:
        self.drains += 1

    async def closed(self) -> None: ...


@pytest.fixture
def memory() -> MemoryBudget:
    return MemoryBudget(8 * 2 * LARGE)  # requests get an eighth of the budget: two large frames


def connected(
    memory: MemoryBudget, session: Session, host: str = "10.0.0.1"
) -> AbstractAsyncContextManager[tuple[Connection, trio.SocketStream]]:
    """Return a connection from this host, whose session is `session`."""

    def make_session(connection: Connection) -> Session:
        session.connection = connection
        return session

    return one_connection(make_session, caller=Caller(ANONYMOUS, f"{host}:1"), memory=memory)


def frame_of(size: int, number: int = 1, kind: Type = Type.PRODUCE) -> bytes:
    body = msgpack.packb([int(kind), number, bytes(size)])
    return struct.pack(">I", len(body)) + body


SMALL = frame_of(1)


async def test_partial_frame_is_counted_until_complete(memory: MemoryBudget) -> None:
    session, large = Session(), frame_of(LARGE)
    async with connected(memory, session) as (_, client):
        await client.send_all(SMALL + large[:100])
        await until_holds(lambda: memory.requests.bytes == len(large))
        await client.send_all(large[100:] + SMALL)
        await until_holds(lambda: len(session.frames) == 3)
        assert memory.requests.bytes == 0
        await client.send_all(large[:-1])
        await until_holds(lambda: memory.requests.bytes == len(large))
    assert memory.requests.bytes == 0, "the connection has gone"


async def test_frame_waits_for_memory_without_delaying_others(memory: MemoryBudget) -> None:
    sessions, large = [Session() for _ in range(3)], frame_of(LARGE - 100)
    async with (
        connected(memory, sessions[0]) as (_, first),
        connected(memory, sessions[1], "10.0.0.2") as (_, second),
        connected(memory, sessions[2], "10.0.0.3") as (_, third),
    ):
        for client in (first, second):
            await client.send_all(SMALL + large[: LARGE // 2])
        await until_holds(lambda: memory.requests.bytes == 2 * len(large))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(third.send_all, SMALL + large)
            await until_holds(lambda: memory.requests.is_waited_for)
            await first.send_all(large[LARGE // 2 :] + SMALL)
            await until_holds(lambda: len(sessions[0].frames) == 3)
        await until_holds(lambda: len(sessions[2].frames) == 2)
        await second.send_all(large[LARGE // 2 :])
        await until_holds(lambda: len(sessions[1].frames) == 2)
    assert memory.requests.bytes == 0


async def test_requests_count_until_they_are_answered(memory: MemoryBudget) -> None:
    session = Session()
    session.answers = False
    async with connected(memory, session) as (connection, client):
        await client.send_all(frame_of(1, 1) + frame_of(LARGE // 2 - 5000, 2))
        await until_holds(lambda: len(session.frames) == 2)
        held = memory.requests.bytes
        assert LARGE // 2 - 10_000 < held < LARGE // 2, "without the share that every connection may use"
        await client.send_all(frame_of(1000, 3) + frame_of(LARGE // 2, 4))
        await until_holds(lambda: len(session.frames) == 4)
        await client.send_all(frame_of(1, 5))
        await wait_all_tasks_blocked()
        assert len(session.frames) == 4, "the connection holds more than half of the shared memory, so no more is read"
        connection.reply(4, b"")
        await until_holds(lambda: len(session.frames) == 5)
        for number in (1, 2, 3):
            connection.reply(number, b"")
        connection.send_error(5, Overloaded("no"))
        assert memory.requests.bytes == 0
        await client.send_all(frame_of(LARGE, 6))
        await until_holds(lambda: len(session.frames) == 6 and memory.requests.bytes > LARGE // 2)
    assert memory.requests.bytes == 0, "the connection has gone"


async def test_decoded_fields_count_more_memory_than_batches(memory: MemoryBudget) -> None:
    session = Session()
    session.answers = False
    async with connected(memory, session) as (connection, client):
        await client.send_all(frame_of(1, 1))
        await until_holds(lambda: len(session.frames) == 1)
        await client.send_all(frame_of(20_000, 2))
        await until_holds(lambda: len(session.frames) == 2)
        batch_bytes = memory.requests.bytes
        connection.reply(2, b"")
        await client.send_all(frame_of(20_000, 3, Type.KV_GET))
        await until_holds(lambda: len(session.frames) == 3)
        assert memory.requests.bytes > 7 * batch_bytes > 7 * 15_000


async def test_a_number_that_is_in_use_is_refused(memory: MemoryBudget) -> None:
    session = Session()
    session.answers = False
    async with connected(memory, session) as (connection, client):
        await client.send_all(frame_of(1, 6) + frame_of(50_000, 7) + frame_of(1, 7))
        (error,) = FrameReader().feed(await client.receive_some(1000))
        assert error[:3] == [255, 7, "CONFLICT"]
        await until_holds(lambda: session.frames == [1, 50_000])
        assert connection.requests == 2 and memory.requests.bytes > 0
        for number in (6, 7):
            connection.reply(number, b"")
        assert memory.requests.bytes == 0


async def test_connection_with_little_in_flight_is_read_without_free_memory(memory: MemoryBudget) -> None:
    session = Session()
    session.answers = False
    async with connected(memory, session) as (_, client):
        memory.requests.take(100 * LARGE)
        await client.send_all(frame_of(1, 1))
        await until_holds(lambda: len(session.frames) == 1)
        for number in range(2, 12):
            await client.send_all(frame_of(1000, number))
        await until_holds(lambda: memory.requests.is_waited_for)
        assert len(session.frames) < 11
        memory.requests.give_back(100 * LARGE)
        await until_holds(lambda: len(session.frames) == 11)


async def test_memory_of_waiting_requests_is_limited(memory: MemoryBudget) -> None:
    async with connected(memory, Session()) as (connection, _):
        with connection.waits(LARGE):
            assert memory.watchers.bytes == LARGE + WAITING_BYTES
            with pytest.raises(Overloaded), connection.waits(0):
                raise AssertionError("there is no room")
        assert memory.watchers.bytes == 0


async def test_small_frames_are_read_without_free_memory(memory: MemoryBudget) -> None:
    session = Session()
    memory.requests.take(100 * LARGE)
    async with connected(memory, session) as (_, client):
        half = frame_of(2000)
        await client.send_all(SMALL + half[:1000])
        await until_holds(lambda: session.frames == [1])
        await client.send_all(half[1000:])
        await until_holds(lambda: session.frames == [1, 2000])


@pytest.mark.parametrize("size", [100, LARGE])
async def test_partial_frame_must_be_completed_in_time(
    memory: MemoryBudget, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "FRAME_S", 0.0)
    monkeypatch.setattr(connection_module, "FRAME_BYTES_PER_S", 1 << 40)
    async with connected(memory, Session()) as (_, client):
        await client.send_all(SMALL + frame_of(size)[:99])
        (error,) = FrameReader().feed(await client.receive_some(1000))
        assert error[:3] == [255, 0, "UNAVAILABLE"] and error[4], "the reply may be sent again"
        assert await client.receive_some(1000) == b""
    assert memory.requests.bytes == 0


async def test_size_of_first_frame_is_limited(memory: MemoryBudget) -> None:
    async with connected(memory, Session()) as (_, client):
        await client.send_all(frame_of(HELLO_BYTES)[:8])
        (error,) = FrameReader().feed(await client.receive_some(1000))
        assert error[:3] == [255, 0, "PROTOCOL"] and "HELLO" in error[3]


async def test_frames_behind_a_first_one_may_be_large(memory: MemoryBudget) -> None:
    session = Session()
    async with connected(memory, session) as (_, client):
        await client.send_all(SMALL + frame_of(LARGE))
        await until_holds(lambda: session.frames == [1, LARGE])


async def test_queued_bytes_count_until_they_are_sent(memory: MemoryBudget) -> None:
    async with connected(memory, Session()) as (connection, client):
        connection.send(b"x" * LARGE)
        assert memory.answers.bytes == LARGE
        got = 0
        while got < LARGE:
            got += len(await client.receive_some(1 << 16))
        await until_holds(lambda: memory.answers.bytes == 0)
        connection.send(b"x" * LARGE * 100)
    assert memory.answers.bytes == 0, "the connection has gone"


async def test_a_connection_is_congested_while_all_together_have_too_much(memory: MemoryBudget) -> None:
    session = Session()
    async with connected(memory, session) as (connection, client):
        await wait_all_tasks_blocked()
        connection.send(b"x" * 100_000)
        assert not connection.congested and connection.output.has_capacity
        memory.answers.take(100 * LARGE)
        assert connection.congested and not connection.output.has_capacity
        got = 0
        while got < 100_000:
            got += len(await client.receive_some(1 << 16))
        await until_holds(lambda: session.drains == 1)
        assert not connection.congested, "a small amount may be sent to every client"
        assert not connection.output.has_capacity
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.output.wait_for_capacity)
            await wait_all_tasks_blocked()
            memory.answers.give_back(100 * LARGE)
        assert connection.output.has_capacity


async def test_sender_waits_until_its_output_is_flushed(memory: MemoryBudget) -> None:
    async with connected(memory, Session()) as (connection, _):
        await wait_all_tasks_blocked()
        connection.output._sender = Sender()  # the sender runs below
        memory.answers.take(100 * LARGE)
        connection.send(b"x" * 20_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection._until_sent)
            await wait_all_tasks_blocked()
            assert connection.congested
            memory.answers.give_back(100 * LARGE)
            connection.output.flush()
        assert memory.answers.bytes == 0


class Steps(trio.abc.Instrument):
    """An instrument that counts the steps of all tasks."""

    number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


async def test_connections_waiting_for_memory_continue_in_order(memory: MemoryBudget) -> None:
    """The next answer may use the whole capacity. No waiter may be woken without capacity."""
    waiters, steps = 200, Steps()
    went_on: list[int] = []
    async with connected(memory, Session()) as (connection, _), trio.open_nursery() as nursery:

        async def wait(number: int) -> None:
            await connection.output.wait_for_capacity()
            went_on.append(number)
            connection.output.charge_on_apply(LARGE)

        connection.output.charge_on_apply(LARGE)
        for number in range(waiters):
            nursery.start_soon(wait, number)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        try:
            for _ in range(10):
                connection.output.release(1)
                await wait_all_tasks_blocked()
            assert went_on == [] and steps.number < waiters / 2
            connection.output.release(LARGE - 10)
            await wait_all_tasks_blocked()
            assert len(went_on) == 1 and steps.number < waiters / 2
        finally:
            trio.lowlevel.remove_instrument(steps)
        while len(went_on) < waiters:
            connection.output.release(LARGE)
            await wait_all_tasks_blocked()
        connection.output.release(LARGE)


async def test_held_bytes_count_until_they_are_released(memory: MemoryBudget) -> None:
    async with connected(memory, Session()) as (connection, _):
        connection.output.charge_on_apply(LARGE)
        assert memory.answers.bytes == LARGE and not connection.output.has_capacity, "an eighth of the shared memory"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.output.wait_for_capacity)
            await wait_all_tasks_blocked()
            connection.output.release(LARGE)
        assert memory.answers.bytes == 0
