"""Requests that HTTP sends on behalf of clients: nodes count them for each address, and trust only gateways."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.protocol.proofs import prove_gateway
from sandq.server.caller_requests import WAITING_BYTES
from tests.support.http_client import NO_TLS
from tests.support.nodes.gateway import PATIENT, gateway
from tests.support.nodes.http_requests import Web
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.three import three_nodes
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

SECRET: Final = b"what nodes and gateways share"
NONCE: Final = bytes(range(32))
GREEDY, MODEST = "127.0.0.2", "127.0.0.3"
REQUESTS: Final = 2
"""One request of a caller that is in progress at a node."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Serving]:
    """A node with topic "t" of one partition, and little capacity for each connection."""
    secret_file = tmp_path / "gateway-secret"
    secret_file.write_bytes(SECRET + b"\n")
    secret_file.chmod(0o600)
    config = small_config(
        tmp_path,
        LISTEN__HTTP="127.0.0.1:0",
        HTTP__GATEWAY_SECRET_FILE=str(secret_file),
        LIMITS__REQUESTS_PER_CONNECTION=str(REQUESTS),
    )
    async with run_node(config) as serving:
        async with connected(serving) as api:
            await api.admin.create_topic("t")
        yield serving


@asynccontextmanager
async def web_from(address: str, node: Serving) -> AsyncIterator[Web]:
    """An HTTP client with this local address."""
    assert node.http is not None
    transport = httpx.AsyncHTTPTransport(verify=NO_TLS, local_address=address)
    base_url = f"http://{node.http[0]}:{node.http[1]}"
    async with httpx.AsyncClient(base_url=base_url, transport=transport, timeout=PATIENCE_S) as client:
        yield Web(client)


def waiting_bytes(node: Serving, address: str) -> int:
    return node.broker.node_log.memory.watchers.of(address).bytes


async def test_requests_of_one_address_do_not_limit_another(node: Serving) -> None:
    async with web_from(GREEDY, node) as greedy, web_from(MODEST, node) as modest, trio.open_nursery() as nursery:
        for _ in range(REQUESTS):
            nursery.start_soon(greedy.post, "/topics/t/groups/greedy/lease", {"wait": "60s"})
        await until_holds(lambda: waiting_bytes(node, GREEDY) >= REQUESTS * WAITING_BYTES)
        assert waiting_bytes(node, MODEST) == 0
        await modest.get("/topics/t/forecast")
        nursery.start_soon(modest.post, "/topics/t/groups/modest/lease", {"wait": "60s"})
        await until_holds(lambda: waiting_bytes(node, MODEST) >= WAITING_BYTES)
        nursery.cancel_scope.cancel()
    await until_holds(lambda: waiting_bytes(node, GREEDY) == waiting_bytes(node, MODEST) == 0)


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """Collect log events, also of loggers bound before the test."""
    with capture_logs() as logs:
        yield logs


async def test_refusal_is_logged_with_the_client_address(logs: list[MutableMapping[str, Any]], node: Serving) -> None:
    async with web_from(GREEDY, node) as greedy:
        await greedy.get("/topics/t/messages/00000000000000000000000000", 404)
    (line,) = [line for line in logs if line["event"] == "a request was refused"]
    assert (line["peer"], line["principal"], line["request"]) == (GREEDY, "anonymous", "get"), line
    assert line["gateway"].startswith("127.0.0.1:"), line


async def test_gateway_with_wrong_secret_acts_for_itself(node: Serving) -> None:
    server = f"127.0.0.1:{node.client_port}"
    deadlines = replace(PATIENT, leave_s=0.02)
    async with gateway(server, node.broker.limits, deadlines, b"something else altogether") as address:
        elsewhere = replace(node, http=address)
        async with web_from(GREEDY, elsewhere) as greedy, trio.open_nursery() as nursery:
            nursery.start_soon(greedy.post, "/topics/t/groups/greedy/lease", {"wait": "60s"})
            await until_holds(lambda: waiting_bytes(node, "127.0.0.1") >= WAITING_BYTES)
            assert waiting_bytes(node, GREEDY) == 0
            nursery.cancel_scope.cancel()


# -- by the binary protocol -------------------------------------------------------------------------------------------


class Nodes:
    """Raw connections to a node."""

    def __init__(self, node: Serving, opened: AsyncExitStack) -> None:
        self._node = node
        self._opened = opened

    async def greeted(self, options: dict[str, Any]) -> tuple[RawClient, list[Any]]:
        """Open a connection that has sent HELLO with these options; return it and the reply."""
        client = await RawClient.connect(self._node.client_port, hello=False)
        await self._opened.enter_async_context(client.stream)
        return client, await client.call(Type.HELLO, 2, "raw", options)

    async def proved(self, secret: bytes = SECRET) -> tuple[RawClient, list[Any]]:
        """Open a gateway connection; return it and the reply to its proof."""
        client, (_, _, _, node_id, uuid, _, _, challenge) = await self.greeted({"gateway": NONCE})
        return client, await client.call(Type.PROVE, prove_gateway(secret, NONCE, challenge, node_id, uuid))


@pytest.fixture
async def raw(node: Serving) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as opened:
        yield Nodes(node, opened)


async def ended(client: RawClient) -> str:
    """Return the reason why the node closes the connection."""
    kind, request_id, code, message, *_ = await client.receive()
    assert (kind, request_id, code) == (Type.ERROR, 0, "PROTOCOL")
    with pytest.raises(EOFError):
        await client.receive()
    return str(message)


async def test_client_without_challenge_gets_the_old_reply(raw: Nodes) -> None:
    client, reply = await raw.greeted({"something": 1})
    assert len(reply) == 7
    await client.send(Type.PROVE, 2, bytes(32))
    assert "unexpected PROVE" in await ended(client)


async def test_a_liar_is_refused(raw: Nodes) -> None:
    client, _ = await raw.greeted({})
    await client.send(Type.ON_BEHALF, 0, None, MODEST)
    assert "only a gateway may send it" in await ended(client)


async def test_wrong_proof_is_refused_and_client_acts_for_itself(raw: Nodes) -> None:
    client, refusal = await raw.proved(b"something else altogether")
    assert refusal[0] == Type.ERROR and refusal[2] == "FORBIDDEN" and "http.gateway_secret_file" in refusal[3]
    assert (await client.call(Type.PING))[0] == Type.REPLY
    await client.send(Type.ON_BEHALF, 0, None, MODEST)
    assert "only a gateway may send it" in await ended(client)


async def test_second_proof_ends_the_connection(raw: Nodes) -> None:
    client, _ = await raw.proved(b"something else altogether")
    await client.send(Type.PROVE, 5, bytes(32))
    assert "unexpected PROVE" in await ended(client)


async def test_a_proof_is_worth_nothing_on_another_connection(raw: Nodes) -> None:
    _, (_, _, _, node_id, uuid, _, _, challenge) = await raw.greeted({"gateway": NONCE})
    other, _ = await raw.greeted({"gateway": NONCE})
    answer = await other.call(Type.PROVE, prove_gateway(SECRET, NONCE, challenge, node_id, uuid))
    assert answer[2] == "FORBIDDEN"


async def test_a_wrong_caller_ends_the_connection(raw: Nodes) -> None:
    client, answer = await raw.proved()
    assert answer == [Type.REPLY, 2]
    await client.send(Type.ON_BEHALF, 0, None, "x" * 65)
    assert "ON_BEHALF field 2 (address)" in await ended(client)


async def test_a_nonce_has_its_length(raw: Nodes) -> None:
    _, answer = await raw.greeted({"gateway": b"short"})
    assert answer[2] == "INVALID" and "gateway must be 32 bytes" in answer[3]


async def test_client_over_its_limit_is_refused_and_others_are_served(raw: Nodes) -> None:
    client, _ = await raw.proved()
    await client.send(Type.ON_BEHALF, 0, None, GREEDY)
    for number in range(10, 13):
        await client.send(Type.LEASE, number, "t", "g", "c", 1, 60_000, None, "earliest", False)
    refusal = await client.receive()
    assert (refusal[1], refusal[2], refusal[4]) == (12, "OVERLOADED", True), refusal
    for principal, address in (("ada", MODEST), ("ada", GREEDY), (None, None)):
        await client.send(Type.ON_BEHALF, 0, principal, address)
        assert (await client.call(Type.FORECAST, "t", "hour", 1))[0] == Type.REPLY
    await client.send(Type.ON_BEHALF, 0, None, GREEDY)
    assert (await client.call(Type.FORECAST, "t", "hour", 1))[0] == Type.REPLY, (
        "waiting requests have their own account"
    )
    await client.send(Type.LEASE, 20, "t", "g", "c", 1, 60_000, None, "earliest", False)
    assert (await client.receive())[1:3] == [20, "OVERLOADED"]


# -- a cluster --------------------------------------------------------------------------------------------------------


async def test_nodes_of_a_cluster_believe_each_others_http(tmp_path: Path) -> None:
    """A waiting lease is sent to each node that leads a partition."""
    secret_file = tmp_path / "secret"
    secret_file.write_bytes(b"what all nodes of the cluster share")
    secret_file.chmod(0o600)
    settings = {"CLUSTER__SECRET_FILE": str(secret_file), "LISTEN__HTTP": "127.0.0.1:0"}
    async with three_nodes(tmp_path, **settings) as nodes:
        node = nodes.running["node1"]
        async with web_from(GREEDY, node) as web, trio.open_nursery() as nursery:
            await until_answer(lambda: web.raw("GET", "/readyz"), lambda answer: answer.status_code == 200)
            await web.post("/topics", {"name": "t", "partitions": 3, "replicas": 3}, 201)
            await until_answer(lambda: leaders(web), lambda found: found == {*nodes.running})
            nursery.start_soon(web.post, "/topics/t/groups/g/lease", {"wait": "60s"})
            await until_holds(lambda: all(waiting_bytes(one, GREEDY) for one in nodes.running.values()))
            nursery.cancel_scope.cancel()


async def leaders(web: Web) -> set[str | None]:
    return {*(await web.get("/topics/t"))["leaders"]}
