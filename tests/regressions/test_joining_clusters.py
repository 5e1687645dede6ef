"""Nodes joined two clusters, took the log of another cluster, or became voters too early."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.bootstrap.joining import Joining
from sandq.broker.cluster.cluster import Cluster
from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.peers.handshake import Introduced
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.raft_group import RaftGroup
from sandq.metadata.commands import RegisterNode
from sandq.model.errors import StartupError
from sandq.protocol.peer import PeerFrame
from sandq.raft import Group
from sandq.raft.heartbeat_coalescing import HeartbeatCoalescing
from tests.support.nodes.found import FoundNodes, found_nodes
from tests.support.nodes.peer_bed import linked, new_node
from tests.support.nodes.three import three_nodes
from tests.support.waiting import until_holds

ALONE = {"CLUSTER__BOOTSTRAP": "true", "CLUSTER__SEEDS": ""}
ROUNDS = 3
BEATS = 5


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cluster]:
    """Return the `Cluster` object of each node, by node id, once it has one."""
    found: dict[str, Cluster] = {}
    run = Cluster.run

    async def noted(self: Cluster, *args: Any) -> None:
        found[self._this_node.name] = self
        await run(self, *args)

    monkeypatch.setattr(Cluster, "run", noted)
    return found


def members_of(nodes: FoundNodes, name: str) -> set[str]:
    members = nodes.running[name].broker.metadata_host.group.members
    return {member.partition("#")[0] for member in (*members.voters, *members.learners)}


@pytest.fixture
def welcomes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each node that leads the metadata has welcomed joining nodes."""
    made: Counter[str] = Counter()
    welcome = Joining.welcome

    def counted(self: Joining, metadata: Any) -> None:
        welcome(self, metadata)
        made[self._own_node] += 1

    monkeypatch.setattr(Joining, "welcome", counted)
    return made


async def until_welcomed(welcomes: Counter[str], name: str) -> None:
    """Wait until a node has welcomed joining nodes several times from now on."""
    enough = welcomes[name] + 1 + ROUNDS  # the first round may have begun before
    await until_holds(lambda: welcomes[name] >= enough)


def lose_welcome(*_: object) -> None:
    """Lose the WELCOME of a node."""


async def test_node_with_two_clusters_of_one_name_joins_one(
    tmp_path: Path, clusters: dict[str, Cluster], welcomes: Counter[str]
) -> None:
    """The node voted in both clusters with one log, because it also kept the link to the second cluster.

    All clusters use the same names for their metadata group and its members."""
    async with trio.open_nursery() as nursery:
        nodes = FoundNodes(tmp_path, nursery)
        nodes.own["node2"] = ALONE
        await nodes.start("node1", "node2")
        nodes.own["node3"] = {"CLUSTER__SEEDS": f"{nodes.gossip('node1')},{nodes.gossip('node2')}"}
        await nodes.start("node3")

        def node3_in(name: str) -> bool:
            return "node3" in members_of(nodes, name)

        await until_holds(lambda: node3_in("node1") or node3_in("node2"))
        (mine, other) = ("node1", "node2") if node3_in("node1") else ("node2", "node1")
        await until_holds(lambda: len(nodes.voters(mine)) == 2 and len(nodes.registered("node3")) == 2)
        await until_holds(lambda: "node3" not in clusters[other]._links.up and other not in clusters["node3"]._links.up)
        await until_welcomed(welcomes, other)
        assert not node3_in(other)
        views = {name: nodes.running[name].broker.metadata for name in nodes.running}
        assert views["node3"].cluster_uuid == views[mine].cluster_uuid != views[other].cluster_uuid
        assert set(nodes.registered("node3")) == {mine, "node3"}
        nursery.cancel_scope.cancel()


async def test_node_rejects_log_of_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: dict[str, Cluster], welcomes: Counter[str]
) -> None:
    """A node that one cluster counts as a member founded its own cluster, and accepted the log of the first cluster.

    This happened while neither side knew the cluster of the other side."""
    adopt, beat = Cluster._adopt, HeartbeatCoalescing.beat
    beats: Counter[HeartbeatCoalescing[Group]] = Counter()

    def counted(self: HeartbeatCoalescing[Group], now_s: float) -> None:
        beat(self, now_s)
        beats[self] += 1

    async def stuck(self: Cluster, uuid: str) -> None:
        if self._this_node.name == "node2":
            await trio.sleep_forever()
        await adopt(self, uuid)

    async with found_nodes(tmp_path, "node1") as nodes:
        with monkeypatch.context() as patch:
            patch.setattr(Joining, "_heard_welcome", lose_welcome)
            nodes.launch("node2")
            await until_holds(lambda: "node2" in members_of(nodes, "node1"))
            await nodes.stop("node2")
        nodes.own["node2"] = ALONE
        monkeypatch.setattr(Cluster, "_adopt", stuck)
        monkeypatch.setattr(HeartbeatCoalescing, "beat", counted)
        await nodes.start("node2")
        await until_holds(lambda: "node1" in clusters["node2"]._links.up and "node2" in clusters["node1"]._links.up)
        heartbeats = nodes.running["node1"].broker.node_log.group_commit.heartbeats
        enough = beats[heartbeats] + BEATS
        # the first heartbeat also sends the log to a node that accepts it
        await until_holds(lambda: beats[heartbeats] >= enough)
        await until_welcomed(welcomes, "node1")
        assert "node1" not in members_of(nodes, "node2") and "node1" not in nodes.registered("node2")
        assert len(nodes.voters("node1")) == 1


async def test_directory_of_one_cluster_is_rejected_by_another(tmp_path: Path, clusters: dict[str, Cluster]) -> None:
    """A node's data directory became part of another cluster without an error."""
    async with found_nodes(tmp_path, "node1"):
        own = clusters["node1"]._this_node.cluster_uuid
        with pytest.raises(StartupError, match="belongs to cluster"):
            await clusters["node1"]._adopt("another")
        assert clusters["node1"]._this_node.cluster_uuid == own


@pytest.mark.parametrize("changed", ["node1", "node2"])
async def test_node_that_joins_during_handshake_repeats_handshake(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link stayed up, and the other side never learned the cluster of this node."""
    nodes = {name: await new_node(name) for name in ("node1", "node2")}
    remember = PeerLinks._remember

    async def joins_meanwhile(self: PeerLinks, introduced: Introduced) -> None:
        await remember(self, introduced)
        if self is nodes[changed].links:
            nodes[changed].identity = dataclasses.replace(nodes[changed].identity, cluster_uuid="A")

    monkeypatch.setattr(PeerLinks, "_remember", joins_meanwhile)
    async with linked(*nodes.values()):
        (other,) = nodes.keys() - {changed}
        up = nodes[other].links.up
        await until_holds(lambda: changed in up and up[changed].identity.cluster_uuid == "A")


async def test_node_gets_no_welcome_before_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, welcomes: Counter[str]
) -> None:
    """Two nodes had the same id, and each had a link to another node.

    If the leader changed before one of the two was registered, both got a WELCOME. Then both voted under one name."""
    register = ClusterController.register
    welcomed: list[str] = []
    send = PeerLinks.send

    async def only_itself(self: ClusterController, metadata: Any) -> None:
        if len(self._directory.linked()) == 1:
            await register(self, metadata)

    def noted(self: PeerLinks, node: str, kind: int, body: Any) -> bool:
        if kind == PeerFrame.WELCOME:
            welcomed.append(node)
        return send(self, node, kind, body)

    monkeypatch.setattr(PeerLinks, "send", noted)
    async with found_nodes(tmp_path, "node1") as nodes:
        with monkeypatch.context() as patch:
            patch.setattr(ClusterController, "register", only_itself)
            nodes.launch("node2")
            await until_holds(lambda: "node2" in members_of(nodes, "node1"))
            await until_welcomed(welcomes, "node1")
            assert welcomed == []
        await nodes.until_registered("node1", "node2")
        await until_holds(lambda: len(nodes.voters("node1")) == 2)
        assert set(welcomed) == {"node2"}


async def test_slow_learner_does_not_block_other_learners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No further node became a voter, because the leader always tried only the first learner."""
    match_index = Group.match_index
    monkeypatch.setattr(Group, "match_index", lambda self, m: 0 if m == "node2#1" else match_index(self, m))
    async with found_nodes(tmp_path, "node1", "node2") as nodes:
        await nodes.start("node3")
        await until_holds(lambda: set(nodes.voters("node1")) == {"node1#1", "node3#1"})


async def test_topic_creation_with_lost_unregistered_voter_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No topic could be created until the voter returned. If its disk was lost, it never returned."""
    call = RaftGroup.call

    async def but_node3(self: RaftGroup, command: Any) -> Any:
        if not (isinstance(command, RegisterNode) and command.node_id == "node3"):
            return await call(self, command)

    monkeypatch.setattr(RaftGroup, "call", but_node3)
    async with three_nodes(tmp_path) as nodes:
        await until_holds(lambda: all(len(s.broker.metadata.nodes) == 2 for s in nodes.running.values()))
        await nodes.stop("node3")
        async with nodes.connect("node1", "node2") as client:
            await client.admin.create_topic("t", replicas=2)
