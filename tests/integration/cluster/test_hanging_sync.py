"""A node's disk hangs. Meanwhile, messages for it wait at the other nodes, not in its memory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from sandq.raft import group_commit
from sandq.storage.files import RealFiles
from tests.integration.cluster.test_three_nodes import created
from tests.support.nodes.three import three_nodes
from tests.support.storage.faulty_files import FaultyFiles, Plan
from tests.support.waiting import until_holds

LIMIT = 200_000
VALUE = bytes(20_000)


async def test_node_with_hanging_sync_accepts_limited_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "ARRIVED_BYTES", LIMIT)
    goes = threading.Event()
    goes.set()
    async with three_nodes(tmp_path) as nodes, nodes.connect("node1", "node2") as client:
        await created(nodes, client)
        await nodes.stop("node3")
        plan = Plan(on_sync=lambda name: goes.wait() and None)
        await nodes.start("node3", files=FaultyFiles(RealFiles(nodes.data_dir("node3")), plan))
        await nodes.until_even()
        third = nodes.running["node3"].broker.node_log.group_commit
        goes.clear()
        try:
            while third._arrived_bytes < LIMIT:
                await client.produce("t", VALUE)
            for _ in range(50):
                await client.produce("t", VALUE)
                assert LIMIT <= third._arrived_bytes < LIMIT + 4 * len(VALUE), (
                    "each link may deliver at most one more frame"
                )
        finally:
            goes.set()
        await nodes.until_even()
        await until_holds(lambda: third.takes_more)
        await trio.lowlevel.checkpoint()
