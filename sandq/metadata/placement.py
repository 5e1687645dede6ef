"""Which nodes are to hold which partition, and lead it.

Rendezvous hashing: each node has a score for each partition, weighted (score = -weight / ln(hash)), and the nodes with
the highest hold it; so of what a node held, all others take some, and a new node takes some of all. It is bounded: a
node takes no more than its share while others have room, and replicas are spread over zones before anything else. What
is placed stays where it is unless it must go, or evens out what the nodes hold.

Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous" (1996); the bound is that of Mirrokni,
Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may hold partitions. `takes`: it may be given more. `leaves`: what it holds is to go elsewhere."""

    node: str
    zone: str = "default"
    weight: int = 1
    takes: bool = True
    leaves: bool = False


class Slot(NamedTuple):
    """A partition: its raft group, how many replicas it is to have, and who holds it now, the first leads. `fixed`: it
    cannot be moved."""

    group: int
    replicas: int
    nodes: tuple[str, ...]
    fixed: bool = False


def plan(slots: Sequence[Slot], candidates: Iterable[Candidate], *, even: bool, most: int) -> dict[int, list[str]]:
    """Raft group -> the nodes that are to hold it, for up to `most` partitions that need a change. `candidates`: all
    that may keep what they have. `even`: also move what only evens out what nodes hold and lead."""
    planner = _Planner(candidates, slots)
    for slot in slots:
        if not slot.fixed:
            planner.mend(slot)
        if len(planner.changed) >= most:
            return planner.changed
    if even:
        planner.even_out(most)
        planner.even_out_leaders(most)
    return planner.changed


def place(
    slots: Sequence[Slot], candidates: Iterable[Candidate], groups: Sequence[int], replicas: int
) -> list[list[str]]:
    """For each new partition the nodes that hold it, beside what they hold and lead already. Of `candidates` there are
    `replicas` at least; those that take nothing come last, and lead nothing while others do."""
    planner = _Planner(candidates, slots)
    return [planner.new(group, replicas) for group in groups]


def score(node: str, group: int, weight: int) -> float:
    """How much a partition belongs on a node."""
    hashed: int = xxhash.xxh3_64_intdigest(f"{node}/{group}".encode())
    return -weight / math.log((hashed + 0.5) / 2**64)


class _Planner:
    def __init__(self, candidates: Iterable[Candidate], slots: Sequence[Slot]) -> None:
        self.changed: dict[int, list[str]] = {}
        self._candidates = {candidate.node: candidate for candidate in candidates}
        self._takers = [c for c in self._candidates.values() if c.takes]
        self._slots: dict[int, list[str]] = {slot.group: list(slot.nodes) for slot in slots}
        self._movable = [slot.group for slot in slots if not slot.fixed]
        self._held: Counter[str] = Counter(node for slot in slots for node in slot.nodes)
        self._led: Counter[str] = Counter(slot.nodes[0] for slot in slots if slot.nodes)
        self._weights = sum(c.weight for c in self._takers) or 1

    # -- one partition --------------------------------------------------------------------------------------------

    def mend(self, slot: Slot) -> None:
        """Give it as many nodes as it is to have, of those that there are; take away those that are to go."""
        nodes = [node for node in slot.nodes if node in self._candidates]
        leaving = [node for node in nodes if self._candidates[node].leaves]
        staying = [node for node in nodes if not self._candidates[node].leaves]
        while len(staying) < slot.replicas and (best := self._best(slot.group, staying)) is not None:
            staying.append(best)
        # Who is to go stays as long as nobody takes its place.
        kept = staying + leaving[: max(0, slot.replicas - len(staying))]
        while len(kept) > slot.replicas:
            kept.remove(self._worst(kept))
        if not kept:
            return  # nobody can take it, and it cannot be nowhere
        order = [node for node in slot.nodes if node in kept]
        self._set(slot.group, order + [node for node in kept if node not in order])

    def new(self, group: int, replicas: int) -> list[str]:
        """A partition that nobody holds yet."""
        nodes: list[str] = []
        while len(nodes) < replicas:
            best = self._best(group, nodes)
            if best is None:  # all that are there hold it: the others shall when they are back
                rest = sorted(self._candidates.keys() - set(nodes))
                best = max(rest, key=lambda node: self._score(node, group))
            nodes.append(best)
        able = [node for node in nodes if self._candidates[node].takes] or nodes
        leader = min(able, key=lambda node: (self._led[node] / self._candidates[node].weight, nodes.index(node)))
        self._slots[group] = []
        self._set(group, [leader, *[node for node in nodes if node != leader]])
        return self._slots[group]

    def _best(self, group: int, nodes: Sequence[str]) -> str | None:
        """Who takes it next, beside these nodes."""
        zones = {self._candidates[node].zone for node in nodes}
        free = [c for c in self._takers if c.node not in nodes]
        if not free:
            return None
        total = sum(self._held[c.node] for c in self._takers) + 1

        def rank(c: Candidate) -> tuple[bool, bool, float]:
            share = math.ceil(total * c.weight / self._weights)
            return c.zone in zones, self._held[c.node] >= share, -score(c.node, group, c.weight)

        return min(free, key=rank).node

    def _worst(self, nodes: Sequence[str]) -> str:
        """Who gives it up first: one that is to go, then one whose zone has another; the first, who leads, last."""
        zones = Counter(self._candidates[node].zone for node in nodes)

        def rank(node: str) -> tuple[bool, bool, bool, float]:
            c = self._candidates[node]
            return c.leaves, zones[c.zone] > 1, node != nodes[0], self._held[node] / c.weight

        return max(nodes, key=rank)

    def _score(self, node: str, group: int) -> float:
        return score(node, group, self._candidates[node].weight)

    def _set(self, group: int, nodes: list[str]) -> None:
        old = self._slots[group]
        if nodes == old:
            return
        for counts, before, after in ((self._held, old, nodes), (self._led, old[:1], nodes[:1])):
            counts.subtract(before)
            counts.update(after)
        self._slots[group] = self.changed[group] = nodes

    # -- all of them ----------------------------------------------------------------------------------------------

    def even_out(self, most: int) -> None:
        """Move replicas from who holds the most for its weight to who holds the least, while that makes it more
        even."""
        offers: dict[tuple[str, str], list[int]] = {}
        while len(self.changed) < most and (move := self._next_move(offers)) is not None:
            group, giver, taker = move
            self._set(group, [taker if node == giver else node for node in self._slots[group]])

    def _next_move(self, offers: dict[tuple[str, str], list[int]]) -> tuple[int, str, str] | None:
        """`offers`: of a giver and a taker, what may move, the best last. Looked through once, not for each move."""
        by_load = sorted(self._takers, key=lambda c: (self._held[c.node] / c.weight, c.node))
        for giver in reversed(by_load):
            for taker in by_load:
                if (self._held[taker.node] + 1) / taker.weight > self._held[giver.node] / giver.weight - _EPSILON:
                    break
                pair = giver.node, taker.node
                groups = offers[pair] if pair in offers else offers.setdefault(pair, self._offer(giver, taker))
                while groups:
                    best = groups.pop()
                    if self._may_move(self._slots[best], giver, taker):
                        return best, *pair
        return None

    def _offer(self, giver: Candidate, taker: Candidate) -> list[int]:
        groups = [g for g in self._movable if self._may_move(self._slots[g], giver, taker)]
        return sorted(groups, key=lambda g: self._score(taker.node, g) - self._score(giver.node, g))

    def _may_move(self, nodes: Sequence[str], giver: Candidate, taker: Candidate) -> bool:
        if giver.node not in nodes or taker.node in nodes:
            return False
        zones = [self._candidates[node].zone for node in nodes if node != giver.node and node in self._candidates]
        return taker.zone not in zones or giver.zone in zones

    def even_out_leaders(self, most: int) -> None:
        """Let others of those that hold a partition lead it, while that makes it more even who leads how many."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for group in reversed(self._movable):
            alike.setdefault(tuple(self._slots[group]), []).append(group)
        while len(self.changed) < most:
            best = max(alike, key=self._gain, default=())
            if self._gain(best) <= _EPSILON:
                return
            group, leader = alike[best].pop(), self._other_leader(best)
            self._set(group, [leader, *[node for node in best if node != leader]])
            alike.setdefault(tuple(self._slots[group]), []).append(group)
            if not alike[best]:
                del alike[best]

    def _gain(self, nodes: tuple[str, ...]) -> float:
        """How much less the first of those that hold a partition leads beside another one than that one does now."""
        other = self._other_leader(nodes)
        if not nodes or other == nodes[0]:
            return 0.0
        first, second = self._candidates[nodes[0]], self._candidates[other]
        if first.leaves:
            return math.inf
        if not first.takes:
            return 0.0  # it will be back
        return self._led[first.node] / first.weight - (self._led[second.node] + 1) / second.weight

    def _other_leader(self, nodes: tuple[str, ...]) -> str:
        able = [self._candidates[node] for node in nodes if node in self._candidates and self._candidates[node].takes]
        if not able:
            return nodes[0] if nodes else ""
        return min(able, key=lambda c: (self._led[c.node] + (c.node != nodes[0])) / c.weight).node
