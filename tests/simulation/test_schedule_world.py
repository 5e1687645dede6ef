"""Schedules on whole nodes that crash, hang, are cut off, join and leave: each occurrence happens exactly once."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from tests.support.simulation.schedule_world import EVERY_MS, LIVE_MS, SCHEDULES, ScheduleWorld
from tests.support.simulation.seeds import few_of, run_each

STEPS = 60
"""Number of steps: about 20 seconds of virtual time."""
LONG_STEPS = 200


def run_world(seed: int, steps: int = STEPS) -> ScheduleWorld:
    world = ScheduleWorld(seed)
    world.run(steps)
    return world


def test_worlds() -> None:
    worlds = run_each(run_world, (2, 3))
    assert all(len(world.offsets) > 50 for world in worlds)
    assert sum(world.counts["crashes"] + world.counts["hangs"] + world.counts["cuts"] for world in worlds) > 3
    assert sum(world.counts["triggers"] for world in worlds) > 3


async def an_hour_ahead(world: ScheduleWorld) -> None:
    """Restart all nodes, n1 with a clock that is an hour ahead. Later restart them with right clocks."""
    await trio.sleep(5)
    world.ahead_s["n1"] = 3600.0
    await world.restart_all()
    for _ in range(24):
        await trio.sleep(0.25)
        world.check()
    world.ahead_s["n1"] = 0.0
    await world.restart_all()
    await trio.sleep(3)


@pytest.mark.parametrize("seed", few_of(range(50), 1))
def test_a_clock_that_is_an_hour_ahead_fires_nothing_early(seed: int) -> None:
    world = ScheduleWorld(seed)
    world.live(partial(an_hour_ahead, world))
    # The world is at rest, so all messages were delivered. This is the minimum: all schedules are slow, or begin late.
    assert len(world.offsets) >= SCHEDULES * (LIVE_MS // max(EVERY_MS) - 1)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_worlds(block: int) -> None:
    run_each(partial(run_world, steps=LONG_STEPS), range(1000 + 25 * block, 1025 + 25 * block))
