"""A node that stops in the middle of a move, at every step of it, and comes back: the move comes to its end, nothing is
lost, early or doubled, and no node keeps what it is not to hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sandq.broker import engine, steward
from sandq.broker.following import Following
from sandq.broker.host import GroupHost
from sandq.broker.moving import Mover
from sandq.broker.runner import Runner
from sandq.broker.snapshots import _Store
from sandq.broker.traffic import Traffic
from sandq.metadata import commands as m
from sandq.raft import core
from sandq.storage import snapshot
from tests.scenarios.cluster import halting, moved
from tests.scenarios.cluster.found import found_nodes
from tests.scenarios.cluster.halting import Point
from tests.scenarios.cluster.moved import used_topic
from tests.scenarios.cluster.three import eventually

THREE = ("node1", "node2", "node3")
AWAY_S = 0.3

POINTS = {
    # who leads the metadata group
    "before it is assigned": Point(steward, "_all", halting.some(m.Assign)),
    "once it is assigned": Point(steward, "_all", halting.some(m.Assign), after=True),
    "before it is settled": Point(steward, "_all", halting.some(m.Settle)),
    "once it is settled": Point(steward, "_all", halting.some(m.Settle), after=True),
    # who is to hold it
    "before its pointer": Point(Following, "_install_missing", halting.installs),
    "once it has a pointer": Point(Following, "_install_missing", halting.installs, after=True),
    "while it gets the log": Point(Runner, "_pass", halting.learns(20)),
    # who leads the group
    "before it has a learner": Point(GroupHost, "change_members", halting.learner_comes),
    "once it has a learner": Point(GroupHost, "change_members", halting.learner_comes, after=True),
    "before the promotion": Point(GroupHost, "change_members", halting.promotes),
    "once it is promoted": Point(GroupHost, "change_members", halting.promotes, after=True),
    "before a voter goes": Point(GroupHost, "change_members", halting.drops),
    "once a voter is gone": Point(GroupHost, "change_members", halting.drops, after=True),
    "before it hands over": Point(Mover, "_give", halting.leaves),
    "once it has handed over": Point(Mover, "_give", halting.leaves, after=True),
    "before it is told": Point(Traffic, "tell_settled"),
    # who held it
    "before its pointer goes": Point(Following, "_remove", halting.removes),
    "before the log forgets": Point(Runner, "on_wal", halting.calls("forget")),
    "before its rows go": Point(Following, "sweep_soon"),
}
SNAPSHOT_POINTS = {
    "in the middle of a snapshot": Point(_Store, "add", halting.of_partition, after=True),
    "before the snapshot's pointer": Point(_Store, "_replace", halting.of_partition),
    "once the snapshot has a pointer": Point(Runner, "between_passes", halting.calls("reopen")),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("step", POINTS)
async def test_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, replicas: int) -> None:
    if step == "while it gets the log":
        monkeypatch.setattr(core, "MAX_APPEND_BYTES", 1000)  # it comes in pieces
    await crash(tmp_path, POINTS[step], monkeypatch, replicas)


@pytest.mark.parametrize("step", SNAPSHOT_POINTS)
async def test_a_crash_while_a_snapshot_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    monkeypatch.setattr(engine, "KEPT_BYTES", 0)
    monkeypatch.setattr(engine, "LAG_BYTES", 0)
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 500)
    await crash(tmp_path, SNAPSHOT_POINTS[step], monkeypatch, 2)


async def crash(directory: Path, point: Point, monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    """A node of three is drained; the first one that comes to the point is stopped there, and started again."""
    halt = point.watch(monkeypatch)
    async with found_nodes(directory, *THREE) as nodes:
        await eventually(lambda: len(nodes.voters("node1")) == 3)
        async with used_topic(nodes, 1, partitions=3, replicas=replicas) as record:
            await eventually(lambda: len(record.acked) > moved.LEAST)
            for serving in nodes.running.values():
                await serving.broker._runner.checkpoint()
            going = await nodes.until_led()
            halt.wanted = True
            await moved.drain(nodes, going)
            with trio.fail_after(moved.PATIENCE_S):
                await halt.reached.wait()
            assert halt.node is not None
            await nodes.stop(halt.node)
            halt.wanted = False
            await trio.sleep(AWAY_S)
            await nodes.start(halt.node)
