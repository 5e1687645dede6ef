"""Nodes that do not belong to the cluster, nodes at a wrong address, and a minority of nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

from sandq.errors import Unavailable
from sandq.model.membership import State
from sandq.storage.files import RealFiles
from sandq.storage.known_peers import KnownPeers
from tests.integration.cluster.test_moves import all_there, produced
from tests.support.nodes.administrator import Administrator
from tests.support.nodes.found import found_nodes, refusals
from tests.support.nodes.raw_client import RawClient
from tests.support.waiting import until_holds

THREE = ("node1", "node2", "node3")


async def test_a_second_node_of_the_same_id(tmp_path: Path) -> None:
    """All nodes refuse the second node3, because its store differs. The first node3 continues."""
    async with found_nodes(tmp_path / "a", *THREE) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=3, replicas=3)
        store = nodes.running["node1"].broker.metadata.nodes["node2"].store_uuid
        real = nodes.running["node2"]
        nodes.own["node2"] = {
            "NODE__DATA_DIR": str(tmp_path / "b"),
            "LISTEN__CLIENT": "127.0.0.1:0",
            "LISTEN__PEER": "127.0.0.1:0",
            "LISTEN__GOSSIP": "127.0.0.1:0",
        }
        scope = nodes._scopes["node2"]
        with refusals() as count:
            nodes.launch("node2")
            await until_holds(lambda: count("node3", "store"))  # node2 dials node3
        await nodes.stop("node2")
        nodes._scopes["node2"], nodes.running["node2"] = scope, real
        await produced(nodes, 50)
        await all_there(nodes, 50)
        assert nodes.running["node1"].broker.metadata.nodes["node2"].store_uuid == store
        await until_holds(lambda: "node2" in nodes.running["node1"].broker.links.reachable())


@pytest.mark.parametrize(
    ("key", "other", "said"),
    [
        ("CLUSTER__NAME", "another", ("node3", "cluster")),
        ("CLUSTER__SECRET_FILE", "secret-2", ("a gossip stream ended early",)),
    ],
)
async def test_node_with_wrong_cluster_name_or_secret_cannot_join(
    tmp_path: Path, key: str, other: str, said: tuple[str, ...]
) -> None:
    for name in ("secret-1", "secret-2"):
        (tmp_path / name).write_text(f"the content of {name}")
        (tmp_path / name).chmod(0o600)
    environ = {"CLUSTER__SECRET_FILE": str(tmp_path / "secret-1")}
    async with found_nodes(tmp_path / "nodes", "node1", "node2", **environ) as nodes:
        nodes.own["node3"] = {key: str(tmp_path / other) if key.endswith("FILE") else other}
        with refusals() as count:
            nodes.launch("node3")
            await until_holds(lambda: count(*said))
        assert "node3" not in nodes.running
        assert set(nodes.registered("node1")) == {"node1", "node2"}
        assert "node3" not in nodes.running["node1"].broker.links.reachable()
        await nodes.stop("node3")


async def test_an_address_that_was_that_of_another(tmp_path: Path) -> None:
    """node4 starts at the address of the stopped node3: the cluster tells them apart, and node3 may return at another
    address."""
    async with found_nodes(tmp_path, *THREE) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=3, replicas=3)
        await produced(nodes, 50)
        await nodes.stop("node3")
        for ports in (nodes.client_ports, nodes.peer_ports, nodes.gossip_ports):
            ports["node3"], ports["node4"] = ports["node4"], ports["node3"]
        await nodes.start("node4")
        await nodes.until_registered(*THREE, "node4")
        await nodes.until_believed("node3", State.FAILED, "node1")
        assert nodes.running["node1"].broker.metadata.nodes["node3"].store_uuid != (
            nodes.running["node1"].broker.metadata.nodes["node4"].store_uuid
        )
        await nodes.start("node3")
        await until_holds(lambda: set(nodes.running["node1"].broker.links.reachable()) == {*THREE, "node4"})
        at = f"127.0.0.1:{nodes.client_ports['node3']}"
        await until_holds(lambda: nodes.running["node1"].broker.metadata.nodes["node3"].addresses["client"] == at)
        await all_there(nodes, 50)


async def test_minority_serves_reads_and_refuses_changes(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *THREE) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=1, replicas=3)
        await nodes.stop("node1", "node3")
        await until_holds(lambda: not nodes.running["node2"].broker.metadata_host.ready)
        async with nodes.connect("node2") as client:
            assert [topic.name for topic in await client.admin.list_topics()] == ["t"]
            assert {row["node"] for row in (await client.admin.cluster())["nodes"]} == set(THREE)
        # A client would repeat the request until its timeout.
        raw = await RawClient.connect(nodes.client_ports["node2"])
        refused = await raw.create("u")
        assert refused[2] == "UNAVAILABLE" and re.search("of the 3 nodes that vote .*, 2 cannot be reached", refused[3])
        await trio.aclose_forcefully(raw.stream)
        for change in ("drain", "remove"):
            with pytest.raises(Unavailable):
                await getattr(Administrator(nodes.running["node2"].broker), change)("node3")
        await nodes.start("node1")
        await until_holds(lambda: any(s.broker.metadata_host.ready for s in nodes.running.values()))
        async with nodes.connect("node1", "node2") as client:
            await client.admin.create_topic("u", replicas=2)


async def test_known_peer_with_another_store_is_replaced_by_the_registered_node(tmp_path: Path) -> None:
    """node2 first met a node3 that had lost its disk, before it heard of the registered one."""
    async with found_nodes(tmp_path, *THREE) as nodes:
        await nodes.stop("node2")
        known = KnownPeers.open(RealFiles(nodes.data_dir("node2")))
        known.correct("node3", "another store")
        await nodes.start("node2")
        await until_holds(lambda: set(nodes.running["node2"].broker.links.reachable()) == set(THREE))
        await until_holds(lambda: set(nodes.running["node3"].broker.links.reachable()) == set(THREE))
