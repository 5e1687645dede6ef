"""Nodes that find a cluster by gossip: how it begins, which nodes may join, and the state after a restart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.broker.bootstrap import joining
from sandq.broker.cluster import cluster
from sandq.broker.controller.metadata_members import VOTERS_MOST
from sandq.gossip.tags import node_tags
from sandq.model.membership import State
from sandq.schedules.zones import data_version
from tests.support.nodes.found import BootstrapChecks, FoundNodes, found_nodes, refusals
from tests.support.nodes.working import take, values
from tests.support.waiting import until_answer, until_holds

THREE = ("node1", "node2", "node3")


async def test_three_come_together_and_outlive_one(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *THREE) as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == 3)
        async with nodes.connect("node2") as client:
            # node2 may discover node3 later than node1, which has accepted both already.
            await until_answer(
                client.admin.cluster,
                lambda info: (
                    [(row["node"], row["member"], row["up"]) for row in info["nodes"]]
                    == [(name, "alive", True) for name in THREE]
                ),
            )
            await client.admin.create_topic("t", partitions=3, replicas=3)
            for number in range(9):
                await client.produce("t", b"%d" % number)
        await nodes.stop("node1")
        await nodes.until_believed("node1", State.FAILED, "node2", "node3")
        async with nodes.connect("node2", "node3") as client:
            await client.produce("t", b"9")
            async with client.subscribe("t", group="g") as sub:
                assert sorted(values(await take(sub, 10))) == [b"%d" % number for number in range(10)]
        await nodes.start("node1")
        await nodes.until_believed("node1", State.ALIVE, "node2", "node3")
        await nodes.until_registered(*THREE)


async def test_a_seventh_node_listens_and_five_vote(tmp_path: Path) -> None:
    names = [f"node{number}" for number in range(1, 8)]
    async with found_nodes(tmp_path, *names) as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == VOTERS_MOST)
        members = nodes.running["node1"].broker.metadata_host.group.members
        assert len(members.learners) == 2
        listener = members.learners[0].partition("#")[0]
        async with nodes.connect(listener) as client:
            await client.admin.create_topic("t", partitions=7, replicas=3)
            await client.produce("t", b"through who only listens")
            async with client.subscribe("t", group="g") as sub:
                assert values(await take(sub, 1)) == [b"through who only listens"]


async def test_nodes_started_together_form_a_cluster_and_restart(tmp_path: Path) -> None:
    """A restarted node needs no seed: it asks registered nodes, and nodes known from gossip."""
    async with found_nodes(tmp_path, *THREE) as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == 3)
        uuid = nodes.running["node1"].broker.metadata.cluster_uuid
        async with nodes.connect() as client:
            await client.admin.create_topic("t", replicas=3)
            await client.produce("t", b"kept")
        await nodes.stop(*THREE)
        nodes.own = {name: {"CLUSTER__SEEDS": "127.0.0.1:1"} for name in THREE}
        await nodes.start(*THREE)
        await nodes.until_registered(*THREE)
        assert {nodes.running[name].broker.metadata.cluster_uuid for name in THREE} == {uuid}
        async with nodes.connect("node3") as client, client.subscribe("t", group="g") as sub:
            assert values(await take(sub, 1)) == [b"kept"]


async def test_founder_with_seeds_waits_for_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A founder with seeds does not found the cluster before one of the seeds has responded."""
    checks = BootstrapChecks(monkeypatch)
    async with trio.open_nursery() as nursery:
        nodes = FoundNodes(tmp_path, nursery)
        nodes.own["node1"] = {"CLUSTER__BOOTSTRAP": "true", "CLUSTER__SEEDS": nodes.gossip("node2")}
        nodes.launch("node1")
        await checks.until_more("node1")
        assert not nodes.running
        await nodes.start("node2")
        await nodes.until_registered("node1", "node2")
        assert len({serving.broker.metadata.cluster_uuid for serving in nodes.running.values()}) == 1
        nursery.cancel_scope.cancel()


async def test_a_founder_that_finds_a_cluster_joins_it(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", "node2") as nodes:
        nodes.own["node3"] = {"CLUSTER__BOOTSTRAP": "true", "CLUSTER__SEEDS": nodes.gossip("node1")}
        await nodes.start("node3")
        await nodes.until_registered(*THREE)


async def test_a_node_that_lost_its_disk_waits(tmp_path: Path) -> None:
    """The vote of node3 was counted, so it must not return under its name with an empty disk."""
    async with found_nodes(tmp_path, *THREE) as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == 3)
        old = nodes.running["node1"].broker.metadata.nodes["node3"].store_uuid
        await nodes.stop("node3")
        shutil.rmtree(nodes.data_dir("node3"))
        # A node that never met node3 must not let it in either.
        with refusals() as count:
            await nodes.start("node4")
            nodes.launch("node3")
            await until_holds(lambda: count("node3", "store") >= 3)
        assert "node3" not in nodes.running
        assert nodes.running["node1"].broker.metadata.nodes["node3"].store_uuid == old


async def test_two_clusters_of_one_name_stay_two(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1") as nodes:
        nodes.own["node2"] = {"CLUSTER__BOOTSTRAP": "true", "CLUSTER__SEEDS": ""}
        await nodes.start("node2")
        await nodes.stop("node2")
        nodes.own["node2"] = {"CLUSTER__SEEDS": nodes.gossip("node1")}
        with refusals() as count:
            await nodes.start("node2")
            await until_holds(lambda: count("node2", "cluster_uuid"))
        assert set(nodes.registered("node1")) == {"node1"} and set(nodes.registered("node2")) == {"node2"}


@pytest.mark.parametrize("crashes", ["before it is told", "before it is written"])
async def test_a_crash_while_it_is_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: str) -> None:
    """The node is already a learner but does not know it. After the restart it asks again, and gets the reply."""
    async with found_nodes(tmp_path, "node1", "node2") as nodes:
        with monkeypatch.context() as patch:
            if crashes == "before it is told":
                patch.setattr(joining.Joining, "_heard_welcome", lambda *_: None)
            else:
                adopt = cluster.Cluster._adopt

                async def stuck(self: cluster.Cluster, uuid: str) -> None:
                    if self._this_node.name == "node3":
                        await trio.sleep_forever()
                    await adopt(self, uuid)

                patch.setattr(cluster.Cluster, "_adopt", stuck)
            nodes.launch("node3")

            def is_learner() -> bool:
                return any("node3" in member for member in nodes.running["node1"].broker.metadata_host.group.members[1])

            await until_holds(is_learner)
            await until_holds(lambda: "node3" in nodes._scopes)
            await nodes.stop("node3")
        await nodes.start("node3")
        await nodes.until_registered(*THREE)
        await until_holds(lambda: len(nodes.voters("node1")) == 3)


async def test_nodes_with_different_zone_data_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With different zone data, schedules may send at different times, depending on the leader."""

    def tags(**told: Any) -> dict[str, str]:
        return node_tags(**told | ({"zone_data": "2020.1"} if told["node"] == "node2" else {}))

    monkeypatch.setattr("sandq.node.membership.node_tags", tags)
    async with found_nodes(tmp_path, "node1", "node2") as nodes, nodes.connect("node1") as client:
        info = await until_answer(client.admin.cluster, lambda info: info["other_zone_data"] == ["node2"])
        assert {row["node"]: row["zone_data"] for row in info["nodes"]} == {
            "node1": info["zone_data"],
            "node2": "2020.1",
        }
        assert info["zone_data"] == data_version()
