"""Tests of requests on behalf of callers: each caller has the limits of a separate connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from sandq.broker.event_loop import TimeSlice
from sandq.broker.memory_budget import MemoryBudget
from sandq.broker.peers.metadata_barrier import Unsure
from sandq.model.caller import ANONYMOUS, Caller, host_of
from sandq.model.errors import NotFound, Overloaded
from sandq.model.limits import DEFAULT, Limits
from sandq.protocol.frames import FrameReader, Type, encode_frame, encode_reply
from sandq.protocol.requests import Subscribe
from sandq.protocol.requests_keys import KvGet
from sandq.server import open_requests
from sandq.server.caller_requests import (
    AT_ONCE,
    CONNECTION_REQUESTS_SHARE,
    GRANTED_BYTES,
    PARSED_COPIES,
    CallerRequests,
)
from sandq.server.connection import Connection
from sandq.server.kv_get_coalescer import KvGetCoalescer
from sandq.server.subscriptions import Subscriptions
from tests.support.nodes.one_connection import NothingTogether, one_connection
from tests.support.waiting import until_holds

ADA, BOB = "10.0.0.1", "10.0.0.2"
GATEWAY = "10.0.0.9"
SIZE = 4096


class Session(NothingTogether):
    """A session in which ON_BEHALF names the caller. Requests are recorded or started."""

    greeted = True

    def __init__(self) -> None:
        self.connection: Connection
        self.asked: list[tuple[int, str]] = []
        """Pairs (request number, address of the caller)."""
        self.work: Callable[[int], Awaitable[bytes]] | None = None
        self.refusal: Exception | None = None

    def handle(self, frame: Any) -> None:
        """Note a request and its caller, then refuse it or start its work."""
        if frame[0] == Type.ON_BEHALF:
            self.connection.set_caller(None if frame[3] is None else Caller(frame[2] or ANONYMOUS, frame[3]))
            return
        self.asked.append((frame[1], self.connection.caller.address))
        if self.refusal is not None:
            raise self.refusal
        if self.work is not None:
            self.connection.start(frame[1], partial(self.work, frame[1]))

    def handled(self) -> None: ...

    def drained(self) -> None: ...

    async def closed(self) -> None: ...


class Gateway:
    def __init__(self, connection: Connection, client: trio.SocketStream, session: Session) -> None:
        self.connection = connection
        self.session = session
        self._client = client
        self._reader = FrameReader()

    async def ask(self, address: str | None, *numbers: int, size: int = SIZE, kind: Type = Type.WHY) -> None:
        asked = b"".join(encode_frame(kind, number, bytes(size)) for number in numbers)
        await self._client.send_all(encode_frame(Type.ON_BEHALF, 0, None, address) + asked)

    async def answer(self) -> Any:
        frames: list[Any] = []
        while not frames:
            frames = self._reader.feed(await self._client.receive_some(1))
        return frames[0]


@asynccontextmanager
async def gateway(memory: MemoryBudget) -> AsyncIterator[Gateway]:
    """Connect a gateway, and yield it with its session."""
    session = Session()

    def make_session(connection: Connection) -> Session:
        session.connection = connection
        return session

    async with one_connection(make_session, caller=Caller(ANONYMOUS, f"{GATEWAY}:1"), memory=memory) as (one, client):
        yield Gateway(one, client, session)


@pytest.fixture
def memory() -> MemoryBudget:
    return MemoryBudget(64 << 20)


async def test_requests_are_counted_for_their_caller(memory: MemoryBudget) -> None:
    async with gateway(memory) as at:
        await at.ask(ADA, 1, 2, 3)
        await at.ask(None, 4)
        await until_holds(lambda: len(at.session.asked) == 4)
        hers, own = (memory.requests.of(host).bytes for host in (ADA, GATEWAY))
        assert [whose for _, whose in at.session.asked] == [ADA] * 3 + [f"{GATEWAY}:1"]
        assert hers > own > 0
        for number in (1, 2, 3):
            at.connection.reply(number, b"")
        assert memory.requests.of(ADA).bytes == 0
        assert memory.requests.bytes == own
    assert memory.requests.bytes == 0, "the connection is closed"


async def test_unanswered_requests_are_released_at_the_end(memory: MemoryBudget) -> None:
    async with gateway(memory) as at:
        await at.ask(ADA, 1, 2)
        await at.ask(BOB, 3)
        await until_holds(lambda: len(at.session.asked) == 3)
        assert memory.requests.of(ADA).bytes > memory.requests.of(BOB).bytes > 0
    assert memory.requests.bytes == 0


async def test_caller_beyond_its_quota_is_refused_and_others_are_not(memory: MemoryBudget) -> None:
    most = int(CONNECTION_REQUESTS_SHARE * memory.requests.share_bytes)
    async with gateway(memory) as at:
        for number in range(1, 4 * most // (PARSED_COPIES * SIZE)):
            await at.ask(ADA, number)
        refusal = await at.answer()
        assert refusal[2] == "OVERLOADED" and f"the requests of {ADA} use all the memory that they may" in refusal[3]
        assert most - GRANTED_BYTES < memory.requests.of(ADA).bytes < 2 * most
        await at.ask(BOB, 1000)
        await until_holds(lambda: (1000, BOB) in at.session.asked)


async def test_batches_count_for_the_gateway_and_are_logged_with_the_caller(memory: MemoryBudget) -> None:
    with capture_logs() as logs:
        async with gateway(memory) as at:
            await at.ask(ADA, 1, size=3 * SIZE, kind=Type.PRODUCE)
            await until_holds(lambda: at.session.asked == [(1, ADA)])
            assert memory.requests.of(ADA).bytes == 0 < memory.requests.of(GATEWAY).bytes
            at.connection.send_error(1, Overloaded("there is no room"))
            assert memory.requests.bytes == 0
    assert [(line["peer"], line["gateway"], line["request"]) for line in logs] == [(ADA, f"{GATEWAY}:1", "produce")]


async def test_many_requests_of_one_do_not_come_before_those_of_another(memory: MemoryBudget) -> None:
    begun: list[tuple[int, str]] = []
    end = trio.Event()
    async with gateway(memory) as at:

        async def work(number: int) -> bytes:
            begun.append((number, at.connection.caller.address))
            await end.wait()
            return encode_reply(number)

        at.session.work = work
        await at.ask(ADA, *range(1, 2 * AT_ONCE + 1), size=1)
        await at.ask(BOB, 1000, size=1)
        await until_holds(lambda: len(begun) == AT_ONCE + 1)
        assert (1000, BOB) in begun
        end.set()
        await until_holds(lambda: len(begun) == 2 * AT_ONCE + 1)
        assert {whose for number, whose in begun if number != 1000} == {ADA}, "later requests are also from ADA"


async def test_callers_beyond_the_limit_count_as_the_gateway(
    memory: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_requests, "CALLERS", 2)
    async with gateway(memory) as at:
        await at.ask(ADA, 1)
        await at.ask(BOB, 2)
        await at.ask("10.0.0.3", 3)
        await until_holds(lambda: len(at.session.asked) == 3)
        assert [whose for _, whose in at.session.asked] == [ADA, BOB, f"{GATEWAY}:1"]
        at.connection.reply(1, b"")
        at.connection.reply(2, b"")
        await at.ask("10.0.0.3", 4)
        await until_holds(lambda: len(at.session.asked) == 4)
        assert at.session.asked[3] == (4, "10.0.0.3"), "a caller without open requests uses no slot"


async def test_caller_is_separate_for_each_connection(memory: MemoryBudget) -> None:
    async with gateway(memory) as at, gateway(memory) as other:
        other.connection.set_caller(Caller(ANONYMOUS, ADA))  # the caller of this task from here on
        assert other.connection.caller.address == ADA
        assert at.connection.caller.address == f"{GATEWAY}:1"
        at.connection.set_caller(Caller(ANONYMOUS, ADA))
        assert at.connection.caller.address == ADA
        assert other.connection.caller.address == f"{GATEWAY}:1"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:4711", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]:4711", "[::1]"),
        ("[::1]", "[::1]"),
        ("local", "local"),
    ],
)
def test_host_is_shown_with_or_without_a_port(address: str, host: str) -> None:
    assert host_of(Caller(ANONYMOUS, address)) == host


def test_caller_without_connection_is_refused_at_the_request_limit(memory: MemoryBudget) -> None:
    limits = Limits(requests_per_connection=2)
    caller = Caller(ANONYMOUS, ADA)
    alone = CallerRequests(caller, memory, limits, None)
    alone.begin(3)
    assert alone.is_busy, "the connection is not read"
    beside = CallerRequests(caller, memory, limits, None, has_connection=False)
    beside.begin(2)
    with pytest.raises(Overloaded, match=f"2 requests of {ADA} are being worked on"):
        beside.begin(1)
    for sender in (alone, beside):
        sender.listen()
        sender.listen()
        with pytest.raises(Overloaded, match="2 requests of this connection wait for events"):
            sender.listen()


class Refusing:
    """The connection of a caller that has the maximum number of open requests."""

    caller = Caller(ANONYMOUS, ADA)
    time_slice = TimeSlice()

    def __init__(self) -> None:
        self.refused: list[int] = []

    def start(self, request_id: int, work: Any, wait_s: float = 0.0) -> None:
        raise Overloaded("too many are being worked on")

    def start_many(self, request_ids: list[int], work: Any) -> None:
        raise Overloaded("too many are being worked on")

    def refuse(self, request_id: int, error: Overloaded) -> None:
        self.refused.append(request_id)


def test_gets_that_are_too_many_are_refused_one_by_one() -> None:
    connection: Any = Refusing()
    queries: Any = SimpleNamespace(check_partitions=lambda request, keys: None)
    gets = KvGetCoalescer(connection, queries)
    for number in (1, 2):
        (frame,) = FrameReader().feed(KvGet("t", 0, False, [b"k"]).frame(number))
        gets.add(frame)
    gets.flush()
    assert connection.refused == [1, 2]


def test_subscription_that_was_refused_can_be_asked_for_again() -> None:
    connection: Any = Refusing()
    topic = SimpleNamespace(record=SimpleNamespace(partitions=[None]))
    limits = Limits()
    broker: Any = SimpleNamespace(limits=limits, catalog=SimpleNamespace(topic=lambda name: topic))
    subscriptions = Subscriptions(broker, connection)
    asked = Subscribe(1, "t", "g", "c", 10, None, "earliest", [])
    for _ in range(2):
        with pytest.raises(Overloaded):
            subscriptions.subscribe(1, asked)


async def test_refusal_that_is_not_certain_is_passed_on_while_too_many_are_worked_on(memory: MemoryBudget) -> None:
    begun, end = [], trio.Event()
    most = DEFAULT.requests_per_connection

    async def settle() -> NotFound:
        return NotFound("there is no such topic")

    async with gateway(memory) as at:

        async def work(number: int) -> bytes:
            begun.append(number)
            await end.wait()
            return encode_reply(number)

        at.session.work = work
        await at.ask(ADA, *range(1, most + 1), size=1)
        await until_holds(lambda: len(at.session.asked) == most)
        at.session.work = None
        at.session.refusal = Unsure(NotFound("there is no such topic"), settle)
        await at.ask(ADA, most + 1, size=1)
        assert (await at.answer())[1:3] == [most + 1, "UNAVAILABLE"]
        at.session.refusal = None
        await at.ask(BOB, most + 2, size=1)
        await until_holds(lambda: (most + 2, BOB) in at.session.asked)
        end.set()


def test_callers_of_one_ipv6_network_share_one_limit(memory: MemoryBudget) -> None:
    first, second, other, mapped, plain = (
        CallerRequests(Caller(ANONYMOUS, address), memory, DEFAULT, None)
        for address in (
            "[2001:db8::1]:1",
            "[2001:db8::2]:2",
            "[2001:db8:0:1::1]:1",
            "[::ffff:10.0.0.1]:1",
            "10.0.0.1:2",
        )
    )
    assert first.incoming is second.incoming and first._waiting is second._waiting
    assert first.incoming is not other.incoming
    assert mapped.incoming is plain.incoming
