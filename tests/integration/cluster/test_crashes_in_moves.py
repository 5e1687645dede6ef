"""A node stops in the middle of a move, at every step, and returns: the move completes, no message is lost, early or
doubled, and no node keeps a replica that it should not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.broker.controller import cluster_controller
from sandq.broker.controller.rebalancer import Rebalancer
from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.controller.reports import Reports
from sandq.broker.replication import node_log
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.broker.replication.runner import Runner
from sandq.broker.replication.store_compaction import StoreSweeper
from sandq.broker.snapshots.snapshots import _Store
from sandq.metadata import commands as m
from sandq.model.members import node_of
from sandq.node.running import Serving
from sandq.raft import Members, core
from sandq.raft.elections import Election
from sandq.storage import snapshot
from tests.support.nodes import halting, moved
from tests.support.nodes.found import FoundNodes, found_nodes
from tests.support.nodes.halting import Halt, Point
from tests.support.nodes.moved import used_topic
from tests.support.processes.load import Record
from tests.support.simulation.seeds import few_of
from tests.support.waiting import PATIENCE_S, until_holds

THREE = ("node1", "node2", "node3")
FIVE = (*THREE, "node4", "node5")
ROUNDS = 3

POINTS = {
    # points at the leader of the metadata group
    "before it is assigned": Point(cluster_controller, "_all", halting.some(m.Assign)),
    "once it is assigned": Point(cluster_controller, "_all", halting.some(m.Assign), after=True),
    "before it is settled": Point(cluster_controller, "_all", halting.some(m.Settle)),
    "once it is settled": Point(cluster_controller, "_all", halting.some(m.Settle), after=True),
    # points at the node that gets the replica
    "before its pointer": Point(Reconciler, "_install_missing", halting.installs),
    "once it has a pointer": Point(Reconciler, "_install_missing", halting.installs, after=True),
    "while it gets the log": Point(Runner, "_begin_batch", halting.learns(20)),
    # points at the leader of the moving group
    "before it has a learner": Point(RaftGroup, "change_members", halting.adds_learner),
    "once it has a learner": Point(RaftGroup, "change_members", halting.adds_learner, after=True),
    "before the promotion": Point(RaftGroup, "change_members", halting.promotes),
    "once it is promoted": Point(RaftGroup, "change_members", halting.promotes, after=True),
    "before a voter goes": Point(RaftGroup, "change_members", halting.drops),
    "once a voter is gone": Point(RaftGroup, "change_members", halting.drops, after=True),
    "before it hands over": Point(Rebalancer, "_transfer", halting.leaves),
    "once it has handed over": Point(Rebalancer, "_transfer", halting.leaves, after=True),
    "before it is told": Point(Reports, "report_settled"),
    # points at the node that gives up the replica
    "before its pointer goes": Point(Reconciler, "_remove", halting.removes),
    "before the log forgets": Point(Runner, "on_wal", halting.calls("forget")),
    "before its rows go": Point(StoreSweeper, "sweep_soon"),
}
SNAPSHOT_POINTS = {
    "before the snapshot's pointer": Point(_Store, "_replace", halting.of_partition),
    "in the middle of a snapshot": Point(_Store, "add", halting.of_partition, after=True),
    "once the snapshot has a pointer": Point(Runner, "between_batches", halting.calls("reopen")),
}


USUAL = {
    "before it is assigned": 1,
    "before it is settled": 1,
    "once it has a pointer": 1,
    "before it has a learner": 2,
    "once it is promoted": 2,
    "before a voter goes": 2,
    "before it hands over": 1,
    "before its pointer goes": 1,
    "before its rows go": 1,
}
"""Points of every test run -> number of replicas. At the other points, disks are in nearly the same states. Long runs
try every point with one replica and with two."""


def cases() -> Iterator[Any]:
    for step in POINTS:
        for replicas in (1, 2):
            marks = () if USUAL.get(step) == replicas else pytest.mark.long
            yield pytest.param(step, replicas, id=f"{step}, replicas {replicas}", marks=marks)


AWAY = ("once it is assigned", "once it has a pointer", "before the promotion", "before it hands over")


@pytest.mark.parametrize(("step", "replicas"), list(cases()))
async def test_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, replicas: int) -> None:
    if step == "while it gets the log":
        monkeypatch.setattr(core, "MAX_APPEND_BYTES", 1000)  # the log is sent in several messages
    await crash(tmp_path, POINTS[step], monkeypatch, replicas)


@pytest.mark.parametrize(
    "step",
    few_of(["before the snapshot's pointer", "in the middle of a snapshot", "once the snapshot has a pointer"], 1),
)
async def test_a_crash_while_a_snapshot_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    monkeypatch.setattr(node_log, "KEPT_BYTES", 0)
    monkeypatch.setattr(node_log, "LAG_BYTES", 0)
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 500)
    await crash(tmp_path, SNAPSHOT_POINTS[step], monkeypatch, 2)


async def crash(directory: Path, point: Point, monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    """Drain one of three nodes, stop the first node that reaches the point, and start it again."""
    halt = point.watch(monkeypatch)
    async with found_nodes(directory, *THREE) as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == 3)
        async with used_topic(nodes, 1, partitions=3, replicas=replicas) as record:
            stopped = await stopped_at(nodes, halt, record)
            await until_missed(nodes, stopped)
            await nodes.start(stopped)


async def until_missed(nodes: FoundNodes, name: str) -> None:
    """Wait until the other nodes have noticed that a node is down."""
    await until_holds(
        lambda: not any(name in serving.broker.node_log.group_commit._up for serving in nodes.running.values())
    )


async def undo_drain(nodes: FoundNodes, going: str) -> None:
    """A node that was drained holds its share again."""
    await moved.drain(nodes, going, undo=True)
    await until_holds(lambda: all(holds(serving, going) for serving in nodes.running.values()))
    await moved.until_settled(nodes)


def holds(serving: Serving, name: str) -> bool:
    return any(name in part.nodes for part in moved.all_partitions(serving))


async def stopped_at(nodes: FoundNodes, halt: Halt, record: Record) -> str:
    """Drain the preferred leader of partition 0 until a node reaches the point of `halt`. Stop that node.

    Return the name of the node."""
    await until_holds(lambda: len(record.acked) > moved.LEAST)
    await checkpoint(nodes)
    first = moved.all_partitions(next(iter(nodes.running.values())))[0]
    going = first.nodes[0]
    await until_holds(lambda: first.group in moved.led(nodes))
    halt.wanted = True
    with trio.fail_after(PATIENCE_S):
        while True:
            await moved.drain(nodes, going)
            await until_holds(lambda: halt.reached.is_set() or has_no_replicas(nodes, going))
            if halt.reached.is_set():
                break
            # An election did the step that the leader should do: try again.
            await moved.until_settled(nodes)
            await undo_drain(nodes, going)
    assert halt.node is not None
    await nodes.stop(halt.node)
    halt.wanted = False
    return halt.node


def has_no_replicas(nodes: FoundNodes, going: str) -> bool:
    """Return whether the node knows of no replicas on it, and nothing is moving."""
    return not nodes.running[going].broker.catalog.by_group and not any(moved.unsettled(nodes))


async def checkpoint(nodes: FoundNodes) -> None:
    """Write a checkpoint on every node. A later crash loses everything that the stores got after it."""
    for serving in nodes.running.values():
        await serving.broker._runner.checkpoint()


@pytest.mark.parametrize("step", [AWAY[0], *[pytest.param(step, marks=pytest.mark.long) for step in AWAY[1:]]])
async def test_a_crash_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The stopped node does not return. The move ends at another node, and its other replicas move elsewhere, too."""
    monkeypatch.setattr(cluster_controller, "FAILED_S", 1.0)
    halt = POINTS[step].watch(monkeypatch)
    async with found_nodes(tmp_path, *FIVE, CLUSTER__REASSIGN_AFTER="1s") as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == 5)
        async with used_topic(nodes, 1, partitions=3, replicas=3) as record:
            gone = await stopped_at(nodes, halt, record)
            await until_without_replicas(nodes, gone)
        assert gone not in nodes.running


async def until_without_replicas(nodes: FoundNodes, name: str) -> None:
    """Wait until a node should not hold any replica."""

    await until_holds(lambda: not any(holds(serving, name) for serving in nodes.running.values()))


def rounds_agreed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return by node how often it asked for votes in the metadata group after its previous request was granted."""
    agreed: Counter[str] = Counter()
    ask = Election._ask

    def counted(self: Election, members: Members) -> None:
        if self._transport._number == METADATA_GROUP and len(self.pre_votes) > 1:
            agreed[node_of(self._member)] += 1
        ask(self, members)

    monkeypatch.setattr(Election, "_ask", counted)
    return agreed


async def test_nodes_that_know_less_than_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes gave up a partition, lose unflushed data, and find older metadata that places it on them. They must
    not create the partition again: it would be empty, and in the older metadata they are a majority of its group."""
    monkeypatch.setattr(StoreSweeper, "sweep_soon", lambda self: None)  # LevelDB flushes all when it compacts a store
    names = FIVE[:4]
    async with found_nodes(tmp_path, *names) as nodes:
        await until_holds(lambda: len(nodes.voters("node1")) == 4)
        async with used_topic(nodes, 1, partitions=1, replicas=2) as record:
            await until_holds(lambda: len(record.acked) > moved.LEAST)
            await checkpoint(nodes)
            (before,) = moved.all_partitions(nodes.running["node1"])
            others = [name for name in names if name not in before.nodes]
            await moved.assign(nodes, before, others)
            await until_holds(lambda: all(moved.all_partitions(s)[0].epoch for s in nodes.running.values()))
            await moved.until_settled(nodes)
            await nodes.stop(*names)
            agreed = rounds_agreed(monkeypatch)
            await nodes.start(*before.nodes)
            # The two nodes have met and know only each other, so they have no majority of four. If their
            # logs differ, only the node with the longer log may get the other's vote.
            await until_holds(lambda: agreed.total() >= ROUNDS)
            for name in before.nodes:
                broker = nodes.running[name].broker
                assert moved.all_partitions(nodes.running[name]) == [before], "the node still has the old metadata"
                assert broker.node_log.pointers.get(before.group) is None
            await nodes.start(*others)
