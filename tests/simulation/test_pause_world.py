"""Pauses of groups, tenants and keys hold on three nodes under all faults, and end by themselves.

While a pause is confirmed, no leader leases a message of the paused part. A lease never shortens a pause. Pauses with
an end are never resumed: they end by themselves, and all messages are delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sandq.partition.base.step import Step
from sandq.partition.group_administration import GroupAdmin
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.part_pauses import PartPauses
from sandq.partition.leasing.lease_pauses import LeasePauses
from sandq.partition.ready.tenant_pauses import TenantPauses
from tests.support.simulation.pause_world import PauseWorld
from tests.support.simulation.seeds import few_of, run_each

Fault = Callable[[pytest.MonkeyPatch], None]
STEPS = 1000
"""Number of steps before healing: 14 seconds of virtual time."""
EVENTFUL = (0, 25, 27)
"""Seeds of worlds that together have enough events of each kind. Even seeds have a fair topic, odd ones ordered keys.
"""


def run_world(seed: int, steps: int = STEPS) -> PauseWorld:
    world = PauseWorld(seed)
    try:
        world.live(steps)
        world.heal()
    finally:
        world.close()
    return world


@pytest.mark.parametrize("seeds", few_of([EVENTFUL, range(24)], 1), ids=str)
def test_pauses_hold_under_faults(seeds: Sequence[int]) -> None:
    worlds = run_each(run_world, seeds)
    pauses = [world.clients.pauses for world in worlds]
    confirmed: Counter[str] = sum((one.confirmed for one in pauses), Counter())
    for what, least in (("operator", 15), ("lease", 10), ("endless", 4), ("resume", 15)):
        assert confirmed[what] > least, f"too few events: {what}"
    assert sum(one.ended for one in pauses) > 10, "too few events: deliveries after the end of a pause"
    assert sum(one.outlived for one in pauses) > 20, "too few events: leases that are older than a pause"
    assert sum(world.crashes for world in worlds) > 10


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_pauses_hold_in_many_worlds(block: int) -> None:
    run_each(run_world, range(100_000 + 25 * block, 100_025 + 25 * block))


# -- planted faults --------------------------------------------------------------------------------------------------


def operators_pause_of_group_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupAdmin, "pause", lambda *args: None)


def lease_pause_of_group_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeasePauses, "_pause_group", lambda pauses, step, group, until_ms: until_ms)


def lease_shortens_pause_of_group(patch: pytest.MonkeyPatch) -> None:
    """Let a lease replace a pause that ends later, but answer with the later end."""

    def pause(pauses: LeasePauses, step: Step, group: Group, until_ms: int) -> int:
        later_ms = max(until_ms, group.paused_until_ms or 0)
        group.pause(True, until_ms)
        pauses._groups.store(step, group)
        return later_ms

    patch.setattr(LeasePauses, "_pause_group", pause)


def pause_of_tenant_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TenantPauses, "until_ms", lambda *args: None)


def pause_of_part_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartPauses, "pause", lambda *args: None)


def pauses_of_parts_are_not_loaded(patch: pytest.MonkeyPatch) -> None:
    """Forget the pauses of tenants and keys when a node restarts."""
    patch.setattr(PartPauses, "load", lambda *args: None)


def tenant_is_paused_without_tenants_below(patch: pytest.MonkeyPatch) -> None:
    def until_ms(pauses: TenantPauses, tenant: str, now_ms: int) -> int | None:
        end_ms = pauses.ends.get(tenant, 0)
        return end_ms if end_ms > now_ms else None

    patch.setattr(TenantPauses, "until_ms", until_ms)


def pauses_end_early(patch: pytest.MonkeyPatch) -> None:
    """End pauses of groups and keys 100 ms before their time."""
    end_pauses: Any = GroupTable.end_pauses

    def end_early(groups: GroupTable, step: Step) -> None:
        step.now_ms += 100
        end_pauses(groups, step)
        step.now_ms -= 100

    patch.setattr(GroupTable, "end_pauses", end_early)


def pauses_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupTable, "end_pauses", lambda *args: None)


LEASED, LEFT = "before the end of the pause", "not done after healing"


@pytest.mark.parametrize(
    ("fault", "seed", "error"),
    [
        (operators_pause_of_group_is_ignored, 0, LEASED),
        (lease_pause_of_group_is_ignored, 0, LEASED),
        (lease_shortens_pause_of_group, 20, LEASED),
        (pause_of_tenant_is_ignored, 4, LEASED),
        (tenant_is_paused_without_tenants_below, 4, LEASED),
        (pause_of_part_is_ignored, 9, LEASED),
        (pauses_of_parts_are_not_loaded, 0, LEASED),
        (pauses_end_early, 9, LEASED),
        (pauses_never_end, 9, LEFT),
    ],
)
def test_pause_fault_is_found(fault: Fault, seed: int, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=error):
        run_each(run_world, range(seed, seed + 20, 2))
