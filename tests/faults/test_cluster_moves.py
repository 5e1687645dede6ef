"""Nodes are drained and undrained while others are killed, and nodes are restarted one after the other, under load."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from tests.support.processes.found_cluster import FoundCluster
from tests.support.processes.load import SETTINGS, under_load
from tests.support.waiting import until_answer

NAMES = ("node1", "node2", "node3", "node4")
PARTITIONS = 6

Make = Callable[..., FoundCluster]


@pytest.fixture
def make_found(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes clusters, which end with the test."""
    made: list[FoundCluster] = []

    def make(*names: str, **environ: str) -> FoundCluster:
        made.append(FoundCluster(tmp_path, names, **environ))
        made[-1].start()
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


async def rows(client: sandq.Client) -> dict[str, dict[str, Any]]:
    return {row["node"]: row for row in (await client.admin.cluster())["nodes"]}


async def until_settled(client: sandq.Client, without: str | None = None) -> None:
    """Wait until no partition moves, all are led, and a drained node holds nothing."""

    async def partitions_of_topic() -> list[Any]:
        return list((await client.admin.topic("t")).partitions)

    def is_settled(partitions: list[Any]) -> bool:
        return all(p.leader is not None and not p.moving and without not in p.nodes for p in partitions)

    await until_answer(partitions_of_topic, is_settled)


async def until_assigned(client: sandq.Client, node: str) -> None:
    """Wait until some partition is assigned to a node.

    An assignment stays, so that polling sees it. A move may end between two polls."""
    await until_answer(lambda: client.admin.topic("t"), lambda topic: any(node in p.nodes for p in topic.partitions))


async def change(client: sandq.Client, node: str, *, undo: bool) -> None:
    """Drain a node, or undo the drain. If the node that handles the request is killed, retry."""

    async def asked() -> bool:
        await client.admin.drain_node(node, undo=undo)
        return True

    await until_answer(asked, lambda done: done)


@pytest.mark.parametrize(
    ("seed", "drained"), [(1, 1), *(pytest.param(seed, 8, marks=pytest.mark.long) for seed in range(2, 5))]
)
def test_drains_and_kills_under_load_lose_nothing(seed: int, drained: int, make_found: Make) -> None:
    cluster, rng = make_found(*NAMES), random.Random(seed)

    async def kill_some(client: sandq.Client, stop: trio.Event) -> None:
        """Kill one node at a time, and wait until it is up again before the next one."""
        while not stop.is_set():
            name = rng.choice(NAMES)
            await trio.to_thread.run_sync(cluster.kill, name)
            await trio.sleep(rng.uniform(0, 0.5))
            await trio.to_thread.run_sync(cluster.start, name)
            await until_answer(lambda: rows(client), lambda found: all(row["up"] for row in found.values()))
            await trio.sleep(rng.uniform(0.5, 2))

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.until_registered(client)
            await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3, **SETTINGS)
            async with under_load(client, rng) as record, trio.open_nursery() as nursery:
                stop = trio.Event()
                nursery.start_soon(kill_some, client, stop)
                for name in rng.choices(NAMES, k=drained):
                    await change(client, name, undo=False)
                    await until_settled(client, without=name)
                    await change(client, name, undo=True)
                    await until_assigned(client, name)
                    await until_settled(client)
                stop.set()
        record.judge(seed)

    trio.run(scenario)
    assert [cluster.nodes[name].stop() for name in NAMES] == [0] * len(NAMES), cluster.output()


def test_rolling_restart_under_load_loses_nothing(make_found: Make) -> None:
    """Stop each node with SIGTERM, and the next one once it is up again."""
    names, seed = NAMES[:3], 1
    cluster = make_found(*names)

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.until_registered(client)
            await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3, **SETTINGS)
            async with under_load(client, random.Random(seed)) as record:
                await record.until_progress()
                for name in names:
                    assert await trio.to_thread.run_sync(cluster.nodes[name].stop) == 0, cluster.output()
                    await record.until_progress()
                    await trio.to_thread.run_sync(cluster.start, name)
                    await until_answer(lambda: rows(client), lambda found: all(row["up"] for row in found.values()))
                    await record.until_progress()
        record.judge(seed)

    trio.run(scenario)
    assert [cluster.nodes[name].stop() for name in names] == [0] * len(names), cluster.output()
