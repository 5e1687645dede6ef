"""A cluster is upgraded node by node to the next version, under load. One node is downgraded once.

The next version is `tests.support.processes.next_node`. Nodes of the current version do not know its command, row and
frame."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
import trio

from sandq.errors import Conflict
from sandq.model.features import KNOWN
from tests.support.nodes.next_level import NEXT
from tests.support.processes.cluster import NAMES, ClusterProcess
from tests.support.processes.load import SETTINGS, under_load
from tests.support.waiting import until_answer, until_holds

THIS, AFTER = ("-m", "sandq.cli"), ("-m", "tests.support.processes.next_node")
PARTITIONS = 3


def lines(cluster: ClusterProcess, name: str, event: str) -> list[dict[str, Any]]:
    """Return the lines of this event in a node's log."""
    output = cluster.nodes[name].output().splitlines()
    return [line for line in (json.loads(text) for text in output if text.endswith("}")) if line["event"] == event]


async def marks(cluster: ClusterProcess, name: str) -> list[dict[str, Any]]:
    """Let a node of the next version propose the new command in its partitions, and return the results."""
    before, ends = len(lines(cluster, name, "mark")), len(lines(cluster, name, "marks proposed"))
    cluster.nodes[name].signal(signal.SIGUSR1)
    await until_holds(lambda: len(lines(cluster, name, "marks proposed")) > ends)
    return lines(cluster, name, "mark")[before:]


def test_upgrade_under_load_loses_nothing(make_cluster: Callable[..., ClusterProcess]) -> None:
    cluster = make_cluster(SANDQ_STORAGE__SEGMENT_BYTES="1048576", SANDQ_CLUSTER__FINALIZE="manual")
    rng = random.Random(16)

    def again(name: str, program: tuple[str, ...]) -> None:
        node = cluster.nodes[name]
        assert node.stop() == 0, cluster.output()
        node.program = program
        node.start()

    async def refused(name: str) -> None:
        """Wait until the node leads a partition and rejects the command."""

        async def propose() -> list[dict[str, Any]]:
            return [told for told in await marks(cluster, name) if told.get("code") == "CONFLICT"]

        found = await until_answer(propose, bool)
        assert f"needs feature level {NEXT.highest}, and the cluster is at {KNOWN.highest}" in found[0]["error"]

    async def scenario() -> None:
        await trio.to_thread.run_sync(cluster.start)
        async with cluster.connect() as client:
            await cluster.create(client, partitions=PARTITIONS, **SETTINGS)
            async with under_load(client, rng) as record:
                await record.until_progress()
                # Upgrade two nodes, downgrade one, and upgrade it again.
                for name, program in (("node1", AFTER), ("node2", AFTER), ("node1", THIS), ("node1", AFTER)):
                    await trio.to_thread.run_sync(again, name, program)
                    await record.until_progress()
                await refused("node1")
                with pytest.raises(Conflict, match=f"node3 supports {KNOWN}"):
                    await client.admin.finalize()
                await trio.to_thread.run_sync(again, "node3", AFTER)
                await record.until_progress()
                await until_answer(client.admin.cluster, lambda info: info["feature_level_next"] == NEXT.highest)
                assert (await client.admin.cluster())["feature_level"] == KNOWN.highest
                assert await client.admin.finalize() == (KNOWN.highest, NEXT.highest)
                marked: set[int] = set()

                async def mark() -> set[int]:
                    for name in NAMES:
                        marked.update(told["partition"] for told in await marks(cluster, name) if "result" in told)
                    return marked

                await until_answer(mark, lambda found: found == {*range(PARTITIONS)})
                await record.until_progress()
        record.judge(16)
        # A downgrade is no longer possible, and the downgraded node reports that.
        node = cluster.nodes["node2"]
        assert node.stop() == 0
        node.program = THIS
        node.start(wait=False)
        assert node.ended() != 0
        assert f"is of feature level {NEXT.highest}, and this version supports {KNOWN}" in node.output()
        node.program = AFTER
        await trio.to_thread.run_sync(node.start)

    trio.run(scenario)
    assert [cluster.nodes[name].stop() for name in NAMES] == [0, 0, 0], cluster.output()
