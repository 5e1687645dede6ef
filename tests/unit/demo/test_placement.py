"""Tests of the demo's fourth node: the observed placement, and when the verdict says that the node holds its share."""

from __future__ import annotations

from typing import Any

import pytest

from demo.placement import FAILED, NEW, UP, Placement
from demo.report import Failover, Join, Lateness, Ledger, verdict
from demo.view import verdict_rows
from sandq.model import offsets
from sandq.protocol.replies import Partition

T = 1_700_000_000_000
THREE = ("node1", "node2", "node3")


def row(at: int, leader: str | None, *nodes: str, moving: bool = False) -> Partition:
    return Partition(at, 100 + at, leader, nodes, moving)


def node(name: str, *, up: bool = True, failed_since_ms: int | None = None) -> dict[str, Any]:
    return {"node": name, "up": up, "failed_since_ms": failed_since_ms, "standing": "in", "replicas": 0}


@pytest.fixture
def placement() -> Placement:
    """Two partitions on three nodes."""
    made = Placement()
    made.see_partitions([row(0, "node1", *THREE), row(1, "node2", "node2", "node1", "node3")])
    made.see_nodes(map(node, THREE))
    return made


# Nodes.


def test_nodes_are_up_failed_or_new(placement: Placement) -> None:
    placement.see_nodes([node("node1"), node("node2", up=False), node("node3", failed_since_ms=T)])
    assert [placement.state(name) for name in (*THREE, "node4")] == [UP, FAILED, FAILED, NEW]
    assert placement.are_up(["node1"]) and not placement.are_up(["node1", "node3"])
    assert not placement.are_up(["node4"]), "nobody knows it"


def test_a_node_is_new_until_it_holds_its_share(placement: Placement) -> None:
    placement.new.add("node4")
    placement.see_nodes(map(node, (*THREE, "node4")))
    assert placement.state("node4") == NEW and placement.are_up(["node4"])
    placement.new.discard("node4")
    assert placement.state("node4") == UP


def test_repeated_state_is_no_change(placement: Placement) -> None:
    before = placement.changes
    placement.see_nodes(map(node, THREE))
    placement.see_partitions([row(0, "node1", *THREE), row(1, "node2", "node2", "node1", "node3")])
    assert placement.changes == before
    placement.see_partitions([row(0, None, *THREE), row(1, "node2", "node2", "node1", "node3")])
    placement.see_nodes(map(node, THREE[:2]))
    assert placement.changes == before + 2


# Moves.


def test_moving_partition_counts_for_its_previous_nodes(placement: Placement) -> None:
    assert placement.moves() == ""
    moved = ("node4", "node1", "node3")
    placement.see_partitions([row(0, "node1", "node1", "node2", "node4", moving=True), row(1, "node2", *THREE)])
    assert placement.replicas() == {"node1": 2, "node2": 2, "node3": 2}
    assert placement.moves() == "1 partition on its way to node4"
    placement.see_partitions(
        [row(0, "node1", "node1", "node2", "node4", moving=True), row(1, "node2", *moved, moving=True)]
    )
    assert placement.moving_to("node4") == {0, 1}
    assert placement.moves() == "2 partitions on their way to node4"
    placement.see_partitions([row(0, "node1", "node1", "node2", "node4"), row(1, "node4", *moved)])
    assert placement.replicas() == {"node1": 2, "node2": 1, "node3": 1, "node4": 2}
    assert placement.moves() == ""


def test_partition_with_a_planned_leader_change_is_reported(placement: Placement) -> None:
    placement.see_partitions([row(0, "node1", "node2", "node1", "node3", moving=True), row(1, "node2", *THREE)])
    assert placement.moves() == "1 partition should be led by another node"


def test_progress_is_shown_in_one_line(placement: Placement) -> None:
    placement.see_nodes([node("node1"), node("node2", up=False), node("node3")])
    placement.see_partitions(
        [row(0, "node1", "node1", "node3", "node4", moving=True), row(1, "node1", "node2", "node1", "node3")]
    )
    assert placement.describe([*THREE, "node4"]) == (
        "node1 up, holds 2, leads 0, 1; node2 failed, holds 2, leads none; node3 up, holds 2, leads none; "
        "node4 new, holds 0, leads none; 1 partition on its way to node4"
    )


@pytest.mark.parametrize(
    ("rows", "taken"),
    [
        ([row(0, "node4", "node4", *THREE[:2]), row(1, "node2", *THREE)], True),
        ([row(0, "node1", "node4", *THREE[:2]), row(1, "node2", *THREE)], False),  # node4 does not lead yet
        # node4 is planned to lead nothing
        ([row(0, "node1", "node1", "node2", "node4"), row(1, "node2", *THREE)], False),
        # node4 is planned to lead both partitions and leads one.
        ([row(0, "node4", "node4", *THREE[:2]), row(1, "node2", "node4", *THREE[:2])], False),
        ([row(0, "node4", "node4", *THREE[:2]), row(1, "node2", *THREE, moving=True)], False),
        ([row(0, "node4", "node4", *THREE[:2], moving=True), row(1, "node2", *THREE)], False),
        ([row(0, "node1", *THREE), row(1, "node2", *THREE)], False),
    ],
)
def test_a_share_is_taken_once_it_is_held_and_led_and_nothing_moves(
    placement: Placement, rows: list[Partition], taken: bool
) -> None:
    placement.see_partitions(rows)
    assert placement.has_taken("node4", 1, 1) is taken
    assert not placement.has_taken("node4", 2, 1) and not placement.has_taken("node4", 1, 2)


# The verdict.


def join(started: float | None, joined: float | None = None, settled: float | None = None) -> Join:
    """Return a join with times in seconds after T. The share is 3 replicas and one led partition."""
    moments = [None if at_s is None else T + at_s * 1000 for at_s in (started, joined, settled)]
    before = dict.fromkeys(THREE, 4)
    after = dict.fromkeys((*THREE, "node4"), 3) if settled is not None else {**before, "node4": 2}
    led = frozenset({3}) if settled is not None else frozenset[int]()
    return Join("node4", 3, 1, before, after, led, *moments)


def test_a_node_that_took_its_share() -> None:
    found = verdict(Ledger(0, join=join(1.0, 2.5, 5.06)))
    assert (found.faults, found.exit_code) == ([], 0)
    rows = dict(verdict_rows(found))
    assert rows["node4"] == "joined the cluster 1.5 s after its start; its share had settled after 4.1 s"
    assert rows["replicas"] == (
        "before: node1 4, node2 4, node3 4; after: node1 3, node2 3, node3 3, node4 3 (it leads partition 3)"
    )


@pytest.mark.parametrize(
    ("made", "fault", "text"),
    [
        (join(None), "node4 was never started", "was never started"),
        (join(1.0), "node4 has not joined the cluster", "was started, and did not join the cluster"),
        (
            join(1.0, 2.0),
            "node4 has not got its share: it holds 2 of 3 replicas and leads 0 of 1 partitions, or something is "
            "still moving",
            "joined the cluster 1.0 s after its start; its share has not settled",
        ),
    ],
)
def test_a_node_without_its_share_fails_the_demo(made: Join, fault: str, text: str) -> None:
    found = verdict(Ledger(0, join=made))
    assert (found.faults, found.exit_code) == ([fault], 1)
    assert dict(verdict_rows(found))["node4"] == text


def test_lateness_during_moves_is_reported_separately() -> None:
    """Reminder n is due n seconds after T, and n milliseconds late."""
    made = Ledger(6, join=join(1.0, 2.0, 4.0))
    for number in range(6):
        made.due_ms[f"r{number}"] = T + 1000 * number
        message = offsets.to_text(offsets.pack(T, 1 + number, 0, 0))
        made.receipts[message] = f"r{number}", float(T)
        made.deliver("w", f"r{number}", message, T + 1001.0 * number)
    found = verdict(made)
    assert found.in_move == Lateness(3, 2.0, 3.0, 4.0, 4.0)
    assert found.undisturbed.count == 3 and found.all.count == 6
    assert dict(verdict_rows(found))["  the moves"].endswith("(of 3): partitions were moving to node4")
    # Delays of a failover are not attributed to the moves.
    made.failovers.append(Failover("node1", frozenset({0}), T + 2500.0, T + 3500.0, T + 3500.0))
    assert (verdict(made).in_failover.count, verdict(made).in_move.count) == (1, 2)
