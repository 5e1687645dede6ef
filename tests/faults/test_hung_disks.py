"""The disk of one node of three, or of all nodes, hangs instead of failing.

The node reports the hang, other nodes take over, and clients continue. When the disk works again, the node recovers."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from sandq.errors import SandqError
from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.load import SETTINGS, under_load
from tests.support.waiting import until_answer

MakeCluster = Callable[..., ClusterProcess]
HANGING = ("-m", "tests.support.processes.hanging_node")
SYNCS, WRITES, ON = signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP


def row(info: dict[str, Any], node: str) -> dict[str, Any]:
    """Return the row of a node."""
    found: dict[str, Any] = next(row for row in info["nodes"] if row["node"] == node)
    return found


@pytest.mark.parametrize("fault", [SYNCS, WRITES], ids=["syncs", "writes"])
def test_leader_with_hanging_disk_is_replaced(make_cluster: MakeCluster, fault: signal.Signals) -> None:
    cluster = make_cluster(program=HANGING, SANDQ_HEALTH__STALL_AFTER="1s")
    cluster.start()

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.create(client, partitions=3, **SETTINGS)
            await client.admin.create_topic("kv", kind="compacted", partitions=1, replicas=3)
            values = client.kv("kv")
            await values.put("k", b"before")
            victim = await cluster.leader(client, "kv")
            async with under_load(client, random.Random(1)) as record:
                await record.until_progress()
                cluster.nodes[victim].signal(fault)
                # Requests that were sent to this node end. Their retries, and new requests, reach the next leader.
                await until_answer(lambda: values.put("k", b"meanwhile"))
                await record.until_progress()
                assert await cluster.leader(client, "kv", but=victim) != victim
                async with cluster.connect(*cluster.others(victim)) as rest:
                    # The other nodes know that this node is sick, and still have a link to it.
                    await until_answer(
                        rest.admin.cluster,
                        lambda info: row(info, victim)["failed_since_ms"] is not None and row(info, victim)["sick"],
                    )
                async with cluster.connect(victim) as asking:
                    assert "has made no progress" in (await asking.admin.cluster())["stalled"]
                cluster.nodes[victim].signal(ON)
                await until_answer(client.admin.cluster, lambda info: row(info, victim)["failed_since_ms"] is None)
                await until_answer(client.admin.cluster, lambda info: row(info, victim)["sick"] is None)
                await record.until_progress()
            entry = await values.get("k")
            assert entry is not None and entry.value == b"meanwhile"
        record.judge(1)

    trio.run(scenario)


def test_hanging_disks_of_all_nodes_reject_writes_and_recover(make_cluster: MakeCluster) -> None:
    """Three nodes share one disk. They store writes until they detect the hanging stores; then they reject writes.

    Every request ends, and no node transfers its leadership because of the hang. When the disk works again, all nodes
    continue."""
    cluster = make_cluster(program=HANGING, SANDQ_HEALTH__STALL_AFTER="1s")
    cluster.start()

    async def scenario() -> None:
        async with cluster.connect() as client, cluster.connect(timeout=5, delivery_timeout=5) as hasty:
            await cluster.create(client)
            stored = [await client.produce("t", b"before", delay="1h")]
            for node in cluster.nodes.values():
                node.signal(WRITES)
            with suppress(SandqError):  # in case the hang is detected before the request
                stored.append(await hasty.produce("t", b"meanwhile", delay="1h"))
            for name in cluster.nodes:
                async with cluster.connect(name) as asking:
                    await until_answer(asking.admin.cluster, lambda info: info["stalled"])
            with pytest.raises(SandqError):
                await hasty.produce("t", b"when it was seen", delay="1h")
            for node in cluster.nodes.values():
                node.signal(ON)
            await until_answer(lambda: client.produce("t", b"after", delay="1h"))
            for offset in stored:
                assert await client.messages("t").get(offset) is not None

    trio.run(scenario)


def test_node_with_hanging_disk_can_be_stopped(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(program=HANGING, SANDQ_HEALTH__STALL_AFTER="1s", SANDQ_SHUTDOWN_GRACE="1s")
    cluster.start()

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.create(client)
            stored = await client.produce("t", b"kept", delay="1h")
            victim = await cluster.leader(client)
            cluster.nodes[victim].signal(SYNCS)
            await client.produce("t", b"with the next leader", delay="1h")
            cluster.nodes[victim].signal(signal.SIGTERM)
            await trio.to_thread.run_sync(cluster.nodes[victim].ended)
            assert "the disk hangs" in cluster.nodes[victim].output()
            await trio.to_thread.run_sync(cluster.start, victim)
            assert (await client.messages("t").get(stored)).value == b"kept"

    trio.run(scenario)
