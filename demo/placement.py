"""Nodes of the cluster, and the partitions that each holds and leads, as the cluster reports them. Reads no clock.

For each partition, the cluster reports the nodes that should hold it, and whether it is moving there. This module
remembers the origin of a moving partition: the nodes that held it before the move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandq.protocol.replies import Partition

UP = "up"
FAILED = "failed"
NEW = "new"


@dataclass(slots=True)
class Placement:
    """State of the cluster: partitions by number, nodes by id."""

    leaders: dict[int, str | None] = field(default_factory=dict)
    wanted: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By partition: the nodes that should hold it. The first of these nodes should lead it."""
    held: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By partition: the nodes that hold it. While the partition moves: the nodes that held it before the move."""
    moving: frozenset[int] = frozenset()
    there: dict[str, bool] = field(default_factory=dict)
    """By registered node: whether it can be reached and has not failed."""
    new: set[str] = field(default_factory=set)
    """Nodes that do not hold their whole share of replicas yet."""
    changes: int = 0
    """Counter that grows with every change."""

    def see_partitions(self, rows: Iterable[Partition]) -> None:
        before = self.leaders, self.wanted, self.moving
        rows = list(rows)
        self.leaders = {row.partition: row.leader for row in rows}
        self.wanted = {row.partition: row.nodes for row in rows}
        self.moving = frozenset(row.partition for row in rows if row.moving)
        self.held |= {row.partition: row.nodes for row in rows if not row.moving}
        self.changes += before != (self.leaders, self.wanted, self.moving)

    def see_nodes(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Update from the rows of `admin.cluster()`."""
        before = self.there
        self.there = {row["node"]: row["up"] and row["failed_since_ms"] is None for row in rows}
        self.changes += before != self.there

    # -- nodes ----------------------------------------------------------------------------------------------------

    def state(self, node: str) -> str:
        if node in self.new or node not in self.there:
            return NEW
        return UP if self.there[node] else FAILED

    def are_up(self, nodes: Iterable[str]) -> bool:
        return all(self.there.get(node, False) for node in nodes)

    def replicas(self) -> Counter[str]:
        """Return how many replicas each node holds."""
        return Counter(node for nodes in self.held.values() for node in nodes)

    def led_by(self, node: str) -> frozenset[int]:
        return frozenset(partition for partition, leader in self.leaders.items() if leader == node)

    # -- moves ----------------------------------------------------------------------------------------------------

    def moving_to(self, node: str) -> frozenset[int]:
        """Return the partitions that should be on a node but are not yet."""
        return frozenset(at for at in self.moving if node in self.wanted[at] and node not in self.held.get(at, ()))

    def has_taken(self, node: str, replicas: int, leads: int) -> bool:
        """Return whether a node has its share: at least `replicas` replicas, and leadership of `leads` partitions.

        It must also lead every partition that it should lead, and no partition may be moving."""
        first = {at for at, nodes in self.wanted.items() if nodes[:1] == (node,)}
        led = self.led_by(node)
        return not self.moving and self.replicas()[node] >= replicas and first <= led and len(led) >= leads

    def moves(self) -> str:
        """Return the moves as text; empty if nothing moves."""
        arriving = {node: self.moving_to(node) for node in sorted({n for at in self.moving for n in self.wanted[at]})}
        texts = [f"{counted(len(found))} on {_their(found)} way to {node}" for node, found in arriving.items() if found]
        staying = self.moving.difference(*arriving.values())
        if staying:
            texts.append(f"{counted(len(staying))} should be led by another node")
        return ", ".join(texts)

    def describe(self, nodes: Sequence[str]) -> str:
        """Return the whole placement on one line."""
        held = self.replicas()
        texts = [f"{node} {self.state(node)}, holds {held[node]}, leads {listed(self.led_by(node))}" for node in nodes]
        return "; ".join([*texts, *filter(None, [self.moves()])])


def listed(partitions: frozenset[int]) -> str:
    """Return the numbers of partitions as text."""
    return ", ".join(map(str, sorted(partitions))) or "none"


def named(partitions: frozenset[int]) -> str:
    """Return partitions as text, such as "partitions 1, 3"."""
    if not partitions:
        return "no partition"
    return f"{'partition' if len(partitions) == 1 else 'partitions'} {listed(partitions)}"


def counted(partitions: int) -> str:
    return f"{partitions} partition" if partitions == 1 else f"{partitions} partitions"


def _their(partitions: frozenset[int]) -> str:
    return "its" if len(partitions) == 1 else "their"
