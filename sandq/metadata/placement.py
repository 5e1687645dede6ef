"""Decide which nodes hold each partition, and which of them leads it.

The algorithm is weighted rendezvous hashing: each node has a score for each partition (-weight / ln(hash)), and the
nodes with the highest scores hold it. So the partitions of a node that leaves are spread over all others, and a new
node gets some from each. The load is bounded: a node gets no more than its share while others have free capacity.
Replicas are spread over zones; only capacity is more important. A placed replica stays where it is, unless its node
must give it up or moving it evens out the load.

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
    """A node that may hold partitions.

    `takes`: it may get more partitions. `leaves`: its partitions should move to other nodes. `capacity`: once
    it holds this number of partitions, other nodes are preferred."""

    node: str
    zone: str = "default"
    weight: int = 1
    takes: bool = True
    leaves: bool = False
    capacity: float = math.inf


class Slot(NamedTuple):
    """A partition and its current placement.

    `replicas`: number of replicas that it should have. `nodes`: the nodes that hold it; the first one leads. `fixed`:
    it cannot be moved."""

    group: int
    replicas: int
    nodes: tuple[str, ...]
    fixed: bool = False


def plan(slots: Sequence[Slot], candidates: Iterable[Candidate], *, even: bool, most: int) -> dict[int, list[str]]:
    """Return the new nodes of partitions that need a change, by raft group, for up to `most` partitions.

    `candidates`: all nodes that may keep their partitions. `even`: also move partitions and leadership only to even out
    the load. Nodes are filled beyond their capacity if no node that could take a replica has free capacity: see
    `_Planner.repair`.
    """
    planner = _Planner(candidates, slots)
    for slot in slots:
        if not slot.fixed:
            planner.repair(slot)
        if len(planner.changed) >= most:
            return planner.changed
    if even:
        planner.even_out(most)
        planner.even_out_leaders(most)
    return planner.changed


def place(
    slots: Sequence[Slot], candidates: Iterable[Candidate], groups: Sequence[int], replicas: int
) -> list[list[str]]:
    """Return the nodes of each new partition, given the existing ones in `slots`.

    There must be at least `replicas` candidates. A candidate with `takes=False` is used last. It leads a partition
    only if all nodes of that partition are such candidates. All partitions are placed, even beyond the nodes'
    capacity. If the free capacity is enough for all of them, no node exceeds its capacity."""
    planner = _Planner(candidates, slots)
    return [planner.new(group, replicas, len(groups) - at) for at, group in enumerate(groups)]


class Choice(NamedTuple):
    """The nodes of each new partition, and the number of partitions on each candidate before and after placing them."""

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
    """Place new partitions of a topic, each with `replicas` replicas.

    `raised`: existing groups of the topic whose number of replicas changes to `replicas`, too. If the free capacity is
    not enough for all of this, some candidate holds more than its capacity in `Choice.after`, and more than in
    `Choice.before`."""
    names = [candidate.node for candidate in candidates]
    short = {slot.group for slot in slots if len({*names} & {*slot.nodes}) < slot.replicas}
    now = _repaired(slots, candidates, short)  # replicas that are still to be moved need capacity, too
    wanted = [slot._replace(replicas=replicas) if slot.group in raised else slot for slot in now]
    then = _repaired(wanted, candidates, raised)
    added = place(then, candidates, groups, replicas)
    before, after = (Counter([node for slot in of for node in slot.nodes]) for of in (now, then))
    after.update([node for nodes in added for node in nodes])
    return Choice(added, {node: before[node] for node in names}, {node: after[node] for node in names})


def _repaired(slots: Sequence[Slot], candidates: Iterable[Candidate], groups: Collection[int]) -> list[Slot]:
    """Return the slots as they will be once the partitions of these groups have all their replicas."""
    unfixed = [slot._replace(fixed=slot.group not in groups) for slot in slots]
    changed = plan(unfixed, candidates, even=False, most=len(unfixed) + 1) if groups else {}
    return [slot._replace(nodes=tuple(changed.get(slot.group, slot.nodes))) for slot in unfixed]


def score(node: str, group: int, weight: int) -> float:
    """Return the rendezvous score of a partition on a node: higher is better."""
    hashed: int = xxhash.xxh3_64_intdigest(f"{node}/{group}".encode())
    return -weight / math.log((hashed + 0.5) / 2**64)


class _Planner:
    """The placement of all partitions while changes to it are planned."""

    def __init__(self, candidates: Iterable[Candidate], slots: Sequence[Slot]) -> None:
        self.changed: dict[int, list[str]] = {}
        self._candidates = {candidate.node: candidate for candidate in candidates}
        self._receivers = [c for c in self._candidates.values() if c.takes]
        self._slots: dict[int, list[str]] = {slot.group: list(slot.nodes) for slot in slots}
        self._movable = [slot.group for slot in slots if not slot.fixed]
        self._held: Counter[str] = Counter(node for slot in slots for node in slot.nodes)
        self._led: Counter[str] = Counter(slot.nodes[0] for slot in slots if slot.nodes)

    # -- one partition --------------------------------------------------------------------------------------------

    def repair(self, slot: Slot) -> None:
        """Give a partition its number of replicas, and take it from nodes that must give it up.

        If no other node has free capacity, full nodes take the replicas of a node that has failed or is drained. The
        capacity is an operator's estimate, and a node somewhat above it still works. But a partition with too few
        replicas can be lost by one more failure.
        """
        nodes = [node for node in slot.nodes if node in self._candidates]
        leaving = [node for node in nodes if self._candidates[node].leaves]
        staying = [node for node in nodes if not self._candidates[node].leaves]
        while len(staying) < slot.replicas and (best := self._best(slot.group, staying)) is not None:
            staying.append(best)
        # A leaving node keeps its replica as long as no other node can replace it.
        kept = staying + leaving[: max(0, slot.replicas - len(staying))]
        while len(kept) > slot.replicas:
            kept.remove(self._worst(kept))
        if not kept:
            return  # no node can take it, and a partition must have at least one node
        order = [node for node in slot.nodes if node in kept]
        self._set(slot.group, order + [node for node in kept if node not in order])

    def new(self, group: int, replicas: int, left: int) -> list[str]:
        """Place one new partition and return its nodes, the leader first. `left`: number of new partitions still to
        place, including this one."""
        spacious, least = self._needed(replicas, left)
        nodes: list[str] = []
        while len(nodes) < replicas:
            rest = [c for c in self._candidates.values() if c.node not in nodes]
            # If capacity is scarce, use only spacious nodes from now on, or a later partition would not fit.
            is_scarce = least - len(spacious & set(nodes)) >= replicas - len(nodes)
            free = [c for c in rest if (c.node in spacious if is_scarce else self._has_capacity(c))] or rest
            receivers = [c for c in free if c.takes]
            if receivers:
                best = self._best_of(receivers, group, nodes)
            else:  # all available nodes hold it or are full: use a failed node, which holds it once it is back
                best = max(free, key=lambda c: self._score(c.node, group)).node
            nodes.append(best)
        able = [node for node in nodes if self._candidates[node].takes] or nodes
        leader = min(able, key=lambda node: (self._led[node] / self._candidates[node].weight, nodes.index(node)))
        self._slots[group] = []
        self._set(group, [leader, *[node for node in nodes if node != leader]])
        return self._slots[group]

    def _needed(self, replicas: int, left: int) -> tuple[set[str], float]:
        """Return the nodes whose free capacity is at least `left`, and how many of them the next partition must use.

        Otherwise the later partitions might not fit. The replicas
        of a partition are on different nodes, so a node can use at most `left` of its free capacity. The later
        partitions fit as long as the sum of this usable capacity over all nodes is at least `left * replicas`. A node
        whose free capacity is at least `left` loses one usable replica with the next partition, whether it holds it or
        not.
        """
        spacious = {c.node for c in self._candidates.values() if self._free_capacity(c) >= left}
        useful = sum(min(left, max(0, self._free_capacity(c))) for c in self._candidates.values())
        # The difference is the surplus of usable capacity. Each spacious node that the next partition does not use
        # costs one unit of it.
        return spacious, len(spacious) - max(0, useful - left * replicas)

    def _free_capacity(self, candidate: Candidate) -> float:
        return candidate.capacity - self._held[candidate.node]

    def _has_capacity(self, candidate: Candidate) -> bool:
        return self._held[candidate.node] < candidate.capacity

    def _best(self, group: int, nodes: Sequence[str]) -> str | None:
        """Return the best node to add to `nodes`, if possible one with free capacity; None if no node is left."""
        free = [c for c in self._receivers if c.node not in nodes]
        if not free:
            return None
        return self._best_of([c for c in free if self._has_capacity(c)] or free, group, nodes)

    def _best_of(self, free: Sequence[Candidate], group: int, nodes: Sequence[str]) -> str:
        """Return the best of the `free` candidates to hold a partition in addition to `nodes`.

        A different zone counts first, then a load below the node's share, then the rendezvous score."""
        zones = {self._candidates[node].zone for node in nodes}
        # Shares are computed over nodes with free capacity: the load that full nodes cannot take is spread over the
        # others.
        sharing = [c for c in self._receivers if self._has_capacity(c)] or self._receivers
        total = sum(self._held[c.node] for c in sharing) + 1
        weights = sum(c.weight for c in sharing)

        def rank(c: Candidate) -> tuple[bool, bool, float]:
            share = math.ceil(total * c.weight / weights)
            return c.zone in zones, self._held[c.node] >= share, -score(c.node, group, c.weight)

        return min(free, key=rank).node

    def _worst(self, nodes: Sequence[str]) -> str:
        """Return the node that should give up a partition first.

        Prefer a leaving node, then one whose zone has a second replica, then a follower, then the highest load."""
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

    # -- all partitions -------------------------------------------------------------------------------------------

    def even_out(self, most: int) -> None:
        """Move replicas from the node with the highest load per weight to the one with the lowest, until no move
        helps."""
        offers: dict[tuple[str, str], list[int]] = {}
        while len(self.changed) < most and (move := self._next_move(offers)) is not None:
            group, giver, receiver = move
            self._set(group, [receiver if node == giver else node for node in self._slots[group]])

    def _next_move(self, offers: dict[tuple[str, str], list[int]]) -> tuple[int, str, str] | None:
        """Return (group, giver, receiver) of the next move that makes the load more even, None if there is none.

        `offers`: the groups that may move, by giver and receiver, best last. Computed once per pair."""
        by_load = sorted(self._receivers, key=lambda c: (self._held[c.node] / c.weight, c.node))
        for giver in reversed(by_load):
            for receiver in by_load:
                if (self._held[receiver.node] + 1) / receiver.weight > self._held[giver.node] / giver.weight - _EPSILON:
                    break
                if not self._has_capacity(receiver):
                    continue
                pair = giver.node, receiver.node
                groups = offers[pair] if pair in offers else offers.setdefault(pair, self._offer(giver, receiver))
                while groups:
                    best = groups.pop()
                    if self._may_move(self._slots[best], giver, receiver):
                        return best, *pair
        return None

    def _offer(self, giver: Candidate, receiver: Candidate) -> list[int]:
        """Return the groups that may move from `giver` to `receiver`, in ascending order of the gain in score."""
        groups = [g for g in self._movable if self._may_move(self._slots[g], giver, receiver)]
        return sorted(groups, key=lambda g: self._score(receiver.node, g) - self._score(giver.node, g))

    def _may_move(self, nodes: Sequence[str], giver: Candidate, receiver: Candidate) -> bool:
        """Return whether a partition on `nodes` may move without having more replicas in one zone."""
        if giver.node not in nodes or receiver.node in nodes:
            return False
        zones = [self._candidates[node].zone for node in nodes if node != giver.node and node in self._candidates]
        return receiver.zone not in zones or giver.zone in zones

    def even_out_leaders(self, most: int) -> None:
        """Move leadership between the nodes of a partition, while this evens out the number of leaders per node.

        Partitions with equal node lists are interchangeable, so each list is evaluated only once per move."""
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
        """Return how much the leader load per weight evens out if the best other node leads a partition on `nodes`."""
        other = self._other_leader(nodes)
        if not nodes or other == nodes[0]:
            return 0.0
        first, second = self._candidates[nodes[0]], self._candidates[other]
        if first.leaves:
            return math.inf
        if not first.takes:
            return 0.0  # the leader has failed and may be back soon
        return self._led[first.node] / first.weight - (self._led[second.node] + 1) / second.weight

    def _other_leader(self, nodes: tuple[str, ...]) -> str:
        """Return which of `nodes` should lead: the one with the least load of leaders. `nodes[0]` leads now.

        The load counts the partition itself: it is already counted for `nodes[0]`, so 1 is added for the others.
        """
        able = [self._candidates[node] for node in nodes if node in self._candidates and self._candidates[node].takes]
        if not able:
            return nodes[0] if nodes else ""
        return min(able, key=lambda c: (self._led[c.node] + (c.node != nodes[0])) / c.weight).node
