"""A cluster is upgraded node by node, from the feature level of this version to a level that only tests know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.metadata.commands import Balance
from sandq.model.errors import Conflict, NotLeader, StartupError, Unavailable
from sandq.model.features import KNOWN, Levels
from sandq.node import run_node
from sandq.partition.commands import Command, Touch
from tests.support.nodes.found import FoundNodes, found_nodes, refusals
from tests.support.nodes.next_level import NEXT, TOUCHED, Mark, next_version, rows_of_level
from tests.support.nodes.small_node import small_config
from tests.support.nodes.three import compared, leading
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

NAMES = ("node1", "node2", "node3")


async def restart(nodes: FoundNodes, name: str, **options: Any) -> None:
    await nodes.stop(name)
    await nodes.start(name, **options)


async def until_at(nodes: FoundNodes, level: int) -> None:
    await until_holds(lambda: cluster_levels(nodes) == {level})


async def until_registered(nodes: FoundNodes, name: str, levels: Levels) -> None:
    await until_holds(lambda: all(node.broker.metadata.nodes[name].levels == levels for node in nodes.running.values()))


async def test_cluster_with_manual_finalize_can_return_until_finalized(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES[:2], CLUSTER__FINALIZE="manual") as nodes, nodes.connect() as client:
        await until_at(nodes, KNOWN.highest)  # the cluster had no topic
        await client.admin.create_topic("t", replicas=2)
        await restart(nodes, "node1", levels=NEXT)
        await until_registered(nodes, "node1", NEXT)
        with pytest.raises(Conflict, match=f"node2 supports {KNOWN}"):
            await client.admin.finalize()
        await restart(nodes, "node2", levels=NEXT)
        await until_registered(nodes, "node2", NEXT)
        info = await client.admin.cluster()
        assert (info["feature_level"], info["feature_level_next"]) == (KNOWN.highest, NEXT.highest)
        await restart(nodes, "node2")  # back to the previous version
        await until_registered(nodes, "node2", KNOWN)
        await client.produce("t", "read by both")
        await restart(nodes, "node2", levels=NEXT)
        await until_registered(nodes, "node2", NEXT)
        assert await client.admin.finalize(dry_run=True) == (KNOWN.highest, NEXT.highest)
        await until_at(nodes, KNOWN.highest)
        assert await client.admin.finalize() == (KNOWN.highest, NEXT.highest)
        await until_at(nodes, NEXT.highest)
        assert (await client.admin.cluster())["feature_level_next"] is None


async def test_feature_level_rises_after_the_last_node_is_upgraded(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await until_at(nodes, KNOWN.highest)
        for name in NAMES[:2]:
            await restart(nodes, name, levels=NEXT)
            await until_registered(nodes, name, NEXT)
            await client.produce("t", f"while {name} is upgraded")
        await until_at(nodes, KNOWN.highest)

        # node2 returns to the previous version: nothing of the new version was stored.
        await restart(nodes, "node2")
        await until_registered(nodes, "node2", KNOWN)
        for name in NAMES[1:]:
            await restart(nodes, name, levels=NEXT)
        await until_at(nodes, NEXT.highest)
        assert (await client.admin.cluster())["feature_level"] == NEXT.highest
        assert [row["feature_levels"] for row in (await client.admin.cluster())["nodes"]] == [list(NEXT)] * 3
        await client.produce("t", "afterwards")

        # A downgrade is refused now: the log has the new level, even if the stores do not have it yet.
        await nodes.stop("node3")
        with pytest.raises(BaseExceptionGroup) as failure:
            async with run_node(nodes.config("node3")):
                raise AssertionError("it serves")
        assert failure.group_contains(StartupError, match=f"of feature level {NEXT.highest}, and this version supports")


async def test_partitions_reach_the_level_after_the_last_node(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES[:2]) as nodes:
        async with nodes.connect() as client:
            await client.admin.create_topic("t", replicas=2)
            await client.admin.create_topic("config", kind="compacted", replicas=2)
            await restart(nodes, "node1", levels=NEXT)
            await until_registered(nodes, "node1", NEXT)
            await nodes.until_led()
            delayed = await client.produce("t", "while node2 is of the version before", delay="1h")
            await client.kv("config").put("a", "b")
            assert cluster_levels(nodes) == levels_of(nodes) == {KNOWN.highest}
            await restart(nodes, "node2", levels=NEXT)
            await until_at(nodes, NEXT.highest)
            await until_holds(lambda: levels_of(nodes) == {NEXT.highest})
            await client.admin.create_topic("new", partitions=3, replicas=2)
            await until_holds(lambda: len(hosts_of(nodes)) == 10 and levels_of(nodes) == {NEXT.highest})
            assert await client.messages("t").cancel(delayed) == delayed
        await restart(nodes, "node1", levels=NEXT)
        await until_holds(lambda: levels_of(nodes) == {NEXT.highest})


async def test_command_of_the_level_is_refused_below_it_and_applied_by_all_replicas_at_it(tmp_path: Path) -> None:
    with next_version():
        async with found_nodes(tmp_path, *NAMES) as nodes, nodes.connect() as client:
            await client.admin.create_topic("t", replicas=3)
            for name in NAMES[:2]:
                await restart(nodes, name, levels=NEXT)
                await until_registered(nodes, name, NEXT)
                leader = await nodes.until_led()
                with pytest.raises(Conflict, match=f"needs feature level {NEXT.highest}, and the cluster is at"):
                    await nodes.host(leader).call(Mark(f"with {name}"))
            await restart(nodes, NAMES[2], levels=NEXT)
            await until_at(nodes, NEXT.highest)
            await at_leader(nodes, Mark("with all"))
            await until_holds(lambda: all(b"with all" in found for found in stored_marks(nodes)))
            await until_holds(lambda: levels_of(nodes) == {NEXT.highest})
            await compared(nodes, same=True)
            await nodes.until_even()
            await nodes.stop(*NAMES)
            await nodes.start(*NAMES, levels=NEXT)
            # These nodes ended without a checkpoint, so the log is replayed.
            await until_holds(lambda: all(b"with all" in found for found in stored_marks(nodes)))


async def test_apply_follows_the_level_of_the_partition(tmp_path: Path) -> None:
    """The command TOUCH is known to both versions. From one entry on, it stores a row of the new level in all
    replicas."""
    with next_version():
        async with found_nodes(tmp_path, *NAMES[:2]) as nodes, nodes.connect() as client:
            await client.admin.create_topic("t", replicas=2)
            await restart(nodes, "node1", levels=NEXT)
            await until_registered(nodes, "node1", NEXT)
            await at_leader(nodes, Touch(()))
            await nodes.until_even()
            assert stored_marks(nodes) == [set(), set()]
            await restart(nodes, "node2", levels=NEXT)
            await until_at(nodes, NEXT.highest)
            await until_holds(lambda: levels_of(nodes) == {NEXT.highest})
            await at_leader(nodes, Touch(()))
            await until_holds(lambda: stored_marks(nodes) == [{TOUCHED}, {TOUCHED}])
            await compared(nodes, same=True)


async def test_frame_of_the_level_is_sent_to_nodes_that_know_it(tmp_path: Path) -> None:
    with next_version() as version:
        async with found_nodes(tmp_path, *NAMES[:2]) as nodes:
            await restart(nodes, "node1", levels=NEXT)
            await until_registered(nodes, "node1", NEXT)
            assert not version.announce("node1", "below the level")
            await restart(nodes, "node2", levels=NEXT)
            await until_at(nodes, NEXT.highest)
            nodes.launch("node3")  # this node has the previous version, so its links are refused
            await until_holds(lambda: version.announce("node1", "at the level") and bool(version.heard))
            assert set(version.heard) == {("node2", "node1", "at the level")}
            await nodes.stop("node3")


async def at_leader(nodes: FoundNodes, command: Command) -> None:
    """Apply a command at whichever node leads partition 0 of "t"."""

    async def call() -> bool:
        try:
            await nodes.host(await nodes.until_led()).call(command)
        except (NotLeader, Unavailable):
            return False
        return True

    await until_answer(call, lambda is_done: is_done)


def stored_marks(nodes: FoundNodes) -> list[set[bytes]]:
    """Return the rows of the level that each node has stored of its open partitions."""
    logs = [node.broker.node_log for node in nodes.running.values()]
    return [
        {row for number in node_log.hosts if number != METADATA_GROUP for row in rows_of_level(node_log, number)}
        for node_log in logs
    ]


def hosts_of(nodes: FoundNodes) -> list[RaftGroup]:
    """Return all replicas of all partitions."""
    hosts = [host for node in nodes.running.values() for host in node.broker.node_log.hosts.values()]
    return [host for host in hosts if host.number != METADATA_GROUP]


def levels_of(nodes: FoundNodes) -> set[int]:
    """Return the levels of all replicas of all partitions."""
    return {host.status.level for host in hosts_of(nodes)}


def cluster_levels(nodes: FoundNodes) -> set[int | None]:
    """Return the level of the cluster as each node knows it."""
    return {node.broker.node_log.feature_level for node in nodes.running.values()}


@pytest.mark.parametrize("is_clean", [True, False])
async def test_data_of_a_level_that_is_not_known_is_refused(tmp_path: Path, is_clean: bool) -> None:
    """After a clean stop, the stores have the level. Otherwise the log has it and is replayed."""
    config = small_config(tmp_path)
    with trio.CancelScope() as scope:
        async with run_node(config, levels=NEXT) as node:
            await until_holds(lambda: node.broker.node_log.feature_level == NEXT.highest)
            if not is_clean:
                scope.cancel()
                await trio.sleep_forever()
    with pytest.raises(BaseExceptionGroup) as failure, trio.fail_after(PATIENCE_S):
        async with run_node(config):
            await trio.sleep_forever()
    assert failure.group_contains(StartupError, match=f"of feature level {NEXT.highest}, and this version supports")


async def test_a_version_that_does_not_know_the_level_is_not_let_in(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1") as nodes:
        await restart(nodes, "node1", levels=NEXT)
        await until_at(nodes, NEXT.highest)
        with refusals() as count:
            nodes.launch("node2")
            await until_holds(lambda: count("level") >= 1)
        assert set(nodes.registered("node1")) == {"node1"}
        await nodes.stop("node2")
        await nodes.start("node2", levels=NEXT)
        await nodes.until_registered("node1", "node2")


async def test_metadata_command_of_the_level_is_refused_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Balance, "feature_level", NEXT.highest)
    async with found_nodes(tmp_path, "node1") as nodes:
        metadata = (await leading(nodes)).broker.metadata_host
        with pytest.raises(Conflict, match=f"needs feature level {NEXT.highest}, and the cluster is at"):
            await metadata.call(Balance(("node1",)))
        assert metadata.status.balanced == ()
        await restart(nodes, "node1", levels=NEXT)
        await until_at(nodes, NEXT.highest)
        await (await leading(nodes)).broker.metadata_host.call(Balance(("node1",)))
