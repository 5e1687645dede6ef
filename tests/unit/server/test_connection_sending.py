"""Tests of sending: the sender's turns and the connection's own task never mix the bytes of a client.

A failure of one client does not affect others.
"""

from __future__ import annotations

import dataclasses
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from sandq.model.limits import DEFAULT
from sandq.server.connection import Connection
from sandq.server.output import Sender
from tests.support.nodes.one_connection import NothingTogether
from tests.support.waiting import PATIENCE_S

IN_FLIGHT_BYTES = 300_000
LIMITS = dataclasses.replace(DEFAULT, in_flight_bytes_per_connection=IN_FLIGHT_BYTES)
SMALL = 65_536


class Session(NothingTogether):
    greeted = True

    def __init__(self) -> None:
        self.drains = 0

    def handle(self, frame: Any) -> None: ...

    def handled(self) -> None: ...

    def drained(self) -> None:
        self.drains += 1

    async def closed(self) -> None: ...


@asynccontextmanager
async def connected(sender: Sender, session: Session) -> AsyncIterator[tuple[Connection, trio.SocketStream]]:
    """Return the node's end and the client's end with small buffers between them."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    client = await trio.open_tcp_stream(*listener.socket.getsockname()[:2])
    stream = await listener.accept()
    await listener.aclose()
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    connection = Connection(stream=stream, sender=sender, limits=LIMITS, http_address="")
    async with client, trio.open_nursery() as nursery:
        nursery.start_soon(connection.run, lambda _: session)
        yield connection, client
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(6))
async def test_bytes_arrive_in_order_and_congestion_ends(seed: int) -> None:
    rng = random.Random(seed)
    sender, session = Sender(), Session()
    sent, got, congested = bytearray(), bytearray(), 0

    async def receive(client: trio.SocketStream) -> None:
        while data := await client.receive_some(rng.choice([100, 5000, 60_000])):
            got.extend(data)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery, connected(sender, session) as (connection, client):
            nursery.start_soon(sender.run)
            nursery.start_soon(receive, client)
            for _ in range(150):
                for _ in range(rng.randrange(4)):
                    frame = rng.randbytes(rng.choice([1, 10, 3000, 90_000]))
                    connection.send(frame)
                    sent += frame
                if rng.random() < 0.3:
                    connection.output.flush()
                if connection.congested:
                    congested += 1
                    while connection.congested:  # noqa: ASYNC110 - by the reader at the other end
                        await trio.sleep(0.001)
                elif rng.random() < 0.7:
                    await trio.lowlevel.checkpoint()
            while len(got) < len(sent):  # noqa: ASYNC110 - likewise
                await trio.sleep(0.001)
            assert bytes(got) == bytes(sent), seed
            assert connection.waiting_bytes == 0
            assert session.drains == congested > 0, seed
            nursery.cancel_scope.cancel()


async def test_send_failure_of_one_client_does_not_affect_another() -> None:
    """An internal fault: the queued data of the first client is not a frame."""
    sender = Sender()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery, connected(sender, Session()) as (good, client):
            nursery.start_soon(sender.run)
            with pytest.RaisesGroup(TypeError, flatten_subgroups=True):
                async with connected(sender, Session()) as (bad, _):
                    bad.output._out.add("no bytes")  # type: ignore[arg-type]
                    sender.add(bad.output)
                    good.send(b"still here")
                    await trio.sleep_forever()
            assert await client.receive_some(100) == b"still here"
            nursery.cancel_scope.cancel()


class Flushes:
    def __init__(self) -> None:
        self.count = 0

    def flush(self) -> None:
        self.count += 1


async def test_gathered_output_is_flushed_once_at_the_end() -> None:
    sender, before, inside, after = Sender(), Flushes(), Flushes(), Flushes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run)
        await trio.testing.wait_all_tasks_blocked()
        sender.add(before)
        with pytest.raises(KeyError), sender.gathering():
            sender.add(inside)
            assert inside.count == 0
            raise KeyError("who answers")
        assert (before.count, inside.count) == (1, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert (before.count, inside.count) == (1, 1)
        sender.add(after)
        await trio.testing.wait_all_tasks_blocked()
        assert after.count == 1
        nursery.cancel_scope.cancel()
