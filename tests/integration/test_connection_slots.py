"""Limits of the client port: no address gets all connections, and the node's own machine always gets one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.protocol.proofs import prove_gateway
from sandq.server import tcp
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.waiting import until_answer

SECRET: Final = b"what nodes and gateways share"
NONCE: Final = bytes(range(32))
PLACES: Final = 8
SHARE: Final = 6
SPARE: Final = 3
HERE, GREEDY, MODEST = "127.0.0.1", "127.0.0.2", "127.0.0.3"
"""The node's own machine, and two others."""
From = Callable[..., Awaitable[RawClient]]


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    """Run a node with few slots that regards only `HERE` as its own machine."""
    secret_file = tmp_path / "gateway-secret"
    secret_file.write_bytes(SECRET + b"\n")
    secret_file.chmod(0o600)
    monkeypatch.setattr(tcp, "SPARE_SLOTS", SPARE)
    monkeypatch.setattr(tcp, "is_loopback", lambda host: host == HERE)
    config = small_config(tmp_path, LIMITS__CONNECTIONS=str(PLACES), HTTP__GATEWAY_SECRET_FILE=str(secret_file))
    async with run_node(config) as serving:
        yield serving


@pytest.fixture
async def connect(node: Serving) -> AsyncIterator[From]:
    """`await connect(address, hello=True)`: a connection from this local address, which ends with the test."""
    made: list[RawClient] = []

    async def connect(address: str, *, hello: bool = True) -> RawClient:
        stream = await trio.open_tcp_stream(HERE, node.client_port, local_address=address)
        made.append(RawClient(stream))
        if hello:
            answer = await made[-1].call(Type.HELLO, 2, "raw", {})
            assert answer[0] == 0, answer
        return made[-1]

    yield connect
    for client in made:
        await trio.aclose_forcefully(client.stream)


async def refusal(client: RawClient) -> list[Any]:
    """Return the error that the node sent before it closed the connection."""
    frame = await client.receive()
    assert await client.stream.receive_some(1) == b"", "it is closed"
    assert frame[:3] == [Type.ERROR, 0, "OVERLOADED"], frame
    return frame


async def test_connections_per_address_are_limited_to_three_quarters(connect: From) -> None:
    greedy = [await connect(GREEDY) for _ in range(SHARE)]
    for _ in range(2):
        told = (await refusal(await connect(GREEDY, hello=False)))[3]
        assert "127.0.0.2 has 6 connections, as many as one address may have of the 8 of this node" in told
        assert "(limits.connections): close some, or raise limits.connections" in told
    for _ in range(PLACES - SHARE):
        await connect(MODEST)
    told = (await refusal(await connect(MODEST, hello=False)))[3]
    assert "this node has 8 connections, which is its limit (limits.connections): close some" in told
    await trio.aclose_forcefully(greedy[0].stream)
    await until_answer(lambda: connect(MODEST), despite=(AssertionError, EOFError, trio.BrokenResourceError))


async def fill(connect: From) -> None:
    """Use all connections except the spare ones."""
    for address in [GREEDY] * SHARE + [MODEST] * (PLACES - SHARE):
        await connect(address)


async def test_local_connection_is_accepted_when_the_limit_is_reached(connect: From) -> None:
    await fill(connect)
    here = [await connect(HERE) for _ in range(SPARE)]
    later = await connect(HERE)
    told = (await refusal(here[0]))[3]
    assert "a later connection from this machine has the slot of this one: close some" in told
    for client in (*here[1:], later):
        assert (await client.call(Type.PING))[0] == 0, "only the oldest connection is closed"
    await refusal(await connect(MODEST, hello=False))


async def test_local_gateway_keeps_its_connection(connect: From) -> None:
    await fill(connect)
    gateways = []
    for _ in range(SPARE):
        for _ in range(SPARE):
            await connect(HERE)
        gateway = await connect(HERE, hello=False)
        _, _, _, node_id, uuid, _, _, challenge = await gateway.call(Type.HELLO, 2, "raw", {"gateway": NONCE})
        proof = prove_gateway(SECRET, NONCE, challenge, node_id, uuid)
        assert (await gateway.call(Type.PROVE, proof))[0] == 0
        gateways.append(gateway)
    for gateway in gateways:
        assert (await gateway.call(Type.PING))[0] == 0
    told = (await refusal(await connect(HERE, hello=False)))[3]
    assert "this node has 8 connections, which is its limit" in told, "gateways may use all spare slots"
