"""For any nodes, placement gives enough copies, in different zones and spread evenly, with as few moves as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sandq.metadata.placement import Candidate, Slot, choose, place, plan

ZONES = ("a", "b", "c")
nodes = st.lists(st.tuples(st.sampled_from(ZONES), st.integers(1, 3)), min_size=1, max_size=8).map(
    lambda found: [Candidate(f"n{at}", zone, weight) for at, (zone, weight) in enumerate(found)]
)


def layout(placed: Sequence[Sequence[str]], replicas: int) -> list[Slot]:
    return [Slot(group, replicas, tuple(held)) for group, held in enumerate(placed, 1)]


def changed(slots: Sequence[Slot], there: Sequence[Candidate], *, even: bool = True) -> list[Slot]:
    """Return the slots after all planned changes, in as many rounds as necessary."""
    for _ in range(200):
        found = plan(slots, there, even=even, most=5)
        if not found:
            return list(slots)
        slots = [slot._replace(nodes=tuple(found.get(slot.group, slot.nodes))) for slot in slots]
    raise AssertionError("the planning does not end")


def loads(slots: Sequence[Slot]) -> Counter[str]:
    return Counter(node for slot in slots for node in slot.nodes)


def moves(before: Sequence[Slot], after: Sequence[Slot]) -> int:
    return sum(len(set(b.nodes) - set(a.nodes)) for a, b in zip(before, after, strict=True))


def check(slots: Sequence[Slot], there: Sequence[Candidate]) -> None:
    zones = {candidate.node: candidate.zone for candidate in there}
    for slot in slots:
        assert len(set(slot.nodes)) == len(slot.nodes) == min(slot.replicas, len(there))
        spread = {zones[node] for node in slot.nodes}
        assert len(spread) == min(len(slot.nodes), len(set(zones.values()))), "as many zones as there can be"


@given(nodes, st.integers(1, 5), st.integers(1, 30))
def test_new_partitions(there: list[Candidate], replicas: int, count: int) -> None:
    replicas = min(replicas, len(there))
    slots = layout(place([], there, range(1, count + 1), replicas), replicas)
    check(slots, there)
    if len({c.zone for c in there}) == 1 and len({c.weight for c in there}) == 1:
        held = loads(slots)
        assert max(held.values()) - min(held[c.node] for c in there) <= 1
        led = Counter(slot.nodes[0] for slot in slots)
        assert max(led.values()) <= -(-count // len(there)) + 1


@given(st.integers(2, 8), st.integers(1, 3), st.integers(1, 40))
def test_a_node_that_comes_takes_its_share_and_nothing_else_moves(count: int, replicas: int, partitions: int) -> None:
    old = [Candidate(f"n{at}") for at in range(count)]
    replicas = min(replicas, count)
    before = layout(place([], old, range(1, partitions + 1), replicas), replicas)
    there = [*old, Candidate("new")]
    after = changed(before, there)
    check(after, there)
    held = loads(after)
    assert max(held.values()) - min(held[c.node] for c in there) <= 1
    assert moves(before, after) == held["new"], "only to the new one"
    led = Counter(slot.nodes[0] for slot in after)
    assert max(led.values()) - min(led[c.node] for c in there) <= 2
    assert changed(after, there) == after, "and then it stays"


@given(nodes, st.integers(1, 3), st.integers(1, 20), st.data())
def test_a_node_that_leaves_holds_nothing_and_all_is_held(
    there: list[Candidate], replicas: int, partitions: int, data: st.DataObject
) -> None:
    replicas = min(replicas, len(there))
    before = layout(place([], there, range(1, partitions + 1), replicas), replicas)
    leaving = data.draw(st.sampled_from(there)).node
    after_it = [Candidate(c.node, c.zone, c.weight, takes=c.node != leaving, leaves=c.node == leaving) for c in there]
    after = changed(before, after_it, even=False)
    if replicas < len(there):
        assert not loads(after)[leaving]
        held = loads(before)[leaving]
        assert held <= moves(before, after) <= held, "only what it held"
    else:
        assert after == before, "no node can take the replica, so it stays"


@given(nodes, st.integers(1, 4), st.integers(1, 4), st.integers(1, 10))
def test_more_and_fewer_replicas(there: list[Candidate], first: int, then: int, partitions: int) -> None:
    first, then = min(first, len(there)), min(then, len(there))
    before = layout(place([], there, range(1, partitions + 1), first), first)
    after = changed([slot._replace(replicas=then) for slot in before], there, even=False)
    for old, new in zip(before, after, strict=True):
        assert len(new.nodes) == then
        assert set(new.nodes) <= set(old.nodes) or set(old.nodes) <= set(new.nodes)
        assert new.nodes[0] in old.nodes or then == 1


@given(nodes, st.integers(1, 3), st.integers(1, 15))
def test_fixed_replicas_are_not_moved(there: list[Candidate], replicas: int, partitions: int) -> None:
    replicas = min(replicas, len(there))
    slots = [
        slot._replace(fixed=True, replicas=len(there))
        for slot in layout(place([], there, range(1, partitions + 1), replicas), replicas)
    ]
    assert plan(slots, [*there, Candidate("new")], even=True, most=1000) == {}


def test_absent_node_keeps_its_replicas_and_gets_no_new_ones() -> None:
    there = [Candidate("n0"), Candidate("n1"), Candidate("n2", takes=False)]
    placed = place([], there, range(1, 7), 2)
    assert loads(layout(placed, 2))["n2"] == 0
    held = [Slot(1, 2, ("n2", "n0")), Slot(2, 2, ("n0", "n1"))]
    assert plan(held, there, even=False, most=10) == {}
    assert place([], there, [1], 3)[0][2] == "n2", "it is the last, when there are no others"


def test_a_heavy_node_holds_more() -> None:
    there = [Candidate("n0"), Candidate("n1"), Candidate("big", weight=2)]
    held = loads(layout(place([], there, range(1, 41), 1), 1))
    assert held["big"] == 20 and held["n0"] == held["n1"] == 10


capacities = st.lists(st.tuples(st.sampled_from(ZONES), st.integers(0, 8)), min_size=1, max_size=6).map(
    lambda found: [Candidate(f"n{at}", zone, capacity=capacity) for at, (zone, capacity) in enumerate(found)]
)


@given(capacities, st.integers(1, 4), st.integers(1, 8))
def test_new_partitions_with_enough_capacity_overfill_no_node(
    there: list[Candidate], replicas: int, count: int
) -> None:
    replicas = min(replicas, len(there))
    held = loads(layout(place([], there, range(1, count + 1), replicas), replicas))
    assert sum(held.values()) == count * replicas
    # This many replicas fit, if the replicas of each partition are on different nodes.
    has_capacity = sum(min(count, c.capacity) for c in there) >= count * replicas
    assert all(held[c.node] <= c.capacity for c in there) is has_capacity


@given(capacities, st.integers(1, 3), st.integers(1, 6), st.data())
def test_moves_with_free_nodes_avoid_full_nodes(
    there: list[Candidate], replicas: int, partitions: int, data: st.DataObject
) -> None:
    replicas = min(replicas, len(there))
    before = layout(place([], there, range(1, partitions + 1), replicas), replicas)
    leaving = data.draw(st.sampled_from(there)).node
    rest = [c for c in there if c.node != leaving]
    after = changed(before, rest, even=False)
    for slot in after:
        assert len(slot.nodes) == max(1, min(replicas, len(rest))), "too few replicas is worse than a full node"
    given, over = loads(after), [c for c in rest if loads(after)[c.node] > max(c.capacity, loads(before)[c.node])]
    for c in over:
        new = [n for n, b in zip(after, before, strict=True) if c.node in n.nodes and c.node not in b.nodes]
        for other in rest:
            assert given[other.node] >= other.capacity or any(other.node in slot.nodes for slot in new)


def test_replicas_are_spread_evenly_around_a_full_node() -> None:
    there = [Candidate("n0", capacity=30), Candidate("n1", capacity=30), Candidate("n2", capacity=30)]
    full = [Slot(group, 1, ("n0",), fixed=True) for group in range(1, 31)]
    held = loads(layout(place(full, there, range(31, 51), 1), 1))
    assert held == {"n1": 10, "n2": 10}


def test_a_full_node_is_not_evened_out_onto() -> None:
    there = [Candidate("n0"), Candidate("n1", weight=3, capacity=2)]
    held = [Slot(group, 1, ("n0",)) for group in range(1, 9)]
    assert loads(changed(held, there)) == {"n0": 6, "n1": 2}


def test_new_topic_avoids_full_node() -> None:
    there = [Candidate(f"n{at}", capacity=3) for at in range(3)]
    held = [Slot(group, 1, ("n0",)) for group in (1, 2, 3)]
    found = choose(held, there, [4, 5, 6], 2)
    assert all(set(nodes) == {"n1", "n2"} for nodes in found.added)
    assert found.before == {"n0": 3, "n1": 0, "n2": 0} and found.after == {"n0": 3, "n1": 3, "n2": 3}
    assert max(choose(held, there, [4, 5, 6, 7], 2).after.values()) > 3
    assert max(choose(held, there, [4], 3).after.values()) > 3, "two have room, and it is to be on three"


def test_more_replicas_of_a_topic_go_past_a_full_node() -> None:
    there = [Candidate(f"n{at}", capacity=4) for at in range(3)]
    held = [Slot(group, 1, ("n0",)) for group in (1, 2, 3)] + [Slot(4, 1, ("n1",))]
    full = [*held, Slot(5, 1, ("n0",))]
    assert choose(full, there, [6], 2, raised=[4]).after == {"n0": 4, "n1": 2, "n2": 2}


def test_pending_moves_use_capacity() -> None:
    there = [Candidate("n0", capacity=2), Candidate("n1", capacity=2)]
    held = [Slot(1, 2, ("n0",)), Slot(2, 1, ("gone",))]
    found = choose(held, there, [3], 1)
    assert sum(found.before.values()) == 3 and max(found.after.values()) == 2
    assert max(choose(held, there, [3, 4], 1).after.values()) == 3
