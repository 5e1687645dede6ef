"""Which nodes are to hold which partition, and lead it.

Rendezvous hashing: each node has a score for each partition, weighted (score = -weight / ln(hash)), and the nodes with
the highest hold it; so of what a node held, all others take some, and a new node takes some of all. It is bounded: a
node takes no more than its share while others have room, and replicas are spread over zones before anything else but
a node's capacity. What is placed stays where it is unless it must go, or evens out what the nodes hold.

Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous" (1996); the bound is that of Mirrokni,
Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may hold partitions. `takes`: it may be given more. `leaves`: what it holds is to go elsewhere.
    `capacity`: how many it holds before others are to take what comes."""

    node: str
    zone: str = "default"
    weight: int = 1
    takes: bool = True
    leaves: bool = False
    capacity: float = math.inf


class Slot(NamedTuple):
    """A partition: its raft group, how many replicas it is to have, and who holds it now, the first leads. `fixed`: it
    cannot be moved."""

    group: int
    replicas: int
    nodes: tuple[str, ...]
    fixed: bool = False


def plan(slots: Sequence[Slot], candidates: Iterable[Candidate], *, even: bool, most: int) -> dict[int, list[str]]:
    """Raft group -> the nodes that are to hold it, for up to `most` partitions that need a change. `candidates`: all
    that may keep what they have. `even`: also move what only evens out what nodes hold and lead.

    Nodes are filled beyond their capacity when none that could take a replica has room: see `_Planner.mend`.
    """
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
    `replicas` at least; those that take nothing come last, and lead nothing while others do. All of it is placed, also
    where that is more than the nodes have room for; if they have room for all of it, none gets more than it has."""
    planner = _Planner(candidates, slots)
    return [planner.new(group, replicas, len(groups) - at) for at, group in enumerate(groups)]


class Choice(NamedTuple):
    """Where new partitions go, and how many partitions each candidate holds before and after that."""

    added: list[list[str]]
    before: dict[str, int]
    after: dict[str, int]


def choose(
    slots: Sequence[Slot],
    candidates: Collection[Candidate],
    groups: Sequence[int],
    replicas: int,
    raised: Collection[int] = (),
) -> Choice:
    """Place new partitions of a topic, of which the groups `raised` are to have so many replicas as well. A candidate
    holds more than its capacity after that, and than before, if there is not room for all of it."""
    names = [candidate.node for candidate in candidates]
    short = {slot.group for slot in slots if len({*names} & {*slot.nodes}) < slot.replicas}
    now = _mended(slots, candidates, short)  # what is yet to be moved takes room as well
    wanted = [slot._replace(replicas=replicas) if slot.group in raised else slot for slot in now]
    then = _mended(wanted, candidates, raised)
    added = place(then, candidates, groups, replicas)
    before, after = (Counter([node for slot in of for node in slot.nodes]) for of in (now, then))
    after.update([node for nodes in added for node in nodes])
    return Choice(added, {node: before[node] for node in names}, {node: after[node] for node in names})


def _mended(slots: Sequence[Slot], candidates: Iterable[Candidate], groups: Collection[int]) -> list[Slot]:
    """These as they are once those of the groups are held as they are to be."""
    unfixed = [slot._replace(fixed=slot.group not in groups) for slot in slots]
    changed = plan(unfixed, candidates, even=False, most=len(unfixed) + 1) if groups else {}
    return [slot._replace(nodes=tuple(changed.get(slot.group, slot.nodes))) for slot in unfixed]


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

    # -- one partition --------------------------------------------------------------------------------------------

    def mend(self, slot: Slot) -> None:
        """Give it as many nodes as it is to have, of those that there are; take away those that are to go.

        What a node had that has failed or is drained goes to full nodes when no other one has room. The capacity is
        what somebody expects a node to bear, and a node somewhat beyond it works on; a partition with too few replicas
        is one more failure away from being gone.
        """
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

    def new(self, group: int, replicas: int, left: int) -> list[str]:
        """A partition that nobody holds yet, the first of so many that are left."""
        roomy, least = self._needed(replicas, left)
        nodes: list[str] = []
        while len(nodes) < replicas:
            rest = [c for c in self._candidates.values() if c.node not in nodes]
            is_scarce = least - len(roomy & set(nodes)) >= replicas - len(nodes)
            free = [c for c in rest if (c.node in roomy if is_scarce else self._has_room(c))] or rest
            takers = [c for c in free if c.takes]
            if takers:
                best = self._best_of(takers, group, nodes)
            else:  # all that are there hold it, or are full: the others shall when they are back
                best = max(free, key=lambda c: self._score(c.node, group)).node
            nodes.append(best)
        able = [node for node in nodes if self._candidates[node].takes] or nodes
        leader = min(able, key=lambda node: (self._led[node] / self._candidates[node].weight, nodes.index(node)))
        self._slots[group] = []
        self._set(group, [leader, *[node for node in nodes if node != leader]])
        return self._slots[group]

    def _needed(self, replicas: int, left: int) -> tuple[set[str], float]:
        """The nodes that have room for a replica of all partitions that are left, and how many of these the next one
        has to take, so that the rest still fits.

        Replicas of a partition are on different nodes, so a node's room beyond the number of partitions left is of no
        use, and neither is room of which none is taken now. The rest fits as long as the sum of what is of use is not
        less than what is to be placed.
        """
        roomy = {c.node for c in self._candidates.values() if self._room(c) >= left}
        useful = sum(min(left, max(0, self._room(c))) for c in self._candidates.values())
        return roomy, len(roomy) - max(0, useful - left * replicas)

    def _room(self, candidate: Candidate) -> float:
        return candidate.capacity - self._held[candidate.node]

    def _has_room(self, candidate: Candidate) -> bool:
        return self._held[candidate.node] < candidate.capacity

    def _best(self, group: int, nodes: Sequence[str]) -> str | None:
        """Who takes it next, beside these nodes: one that has room, if there is one."""
        free = [c for c in self._takers if c.node not in nodes]
        if not free:
            return None
        return self._best_of([c for c in free if self._has_room(c)] or free, group, nodes)

    def _best_of(self, free: Sequence[Candidate], group: int, nodes: Sequence[str]) -> str:
        """Which of these takes it next, beside `nodes`."""
        zones = {self._candidates[node].zone for node in nodes}
        # Shares are of those that have room: what a full node does not take is spread as all else is.
        sharing = [c for c in self._takers if self._has_room(c)] or self._takers
        total = sum(self._held[c.node] for c in sharing) + 1
        weights = sum(c.weight for c in sharing)

        def rank(c: Candidate) -> tuple[bool, bool, float]:
            share = math.ceil(total * c.weight / weights)
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
                if not self._has_room(taker):
                    continue
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
