"""Joining and removing nodes left replicas, votes or moves in a wrong state."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.controller.cluster_controller import FAILED_S
from sandq.broker.replication.applier import Applier
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.metadata import commands as m
from sandq.metadata.records import REMOVING
from sandq.model.errors import Conflict, SandqError
from tests.integration.cluster import test_moves as moves
from tests.support.nodes.found import found_nodes
from tests.support.waiting import until_holds
from tests.unit.broker.controller.test_cluster_controller import AFTER_MS, Bed
from tests.unit.metadata.test_planning import changes, node, registry, topic

NAMES = ("node1", "node2", "node3", "node4")


async def test_node_joining_with_new_disk_installs_no_former_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that joined with a new disk acted on old metadata while it received the metadata's log.

    It installed empty replicas of its former members, which had a vote in the first configuration of their groups."""
    installed: list[tuple[int, str]] = []
    install, run = NodeLog.install, Applier.run
    slow: list[Applier] = []

    def watched(self: NodeLog, groups: Sequence[Any], metadata_index: int = 0) -> None:
        if self.node_id == "node3":
            installed.extend((group, member) for group, member, _ in groups if group != METADATA_GROUP)
            slow.append(self.applier)
        install(self, groups, metadata_index)

    token = trio.lowlevel.current_trio_token()

    def one_by_one(self: Applier, tasks: Sequence[Any]) -> None:
        """Apply entries one by one, as with a slow store. Before the next entry, finish all work that follows."""
        for task in tasks if self in slow else ():
            run(self, [task])
            with suppress(trio.Cancelled, trio.RunFinishedError):
                trio.from_thread.run(trio.testing.wait_all_tasks_blocked, trio_token=token)
        if self not in slow:
            run(self, list(tasks))

    async with found_nodes(tmp_path, *NAMES) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=4, replicas=3)
        await until_holds(lambda: len(nodes.voters("node1")) == 4)
        await moves.administrate(nodes, lambda by: by.drain("node3"))
        await moves.until_planned(nodes, lambda: not moves.held(nodes)["node3"])
        await moves.administrate(nodes, lambda by: by.remove("node3"))
        await moves.until_gone(nodes, "node3")
        await nodes.stop("node3")
        shutil.rmtree(nodes.data_dir("node3"))
        monkeypatch.setattr(NodeLog, "install", watched)
        monkeypatch.setattr(Applier, "run", one_by_one)
        began = nodes.running["node1"].broker.metadata.applied_index
        await nodes.start("node3")
        await nodes.until_registered(*NAMES)
        await until_holds(lambda: moves.held(nodes)["node3"] > 0 and len(installed) > 0)
        assert nodes.running["node3"].broker.node_log.pointers.metadata_index >= began
        parts = [p for t in nodes.running["node3"].broker.metadata.topics.values() for p in t.partitions]
        now = {(p.group, member) for p in parts for member in (*p.members, *p.former)}
        assert set(installed) <= now, "replicas of a former incarnation"


async def test_start_without_topics_removes_replica_of_deleted_topic(tmp_path: Path) -> None:
    """The node ended right before it removed the replica. After its next start, it had no topic and removed nothing."""
    reached = trio.Event()

    async def held_up(*args: Any) -> None:
        reached.set()
        await trio.sleep_forever()

    async with found_nodes(tmp_path, "node1") as nodes:
        serving = nodes.running["node1"]
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t")
            serving.broker.reconciler._remove = held_up  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.admin.delete_topic, "t")
                await reached.wait()
                nursery.cancel_scope.cancel()
        assert len(serving.broker.node_log.pointers.all()) == 2
        await nodes.stop("node1")
        await nodes.start("node1")
        node_log = nodes.running["node1"].broker.node_log
        await until_holds(lambda: [pointer.group for pointer in node_log.pointers.all()] == [METADATA_GROUP])


async def test_removal_of_last_node_is_rejected(tmp_path: Path) -> None:
    """Both nodes were removed at once. Then the cluster rejected all changes, and the removal could not be undone."""
    async with found_nodes(tmp_path, "node1", "node2") as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == 2)
        refused: list[SandqError] = []

        async def remove(name: str) -> None:
            try:
                await moves.administrate(nodes, lambda by: by.remove(name))
            except SandqError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for name in ("node1", "node2"):
                nursery.start_soon(remove, name)
        assert len(refused) == 1 and isinstance(refused[0], Conflict) and "only node that stays" in str(refused[0])


async def test_node_that_cannot_write_counts_as_failed(autojump_clock: trio.testing.MockClock) -> None:
    """Moves to a node that could not write, but still had links, never ended. 64 of them prevented all other moves."""
    bed = Bed("a", "b", "c")
    await bed.tend(1)
    bed.sick.add("c")
    await bed.tend(FAILED_S + 2)
    assert bed.failed() == {"c"}
    bed.sick.clear()
    await bed.tend(1)
    assert bed.failed() == set(), "the node can write again"


def test_balancing_with_unled_partitions_plans_no_change() -> None:
    nodes = registry(node("a"), node("b"))
    topics = topic(("a",), ("a",))
    assert changes(topics, nodes, balanced=(), not_led=(1, 2)) == []
    assert isinstance(changes(topics, nodes, balanced=())[0], m.Assign)


async def test_removal_of_voter_does_not_wait_for_lost_node(autojump_clock: trio.testing.MockClock) -> None:
    """A lost node was chosen as the new voter, but could never become one."""
    bed = Bed("a", "b", "c", "d", voters=3)
    bed.host.behind = {"d#1"}
    await bed.tend(1)
    bed.linked.discard("d")
    await bed.tend(AFTER_MS / 1000 + FAILED_S + 1)
    await bed.host.call(m.ChangeStanding("c", REMOVING))
    await bed.tend(3)
    assert bed.voting() == {"a", "b"} and "c" not in bed.host.state.nodes
