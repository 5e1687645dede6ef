"""Entries that cannot be applied, on one node, once or everywhere, under crashes, leader changes and snapshots.

Replicas stay equal, nothing acknowledged is lost, and all replicas are open in the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.simulation.seeds import few_of, run_each
from tests.support.simulation.shut_world import ShutWorld

STEPS = 800
SEEDS, BLOCKS = 90, 3
FEW_SEEDS = range(0, SEEDS, 9)
BLOCKS_OF_SEEDS = [range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS) for block in range(BLOCKS)]


def run_world(seed: int, steps: int = STEPS) -> ShutWorld:
    world = ShutWorld(seed)
    try:
        with world.planted():
            world.live(steps)
            world.heal()
            world.check_stored()
    finally:
        world.close()
    return world


@pytest.mark.parametrize("seeds", few_of([FEW_SEEDS, *BLOCKS_OF_SEEDS], 1), ids=str)
def test_worlds_with_entries_that_cannot_be_applied(seeds: Sequence[int]) -> None:
    worlds = run_each(run_world, seeds)
    for what, least in (
        ("shut", 200),
        ("skips", 5),
        ("reopened", 5),
        ("restored", 3),
        ("crashes", 10),
        ("compared", 20),
    ):
        assert sum(getattr(world, what) for world in worlds) > least, f"too few events: {what}"


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_worlds_with_entries_that_cannot_be_applied(block: int) -> None:
    run_each(run_world, range(100_000 + 25 * block, 100_025 + 25 * block))
