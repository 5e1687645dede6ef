"""Partitions send messages to others on whole nodes that crash, hang, are cut off, join and leave.

No message is lost or doubled.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.simulation.outbox_world import OutboxWorld
from tests.support.simulation.seeds import run_each

STEPS = 60
"""Number of steps: about 20 seconds of virtual time."""
LONG_STEPS = 200


def run_world(seed: int, steps: int = STEPS) -> OutboxWorld:
    world = OutboxWorld(seed)
    world.run(steps)
    return world


def test_worlds() -> None:
    worlds = run_each(run_world, (4, 7))
    assert all(len(world.offsets) > 30 for world in worlds)
    for what in ("Nack", "AckThen"):
        assert sum(world.counts[what] for world in worlds) > 20
    assert sum(world.counts["crashes"] + world.counts["hangs"] + world.counts["cuts"] for world in worlds) > 3


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_worlds(block: int) -> None:
    run_each(partial(run_world, steps=LONG_STEPS), range(1000 + 25 * block, 1025 + 25 * block))
