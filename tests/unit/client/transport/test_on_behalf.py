"""A gateway proves itself and names the caller. To a node without gateway support it sends neither."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import pytest

from sandq.client import Client, connect_with, on_behalf_of
from sandq.client.options import Options
from sandq.model.errors import Forbidden, InvalidRequest
from sandq.protocol.frames import Frame, Type
from sandq.protocol.proofs import prove_gateway
from tests.support.client.fake_server import FakeConnection, FakeServer
from tests.support.client.helpers import QUICK

SECRET = b"what nodes and gateways share"
CHALLENGE = bytes(range(32))
ADA, BOB = "192.0.2.7", "192.0.2.8"


class Node(FakeServer):
    """A server that requires proof from gateways."""

    def do_hello(self, connection: FakeConnection, frame: Frame) -> Any:
        challenge = (CHALLENGE,) if "gateway" in frame[4] else ()
        return *super().do_hello(connection, frame), *challenge

    def do_prove(self, connection: FakeConnection, frame: Frame) -> Any:
        return ()

    def do_on_behalf(self, connection: FakeConnection, frame: Frame) -> None:
        return None


def with_gateway(run: Any, server: FakeServer, body: Any) -> None:
    """Run `body` with a client that proves to be a gateway."""

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server.add_topic("t")
            await server.start(tasks)
            options = Options(**QUICK, gateway_secret=lambda: SECRET)
            async with connect_with(options, (server.address,), "gateway") as client:
                await body(client)
            tasks.cancel_scope.cancel()

    run(main)


def callers_and_requests(server: FakeServer, *kinds: Type) -> list[Any]:
    """The named callers and the requests of these kinds, in order."""
    return [
        tuple(frame[2:]) if frame[0] == Type.ON_BEHALF else Type(frame[0])
        for frame in server.frames
        if frame[0] in (Type.ON_BEHALF, *kinds)
    ]


def callers(server: FakeServer, kind: Type) -> list[Any]:
    """The caller of each request of this kind."""
    who, found = (None, None), []
    for one in callers_and_requests(server, kind):
        if one is kind:
            found.append(who)
        else:
            who = one
    return found


def test_gateway_proves_itself_with_both_nonces(run: Any) -> None:
    server = Node()

    async def body(client: Client) -> None:
        (hello,), (prove,) = server.of_type(Type.HELLO), server.of_type(Type.PROVE)
        nonce = hello[4]["gateway"]
        assert len(nonce) == 32
        assert prove[2] == prove_gateway(SECRET, nonce, CHALLENGE, "n1", "c1")

    with_gateway(run, server, body)


def test_a_caller_is_said_when_it_changes(run: Any) -> None:
    server = Node()

    async def body(client: Client) -> None:
        for address in (ADA, ADA, BOB):
            with on_behalf_of(address):
                await client.admin.groups("t")
        await client.admin.groups("t")
        with on_behalf_of(ADA, "ada"):
            await client.admin.groups("t")

    with_gateway(run, server, body)
    assert callers(server, Type.GROUP_LIST) == [(None, ADA), (None, ADA), (None, BOB), (None, None), ("ada", ADA)]
    told = callers_and_requests(server)
    assert all(one != following for one, following in pairwise(told)), "the caller is not named twice"


def test_a_batch_of_one_caller_is_asked_on_its_behalf(run: Any) -> None:
    server = Node()

    async def body(client: Client) -> None:
        for address in (ADA, BOB):
            with on_behalf_of(address):
                await client.produce_many("t", [b"one", b"two"])
                await client.produce("t", b"three")

    with_gateway(run, server, body)
    assert {*callers(server, Type.PRODUCE)} == {(None, ADA), (None, BOB)}


def test_a_batch_of_several_is_the_gateways_own(run: Any) -> None:
    server = Node()

    async def body(client: Client) -> None:
        async with client.producer("t", linger="1h") as producer:
            for address in (ADA, BOB, ADA):
                with on_behalf_of(address):
                    await producer.send(b"v")

    with_gateway(run, server, body)
    assert callers(server, Type.PRODUCE) == [(None, None)]


def test_requests_that_travel_together_are_of_one_caller(run: Any) -> None:
    server = Node()

    async def cancel(client: Client, address: str, key: str) -> None:
        with on_behalf_of(address):
            await client.messages("t").cancel(unique_key=key)

    async def body(client: Client) -> None:
        for key in ("a", "b", "c"):
            await client.produce("t", b"v", unique_key=key, delay="1h")
        async with anyio.create_task_group() as tasks:
            for address, key in ((ADA, "a"), (BOB, "b"), (ADA, "c")):
                tasks.start_soon(cancel, client, address, key)

    with_gateway(run, server, body)
    sizes = [len(frame[4]) for frame in server.of_type(Type.CANCEL)]
    assert {*zip(callers(server, Type.CANCEL), sizes, strict=True)} == {((None, ADA), 2), ((None, BOB), 1)}


def test_node_without_gateway_support_is_sent_nothing(run: Any) -> None:
    server = FakeServer()

    async def body(client: Client) -> None:
        with on_behalf_of(ADA):
            await client.admin.groups("t")

    with_gateway(run, server, body)
    assert not server.of_type(Type.PROVE) and not server.of_type(Type.ON_BEHALF)


def test_gateway_with_refused_proof_acts_for_itself(run: Any, caplog: Any) -> None:
    server = Node()
    server.script[Type.PROVE].append(Forbidden("this is no proof of a gateway"))

    async def body(client: Client) -> None:
        with on_behalf_of(ADA):
            await client.admin.groups("t")

    with_gateway(run, server, body)
    assert not server.of_type(Type.ON_BEHALF)
    assert "does not accept this client as a gateway: this is no proof of a gateway" in caplog.text


def test_client_acts_for_itself(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with on_behalf_of(ADA):
            await client.admin.groups("t")
        assert server.of_type(Type.HELLO)[0][4] == {}
        assert not server.of_type(Type.ON_BEHALF)

    with_client(body)


@pytest.mark.parametrize(
    "caller, what",
    [(("",), "address"), (("a" * 65,), "address"), ((ADA, ""), "principal"), ((ADA, "p" * 300), "principal")],
)
def test_invalid_on_behalf_of_is_refused_by_the_client(caller: tuple[str, ...], what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"on_behalf_of: {what} has 1 to"), on_behalf_of(*caller):
        pass
