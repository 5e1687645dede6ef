"""Moves of partitions ended without a majority, blocked other moves, or never ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.controller.rebalance_steps import next_step
from sandq.broker.controller.rebalancer import Rebalancer
from sandq.metadata.planning import MOVES_MOST, next_changes
from sandq.metadata.records import DRAINING, IN, REMOVING, Partition
from sandq.model.errors import InvalidRequest, NotLeader, TimedOut
from sandq.raft import Members
from tests.regressions.test_moves_under_load import NAMES
from tests.support.nodes import moved
from tests.support.nodes.administrator import Administrator
from tests.support.nodes.fake_links import FakeLinks
from tests.support.nodes.found import found_nodes
from tests.support.nodes.three import leading
from tests.support.waiting import until_answer, until_holds
from tests.unit.broker.controller.test_cluster_controller import Bed
from tests.unit.metadata.test_planning import AFTER_MS, T, assigned, node, registry, topic


@pytest.mark.parametrize(
    ("wanted", "members", "up"),
    [
        # d, which has all entries, should replace the dead c. d dies too: two of the four members are no majority
        ("abd", Members(("a#1", "b#1", "c#1"), ("d#1",)), "ab"),
        # the group moves from a to b, and b dies
        ("b", Members(("a#1",), ("b#1",)), "a"),
        # the group moves from c to b, and b dies as a voter: a and c are a majority of three, but a is none of two
        ("ab", Members(("a#1", "c#1", "b#1")), "ac"),
    ],
)
def test_membership_step_without_majority_is_not_made(wanted: str, members: Members, up: str) -> None:
    named = [f"{name}#1" for name in wanted]
    assert next_step(named, members, "a#1", members.learners, set(up), list(wanted)) is None
    everybody = set("abcd") - (set("c") if "d" in wanted else set())
    assert next_step(named, members, "a#1", members.learners, everybody, list(wanted)) is not None


async def test_drained_voter_keeps_vote_while_needed(autojump_clock: trio.testing.MockClock) -> None:
    """With one of three metadata voters dead and one drained, its vote was needed for any further change."""
    bed = Bed("a", "b", "c")
    await bed.tend(1)
    bed.linked.discard("b")
    bed.host.state.nodes["c"] = replace(bed.node("c"), standing=DRAINING)
    await bed.tend(3)
    assert bed.voting() == {"a", "b", "c"}
    bed.linked.add("b")
    await bed.tend(3)
    assert bed.voting() == {"a", "b"}


async def test_leaving_voters_that_are_dead_are_removed_first(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c")
    await bed.tend(1)
    bed.linked.discard("c")
    for name, standing in (("b", DRAINING), ("c", REMOVING)):
        bed.host.state.nodes[name] = replace(bed.node(name), standing=standing)
    await bed.tend(3)
    assert bed.voting() == {"a"}


@pytest.mark.parametrize("standing", [IN, DRAINING, REMOVING])
def test_moves_to_lost_node_do_not_block_other_moves(standing: str) -> None:
    """All permitted moves had the lost node as their target, and none of them ever ended."""
    there = topic(*[("a", "b", "d")] * MOVES_MOST)
    parts = [Partition(p.group, p.first, p.members, (f"c#{p.group}",), 1, 0) for p in there["t"].partitions]
    topics = {"t": replace(there["t"], initial_partitions=len(parts), replicas=3, partitions=tuple(parts))}
    nodes = registry(node("a"), node("b"), node("c"), node("d", failed=AFTER_MS, standing=standing))
    found = assigned(next_changes(topics, nodes, "abcd", set(range(1, MOVES_MOST + 1)), T, AFTER_MS))
    assert len(found) == MOVES_MOST and {frozenset(holders) for holders in found.values()} == {frozenset("abc")}


async def test_deposed_leader_reports_no_group_state() -> None:
    """Metadata requested the state that a deposed leader reported, and a replica was deleted that the group counted
    on."""
    wanted = Partition(1, ("a#1", "b#1"), ("a#1", "b#1"), ("d#1",), 2, 0)
    reported: list[Any] = []
    view = SimpleNamespace(partition={1: wanted}.get, nodes={})
    group = SimpleNamespace(term=1, is_changing=False, member="a#1")
    answers: list[Exception | None] = [NotLeader("b leads it"), None]

    async def read() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    host: Any = SimpleNamespace(
        number=1, group=group, works=True, members=Members(("a#1", "b#1")), confirm_leadership=read
    )
    node_log: Any = SimpleNamespace(hosts={1: host}, failed=None)

    async def catch_up() -> None:
        pass

    catalog: Any = SimpleNamespace(view=view, led_here=[1], catch_up=catch_up)
    health: Any = SimpleNamespace(may_lead=lambda node: True)
    shut_replicas: Any = SimpleNamespace(is_shut=lambda group, node: False)
    reports: Any = SimpleNamespace(report_settled=reported.extend)
    rebalancer = Rebalancer(
        node_log,
        catalog,
        links=FakeLinks("b", own="a"),
        health=health,
        shut_replicas=shut_replicas,
        reports=reports,
    )
    # Round 1 requests the metadata index, round 2 finds the node deposed, and round 3 finds it leading.
    for expected in ([], [], [(1, 2, True)]):
        async with trio.open_nursery() as nursery:
            await rebalancer._check(nursery)
        assert reported == expected


async def test_added_partitions_with_too_few_nodes_are_rejected(tmp_path: Path) -> None:
    """The node that handled the request ended, because it searched for the best node in an empty list."""
    async with found_nodes(tmp_path, *NAMES) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=1, replicas=3)
        await moved.drain(nodes, "node3")

        async def refused() -> str:
            leader = await leading(nodes)
            with pytest.raises((InvalidRequest, NotLeader, TimedOut)) as refusal:
                await Administrator(leader.broker).update_topic("t", {}, partitions=2)
            return str(refusal.value)

        await until_answer(refused, lambda why: "3 replicas, and 2 nodes can hold them" in why)
        async with nodes.connect("node1") as client:
            await client.produce("t", b"x")


async def test_membership_change_ends_when_group_closes(tmp_path: Path) -> None:
    """A caller waited for ever, so the group was never moved again when it returned to the node."""
    async with found_nodes(tmp_path, *NAMES) as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t", partitions=1, replicas=1)
        await until_holds(lambda: moved.led(nodes))
        (host,) = moved.led(nodes).values()
        (name,) = [name for name, serving in nodes.running.items() if host.number in serving.broker.node_log.hosts]
        node_log = nodes.running[name].broker.node_log
        ended: list[str] = []
        begun = trio.Event()

        async def change() -> None:
            begun.set()
            with pytest.raises((NotLeader, TimedOut)):
                await host.change_members(Members(host.members.voters, ("node9#99",)))
            ended.append("it ended")

        async with trio.open_nursery() as changing:
            changing.start_soon(change)
            await begun.wait()
            node_log.group_commit.remove(host.group)
            host.close(NotLeader("the partition has moved to other nodes"))
            await until_holds(lambda: ended)
            changing.cancel_scope.cancel()
