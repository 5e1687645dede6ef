"""Priority and fair topics on three nodes keep their promises under all faults.

No acknowledged message is lost or stored twice, none is early, no acked message is redelivered, and all replicas are
equal, also after restarts and snapshots. No tenant exceeds its limit, and the messages of each tenant are in order,
with any leader. In the end all faults heal, and the rest is delivered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sandq.model.names import FAIR
from tests.support.simulation.ranked_world import RankedWorld
from tests.support.simulation.seeds import few_of, run_each

STEPS = 1000
"""Number of steps before healing: 14 seconds of virtual time."""
SEEDS, BLOCKS = 24, 3
EVENTFUL = (10, 15, 17)
"""Seeds of worlds that together have enough events of each kind."""


def run_world(seed: int, steps: int = STEPS) -> RankedWorld:
    world = RankedWorld(seed)
    try:
        world.live(steps)
        world.heal()
    finally:
        world.close()
    return world


@pytest.mark.parametrize(
    "seeds", few_of([EVENTFUL, *(range(block, SEEDS, BLOCKS) for block in range(BLOCKS))], 1), ids=str
)
def test_worlds(seeds: Sequence[int]) -> None:
    worlds = run_each(run_world, seeds)
    for what, least in (("crashes", 5), ("elections", 5), ("compared", 15), ("snapshots", 0)):
        assert sum(getattr(world, what) for world in worlds) > least, f"too few events: {what}"
    assert {world.topic.kind == FAIR for world in worlds} == {True, False}
    oracles = [world.clients.oracle for world in worlds]
    assert sum(oracle.deliveries for oracle in oracles) > 1000
    assert sum(oracle.redeliveries for oracle in oracles) > 100
    assert sum(message.cancelled for oracle in oracles for message in oracle.sent.values()) > 2
    assert sum(world.clients.ranked for world in worlds) > 10, "too few events: changed priorities"
    orders = [world.clients.order for world in worlds if world.clients.order is not None]
    assert sum(order.overtaken for order in orders) > 50, "too few events: messages leased before earlier ones"
    assert sum(oracle.at_most for oracle in oracles) > 2, "too few events: tenants at their limit"


def run_reset_world(seed: int) -> RankedWorld:
    """Run a world in which all clocks become wrong at times. The check of the order does not know of clock resets."""
    world = RankedWorld(seed)
    world.clocks_go_wrong, world.clients.order = True, None
    try:
        world.live(STEPS)
        world.heal()
    finally:
        world.close()
    return world


def test_ranked_topics_with_clock_resets_keep_their_messages() -> None:
    worlds = run_each(run_reset_world, (13, 24, 52))
    assert all(world.clients.oracle.set_back_token for world in worlds), "too few events: clock resets"


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_ranked_topics_with_clock_resets_keep_their_messages_in_many_worlds(block: int) -> None:
    run_each(run_reset_world, range(100_000 + 25 * block, 100_025 + 25 * block))


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_worlds(block: int) -> None:
    run_each(run_world, range(100_000 + 25 * block, 100_025 + 25 * block))
