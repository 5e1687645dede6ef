"""A snapshot is installed, but it is unknown whether the disk has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandq.broker.replication import node_log
from sandq.model.errors import StorageFailed
from sandq.storage.files import RealFiles
from sandq.storage.pointers import Pointers
from tests.integration.cluster.test_three_nodes import created
from tests.support.nodes.three import ThreeNodes, three_nodes
from tests.support.nodes.working import take, values
from tests.support.waiting import until_holds


class LosesItsDirectory(RealFiles):
    """Make the directory sync fail once the pointer to a snapshot is written."""

    def replace(self, name: str, data: bytes) -> None:
        super().replace(name, data)
        if name == "stores" and any(pointer.snapshot_index for pointer in Pointers.open(RealFiles(self.root)).all()):
            raise StorageFailed("cannot sync the directory", operation="sync", file=name, errno="EIO")


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ThreeNodes]:
    async with three_nodes(tmp_path) as nodes:
        yield nodes


async def test_node_with_unknown_snapshot_state_stops_and_restarts(
    nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_log, "KEPT_BYTES", 0)
    monkeypatch.setattr(node_log, "LAG_BYTES", 0)
    async with nodes.connect("node1", "node2") as client:
        await created(nodes, client)
        await nodes.stop("node3")
        for number in range(50):
            await client.produce("t", b"%d" % number)
        for name in ("node1", "node2"):
            await nodes.running[name].broker._runner.checkpoint()
        await nodes.start("node3", files=LosesItsDirectory(nodes.data_dir("node3")))
        third = nodes.running["node3"].broker
        await until_holds(lambda: third.node_log.failed is not None)
        # Files that nothing in memory refers to are removed, unless the next start may use them.
        await third.reconciler._sweeper.sweep()
        await nodes.stop("node3")
        await nodes.start("node3")
        await nodes.until_even()
        assert nodes.host("node3").status.messages == 50
        await nodes.stop("node1")
    async with nodes.connect("node2", "node3") as client, client.subscribe("t", group="g") as subscription:
        assert sorted(values(await take(subscription, 50))) == sorted(b"%d" % number for number in range(50))
