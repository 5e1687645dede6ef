"""A disk that is full, fails to sync, or is lost, on one node of three: the others take over, clients go on."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import trio

import sandq
from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.load import SETTINGS, Record, under_load
from tests.support.waiting import until_answer

MakeCluster = Callable[..., ClusterProcess]
FAULTY = ("-m", "tests.support.processes.faulty_node")
EIO, FULL = signal.SIGUSR1, signal.SIGUSR2
SMALL = {"SANDQ_STORAGE__SEGMENT_BYTES": "65536"}
"""A full disk is met at the next segment: those in use have their room already."""
TWO_ELECTIONS_S = 3.0


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
        await until_answer(asking.admin.cluster, lambda info: info["storage_failed"])
    return victim


def test_a_lost_disk_takes_part_in_nothing(make_cluster: MakeCluster) -> None:
    """What two of three have acknowledged: one of them loses its disk, the other stops. The third has not heard of it,
    and must not be elected by one that has forgotten it."""
    cluster = make_cluster()
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
            cluster.nodes[name].start(wait=False)
        await trio.to_thread.run_sync(cluster.nodes[behind].wait_until_it_serves)
        async with cluster.connect(behind) as client:
            with trio.move_on_after(TWO_ELECTIONS_S):
                raise AssertionError(f"{await cluster.leader(client)} leads")
        await trio.to_thread.run_sync(cluster.start, leader)
        async with cluster.connect() as client:
            assert (await client.messages("t").get(kept)).value == b"on two of three"
            rows = {row["node"]: row["up"] for row in (await client.admin.cluster())["nodes"]}
            assert rows == {leader: True, behind: True, wiped: False}
        assert cluster.nodes[wiped].runs, "it waits to be let in, and says so"
        assert "store" in cluster.nodes[wiped].output()

    trio.run(scenario)
