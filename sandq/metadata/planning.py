"""What is to be changed about who holds what, as things stand: commands for the metadata group, made where it is led.

    in, there                       keeps what it has, and is given more
    in, failed a moment ago         keeps what it has: it may be back soon
    in, failed for reassign_after   is replaced, as soon as others can take what it had
    draining                        as one that has failed for long
    removing                        loses what it has, whether or not others can take it

Nothing is given to anybody while more than a third of the nodes are failed: then something else is wrong, and to move
everything to those that are left would make it worse. Those that are being removed go nevertheless: somebody said so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from sandq.metadata import commands as c
from sandq.metadata.placement import Candidate, Slot, plan
from sandq.metadata.records import IN, REMOVING, NodeRecord, Topic

MOVES_MOST = 64
"""Partitions on their way at once."""


def too_many_failed(nodes: Mapping[str, NodeRecord]) -> bool:
    """Those that are being removed are not missed."""
    missed = [node for node in nodes.values() if node.standing != REMOVING]
    failed = sum(node.failed_since_ms is not None for node in missed)
    return 3 * failed > len(missed)


def is_lost(node: NodeRecord, now_ms: int, reassign_after_ms: int) -> bool:
    """It has failed for so long that others shall take its place."""
    return node.failed_since_ms is not None and now_ms - node.failed_since_ms >= reassign_after_ms


def candidates(
    nodes: Mapping[str, NodeRecord], now_ms: int, reassign_after_ms: int, capacity: float = math.inf
) -> list[Candidate]:
    """Nodes that may hold something. `capacity`: of partitions, of each."""
    return [
        Candidate(
            node.node_id,
            node.zone,
            node.weight,
            takes=node.standing == IN and node.failed_since_ms is None,
            leaves=node.standing != IN or is_lost(node, now_ms, reassign_after_ms),
            capacity=capacity,
        )
        for _, node in sorted(nodes.items())
        if node.standing != REMOVING
    ]


def slots(topics: Iterable[Topic], led: Collection[int]) -> list[Slot]:
    """`led`: the groups that have a leader; in others nobody can change who takes part."""
    return [
        Slot(partition.group, topic.replicas, partition.nodes, fixed=partition.group not in led)
        for topic in topics
        for partition in topic.partitions
    ]


def next_changes(
    topics: Mapping[str, Topic],
    nodes: Mapping[str, NodeRecord],
    balanced: Collection[str],
    led: Collection[int],
    now_ms: int,
    reassign_after_ms: int,
    capacity: float = math.inf,
) -> list[c.Command]:
    """Assignments to make now, so that not more than `MOVES_MOST` are on their way. What is placed is evened out once,
    whenever there are other nodes than the last time; from the first move after that nothing counts as even, so that a
    node that is back before the others are even gets its share. `led`: the groups that have a leader. `capacity`: how
    many partitions a node holds before others are to take what moves; a full one takes it when no other one has room.
    """
    there = candidates(nodes, now_ms, reassign_after_ms, capacity)
    halted = too_many_failed(nodes)
    if halted:
        there = [replace(candidate, takes=False, leaves=False) for candidate in there]
    spread = sorted(candidate.node for candidate in there if not candidate.leaves)
    partitions = {partition.group: partition for topic in topics.values() for partition in topic.partitions}
    # One that is on its way to who is to hold nothing never gets there.
    moving = sum(p.moving and group in led and set(p.nodes) <= set(spread) for group, p in partitions.items())
    if moving >= MOVES_MOST:
        return []
    others = spread != sorted(balanced)
    even = others and not halted
    changes = plan(slots(topics.values(), led), there, even=even, most=MOVES_MOST - moving)
    if even and not changes:
        # What has no leader at present could not be looked at.
        return [c.Balance(spread)] if partitions.keys() <= set(led) else []
    assigns: list[c.Command] = [c.Assign(group, partitions[group].epoch, chosen) for group, chosen in changes.items()]
    return [c.Balance([]), *assigns] if assigns and others and balanced else assigns


def next_voters(nodes: Mapping[str, NodeRecord], voting: Collection[str], most: int, lost: Collection[str]) -> set[str]:
    """The nodes that are to vote in the metadata group: of each zone one before another has two; those that do already
    first. `lost`: nodes that have failed for long: they vote only where there are no others."""
    left = [node for node in nodes.values() if node.standing == IN]
    chosen: list[NodeRecord] = []
    while left and len(chosen) < most:
        zones = [node.zone for node in chosen]
        best = min(left, key=lambda n: (n.node_id in lost, zones.count(n.zone), n.node_id not in voting, n.node_id))
        chosen.append(best)
        left.remove(best)
    return {node.node_id for node in chosen}
