"""A disk that is full, fails to sync, or is lost, on one node of three: the others take over, clients go on."""

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
"""A full disk is met at the next segment: those in use have their room already."""
STEERED = ("-m", "tests.support.processes.steered_node")
TIMES = 3
STRANGE = "returned with another data directory"
"""What a node is told that lost its disk."""


def test_disks_fail_under_load(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(program=FAULTY, **SMALL)
    cluster.start()

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.create(client, partitions=3, **SETTINGS)
            async with under_load(client, random.Random(1)) as record:
                await record.goes_on()
                first = await fails(cluster, client, record, EIO)
                # Its disk is mended, and when the next fails it is the first and the third who go on.
                await trio.to_thread.run_sync(cluster.kill, first)
                await trio.to_thread.run_sync(cluster.start, first)
                second = await fails(cluster, client, record, FULL)
                await trio.to_thread.run_sync(cluster.kill, second)
                await trio.to_thread.run_sync(cluster.start, second)
        record.judge(1)

    trio.run(scenario)


async def fails(cluster: ClusterProcess, client: sandq.Client, record: Record, fault: signal.Signals) -> str:
    """The disk of a leader does; the others take over."""
    victim = await cluster.leader(client)
    cluster.nodes[victim].signal(fault)
    await cluster.leader(client, but=victim)
    await record.goes_on()
    async with cluster.connect(victim) as asking:
        # It says so, and is there to be asked; an election may have taken its place before its disk did.
        await until_answer(asking.admin.cluster, lambda info: info["storage_failed"] or info["stalled"])
    return victim


def test_a_lost_disk_takes_part_in_nothing(make_cluster: MakeCluster) -> None:
    """What two of three have acknowledged: one of them loses its disk, the other stops. The third has not heard of it,
    and must not be elected by one that has forgotten it."""
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
        # Once the two have met, it asks again and again whether it may lead the metadata, and so everything else.
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
        assert cluster.nodes[wiped].runs, "it waits to be let in, and says so"

    trio.run(scenario)


def asks(node: NodeProcess) -> int:
    """How often a steered node has asked whether it may lead the metadata."""
    return node.output().count("asks to lead group 0\n")


def elected(node: NodeProcess) -> bool:
    """Whether a majority would vote for a steered node in any group."""
    return "stands for group" in node.output()
