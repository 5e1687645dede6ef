"""Connections of the HTTP server in a node's loop: places, and how long one may have no request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sandq.broker.memory_budget import Account
from sandq.server.http.bounds import FULL, IDLE_S, REFUSED_MOST, REFUSED_S, SPARE_PLACES
from sandq.server.http.connections import HttpServer
from tests.support.waiting import PATIENCE_S, until_holds

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PLACES = 4


class App:
    """Answers 200 once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = trio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})


class Served:
    def __init__(self, app: App, server: HttpServer, port: int, opened: list[trio.SocketStream]) -> None:
        self.app = app
        self.server = server
        self._port = port
        self._opened = opened

    async def connect(self, address: str = "127.0.0.1") -> trio.SocketStream:
        self._opened.append(await trio.open_tcp_stream("127.0.0.1", self._port, local_address=address))
        return self._opened[-1]

    async def ask(self, address: str) -> trio.SocketStream:
        """Begin a request that is not answered yet."""
        asked, stream = self.app.asked, await self.connect(address)
        await stream.send_all(REQUEST)
        await until_holds(lambda: self.app.asked > asked)
        return stream


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    app, opened = App(), list[trio.SocketStream]()
    server = HttpServer(app, PLACES, Account(1 << 30))
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, listeners, anyio.Event())
                yield Served(app, server, listeners[0].socket.getsockname()[1], opened)
                nursery.cancel_scope.cancel()
    finally:
        for stream in opened:
            await trio.aclose_forcefully(stream)


async def everything(stream: trio.SocketStream) -> bytes:
    answer = b""
    while piece := await stream.receive_some(65_536):
        answer += piece
    return answer


async def is_answered(stream: trio.SocketStream) -> bool:
    """Whether a request gets an answer, which is taken."""
    await stream.send_all(REQUEST)
    answer = b""
    while not answer.endswith(b"{}"):
        piece = await stream.receive_some(1000)
        if not piece:
            return False
        answer += piece
    return answer.startswith(b"HTTP/1.1 200 ")


async def test_who_finds_no_place_is_told() -> None:
    """Spare places are for all addresses, too."""
    share, spare_share = PLACES - PLACES // 4, SPARE_PLACES - SPARE_PLACES // 4
    async with served() as at:
        first = [await at.ask("127.0.0.2") for _ in range(share + spare_share)]
        assert await everything(await at.connect("127.0.0.2")) == FULL
        for _ in range(PLACES + SPARE_PLACES - len(first)):
            await at.ask("127.0.0.3")
        assert await everything(await at.connect("127.0.0.4")) == FULL
        at.app.may_answer.set()
        assert (await first[0].receive_some(1000)).startswith(b"HTTP/1.1 200 "), "those that are there go on"
        await wait_all_tasks_blocked()
        await at.ask("127.0.0.4")


async def test_a_connection_without_a_request_has_its_time(mock_clock: MockClock) -> None:
    async with served() as at:
        at.app.may_answer.set()
        silent, busy = await at.connect(), await at.connect()
        await wait_all_tasks_blocked()
        mock_clock.jump(IDLE_S - 1)
        assert await is_answered(busy)
        await wait_all_tasks_blocked()
        mock_clock.jump(2)
        assert await everything(silent) == b""
        assert await is_answered(busy)
        await wait_all_tasks_blocked()
        mock_clock.jump(IDLE_S + 1)
        assert await everything(busy) == b"", "its time begins anew with each answer"


async def is_closed(stream: trio.SocketStream) -> bool:
    """Whether the other side has closed its socket, not only said that it sends nothing more."""
    try:
        for _ in range(2):  # the first is answered with a reset
            await stream.send_all(b"more")
            await wait_all_tasks_blocked()
    except trio.BrokenResourceError:
        return True
    return False


async def test_a_flood_of_those_that_find_no_place_keeps_few_sockets(mock_clock: MockClock) -> None:
    async with served() as at:
        for number in range(PLACES + SPARE_PLACES):
            stream = await at.connect(f"127.0.0.{2 + number % 2}")
            await stream.send_all(REQUEST)
            await wait_all_tasks_blocked()
        assert at.app.asked == PLACES + SPARE_PLACES
        flood = []
        for _ in range(REFUSED_MOST + 5):
            flood.append(await at.connect("127.0.0.4"))
            await wait_all_tasks_blocked()
        assert at.server._refused == REFUSED_MOST
        assert not await is_closed(flood[REFUSED_MOST - 1]), "what it says is read, so that it gets its answer"
        for late in flood[REFUSED_MOST:]:
            assert await late.receive_some(1000) == FULL and await is_closed(late)
        mock_clock.jump(REFUSED_S + 0.1)
        await wait_all_tasks_blocked()
        assert at.server._refused == 0 and await is_closed(flood[0])
