"""Replicas that cannot apply an entry, in a cluster: the other replicas continue, and in the end all have the same rows
(ADR 46)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import trio

import sandq
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.replication import node_log
from sandq.model.errors import Conflict, NotLeader
from tests.integration.cluster.test_three_nodes import created
from tests.integration.test_shut_partitions import damage_rows
from tests.support.nodes.planted import POISON, STEPS, Plan, planted
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.three import NAMES, ThreeNodes, compared, three_nodes
from tests.support.nodes.working import take, values
from tests.support.waiting import until_holds


async def send(nodes: ThreeNodes, value: bytes) -> None:
    """Send a message to the leader once. The test checks whether it is stored."""
    leader = await nodes.until_led()
    raw = await RawClient.connect(nodes.client_ports[leader])
    try:
        await raw.produce(value)
    finally:
        await trio.aclose_forcefully(raw.stream)


def shut(nodes: ThreeNodes) -> set[str]:
    """Return the nodes whose replicas are shut."""
    return {name for name in nodes.running if nodes.host(name).shut is not None}


@pytest.mark.parametrize("step", STEPS)
async def test_replica_that_alone_fails_gets_a_snapshot_of_the_others(tmp_path: Path, step: str) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await created(nodes, client)
        await client.produce("t", b"before")
        leader = await nodes.until_led()
        with planted(Plan(step, [nodes.running[leader]])) as plan:
            await send(nodes, POISON)
            await until_holds(lambda: plan.raised)
            await until_holds(lambda: nodes.leader() not in (None, leader))
            await client.produce("t", b"after")
            await until_holds(lambda: not shut(nodes))
            await nodes.until_even()
            assert nodes.running[leader].broker.metadata_host.shut is None
        assert await compared(nodes, same=True) == ()
        async with client.subscribe("t", group="g") as subscription:
            assert values(await take(subscription, 3)) == [b"before", POISON, b"after"]


@pytest.mark.parametrize("step", STEPS)
async def test_replicas_that_all_fail_open_with_the_skip(tmp_path: Path, step: str) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await created(nodes, client)
        await client.admin.create_topic("other", replicas=3)
        await client.produce("t", b"before")
        with planted(Plan(step)):
            await send(nodes, POISON)
            await until_holds(lambda: shut(nodes) == set(NAMES))
            await client.produce("other", b"goes on")
            await nodes.stop("node2")
            await nodes.start("node2")
            await until_holds(lambda: shut(nodes) == set(NAMES))
            await until_skipped(nodes, client)
            await client.produce("t", b"after")
            await nodes.until_even()
            assert await compared(nodes, same=True) == ()
            await nodes.stop("node3")
            await nodes.start("node3")
            await nodes.until_even()
            assert not shut(nodes)
            async with client.subscribe("t", group="g") as subscription:
                assert values(await take(subscription, 2)) == [b"before", b"after"]


async def until_skipped(nodes: ThreeNodes, client: sandq.Client) -> None:
    """Skip the entry that shut "t". Repeat this if a replica blames another entry, until all replicas are open."""
    while shut(nodes):
        try:
            await client.admin.skip_entry("t", 0)
        except (Conflict, NotLeader):
            await trio.sleep(0.01)
    await until_holds(lambda: nodes.leader() is not None)


@contextmanager
def without_handing_over() -> Iterator[None]:
    """Keep a shut leader in leadership, although another replica is not shut."""
    with patch.object(ShutReplicas, "_hand_over", lambda self, host: None):
        yield


async def test_skip_of_applied_entry_is_refused_and_forced_skip_rebuilds_replica(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await created(nodes, client)
        await client.produce("t", b"before")
        await nodes.hand_over("node1")
        failing = [nodes.running["node1"], nodes.running["node2"]]
        with without_handing_over(), planted(Plan("first", failing)):
            await send(nodes, POISON)
            await until_holds(lambda: shut(nodes) == {"node1", "node2"})
            failure = nodes.host("node1").shut
            assert failure is not None and failure.index is not None
            await until_holds(lambda: nodes.host("node3").status.applied_index >= failure.index)
            with pytest.raises(Conflict, match="node3 has a replica that is not shut"):
                await client.admin.skip_entry("t", 0)
            await nodes.stop("node3")
            await until_holds(lambda: "node3" not in nodes.running["node1"].broker.links.reachable())
            with pytest.raises(Conflict, match="node3 cannot be reached: it may have applied"):
                await client.admin.skip_entry("t", 0)
            await client.admin.skip_entry("t", 0, force=True)
            await until_holds(lambda: not shut(nodes) and nodes.leader() is not None)
            await client.produce("t", b"after")
            await nodes.start("node3")
            await until_holds(lambda: "t" in nodes.running["node3"].broker.catalog.topics)
            await nodes.until_even()
            await until_holds(lambda: not shut(nodes))
        assert await compared(nodes, same=True) == ()
        async with client.subscribe("t", group="g") as subscription:
            assert values(await take(subscription, 2)) == [b"before", b"after"]


async def test_replica_with_unreadable_rows_gets_a_snapshot(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await created(nodes, client)
        await client.produce("t", b"before")
        await nodes.until_even()
        store = nodes.host("node3").replica.store
        await nodes.running["node3"].broker._runner.checkpoint()
        await nodes.stop("node3")
        damage_rows(nodes.data_dir("node3"), store)
        await nodes.start("node3")
        await until_holds(lambda: "t" in nodes.running["node3"].broker.catalog.topics)
        await until_holds(lambda: nodes.host("node3").replica.store != store)
        await client.produce("t", b"after")
        await nodes.until_even()
        assert not shut(nodes)
        assert await compared(nodes, same=True) == ()


async def test_skip_is_committed_where_replicas_have_as_much_log_as_shut_ones_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy partition has a long log before the failed entry. Entries proposed meanwhile follow it."""
    monkeypatch.setattr(node_log, "SHUT_LOG_BYTES", 10_000)
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await created(nodes, client)
        await client.produce("t", bytes(20_000))
        with planted(Plan("first")):
            await send(nodes, POISON)
            await until_holds(lambda: shut(nodes) == set(NAMES))
            await until_skipped(nodes, client)
            await client.produce("t", b"after")
            await nodes.until_even()
            assert not shut(nodes)
