"""Tests of the next turn among tenants: weighted round robin at each level of the name tree, and bounded waits."""

from __future__ import annotations

import gc
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.partition.base.stale_heaps import FEW
from sandq.partition.limits.tenant_rules import TenantRules
from sandq.partition.ready.tenant_scheduler import SCALE, TenantScheduler, Times
from tests.support.partition.fair_model import FairModel


def turns_of(*tenants: str, weights: dict[str, int] | None = None) -> TenantScheduler:
    """Return a TenantScheduler in which these tenants have messages."""
    turns = TenantScheduler(lambda path: (weights or {}).get(path, 1))
    for tenant in tenants:
        turns.set_active(tenant, True)
    return turns


def taken(turns: TenantScheduler, count: int) -> list[str]:
    """Return the tenants of the next turns, of one message each."""
    found = []
    for _ in range(count):
        turn = turns.next()
        assert turn is not None
        found.append(turn[0])
        turns.serve(turn[0], 1)
    return found


def test_no_tenant_has_a_turn_without_messages() -> None:
    turns = turns_of()
    assert turns.next() is None
    turns.set_active("a", True)
    turns.set_active("a", False)
    assert turns.next() is None


def test_single_tenant_has_all_turns() -> None:
    turns = turns_of("a.b")
    assert turns.next() == ("a.b", False)
    turns.serve("a.b", 1000)
    turns.set_active("z", True)
    assert taken(turns, 4) == ["a.b", "z", "a.b", "z"]


def test_tenants_go_round_robin() -> None:
    assert taken(turns_of("b", "a", "c"), 7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_each_level_of_names_shares_equally() -> None:
    # x has as many turns as all tenants of acme together.
    turns = turns_of("acme.video", "acme.audio", "acme", "x")
    counts = Counter(taken(turns, 600))
    assert counts == {"x": 300, "acme.video": 100, "acme.audio": 100, "acme": 100}


def test_a_name_that_begins_another_is_a_tenant_of_its_own() -> None:
    turns = turns_of("ab", "a", "a.b")
    assert Counter(taken(turns, 400)) == {"ab": 200, "a": 100, "a.b": 100}


def test_weights_are_shares() -> None:
    turns = turns_of("a", "b", "c", weights={"a": 3, "c": 2})
    assert Counter(taken(turns, 600)) == {"a": 300, "b": 100, "c": 200}


def test_idle_tenant_is_not_owed_turns() -> None:
    turns = turns_of("a", "b")
    taken(turns, 100)
    turns.set_active("c", True)
    assert Counter(taken(turns, 30)) == {"a": 10, "b": 10, "c": 10}


def test_tenant_that_returns_repeatedly_gets_no_more_than_its_share() -> None:
    turns = turns_of("a", "b")
    found = []
    for _ in range(40):
        turn = turns.next()
        assert turn is not None
        found.append(turn[0])
        turns.serve(turn[0], 1)
        if turn[0] == "a":  # tenant a has one message at a time
            turns.set_active("a", False)
            turns.set_active("a", True)
    assert Counter(found) == {"a": 20, "b": 20}


def test_served_tenant_is_forgotten() -> None:
    turns = turns_of("a", "b", "c.d")
    taken(turns, 3)
    for tenant in ("a", "c.d"):
        turns.set_active(tenant, False)
    kept = {path for path, times in turns.changes() if times is not None}
    assert {"a", "c"} <= kept
    turns.set_active("e", True)
    taken(turns, 6)
    assert {path for path, times in turns.changes() if times is None} >= {"a", "c"}
    turns.rest()
    assert [times for _, times in turns.changes() if times is not None] == []


def test_times_are_remembered() -> None:
    turns = turns_of("a", "b", "c.d", "c.e")
    taken(turns, 5)
    rows = dict(turns.changes())
    again = TenantScheduler(lambda path: 1)
    for path in sorted(rows):
        times = rows[path]
        if times is not None:
            again.load(path, Times(*times))
    for tenant in ("c.e", "b", "c.d", "a"):
        again.set_active(tenant, True)
    again.forget_idle()
    assert taken(again, 40) == taken(turns, 40)
    assert dict(again.changes()) == {path: times for path, times in turns.changes() if times is not None}


NAMES = st.sampled_from(["a", "b", "a.x", "a.y", "a.x.p", "a.x.q", "c", "c.z"])
WEIGHTS = st.dictionaries(st.sampled_from(["a", "b", "a.x", "a.y", "a.x.p", "a.x.q"]), st.integers(1, 5))


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=90), NAMES, WEIGHTS)
def test_wait_is_bounded_by_the_shares_of_the_others(
    changes: list[tuple[str, bool]], quiet: str, weights: dict[str, int]
) -> None:
    """Other tenants come and go. Between two turns of a busy node of the tree, each sibling has at most two turns per
    unit of weight. This holds at every level down to the quiet tenant."""
    turns = turns_of(quiet, weights=weights)
    own = nodes_of(quiet)
    since: Counter[tuple[str, ...]] = Counter()
    for tenant, is_active in changes:
        if tenant != quiet:
            turns.set_active(tenant, is_active)
        turn = turns.next()
        assert turn is not None
        turns.serve(turn[0], 1)
        for node, mine in zip(nodes_of(turn[0]), own, strict=False):
            if node != mine:
                since[node] += 1
                share = weights.get(".".join(node), 1) // weights.get(".".join(mine), 1)
                assert since[node] <= share + 2, f"{node} had {since[node]} turns while {mine} had none"
                break
            for sibling in [sibling for sibling in since if len(sibling) == len(mine)]:
                del since[sibling]


def nodes_of(tenant: str) -> list[tuple[str, ...]]:
    """Return the nodes of the tree from the top to a tenant. The last node holds the tenant's own messages."""
    names = (*tenant.split("."), "")
    return [names[:depth] for depth in range(1, len(names) + 1)]


@pytest.mark.parametrize("weights", [{}, {"t1.*": 3, "t2.*": 7, "*": 2}])
def test_turns_of_hundreds_equal_those_of_a_full_scan(weights: dict[str, int]) -> None:
    chance = random.Random(7)
    queues = {f"t{n % 4}.{n}": [f"{n}/{at}" for at in range(chance.randrange(1, 5))] for n in range(300)}
    model = FairModel()
    model.weights = weights
    turns = turns_of(*queues)
    rules = TenantRules([[pattern, weight, None] for pattern, weight in weights.items()])
    turns._weight_of = lambda path: 1 if path.endswith(".") else rules.find(path).weight
    left = {tenant: list(queue) for tenant, queue in queues.items()}
    found = []
    while (turn := turns.next()) is not None:
        found.append(left[turn[0]].pop(0))
        turns.serve(turn[0], 1)
        if not left[turn[0]]:
            turns.set_active(turn[0], False)
    assert found == model.take(queues, sum(map(len, queues.values())))


def test_tenants_that_come_and_go_do_not_accumulate() -> None:
    turns = turns_of("a", "b")
    for _ in range(5000):
        turns.set_active("c", True)
        turns.serve("c", 1)
        turns.set_active("c", False)
        turns.set_active("a", False)
        turns.set_active("a", True)
        taken(turns, 1)
    root = turns._root
    held = [len(root.due.items), len(root.ahead.items), len(root.idle)]
    assert max(held) < 10 * FEW, f"of three tenants: {held}"


def test_scale_is_unchanged() -> None:
    assert SCALE == 1 << 20


def test_forgotten_tenants_leave_nothing_for_the_garbage_collector() -> None:
    turns = turns_of()
    gc.collect()
    gc.disable()
    try:
        for number in range(10):
            for tenant in (f"t{number}", "z", "z.y"):
                turns.set_active(tenant, True)
            for tenant in taken(turns, 3):
                turns.set_active(tenant, False)
            turns.rest()
        assert gc.collect() == 0
    finally:
        gc.enable()
