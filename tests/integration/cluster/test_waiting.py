"""Nodes that belong to no cluster yet: their replies, and how an operator makes one of them found it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

import sandq
from sandq.broker.bootstrap import founder_election
from sandq.errors import Conflict, SandqError, Unavailable
from sandq.protocol.frames import Type
from tests.support.http_client import NO_TLS
from tests.support.nodes.found import FoundNodes, found_nodes, refusals
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.three import ThreeNodes
from tests.support.nodes.working import take, values
from tests.support.ports import free_port
from tests.support.simulation.seeds import few_of
from tests.support.waiting import PATIENCE_S, until_answer, until_holds


@asynccontextmanager
async def waiting_nodes(directory: Path, *names: str, **own: str) -> AsyncIterator[FoundNodes]:
    """The nodes have each other as seeds, and none may found; each replies to requests."""
    async with trio.open_nursery() as nursery:
        nodes = FoundNodes(directory, nursery)
        for name in names:
            seeds = [nodes.gossip(other) for other in names if other != name] or [f"127.0.0.1:{free_port()}"]
            nodes.own[name] = {"CLUSTER__BOOTSTRAP": "false", "CLUSTER__SEEDS": f"[{', '.join(seeds)}]", **own}
            nodes.launch(name)
        for name in names:
            await until_answering(nodes, name)
        yield nodes
        await nodes.stop(*nodes._scopes)
        nursery.cancel_scope.cancel()


async def until_answering(nodes: ThreeNodes, name: str) -> None:
    connect = partial(trio.open_tcp_stream, "127.0.0.1", nodes.client_ports[name])
    await (await until_answer(connect, despite=OSError)).aclose()


async def info(nodes: ThreeNodes, name: str) -> dict[str, Any]:
    async with nodes.connect(name) as client:
        found: dict[str, Any] = await client.admin.cluster()
        return found


async def until_met(nodes: FoundNodes, name: str, *others: str) -> None:
    """Wait until the node is linked with the others, and knows that they wait as well."""

    def sees_all_nodes(found: dict[str, Any]) -> bool:
        return {row["node"] for row in found["others"] if row["up"]} == set(others)

    await until_answer(partial(info, nodes, name), sees_all_nodes)


def code(frame: list[Any]) -> Any:
    return frame[2] if frame[0] == Type.ERROR else None


async def test_init_founds_the_cluster_and_the_other_node_joins(tmp_path: Path) -> None:
    async with waiting_nodes(tmp_path, "node1", "node2") as nodes:
        await until_met(nodes, "node2", "node1")
        assert not nodes.running
        async with nodes.connect("node2") as client:
            uuid = await client.admin.init_cluster()
            assert (await client.admin.cluster())["cluster_uuid"] == uuid
            with pytest.raises(Conflict, match=uuid):
                await client.admin.init_cluster()
        await nodes.until_registered("node1", "node2")
        assert {serving.broker.metadata.cluster_uuid for serving in nodes.running.values()} == {uuid}
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", replicas=2)
            await client.produce("t", b"x")
            async with client.subscribe("t", group="g") as sub:
                assert values(await take(sub, 1)) == [b"x"]
            with pytest.raises(Conflict, match=uuid):
                await client.admin.init_cluster()


async def test_waiting_node_replies_to_few_requests_until_it_is_founded(tmp_path: Path) -> None:
    """Once the cluster is founded, the same connection can send every request."""
    async with waiting_nodes(tmp_path, "node1") as nodes:
        async with nodes.connect("node1") as client:
            found = await client.admin.cluster()
            assert (found["node"], found["cluster_uuid"], found["nodes"], found["others"]) == ("node1", "", [], [])
            assert "sandctl cluster init" in found["waiting"] and "cluster.seeds" in found["waiting"]
            assert (await client.admin.clock())["alarm"] is False
        raw = await RawClient.connect(nodes.client_ports["node1"])
        assert (await raw.call(Type.PING))[0] == Type.REPLY
        produced, created = await raw.produce(b"x"), await raw.create()
        for frame in (produced, created, await raw.call(Type.METADATA, None), await raw.subscribe()):
            assert code(frame) == "UNAVAILABLE" and frame[4] is True
            assert "no cluster yet" in frame[3] and "sandctl cluster init" in frame[3]
        assert code(await raw.call(200)) == "INVALID"
        assert code(await raw.call(Type.CLUSTER_INIT, 1)) == "INVALID"
        await raw.send(Type.CREDIT, 0, 1, 5)  # for nobody
        assert (await raw.call(Type.CLUSTER_INIT))[0] == Type.REPLY
        await until_holds(lambda: "node1" in nodes.running)
        assert (await raw.create())[0] == Type.REPLY
        assert (await raw.produce(b"x"))[0] == Type.REPLY
        assert code(await raw.call(Type.CLUSTER_INIT)) == "CONFLICT"
        await raw.stream.aclose()


async def test_a_client_says_why_nothing_goes(tmp_path: Path) -> None:
    async with (
        waiting_nodes(tmp_path, "node1") as nodes,
        # This timeout exceeds possible stalls of the machine, so the node has replied by then.
        sandq.connect(f"127.0.0.1:{nodes.client_ports['node1']}", timeout="5s") as client,
    ):

        async def refused(ask: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(Unavailable, match="sandctl cluster init"):
                await ask()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, lambda: client.produce("t", b"x"))
            nursery.start_soon(refused, client.admin.list_topics)


async def test_a_client_that_came_early_goes_on(tmp_path: Path) -> None:
    async with waiting_nodes(tmp_path, "node1", "node2") as nodes:
        await until_met(nodes, "node1", "node2")
        async with nodes.connect("node1", "node2") as client, trio.open_nursery() as nursery:
            with refusals() as count:
                nursery.start_soon(client.admin.create_topic, "t")
                await until_holds(lambda: count("a request was refused", "topic_create"))
            async with nodes.connect("node1") as operator:
                await operator.admin.init_cluster()


async def test_founded_cluster_survives_a_restart(tmp_path: Path) -> None:
    async with waiting_nodes(tmp_path, "node1") as nodes:
        async with nodes.connect("node1") as client:
            uuid = await client.admin.init_cluster()
        await nodes.stop("node1")
        await nodes.start("node1")
        assert nodes.running["node1"].broker.metadata.cluster_uuid == uuid


@pytest.mark.parametrize("turn", few_of([0, 3, 1, 2], 2))
async def test_two_operators_at_once(tmp_path: Path, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the nodes learns that the other one was first."""
    monkeypatch.setattr(founder_election, "ANSWER_S", PATIENCE_S)  # stalls of this machine must not end the wait
    names = ("node1", "node2", "node3")
    async with waiting_nodes(tmp_path, *names) as nodes:
        for name in names[:2]:
            await until_met(nodes, name, *(other for other in names if other != name))
        uuids: list[str] = []
        refused: list[SandqError] = []

        async def init(name: str) -> None:
            async with nodes.connect(name) as client:
                try:
                    uuids.append(await client.admin.init_cluster())
                except SandqError as error:
                    refused.append(error)

        async with trio.open_nursery() as nursery:
            for name in names[:2] if turn % 2 else reversed(names[:2]):
                nursery.start_soon(init, name)
                await trio.sleep(0.01 * (turn // 2))
        assert len(uuids) == 1 and [type(error) for error in refused] == [Conflict]
        assert "there is a cluster already" in refused[0].message or uuids[0] in refused[0].message
        await nodes.until_registered(*names)
        assert {serving.broker.metadata.cluster_uuid for serving in nodes.running.values()} == set(uuids)


async def test_node_that_knows_a_cluster_refuses_to_found_another(tmp_path: Path) -> None:
    """node3 returned with an empty disk: it may not join, and must not found a second cluster."""
    async with found_nodes(tmp_path, "node1", "node2", "node3") as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == 3)  # in a cluster of two, no node may lose its disk
        await nodes.stop("node3")
        shutil.rmtree(nodes.data_dir("node3"))
        nodes.launch("node3")
        await until_answering(nodes, "node3")

        async def refused() -> SandqError:
            async with nodes.connect("node3") as client:
                with pytest.raises(SandqError) as caught:
                    await client.admin.init_cluster()
            return caught.value

        await until_answer(partial(info, nodes, "node3"), lambda found: found["others"])
        error = await refused()
        assert isinstance(error, Conflict) and "there is a cluster already" in error.message
        assert "asks to join" in (await info(nodes, "node3"))["waiting"]
        # A client that tries this node's address before the others is not delayed by it.
        async with sandq.connect(*[f"127.0.0.1:{nodes.client_ports[f'node{n}']}" for n in (3, 1, 2)]) as client:
            assert (await client.admin.cluster())["node"] == "node1"
            await client.admin.create_topic("t")
            await client.produce("t", b"x")
        await nodes.stop("node3")


async def test_nodes_that_are_named_found_nothing_alone(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        nodes = ThreeNodes(tmp_path, nursery)
        nursery.start_soon(nodes.start, "node1", "node2")
        await until_answering(nodes, "node1")
        async with nodes.connect("node1") as client:
            await until_answer(client.admin.cluster, lambda found: "missing: node3" in found["waiting"])
            with pytest.raises(Conflict, match="missing: node3"):
                await client.admin.init_cluster()
        await nodes.start("node3")
        await until_holds(lambda: len(nodes.running) == 3)
        await nodes.stop(*nodes.running)
        nursery.cancel_scope.cancel()


async def test_over_http(tmp_path: Path) -> None:
    port = free_port()
    async with (
        waiting_nodes(tmp_path, "node1", LISTEN__HTTP=f"127.0.0.1:{port}") as nodes,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as web,
    ):
        assert (await web.get("/healthz")).status_code == 200

        def waits(ready: httpx.Response) -> bool:
            return ready.status_code == 503 and "sandctl cluster init" in ready.json()["detail"]

        await until_answer(lambda: web.get("/readyz"), waits)
        assert "sandq_build_info" in (await web.get("/metrics")).text
        assert (await web.get("/cluster")).json()["cluster_uuid"] == ""
        founded = await web.post("/cluster/init")
        assert founded.status_code == 200
        assert (await web.get("/cluster")).json()["cluster_uuid"] == founded.json()["cluster_uuid"]
        await until_holds(lambda: "node1" in nodes.running)
        await until_answer(lambda: web.get("/readyz"), lambda ready: ready.status_code == 200)
        assert (await web.post("/topics", json={"name": "t"})).status_code == 201
        again = await web.post("/cluster/init")
        assert (again.status_code, again.json()["code"]) == (409, "CONFLICT")
