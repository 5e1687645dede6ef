"""All nodes of a cluster know the rights of identities, a moment after a change on one node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

import sandq
from sandq.client import connect_with
from sandq.client.options import Options
from sandq.errors import Unauthenticated
from sandq.protocol.frames import Type
from tests.integration.cluster.test_waiting import waiting_nodes
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.three import NAMES, ThreeNodes, leading, three_nodes
from tests.support.waiting import PATIENCE_S, until_holds

pytestmark = pytest.mark.usefixtures("node_time")


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[ThreeNodes]:
    async with three_nodes(tmp_path, SECURITY__AUTHENTICATION="require") as nodes:
        yield nodes


async def first_token(nodes: ThreeNodes) -> str:
    """Return the writes of the metadata leader, once all nodes know them."""
    known = [serving.broker for serving in nodes.running.values()]
    await until_holds(lambda: all("token:admin" in broker.metadata.identities for broker in known))
    await leading(nodes)
    written = [nodes.data_dir(name) / "admin.token" for name in NAMES]
    await until_holds(lambda: any([file.exists() for file in written]))
    (file,) = [file for file in written if file.exists()]
    return file.read_text().strip()


async def greeted(nodes: ThreeNodes, name: str, token: str) -> tuple[RawClient, list[object]]:
    raw = await RawClient.connect(nodes.client_ports[name], hello=False)
    return raw, await raw.call(Type.HELLO, 2, "raw", {"token": token})


async def test_a_token_is_known_and_revoked_everywhere(strict: ThreeNodes) -> None:
    admin = await first_token(strict)
    server = f"127.0.0.1:{strict.client_ports['node1']}"
    options = Options(timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S, token=admin)
    async with connect_with(options, (server,), "boss") as boss:
        made = await boss.admin.create_token("app", ["writer:t"])
        there = [await greeted(strict, name, made.text) for name in NAMES]
        assert [answer[0] for _, answer in there] == [Type.REPLY] * 3
        await boss.admin.revoke_token("app")
        with trio.fail_after(PATIENCE_S):
            for raw, _ in there:
                assert (await raw.receive())[:3] == [Type.ERROR, 0, "UNAUTHENTICATED"]
        for raw, _ in there:
            await trio.aclose_forcefully(raw.stream)
        with pytest.raises(Unauthenticated):
            async with sandq.connect(server, token=made.text):
                pass


async def test_node_without_identities_accepts_init_from_its_own_machine(tmp_path: Path) -> None:
    async with waiting_nodes(tmp_path, "node1", SECURITY__AUTHENTICATION="require") as nodes:
        raw, answer = await greeted(nodes, "node1", "sandq_whatever")
        assert answer[0] == Type.REPLY, "this node does not know the identity yet"
        assert (await raw.call(Type.CLUSTER_INFO))[2]["waiting"]
        assert (await raw.call(Type.METADATA, None))[2] == "UNAVAILABLE"
        assert (await raw.call(Type.CLUSTER_INIT))[0] == Type.REPLY
        with trio.fail_after(PATIENCE_S):
            # from now on the node knows the identities
            assert (await raw.receive())[:3] == [Type.ERROR, 0, "UNAVAILABLE"]
        await trio.aclose_forcefully(raw.stream)
        late, refused = await greeted(nodes, "node1", "sandq_whatever")
        assert refused[2] == "UNAUTHENTICATED"
        await trio.aclose_forcefully(late.stream)


async def test_waiting_node_without_authentication_accepts_any_token(tmp_path: Path) -> None:
    async with waiting_nodes(tmp_path, "node1") as nodes:
        raw, answer = await greeted(nodes, "node1", "sandq_whatever")
        assert answer[0] == Type.REPLY
        assert (await raw.call(Type.CLUSTER_INIT))[0] == Type.REPLY
        assert (await raw.call(Type.CLUSTER_INFO))[0] == Type.REPLY
        await trio.aclose_forcefully(raw.stream)
