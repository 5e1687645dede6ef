"""Groups of several topics stay within a named limit while nodes fail and it changes, and use almost all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sandq.broker.delivery.limit_home import Report
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.partition.limits.allowance import Allowance
from sandq.partition.limits.buckets import NO_PART, Part
from sandq.partition.limits.ledger import Ledger
from tests.support.simulation import membership_world
from tests.support.simulation.limits_world import LimitsWorld
from tests.support.simulation.paused_limits_world import PausedLimitsWorld
from tests.support.simulation.seeds import few_of, run_each

Fault = Callable[[pytest.MonkeyPatch], None]
STEPS = 30
"""Number of steps: about 10 seconds of virtual time, or more if nodes join."""
LONG_STEPS = 80
USED_AT_LEAST = 0.95
LATENCIES_S = (0.002, 0.02)
"""Maximum delay of bytes between nodes, in seconds. With longer delays, less of a limit is used."""


def run_world(seed: int, steps: int = STEPS) -> LimitsWorld:
    world = LimitsWorld(seed)
    world.run(steps)
    return world


def run_long_world(seed: int) -> LimitsWorld:
    return run_world(seed, LONG_STEPS)


def test_limit_holds_and_everything_is_delivered_under_faults() -> None:
    worlds = run_each(run_world, (122, 145, 174))
    counts = sum([world.counts for world in worlds], Counter[str]())
    assert all(counts[event] > 0 for event in ("homes", "crashes", "changes", "uses", "deletions")), counts
    assert all(len(world.oracle.granted) > 20 for world in worlds)


def run_full(seed: int) -> LimitsWorld:
    world = LimitsWorld(seed)
    world.replicas, world.hold_s = 3, 0.0
    world.net.most_s = LATENCIES_S[seed % 2]
    world.live(world.use_fully)
    return world


@pytest.mark.parametrize("seed", few_of(range(1, 20), 1))
def test_limit_is_used_almost_fully_although_its_home_fails(seed: int) -> None:
    (world,) = run_each(run_full, [seed])
    assert world.used >= USED_AT_LEAST


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_limit_holds_in_many_worlds(block: int) -> None:
    run_each(run_long_world, range(9000 + 10 * block, 9010 + 10 * block))


def run_paused_world(seed: int) -> PausedLimitsWorld:
    world = PausedLimitsWorld(seed)
    world.run(STEPS)
    return world


def test_nothing_is_leased_while_the_limit_is_paused() -> None:
    (world,) = run_each(run_paused_world, [3])
    assert world.counts["pauses"] and world.counts["pauses by leases"]


def test_node_that_missed_a_removal_accepts_the_node_that_returned() -> None:
    """The node that lost its disk leads the metadata when the other one, which was down, starts again."""
    run_each(run_paused_world, [57])


@pytest.mark.long
@pytest.mark.parametrize("block", range(6))
def test_nothing_is_leased_while_the_limit_is_paused_in_many_worlds(block: int) -> None:
    run_each(run_paused_world, range(7100 + 10 * block, 7110 + 10 * block))


# -- planted faults --------------------------------------------------------------------------------------------------


def nobody_asks_when_a_message_becomes_due(patch: pytest.MonkeyPatch) -> None:
    wake_at: Any = PartitionLeader._wake_at

    def changed(leader: Any, name: str, pump: Any, at_ms: int) -> None:
        group = leader.groups.get(name)
        if group is None or group.next_ms is not None:
            wake_at(leader, name, pump, at_ms)

    patch.setattr(PartitionLeader, "_wake_at", changed)


def shares_depend_on_the_order_of_loading(patch: pytest.MonkeyPatch) -> None:
    def changed(ledger: Any, own_leased: int) -> None:
        left = (ledger.limit.max_in_flight or 0) - own_leased - sum(share.held for share in ledger.shares.values())
        for partition, share in list(ledger.shares.items()):
            if left >= 0 and share.confirmed and share.in_flight < share.target:
                raised = min(share.target, share.held + left)
                if raised > share.in_flight:
                    left -= max(raised - share.held, 0)
                    ledger.put(partition, share._replace(in_flight=raised, held=max(share.held, raised)))

    patch.setattr(Ledger, "_raise", changed)


def settled_messages_are_replaced_above_the_limit(patch: pytest.MonkeyPatch) -> None:
    def changed(ledger: Any, own_leased: int) -> None:
        for partition, share in sorted(ledger.shares.items()):
            if share.confirmed and share.in_flight < share.target:
                ledger.put(partition, share._replace(in_flight=share.target, held=max(share.held, share.target)))

    patch.setattr(Ledger, "_raise", changed)


def moved_units_have_no_debt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sandq.partition.limits.ledger.owed_us", lambda limit, part, now_us: 0)
    patch.setattr("sandq.partition.limits.allowance.owed_us", lambda limit, part, now_us: 0)


def new_definition_keeps_the_share(patch: pytest.MonkeyPatch) -> None:
    define: Any = Allowance.define

    def changed(allowance: Allowance, *args: Any) -> None:
        in_flight, part = allowance.in_flight, allowance.part
        define(allowance, *args)
        if part != NO_PART:
            allowance.in_flight, allowance.part = in_flight, Part(part.units, 0)

    patch.setattr(Allowance, "define", changed)


def units_cost_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sandq.partition.limits.allowance.served", lambda limit, part, units, now_us: part)


def reports_are_lost(patch: pytest.MonkeyPatch) -> None:
    """Drop the reports of starved members."""
    patch.setattr(Report, "is_starved", property(lambda report: False))


@pytest.mark.parametrize(
    ("fault", "seed", "steps", "error"),
    [
        pytest.param(nobody_asks_when_a_message_becomes_due, 100, 30, "not at rest", marks=pytest.mark.long),
        (shares_depend_on_the_order_of_loading, 11, 60, "differ at"),
        (settled_messages_are_replaced_above_the_limit, 170, 30, "messages are in flight, of"),
        (moved_units_have_no_debt, 108, 30, "units at"),
        (units_cost_nothing, 108, 30, "units at"),
        pytest.param(new_definition_keeps_the_share, 147, 30, "units at|in flight, of", marks=pytest.mark.long),
        (reports_are_lost, 110, 30, "not at rest"),
    ],
)
def test_fault_of_limits_is_found(
    fault: Fault, seed: int, steps: int, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_world, "REST_S", 60.0)
    fault(monkeypatch)

    def run(seed: int) -> LimitsWorld:
        return run_world(seed, steps)

    # Only some worlds have the events that a fault needs.
    with pytest.raises(AssertionError, match=error):
        run_each(run, range(seed, seed + 5))


def pause_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Allowance, "is_paused", lambda allowance, now_ms: False)


def pause_needs_no_confirmation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LimitShares, "unpaused", lambda shares, leader, limit: [])


def pause_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    row: Any = Allowance.row
    patch.setattr(Allowance, "row", lambda allowance: (*row(allowance)[:-1], None))


@pytest.mark.parametrize(
    ("fault", "seed"),
    [(pause_is_ignored, 30), (pause_needs_no_confirmation, 14), (pause_is_not_stored, 9)],
)
def test_fault_of_pauses_is_found(fault: Fault, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    # Only some worlds have the events that a fault needs.
    with pytest.raises(AssertionError, match="although the limit is paused"):
        run_each(run_paused_world, range(seed, seed + 5))
