"""Tests of the slots of the HTTP process: clients without a slot get an error, and a flood of them keeps few
sockets."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from sandq.broker.memory_budget import Account
from sandq.server.http.bounds import FULL, REFUSED_MOST, SPARE_SLOTS, Deadlines
from sandq.server.http.connections import HttpServer, _Connection

SLOTS: Final = 4


class Transport(asyncio.Transport):
    """A client's socket on the server side."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 4711), "sockname": ("127.0.0.1", 2109)})
        self.sent = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.sent += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


async def nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


class Bed:
    def __init__(self) -> None:
        self.server = HttpServer(nothing, SLOTS, Account(1 << 30), Deadlines())

    def connect(self, host: str) -> tuple[_Connection, Transport]:
        connection, transport = _Connection(self.server), Transport(host)
        connection.connection_made(transport)
        return connection, transport

    def busy(self, host: str) -> Transport:
        """A connection with an open request, which keeps its slot."""
        connection, transport = self.connect(host)
        self.server.open.set_idle(connection, False)
        return transport


async def _flood() -> None:
    """Use all slots, and check how further connections are refused."""
    at = Bed()
    for number in range(SLOTS + SPARE_SLOTS):
        assert not at.busy(f"192.0.2.{number}").sent
    refused = [at.connect("192.0.2.250") for _ in range(REFUSED_MOST + 5)]
    assert {transport.sent for _, transport in refused} == {FULL}
    closed = [transport.is_closed for _, transport in refused]
    assert closed == [False] * REFUSED_MOST + [True] * 5 and at.server.refused == REFUSED_MOST
    for connection, _ in refused:
        connection.connection_lost(None)
    assert at.server.refused == 0


async def _share() -> None:
    """Use the share of one network, and check that other networks still get slots."""
    at = Bed()
    share, spare_share = SLOTS - SLOTS // 4, SPARE_SLOTS - SPARE_SLOTS // 4
    for number in range(share + spare_share):
        assert not at.busy(f"2001:db8::{number:x}").sent
    assert at.busy("2001:db8::ffff").sent == FULL
    assert not at.busy("2001:db8:0:1::").sent, "of another network"
    assert not at.busy("::ffff:192.0.2.1").sent
    assert at.server.open._slots._by_source["192.0.2.1"] + at.server.open._spare._by_source["192.0.2.1"] == 1


def test_flood_of_refused_connections_keeps_few_sockets() -> None:
    asyncio.run(_flood())


def test_a_network_of_ipv6_is_one_source() -> None:
    asyncio.run(_share())
