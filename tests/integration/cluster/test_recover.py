"""A majority is lost for good: the only remaining node continues alone, and new nodes join."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import trio

from sandq.broker.controller import cluster_controller
from sandq.model.errors import DataDirInUse, InvalidRequest, StartupError
from sandq.tools import recover as module
from sandq.tools.recover import recover
from tests.integration.cluster.test_moves import administrate, all_there, held, produced, until_gone, until_planned
from tests.support.nodes.next_level import NEXT
from tests.support.nodes.three import NAMES, three_nodes
from tests.support.waiting import until_holds


async def test_remaining_node_continues_alone_after_recover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_controller, "FAILED_S", 0.5)
    async with three_nodes(tmp_path) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=3, replicas=3)
            await client.admin.create_topic("elsewhere", partitions=3, replicas=1)
        await produced(nodes, 100)
        await nodes.until_even()
        config = nodes.config("node1")
        with pytest.raises(DataDirInUse):
            recover(config, ["node2", "node3"])
        await nodes.stop("node1", "node2", "node3")
        lost = ["node2", "node3"]
        for name in lost:
            shutil.rmtree(nodes.data_dir(name))
        planned = await trio.to_thread.run_sync(lambda: recover(config, lost, dry_run=True))
        assert planned[0].is_forced and planned[0].text().startswith(
            "metadata: node1, node2, node3: continues here alone"
        )
        found = await trio.to_thread.run_sync(lambda: recover(config, lost))
        assert sum(each.is_forced for each in found) == 4, "the metadata, and three partitions"
        assert {each.topic for each in found if not each.is_forced} <= {"elsewhere"}
        await nodes.start("node1")
        await all_there(nodes)
        records = nodes.running["node1"].broker.metadata_host
        await until_holds(lambda: all(records.status.nodes[name].failed_since_ms is not None for name in lost))
        async with nodes.connect("node1") as client:
            for topic in [t for t in await client.admin.list_topics() if t.name == "elsewhere"]:
                assert sum(part.leader is None for part in topic.partitions) == 2, "they are gone"
            await client.admin.delete_topic("elsewhere")
        for name in lost:
            await administrate(nodes, lambda by, name=name: by.remove(name))  # type: ignore[misc]
            await until_gone(nodes, name)
        await nodes.start("node2")
        await until_planned(nodes, lambda: held(nodes)["node2"] == 3)
        assert held(nodes) == Counter(node1=3, node2=3)
        await nodes.stop("node1")
        await nodes.start("node1")
        await produced(nodes, 10)


async def test_recover_with_a_majority_changes_nothing(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=1, replicas=3)
        await nodes.stop("node1", "node2", "node3")
        config = nodes.config("node1")
        kept = await trio.to_thread.run_sync(lambda: recover(config, ["node3"]))
        assert not any(each.is_forced for each in kept), "two of three are a majority"
        with pytest.raises(InvalidRequest, match="node1 is this node"):
            recover(config, ["node1", "node2"])
        shutil.rmtree(nodes.data_dir("node1"))
        with pytest.raises(StartupError, match="has no data of a node"):
            recover(config, ["node2", "node3"])
        await nodes.start("node2", "node3")
        assert await nodes.until_led() in ("node2", "node3")


async def test_interrupted_recover_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`recover` is killed between its two steps: this node is already the only member of the metadata group, but not
    yet of its partitions."""
    async with three_nodes(tmp_path) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=2, replicas=3)
        await nodes.until_even()
        await nodes.stop("node1", "node2", "node3")
        config, lost = nodes.config("node1"), ["node2", "node3"]

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, "_catch_up", killed)
            recover(config, lost)
        found = await trio.to_thread.run_sync(lambda: recover(config, lost))
        assert [each.topic for each in found if each.is_forced] == ["t", "t"]
        await nodes.start("node1")
        for partition in range(2):
            assert await nodes.until_led("t", partition) == "node1"


async def test_a_level_that_is_not_known_is_found_before_anything_is_decided(tmp_path: Path) -> None:
    """The stores do not know the topic yet."""
    async with three_nodes(tmp_path) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=2, replicas=3)
        for name in NAMES:
            await nodes.stop(name)
            await nodes.start(name, levels=NEXT)
        node1 = nodes.running["node1"].broker
        await until_holds(lambda: node1.node_log.feature_level == NEXT.highest)
        await nodes.until_even()
        await nodes.stop(*NAMES)
        config = nodes.config("node1")
        before = written(nodes.data_dir("node1"))
        with pytest.raises(StartupError, match=f"is of feature level {NEXT.highest}"):
            recover(config, ["node2", "node3"])
        assert written(nodes.data_dir("node1")) == before


def written(data_dir: Path) -> bytes:
    """Return the whole content of the log. A prepared segment has no content."""
    return b"".join(path.read_bytes().rstrip(b"\0") for path in sorted(data_dir.rglob("*.wal")))
