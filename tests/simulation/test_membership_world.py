"""Whole nodes crash, hang, are cut off, lose their disks, come and go: nothing is lost, early, or left undone."""

from __future__ import annotations

import pytest

from sandq.metadata.records import Partition
from sandq.model.members import member_id
from tests.support.simulation.membership_world import MembershipWorld
from tests.support.simulation.seeds import run_each

STEPS = 60
"""Some twenty seconds."""
LONG_STEPS = 200


def run_world(seed: int, steps: int = STEPS) -> MembershipWorld:
    world = MembershipWorld(seed)
    world.run(steps)
    return world


def run_long_world(seed: int) -> MembershipWorld:
    return run_world(seed, LONG_STEPS)


def test_worlds() -> None:
    worlds = run_each(run_world, range(2))
    assert all(len(world.stored) > 20 for world in worlds)
    assert sum(world.counts["crashes"] + world.counts["hangs"] + world.counts["cuts"] for world in worlds) > 5
    assert sum(world.counts["compared"] for world in worlds) > 20


def test_a_reconciler_that_deletes_what_its_group_counts_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asking whether the group has settled without it."""
    monkeypatch.setattr(
        Partition, "may_have", lambda placed, node, incarnation: member_id(node, incarnation) in placed.members
    )
    with pytest.raises(AssertionError, match="is deleted, and metadata wants"):
        run_world(0)


@pytest.mark.long
@pytest.mark.parametrize("block", range(40))
def test_many_worlds(block: int) -> None:
    run_each(run_long_world, range(1000 + 50 * block, 1050 + 50 * block))
