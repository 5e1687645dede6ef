"""Partitions that move: a new node gets its share, a drained node holds nothing, a failed node is replaced. Every
message acknowledged meanwhile is stored exactly once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from sandq.broker.controller import cluster_controller
from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.replication.raft_group import RaftGroup
from sandq.metadata.records import Topic
from sandq.model.errors import Conflict, InvalidRequest, NotFound, SandqError
from sandq.node.running import Serving
from tests.support.nodes.administrator import Administrator
from tests.support.nodes.found import FoundNodes, found_nodes, refusals
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.patient import until_done
from tests.support.nodes.three import ThreeNodes, leading, three_nodes
from tests.support.waiting import PATIENCE_S, until_holds

PARTITIONS = 12
T = TypeVar("T")


def topics(serving: Serving) -> Iterable[Topic]:
    return list(serving.broker.metadata.topics.values())


def held(nodes: ThreeNodes) -> Counter[str]:
    """Return the number of replicas on each node, as the node itself reports."""
    return Counter({name: len(serving.broker.catalog.by_group) for name, serving in nodes.running.items()})


def all_nodes_agree(nodes: ThreeNodes) -> bool:
    """Return the metadata as a node sees it. A node that has just started begins with its old state."""
    return len({serving.broker.metadata.applied_index for serving in nodes.running.values()}) == 1


def is_settled(nodes: ThreeNodes) -> bool:
    """Return whether nothing moves and every replica is where it should be."""
    if not all_nodes_agree(nodes):
        return False
    for name, serving in nodes.running.items():
        wanted = [part for topic in topics(serving) for part in topic.partitions]
        if any(part.moving for part in wanted):
            return False
        here = {part.group for part in wanted if name in part.nodes}
        if here != serving.broker.catalog.by_group.keys():
            return False
    return True


async def until_settled(nodes: ThreeNodes) -> None:
    await until_holds(lambda: is_settled(nodes))


async def produced(nodes: ThreeNodes, count: int, topic: str = "t") -> None:
    async with nodes.connect(*nodes.running) as client, client.producer(topic) as producer:
        for number in range(count):
            await producer.send(b"%d" % number, key=b"%d" % number)


async def values(nodes: ThreeNodes, count: int, topic: str = "t") -> Counter[bytes]:
    """Count each value of a topic, read by a new group. If leadership moves during the read, messages are delivered
    again. So count each offset once.
    """
    found: dict[tuple[int, int], bytes] = {}
    async with (
        nodes.connect(*nodes.running) as client,
        client.subscribe(topic, group="all", credit=1000) as subscription,
    ):
        with trio.move_on_after(PATIENCE_S):
            async for message in subscription:
                found[message.partition, message.offset] = message.value
                message.ack()
                if len(found) >= count:
                    break
    return Counter(found.values())


async def test_a_new_node_takes_its_share(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", "node2", "node3") as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3)
        await produced(nodes, 200)
        await until_holds(lambda: set(held(nodes).values()) == {PARTITIONS})
        await nodes.start("node4")
        await nodes.until_registered("node1", "node2", "node3", "node4")
        await until_even_and_settled(nodes, PARTITIONS * 3 // 4)
        await nodes.stop("node1")
        assert await values(nodes, 200) == Counter({b"%d" % number: 1 for number in range(200)})


@pytest.fixture
def quick_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_controller, "FAILED_S", 1.0)


@asynccontextmanager
async def four(directory: Path, *, replicas: int = 2, **environ: str) -> AsyncIterator[FoundNodes]:
    """Four nodes with a topic that holds a hundred messages."""
    names = ("node1", "node2", "node3", "node4")
    async with found_nodes(directory, *names, **environ) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=PARTITIONS, replicas=replicas)
        await produced(nodes, 100)
        yield nodes


async def all_there(nodes: ThreeNodes, count: int = 100) -> None:
    assert await values(nodes, count) == Counter({b"%d" % number: 1 for number in range(count)})


async def administrating(nodes: ThreeNodes) -> Administrator:
    return Administrator((await leading(nodes)).broker)


async def administrate(nodes: ThreeNodes, change: Callable[[Administrator], Awaitable[T]]) -> T | None:
    """Let the metadata leader change something, also if another node becomes leader meanwhile."""

    async def ask() -> T:
        return await change(await administrating(nodes))

    found, was_open = await until_done(ask)
    if isinstance(found, SandqError):
        if isinstance(found, NotFound) and was_open:
            return None  # the node is already removed
        raise found
    return found


async def until_gone(nodes: ThreeNodes, name: str) -> None:
    others = [serving for other, serving in nodes.running.items() if other != name]
    await until_holds(lambda: all(name not in serving.broker.metadata.nodes for serving in others))


async def until_planned(nodes: ThreeNodes, change: Callable[[], object]) -> None:
    """Wait until the requested change has begun and ended."""
    await until_holds(lambda: all_nodes_agree(nodes) and bool(change()))
    await until_settled(nodes)


async def until_even_and_settled(nodes: ThreeNodes, each: int) -> None:
    """Wait until every registered node is up and holds this many replicas, and nothing moves."""
    registered = nodes.running["node1"].broker.metadata
    await until_planned(nodes, lambda: held(nodes) == Counter(dict.fromkeys(registered.nodes, each)))


async def test_a_node_is_drained_and_comes_back(tmp_path: Path) -> None:
    async with four(tmp_path) as nodes:
        await administrate(nodes, lambda by: by.drain("node2"))
        await until_planned(nodes, lambda: not held(nodes)["node2"])
        assert sum(held(nodes).values()) == 2 * PARTITIONS
        await until_holds(lambda: "node2#1" not in nodes.voters("node1"))
        # Its store pointers are removed right after its replicas were closed.
        await until_holds(lambda: not nodes.running["node2"].broker.node_log.pointers.all()[1:])
        with pytest.raises(InvalidRequest, match="4 replicas, and 4 nodes are registered, 1 of which leave"):
            await administrate(nodes, lambda by: by.create_topic("u", "timer", 1, 4, {}))
        await administrate(nodes, lambda by: by.drain("node2", undo=True))
        await until_even_and_settled(nodes, PARTITIONS // 2)
        await until_holds(lambda: "node2#1" in nodes.voters("node1"))
        await all_there(nodes)


async def test_impossible_drains_and_removals_are_refused(tmp_path: Path) -> None:
    async with four(tmp_path, replicas=4) as nodes:
        with pytest.raises(InvalidRequest, match="'t' has 4 replicas, and without node2 3 nodes would be left"):
            await administrate(nodes, lambda by: by.drain("node2"))
        with pytest.raises(Conflict, match="node2 is running and holds 12 replicas: drain it first"):
            await administrate(nodes, lambda by: by.remove("node2"))
        with pytest.raises(NotFound, match="no node 'node9' is registered; there are: node1, node2, node3, node4"):
            await administrate(nodes, lambda by: by.remove("node9"))
        with pytest.raises(InvalidRequest, match="5 replicas, and 4 nodes are registered: a node holds one at most"):
            await administrate(nodes, lambda by: by.update_topic("t", {}, replicas=5))
        with pytest.raises(InvalidRequest, match="has 12 partitions; they cannot become fewer"):
            await administrate(nodes, lambda by: by.update_topic("t", {}, partitions=11))


async def test_a_drained_node_is_removed_and_its_name_is_free(tmp_path: Path) -> None:
    async with four(tmp_path) as nodes:
        await administrate(nodes, lambda by: by.drain("node4"))
        await until_planned(nodes, lambda: not held(nodes)["node4"])
        store = nodes.running["node1"].broker.metadata.nodes["node4"].store_uuid
        await administrate(nodes, lambda by: by.remove("node4"))
        await until_gone(nodes, "node4")
        await nodes.stop("node4")
        # With its old data, the removed node is refused.
        with refusals() as count:
            nodes.launch("node4")
            # Each node logs a reason only once. The others may have logged it before node4 stopped.
            await until_holds(lambda: count("the peer", "removed"))
        assert "node4" not in nodes.running["node1"].broker.metadata.nodes
        await nodes.stop("node4")
        # With an empty directory, the node may join again.
        shutil.rmtree(nodes.data_dir("node4"))
        await nodes.start("node4")
        await nodes.until_registered("node1", "node2", "node3", "node4")
        again = nodes.running["node1"].broker.metadata.nodes["node4"]
        assert again.store_uuid != store and again.incarnation == 2
        await until_even_and_settled(nodes, PARTITIONS // 2)
        await all_there(nodes)


async def test_a_node_that_stays_away_is_replaced_and_takes_its_share_again(
    tmp_path: Path, quick_to_fail: None
) -> None:
    async with four(tmp_path, replicas=3, CLUSTER__REASSIGN_AFTER="1s") as nodes:
        await nodes.stop("node3")
        others = Counter({name: PARTITIONS for name in ("node1", "node2", "node4")})
        await until_planned(nodes, lambda: held(nodes) == others)
        assert nodes.running["node1"].broker.metadata.nodes["node3"].failed_since_ms is not None
        await all_there(nodes)
        await nodes.start("node3")
        await until_even_and_settled(nodes, PARTITIONS * 3 // 4)
        await until_holds(lambda: nodes.running["node1"].broker.metadata.nodes["node3"].failed_since_ms is None)


async def test_node_without_its_disk_is_removed_and_added_again(tmp_path: Path, quick_to_fail: None) -> None:
    """With three nodes and three replicas, no node can replace it meanwhile."""
    names = ("node1", "node2", "node3")
    async with found_nodes(tmp_path, *names) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=4, replicas=3)
        await produced(nodes, 100)
        await until_holds(lambda: len(nodes.voters("node1")) == 3)
        await nodes.stop("node3")
        shutil.rmtree(nodes.data_dir("node3"))
        nodes.launch("node3")
        await until_holds(lambda: nodes.running["node1"].broker.metadata.nodes["node3"].failed_since_ms is not None)
        # Here, a node counts as failed sooner than an election ends. The groups that node3 led elect leaders first.
        await administrate(nodes, lambda by: by.remove("node3"))
        await nodes.until_registered(*names)
        await until_even_and_settled(nodes, 4)
        await until_holds(lambda: "node3#2" in nodes.voters("node1"))
        await nodes.stop("node1")
        await all_there(nodes)


async def test_replicas_do_not_move_while_more_than_a_third_failed(
    tmp_path: Path, quick_to_fail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("node1", "node2", "node3", "node4", "node5")
    hand, plans = HandClock(), [0]
    plan = ClusterController._plan

    async def counted(self: ClusterController, metadata: RaftGroup) -> None:
        await plan(self, metadata)
        plans[0] += 1

    monkeypatch.setattr(ClusterController, "_plan", counted)
    async with found_nodes(tmp_path, *names, hand=hand, CLUSTER__REASSIGN_AFTER="1h") as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3)
        await produced(nodes, 100)
        await until_holds(lambda: sum(held(nodes).values()) == 3 * PARTITIONS)
        before = held(nodes)
        await nodes.stop("node4", "node5")
        records = nodes.running["node1"].broker.metadata_host
        await until_holds(lambda: sum(n.failed_since_ms is not None for n in records.status.nodes.values()) == 2)
        hand.forward(2 * 3600)  # longer than the replacement of a single node takes
        planned = plans[0]
        await until_holds(lambda: plans[0] >= planned + 3)
        assert held(nodes) == Counter({name: before[name] for name in names[:3]})
        await nodes.start("node4", "node5")
        await until_holds(lambda: sum(held(nodes).values()) == 3 * PARTITIONS and min(held(nodes).values()) > 0)
        await until_settled(nodes)
        await all_there(nodes)


async def test_replicas_are_raised_and_lowered(tmp_path: Path) -> None:
    async with four(tmp_path, replicas=1) as nodes:
        await administrate(nodes, lambda by: by.update_topic("t", {}, replicas=3))
        await until_planned(nodes, lambda: sum(held(nodes).values()) == 3 * PARTITIONS)
        await nodes.stop("node1")
        await all_there(nodes)
        await nodes.start("node1")
        await administrate(nodes, lambda by: by.update_topic("t", {}, replicas=1))
        await until_planned(nodes, lambda: sum(held(nodes).values()) == PARTITIONS)


async def test_transfer_makes_another_node_leader(tmp_path: Path) -> None:
    async with four(tmp_path) as nodes:
        placed = nodes.running["node1"].broker.metadata.topics["t"].partitions[0]
        second = placed.nodes[1]
        await administrate(nodes, lambda by: by.transfer("t", 0, second))
        await until_holds(lambda: nodes.running[second].broker.catalog.partition("t", 0).raft_group.ready)
        other = next(name for name in nodes.running if name not in placed.nodes)
        with pytest.raises(InvalidRequest, match=f"{other} does not hold partition 0 of 't'; it is on "):
            await administrate(nodes, lambda by: by.transfer("t", 0, other))
        await all_there(nodes)


async def test_configured_node_without_its_disk_is_added_again(tmp_path: Path, quick_to_fail: None) -> None:
    """The nodes are configured as a list, without gossip."""
    async with three_nodes(tmp_path) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=4, replicas=3)
        await produced(nodes, 100)
        await nodes.stop("node3")
        shutil.rmtree(nodes.data_dir("node3"))
        view = nodes.running["node1"].broker.metadata_host
        await until_holds(lambda: view.status.nodes["node3"].failed_since_ms is not None)
        # Here, a node counts as failed sooner than an election ends. The groups that node3 led elect leaders first.
        await administrate(nodes, lambda by: by.remove("node3"))
        await until_gone(nodes, "node3")
        await nodes.start("node3")
        await until_planned(nodes, lambda: held(nodes)["node3"] == 4)
        assert nodes.running["node1"].broker.metadata.nodes["node3"].incarnation == 2
        await until_holds(lambda: "node3#2" in view.group.members.voters)
        await nodes.stop("node3")
        await nodes.start("node3")
        await nodes.stop("node1")
        await all_there(nodes)
