"""Replicas differed, or nodes stopped following metadata, in a cluster of three nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.delivery.subscribe import GroupOpenings
from sandq.model.errors import Corruption, NotLeader, StorageFailed, Unavailable
from sandq.raft import Group, GroupJournal, Members
from tests.integration.cluster.test_three_nodes import created
from tests.support.nodes.administrator import Administrator
from tests.support.nodes.three import ThreeNodes, leading, three_nodes
from tests.support.nodes.working import take
from tests.support.waiting import until_answer, until_holds


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ThreeNodes]:
    async with three_nodes(tmp_path) as nodes:
        yield nodes


async def test_late_replica_replays_with_first_settings(nodes: ThreeNodes) -> None:
    """The late replica replayed the log with the current settings, so waiting messages were dead on this replica."""
    async with nodes.connect() as client:
        await created(nodes, client)
        await nodes.stop("node3")
        await client.admin.create_topic("u", replicas=3, max_attempts=10)
        await client.produce("u", b"x")
        async with client.subscribe("u", group="g") as subscription:
            (message,) = await take(subscription, 1, ack=False)
            await message.nack(delay="1h")
        await client.admin.update_topic("u", max_attempts=1)
        await nodes.start("node3")
        await nodes.until_even("u")
        states = [(s.groups[0].waiting, s.groups[0].dead) for s in (nodes.host(n, "u").status for n in nodes.running)]
        assert states == [(1, 0)] * 3


async def test_subscribe_during_leader_change_includes_new_partition(
    nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new partition never got the consumer, which had subscribed only to the partitions that the node led first."""
    async with nodes.connect() as client:
        await created(nodes, client, partitions=3)
        for partition in range(3):
            await client.produce("t", b"%d" % partition, partition=partition)
        asking, held = trio.Event(), trio.Event()
        open_group = GroupOpenings.open

        async def slow(*args: Any) -> None:
            await open_group(*args)
            asking.set()
            await held.wait()

        monkeypatch.setattr(GroupOpenings, "open", slow)

        async def move() -> None:
            await asking.wait()
            first = await nodes.until_led("t", 1)
            other = next(name for name in nodes.running if name != first)

            def is_moved() -> bool:
                """Transfer the leadership; repeat it, because another node may be elected, or lack entries."""
                leader = nodes.leader("t", 1)
                if leader not in (None, other):
                    host = nodes.host(leader, "t", 1)
                    host.group.transfer(next(m for m in host.members.voters if m.startswith(other)))
                    host.send_commit_index()
                return leader == other

            await until_holds(is_moved)
            held.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            async with client.subscribe("t", group="g") as subscription:
                got = await take(subscription, 3)
        assert sorted(message.value for message in got) == [b"0", b"1", b"2"]


async def test_failed_pointer_write_is_retried(nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stopped following metadata, and every change of topics waited for it."""
    async with nodes.connect() as client:
        leader = await leading(nodes)
        pointers = leader.broker.node_log.pointers
        update, failures = pointers.update, [StorageFailed("no space left, for a moment")]

        def sometimes(**changes: Any) -> None:
            if failures:
                raise failures.pop()
            update(**changes)

        monkeypatch.setattr(pointers, "update", sometimes)
        await created(nodes, client)
        await client.admin.create_topic("u", replicas=3)
        await until_holds(lambda: not failures)
        await until_holds(lambda: set(leader.broker.catalog.topics) == {"t", "u"})


async def test_load_of_closed_group_raises_unavailable(nodes: ThreeNodes) -> None:
    """Deleting a topic while its snapshot was installed ended the node."""
    node_log = nodes.running["node1"].broker.node_log
    with pytest.raises(Unavailable):
        node_log.load(99, 1)


def test_store_without_its_rows_raises_corruption() -> None:
    entries = [(b"\0x", index, 1) for index in range(7, 10)]
    journal = GroupJournal([], 1, Members(("a#1",)), entries=entries, term=1)
    with pytest.raises(Corruption, match="begins at entry 7, its state machine has applied 3"):
        Group(1, "a#1", journal, 3, committed=lambda index, command: None)


async def test_sweep_removes_rows_of_unneeded_stores(nodes: ThreeNodes) -> None:
    serving = nodes.running["node1"]
    node_log, runner = serving.broker.node_log, serving.broker._runner
    number = (await runner.on_maintenance(node_log.pointers.mint))[0]
    await runner.ask(partial(node_log.stores.write, [(number.to_bytes(4, "big") + b"row", b"left over")]))
    serving.broker.reconciler._sweeper.sweep_soon()
    key = number.to_bytes(4, "big") + b"row"
    await until_holds(lambda: node_log.stores.get(key) is None)


async def test_topic_creation_before_registration_is_retryable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that had just formed rejected it permanently ("3 replicas, and 0 nodes are registered")."""

    async def later(*_: object) -> None:
        """Register no node yet."""

    with monkeypatch.context() as patch:
        patch.setattr(ClusterController, "register", later)
        async with three_nodes(tmp_path) as nodes:

            async def refused() -> str:
                leader = await leading(nodes)
                with pytest.raises((Unavailable, NotLeader)) as refusal:
                    await Administrator(leader.broker).create_topic("t", "timer", 1, 3, {})
                return str(refusal.value)

            await until_answer(refused, lambda why: "node1, node2, node3 is not registered yet" in why)
            patch.undo()
            async with nodes.connect() as client:
                await client.admin.create_topic("t", replicas=3)
