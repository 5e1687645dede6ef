"""Tests of the whole client port: for any number of clients, the open sockets are limited by the slots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sandq.model.config_tls import REQUIRE
from sandq.model.limits import Limits
from sandq.protocol.frames import FrameReader, Type
from sandq.server import tcp
from sandq.server.client_stats import ClientStats
from sandq.server.connection import Connection
from sandq.server.output import SEND_BYTES
from sandq.server.tcp import ClientServer
from sandq.tls.budget import Handshakes
from sandq.tls.port import TlsPort
from tests.support.nodes.one_connection import NothingTogether
from tests.support.tls import NAME, contexts
from tests.support.waiting import PATIENCE_S

HERE: Final = "127.0.0.1"
SPARE: Final = 3
FLOOD: Final = 20
UNREAD: Final = 64 * SEND_BYTES
"""More bytes than the system buffers for a client that does not read."""


class Unread(NothingTogether):
    """A session that sends bytes that its client does not read."""

    greeted = True
    is_gateway = False

    def __init__(self, connection: Connection) -> None:
        connection.send(bytes(UNREAD))

    def handle(self, frame: Any) -> None: ...

    def handled(self) -> None: ...

    def drained(self) -> None: ...

    async def closed(self) -> None: ...


@asynccontextmanager
async def served(limits: Limits, stats: ClientStats, tls: TlsPort | None = None) -> AsyncIterator[int]:
    """The port of a server that sends each client more than it reads."""
    # type: ignore[arg-type]
    server = ClientServer(make_session=Unread, limits=limits, http_address="", stats=stats, tls=tls)
    listeners = await trio.open_tcp_listeners(0, host=HERE)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, listeners)
            yield listeners[0].socket.getsockname()[1]
            nursery.cancel_scope.cancel()


async def test_clients_that_lose_a_spare_slot_keep_no_socket(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "SPARE_SLOTS", SPARE)
    limits, stats = Limits(connections=1), ClientStats()
    clients = []
    async with served(limits, stats) as port:
        for _ in range(limits.connections + FLOOD):
            clients.append(await trio.open_tcp_stream(HERE, port))
            await wait_all_tasks_blocked()
            assert len(stats.open) <= limits.connections + SPARE, "connections must be closed without delay"
        assert stats.accepted == limits.connections + FLOOD
    for client in clients:
        await trio.aclose_forcefully(client)


async def test_handshakes_are_at_most_the_spare_slots(mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "SPARE_SLOTS", SPARE)
    limits, stats, clients, ended = Limits(connections=1), ClientStats(), [], []
    port_tls = TlsPort(REQUIRE, lambda: contexts()[0], Handshakes())

    async def until_closed(number: int, client: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            assert await client.receive_some(1) == b""
        ended.append(number)

    async with served(limits, stats, port_tls) as port, trio.open_nursery() as nursery:
        for number in range(limits.connections + FLOOD):
            clients.append(await trio.open_tcp_stream(HERE, port))
            nursery.start_soon(until_closed, number, clients[-1])
            await wait_all_tasks_blocked()
        assert ended == list(range(1, 1 + FLOOD - SPARE)), (
            "the oldest clients are closed, and the client with a slot stays"
        )
        nursery.cancel_scope.cancel()
    for client in clients:
        await trio.aclose_forcefully(client)


async def test_client_refused_after_its_handshake_gets_the_reason(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, stats = Limits(connections=1), ClientStats()
    monkeypatch.setattr(tcp, "SPARE_SLOTS", SPARE)
    monkeypatch.setattr(ClientServer, "_has_spare_slot", lambda self: False)  # gateways use all spare slots
    port_tls = TlsPort(REQUIRE, lambda: contexts()[0], Handshakes())
    async with served(limits, stats, port_tls) as port, await trio.open_tcp_stream(HERE, port):
        await wait_all_tasks_blocked()
        raw = await trio.open_tcp_stream(HERE, port)
        client = trio.SSLStream(raw, contexts()[1], server_hostname=NAME, https_compatible=True)
        (error,) = FrameReader().feed(await client.receive_some(4096))
        assert error[:3] == [Type.ERROR, 0, "OVERLOADED"] and stats.refused == 1
        await trio.aclose_forcefully(raw)


async def test_connections_of_one_ipv6_network_are_limited(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients from two addresses of one network count as one source."""
    hosts = iter(["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4", "2001:db8:0:1::1"])
    monkeypatch.setattr(tcp, "_peer", lambda stream: f"[{next(hosts)}]:4711")
    monkeypatch.setattr(tcp, "_is_of_this_machine", lambda stream: False)
    limits, stats, clients = Limits(connections=4), ClientStats(), []
    async with served(limits, stats) as port:
        for taken in (1, 2, 3, 3, 4):
            clients.append(await trio.open_tcp_stream(HERE, port))
            await wait_all_tasks_blocked()
            assert len(stats.open) == taken
        told = await clients[3].receive_some(1000)
        assert b"2001:db8::/64 has 3 connections, as many as one address may have of the 4" in told
    for client in clients:
        await trio.aclose_forcefully(client)
