"""Tests of the turns of a connection: many requests are handled in several turns, so that others proceed in between."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sandq.broker.event_loop import SHARED_WORK, SLICE_WORK, TimeSlice
from sandq.broker.memory_budget import MemoryBudget
from sandq.model.errors import NotFound, Overloaded
from sandq.model.limits import DEFAULT
from sandq.protocol.frames import FrameReader, Type, encode_reply
from sandq.server import connection as connection_module
from sandq.server.caller_requests import AT_ONCE, BEGUN_WORK
from sandq.server.connection import CROWDED_RECEIVE_BYTES, FRAME_S, FRAME_WORK_BITS, RECEIVE_BYTES, Connection
from sandq.server.open_requests import REFUSAL_WORK
from sandq.server.output import FLUSH_BYTES, UNIT_BITS, UNSENT_BYTES
from tests.support.nodes.one_connection import NothingTogether, one_connection
from tests.support.waiting import until_holds

Handle = Callable[[Connection, Any], Awaitable[None] | None]


class Session(NothingTogether):
    greeted = True

    def __init__(self, connection: Connection, handle: Handle) -> None:
        self._connection = connection
        self._handle = handle
        self._together = 0
        self.runs: list[int] = []
        """Number of frames that were handled in each run."""

    def handle(self, frame: Any) -> Awaitable[None] | None:
        self._together += 1
        return self._handle(self._connection, frame)

    def handled(self) -> None:
        if self._together:
            self.runs.append(self._together)
            self._together = 0

    def drained(self) -> None: ...

    async def closed(self) -> None: ...


class Steps(trio.abc.Instrument):
    """An instrument that numbers the steps of all tasks and the rounds of the loop. No other task runs within a step.
    Each ready task runs once per round."""

    def __init__(self) -> None:
        self.number = self.round = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1

    def before_io_wait(self, timeout: float) -> None:
        self.round += 1


@pytest.fixture
async def steps() -> AsyncIterator[Steps]:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    yield steps
    trio.lowlevel.remove_instrument(steps)


def connected(
    handle: Handle, *, memory: MemoryBudget | None = None
) -> AbstractAsyncContextManager[tuple[Connection, trio.SocketStream]]:
    return one_connection(lambda connection: Session(connection, handle), memory=memory)


def produces_of(count: int, size: int = 0, first_id: int = 1) -> bytes:
    bodies = [msgpack.packb([int(Type.PRODUCE), first_id + number, bytes(size)]) for number in range(count)]
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def frames_of(count: int, size: int = 0) -> bytes:
    body = msgpack.packb([int(Type.CREDIT), 0, bytes(size)])  # requests without an answer
    return count * (struct.pack(">I", len(body)) + body)


async def test_many_small_frames_take_several_time_slices(steps: Steps) -> None:
    at, done = [], trio.Event()
    many = 3 * SLICE_WORK

    def handle(connection: Connection, frame: Any) -> None:
        at.append(steps.number)
        if len(at) == many:
            done.set()

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(many))
        await done.wait()
    assert max(at.count(time_slice) for time_slice in set(at)) <= SLICE_WORK


async def test_produces_of_one_receive_are_merged_across_time_slices(steps: Steps) -> None:
    at: list[int] = []
    sessions: list[Session] = []
    many = 2 * SLICE_WORK

    def make_session(connection: Connection) -> Session:
        sessions.append(Session(connection, lambda connection, frame: at.append(steps.number)))
        return sessions[0]

    async with one_connection(make_session) as (_, client):
        sent = produces_of(many)
        assert len(sent) <= RECEIVE_BYTES
        await client.send_all(sent)
        await until_holds(lambda: len(at) == many)
        await wait_all_tasks_blocked()
        assert sessions[0].runs == [many] and len(set(at)) > 2

        await client.send_all(produces_of(many, first_id=many + 1) + b"\xff" * 10)
        while await client.receive_some(1000):
            pass
    assert len(sessions[0].runs) == 2 and sum(sessions[0].runs) == len(at), (
        "no frames after the invalid bytes were handled"
    )


async def test_received_bytes_are_read_within_a_time_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection with little work must not wait for a turn for each piece of a frame."""
    piece, pieces = 1024, 50
    monkeypatch.setattr(connection_module, "RECEIVE_BYTES", piece)
    stood, got = [], trio.Event()
    end = TimeSlice.end

    async def counted(time_slice: TimeSlice) -> None:
        stood.append(time_slice)
        await end(time_slice)

    monkeypatch.setattr(TimeSlice, "end", counted)

    def handle(connection: Connection, frame: Any) -> None:
        if frame[0] == Type.PRODUCE:
            got.set()

    async with connected(handle) as (_, client):
        sent = frames_of(1) + produces_of(1, pieces * piece)
        assert await client.socket.send(sent) == len(sent), "the system has no buffer space left"
        await got.wait()
    assert not stood


async def test_time_slice_ends_after_an_expensive_request(steps: Steps) -> None:
    at, done = [], trio.Event()

    def handle(connection: Connection, frame: Any) -> None:
        at.append(steps.number)
        connection.time_slice.left -= SLICE_WORK
        if len(at) == 50:
            done.set()

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(50))
        await done.wait()
    assert len(set(at)) == 50


async def test_bytes_of_replies_per_time_slice_are_limited(steps: Steps) -> None:
    at, answer = [], encode_reply(1, bytes(300_000))

    def handle(connection: Connection, frame: Any) -> None:
        at.append(steps.number)
        connection.send(answer)

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(40))
        got = 0
        while got < 40 * len(answer):
            got += len(await client.receive_some(1 << 20))
    assert max(at.count(time_slice) for time_slice in set(at)) <= (SLICE_WORK << UNIT_BITS) // len(answer) + 1


async def test_connections_share_time_slices() -> None:
    order: list[int] = []
    done = trio.Event()

    def of(number: int) -> Handle:
        def handle(connection: Connection, frame: Any) -> None:
            order.append(number)
            connection.time_slice.left -= SLICE_WORK
            if len(order) == 120:
                done.set()

        return handle

    async with connected(of(1)) as (_, first), connected(of(2)) as (_, second):
        await first.send_all(frames_of(60))
        await second.send_all(frames_of(60))
        await done.wait()
    both = order[order.index(2) : len(order) - order[::-1].index(1)]
    together = "".join(map(str, both))
    assert "111" not in together and "222" not in together


async def test_slow_request_is_awaited_before_the_next_frame() -> None:
    seen: list[str] = []
    may_continue, done = trio.Event(), trio.Event()

    def handle(connection: Connection, frame: Any) -> Awaitable[None] | None:
        if not seen:
            seen.append("begun")
            return long()
        seen.append("next")
        done.set()
        return None

    async def long() -> None:
        await may_continue.wait()
        seen.append("ended")

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(2))
        await wait_all_tasks_blocked()
        assert seen == ["begun"]
        may_continue.set()
        await done.wait()
    assert seen == ["begun", "ended", "next"]


async def test_pending_requests_of_a_closed_client_are_dropped() -> None:
    asked = 0
    gone = trio.Event()

    async def after(gone: trio.Event) -> None:
        await gone.wait()

    def handle(connection: Connection, frame: Any) -> Awaitable[None] | None:
        nonlocal asked
        asked += 1
        connection.time_slice.left -= SLICE_WORK
        connection.send(encode_reply(1))
        return after(gone) if asked == 1 else None

    async with connected(handle) as (connection, client):
        await client.send_all(frames_of(1500))
        await wait_all_tasks_blocked()
        assert asked == 1
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.aclose()
        gone.set()
        while connection.open:
            await trio.lowlevel.checkpoint()
    assert asked < 50


async def test_waiting_for_a_time_slice_does_not_reduce_the_deadline_of_a_frame(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The whole frame has arrived. The node reads a small part of it in each of its slow turns."""
    size = 64 * CROWDED_RECEIVE_BYTES
    monkeypatch.setattr(connection_module, "FRAME_BYTES_PER_S", 1 << 40)
    memory = MemoryBudget(DEFAULT.memory_bytes)
    got = trio.Event()

    def handle(connection: Connection, frame: Any) -> None:
        if len(frame[2]) == size:
            got.set()

    async def slow() -> None:
        while True:
            autojump_clock.jump(0.25)
            await trio.lowlevel.checkpoint()

    async with (
        connected(handle, memory=memory) as (_, client),
        trio.open_nursery() as slowly,
    ):
        monkeypatch.setattr(type(memory.requests), "is_waited_for", property(lambda account: True))
        await client.send_all(frames_of(1) + frames_of(1, size))
        slowly.start_soon(slow)
        await got.wait()
        slowly.cancel_scope.cancel()


async def test_incomplete_frame_ends_the_connection_at_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The last read may have exactly the requested size."""
    async with connected(lambda connection, frame: None) as (_, client):
        monkeypatch.setattr(connection_module, "RECEIVE_BYTES", 1000)
        began_s = trio.current_time()
        await client.send_all((frames_of(1) + frames_of(1, 10_000))[:3000])
        (error,) = FrameReader().feed(await client.receive_some(1000))
        assert error[:3] == [255, 0, "UNAVAILABLE"]
        assert FRAME_S <= trio.current_time() - began_s <= FRAME_S + 1


async def test_a_frame_that_says_much_is_much_work(steps: Steps) -> None:
    at, done, many = [], trio.Event(), 20
    size = SHARED_WORK << FRAME_WORK_BITS

    def handle(connection: Connection, frame: Any) -> None:
        at.append(steps.number)
        if len(at) == many:
            done.set()

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(1) + frames_of(many - 1, size))
        await done.wait()
    assert max(at.count(time_slice) for time_slice in set(at)) <= SLICE_WORK // SHARED_WORK + 1


async def test_concurrent_requests_of_a_connection_are_limited() -> None:
    """The limit includes requests that wait for an event and use no time."""
    begun, waiting, may_continue, came = [], [], trio.Event(), trio.Event()
    many = 2 * AT_ONCE

    async def work() -> bytes:
        begun.append(len(begun))
        if len(begun) == AT_ONCE:
            came.set()
        await may_continue.wait()
        return encode_reply(1, None)

    async def wait() -> bytes:
        waiting.append(len(waiting))
        await may_continue.wait()
        return encode_reply(1, None)

    def handle(connection: Connection, frame: Any) -> None:
        connection.start(1, work)
        connection.start(2, wait, wait_s=10)

    answers = b""
    async with connected(handle) as (_, client):
        await client.send_all(frames_of(many))
        await came.wait()
        await until_holds(lambda: len(waiting) == many)
        assert len(begun) == AT_ONCE
        may_continue.set()
        while len(answers) < 2 * many * len(encode_reply(1, None)):
            answers += await client.receive_some(1 << 16)
    assert len(begun) == many


async def test_a_connection_with_many_requests_to_be_worked_on_is_not_read() -> None:
    """The client gets no error either. Otherwise a client that does not read would get errors without end."""
    handled, may_continue = [], trio.Event()
    most = DEFAULT.requests_per_connection

    async def work() -> bytes:
        await may_continue.wait()
        return encode_reply(1, None)

    def handle(connection: Connection, frame: Any) -> None:
        handled.append(frame)
        connection.start(1, work)

    answers = b""
    async with connected(handle) as (connection, client):
        await client.send_all(frames_of(most + 500))
        await until_holds(lambda: len(handled) == most)
        await wait_all_tasks_blocked()
        assert len(handled) == most and connection.waiting_bytes == 0
        may_continue.set()
        while len(answers) < (most + 500) * len(encode_reply(1, None)):
            answers += await client.receive_some(1 << 16)


@pytest.mark.parametrize("takes_nothing", [False, True])
async def test_pending_requests_end_in_several_time_slices_with_their_connection(
    steps: Steps, takes_nothing: bool
) -> None:
    most, begun, ended = DEFAULT.requests_per_connection, [], []

    async def wait() -> bytes:
        begun.append(steps.round)
        try:
            await trio.sleep_forever()
            raise AssertionError
        finally:
            ended.append(steps.round)

    def handle(connection: Connection, frame: Any) -> None:
        connection.start(1, wait, wait_s=10)

    async with connected(handle) as (connection, client):
        await client.send_all(frames_of(most))
        await until_holds(lambda: len(begun) == most)
        if takes_nothing:
            # the connection is reset
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.send(bytes(64 * UNSENT_BYTES))
        await client.aclose()
        await until_holds(lambda: len(ended) == most)
    assert max(ended.count(at) for at in set(ended)) <= SLICE_WORK // BEGUN_WORK


async def test_requests_that_wait_beyond_their_number_are_refused() -> None:
    most, refused = DEFAULT.requests_per_connection, []

    async def wait() -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    def handle(connection: Connection, frame: Any) -> None:
        try:
            connection.start(1, wait, wait_s=10)
        except Overloaded as error:
            refused.append(error)

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(most + 3))
        await until_holds(lambda: len(refused) == 3)


async def test_a_client_that_takes_no_answers_is_not_read() -> None:
    handled, answer = [], encode_reply(1, bytes(10_000))

    def handle(connection: Connection, frame: Any) -> None:
        handled.append(frame)
        connection.send(answer)

    async with connected(handle) as (connection, client):
        await client.send_all(frames_of(3000))
        await until_holds(lambda: connection.waiting_bytes > UNSENT_BYTES)
        await wait_all_tasks_blocked()
        read = len(handled)
        assert read < 3000 and not connection.output.has_capacity
        assert connection.waiting_bytes <= UNSENT_BYTES + 2 * FLUSH_BYTES
        left = 3000 * len(answer)
        while left:
            left -= len(await client.receive_some(1 << 16))


async def test_requests_of_tasks_begin_in_several_time_slices(steps: Steps) -> None:
    at, done = [], trio.Event()
    many = 300

    async def work() -> bytes:
        return encode_reply(1, None)

    def handle(connection: Connection, frame: Any) -> None:
        at.append(steps.number)
        connection.start(1, work, wait_s=10)
        if len(at) == many:
            done.set()

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(many))
        await done.wait()
    assert max(at.count(time_slice) for time_slice in set(at)) <= SLICE_WORK // BEGUN_WORK


async def test_pending_frames_are_handled_in_several_time_slices(steps: Steps) -> None:
    """The limit also applies to requests that are answered at once."""
    at: list[int] = []
    many = AT_ONCE + 300

    async def work() -> bytes:
        at.append(steps.number)
        return encode_reply(1, None)

    def handle(connection: Connection, frame: Any) -> None:
        connection.start(1, work)

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(many))
        await until_holds(lambda: len(at) == many)
    assert max(at.count(time_slice) for time_slice in set(at)) <= SLICE_WORK // BEGUN_WORK


async def test_refusals_take_several_time_slices(steps: Steps) -> None:
    at, done = [], trio.Event()
    many = 300

    def handle(connection: Connection, frame: Any) -> None:
        at.append(steps.number)
        if len(at) == many:
            done.set()
        raise NotFound("there is nothing")

    async with connected(handle) as (_, client):
        await client.send_all(frames_of(many))
        await done.wait()
    assert max(at.count(time_slice) for time_slice in set(at)) <= SLICE_WORK // REFUSAL_WORK
