"""Plan changes to the placement of partitions: commands for the metadata group, planned by its leader.

    in, available                   keeps its partitions, and may get more
    in, failed recently             keeps its partitions: it may be back soon
    in, failed for reassign_after   is replaced as soon as other nodes can take its partitions
    draining                        like a node that failed long ago
    removing                        loses its partitions, even if no other node can take them

While more than a third of the nodes are failed, no node gets a partition: the cause is then probably elsewhere, such as
the network, and moving everything to the remaining nodes would make it worse. Nodes that are being removed still lose
their partitions, because an operator requested it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from sandq.metadata import commands as c
from sandq.metadata.placement import Candidate, Slot, plan
from sandq.metadata.records import IN, REMOVING, NodeRecord, Topic

MOVES_MOST = 64
"""Maximum number of partitions that move at the same time."""


def too_many_failed(nodes: Mapping[str, NodeRecord]) -> bool:
    """Return whether more than a third of the nodes are failed, not counting nodes that are being removed."""
    counted = [node for node in nodes.values() if node.standing != REMOVING]
    failed = sum(node.failed_since_ms is not None for node in counted)
    return 3 * failed > len(counted)


def is_lost(node: NodeRecord, now_ms: int, reassign_after_ms: int) -> bool:
    """Return whether a node failed at least `reassign_after_ms` ago, so that other nodes replace it."""
    return node.failed_since_ms is not None and now_ms - node.failed_since_ms >= reassign_after_ms


def candidates(
    nodes: Mapping[str, NodeRecord], now_ms: int, reassign_after_ms: int, capacity: float = math.inf
) -> list[Candidate]:
    """Return the nodes that may hold partitions. `capacity`: see `Candidate`."""
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
    """Return the partitions of topics. `led`: groups that have a leader; the members of other groups cannot change."""
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
    """Return the commands to propose now, so that at most `MOVES_MOST` partitions move at the same time.

    If the nodes that keep their partitions differ from `balanced`, even out the load, then record them as balanced.
    The first such move clears `balanced`. Otherwise, if a lost node returned during the moves, the nodes would equal
    `balanced` again, and the returned node would get no share.

    `led`: groups that have a leader. `capacity`: see `Candidate`; a full node takes a partition only if no other node
    has free capacity.
    """
    there = candidates(nodes, now_ms, reassign_after_ms, capacity)
    halted = too_many_failed(nodes)
    if halted:
        there = [replace(candidate, takes=False, leaves=False) for candidate in there]
    spread = sorted(candidate.node for candidate in there if not candidate.leaves)
    partitions = {partition.group: partition for topic in topics.values() for partition in topic.partitions}
    # Do not count moves to a node that must not hold partitions: they never end.
    moving = sum(p.moving and group in led and set(p.nodes) <= set(spread) for group, p in partitions.items())
    if moving >= MOVES_MOST:
        return []
    is_changed = spread != sorted(balanced)
    even = is_changed and not halted
    changes = plan(slots(topics.values(), led), there, even=even, most=MOVES_MOST - moving)
    if even and not changes:
        # `plan` ignores partitions without a leader. Report an even load only if each partition has a leader.
        return [c.Balance(spread)] if partitions.keys() <= set(led) else []
    assigns: list[c.Command] = [c.Assign(group, partitions[group].epoch, chosen) for group, chosen in changes.items()]
    return [c.Balance([]), *assigns] if assigns and is_changed and balanced else assigns


def next_voters(nodes: Mapping[str, NodeRecord], voting: Collection[str], most: int, lost: Collection[str]) -> set[str]:
    """Return the nodes that should vote in the metadata group, up to `most`.

    Each zone gets one voter before any zone gets a second one. Between equal nodes, current voters (`voting`) are
    preferred. `lost`: nodes that failed long ago, which vote only if there are not enough others."""
    left = [node for node in nodes.values() if node.standing == IN]
    chosen: list[NodeRecord] = []
    while left and len(chosen) < most:
        zones = [node.zone for node in chosen]
        best = min(left, key=lambda n: (n.node_id in lost, zones.count(n.zone), n.node_id not in voting, n.node_id))
        chosen.append(best)
        left.remove(best)
    return {node.node_id for node in chosen}
