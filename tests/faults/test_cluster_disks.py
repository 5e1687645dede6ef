"""The disk of one node of three is full, fails to sync, or is lost: the others take over, and clients continue."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import trio

import sandq
from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.load import SETTINGS, Record, under_load
from tests.support.processes.node import NodeProcess
from tests.support.waiting import until_answer, until_holds

MakeCluster = Callable[..., ClusterProcess]
FAULTY = ("-m", "tests.support.processes.faulty_node")
EIO, FULL = signal.SIGUSR1, signal.SIGUSR2
SMALL = {"SANDQ_STORAGE__SEGMENT_BYTES": "65536"}
"""Small segments. A node notices a full disk at the next segment, because current segments are already allocated."""
STEERED = ("-m", "tests.support.processes.steered_node")
TIMES = 3
STRANGE = "returned with another data directory"
"""Error of a node that lost its disk."""


def test_disk_failures_under_load_lose_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(program=FAULTY, **SMALL)
    cluster.start()

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.create(client, partitions=3, **SETTINGS)
            async with under_load(client, random.Random(1)) as record:
                await record.until_progress()
                first = await fails(cluster, client, record, EIO)
                # Repair the disk of the first node, so that two nodes continue when the next disk fails.
                await trio.to_thread.run_sync(cluster.kill, first)
                await trio.to_thread.run_sync(cluster.start, first)
                second = await fails(cluster, client, record, FULL)
                await trio.to_thread.run_sync(cluster.kill, second)
                await trio.to_thread.run_sync(cluster.start, second)
        record.judge(1)

    trio.run(scenario)


async def fails(cluster: ClusterProcess, client: sandq.Client, record: Record, fault: signal.Signals) -> str:
    """Let the disk of a leader fail, and wait until the others take over. Return the name of the leader."""
    victim = await cluster.leader(client)
    cluster.nodes[victim].signal(fault)
    await cluster.leader(client, but=victim)
    await record.until_progress()
    async with cluster.connect(victim) as asking:
        # The node answers requests and reports the failure. If an election replaced the leader just before the
        # failure, `victim` no longer led.
        await until_answer(asking.admin.cluster, lambda info: info["storage_failed"] or info["stalled"])
    return victim


def test_node_with_lost_disk_does_not_vote(make_cluster: MakeCluster) -> None:
    """Two of three nodes have acknowledged a message. Then one of the two loses its disk, and the other one stops.

    The third node lacks the message, so the node with the lost disk must not vote for it."""
    cluster = make_cluster(program=STEERED)
    cluster.start()

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.create(client)
            leader = await cluster.leader(client)
            wiped, behind = cluster.others(leader)
            await trio.to_thread.run_sync(cluster.kill, behind)
            kept = await client.produce("t", b"on two of three", delay="1h")
        await trio.to_thread.run_sync(cluster.kill, leader, wiped)
        cluster.wipe(wiped)
        for name in (wiped, behind):
            cluster.nodes[name].log.unlink()
            cluster.nodes[name].start(wait=False)
        # Once the two nodes are connected, `behind` repeatedly asks for pre-votes for the metadata group, and then
        # for the other groups.
        await until_holds(lambda: STRANGE in cluster.nodes[wiped].output() or elected(cluster.nodes[behind]))
        asked = asks(cluster.nodes[behind])
        await until_holds(lambda: asks(cluster.nodes[behind]) >= asked + TIMES or elected(cluster.nodes[behind]))
        assert not elected(cluster.nodes[behind])
        await trio.to_thread.run_sync(cluster.start, leader)
        async with cluster.connect() as client:
            assert (await client.messages("t").get(kept)).value == b"on two of three"
            up = {leader: True, behind: True, wiped: False}
            await until_answer(
                client.admin.cluster, lambda info: {row["node"]: row["up"] for row in info["nodes"]} == up
            )
        assert cluster.nodes[wiped].runs, "the node runs and waits to join again"

    trio.run(scenario)


def asks(node: NodeProcess) -> int:
    """Return how often a steered node has asked whether it may lead the metadata."""
    return node.output().count("asks to lead group 0\n")


def elected(node: NodeProcess) -> bool:
    """Return whether a majority would vote for a steered node in any group."""
    return "stands for group" in node.output()
