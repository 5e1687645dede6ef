"""After random crashes, all promises hold.

Acknowledged messages are delivered, acked messages are not redelivered, no message is early, and resent batches are
stored once."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from sandq.partition.log import appends
from tests.support.simulation.moments import WHOLE_MESSAGES
from tests.support.simulation.node_world import World
from tests.support.simulation.seeds import few_of, run_each

LIVES = 12
SEEDS = 50
"""Number of worlds of 12 lives each. `make test` runs 20 of them: 240 crash points."""


def run_world(seed: int, lives: int = LIVES, *, rises: bool = True) -> World:
    world = World(seed, rises=rises)
    with patch.object(appends, "WHOLE_MESSAGES", WHOLE_MESSAGES):
        for _ in range(lives):
            world.live(steps=world.rng.choice((5, 20, 60, 120)))
        node = world.heal()
    assert world.oracle.missing() == [], "acknowledged messages are lost"
    status = node.host.status
    assert (status.messages, status.bytes) == (0, 0), "messages are left although all groups are done with them"
    node.check_rows(node.replica)
    return world


FOUND = (0, 12, 1054)
"""Seeds that once found a fault.

In this order: a redelivery too early after a consumer left cleanly, a push too early after a fast restart, and endless
retries on a failed disk."""


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_once_failed(seed: int) -> None:
    run_world(seed, rises=False)


MOMENTS = (1, 2, 4, 16)
"""Seeds of worlds with many batch rows whose messages are due at one moment."""


def test_batches_for_one_moment() -> None:
    together = [message for world in run_each(run_world, MOMENTS) for message in world.oracle.together()]
    assert len(together) > 100, "too few events: batch rows due at one moment"
    assert sum(message.cancelled for message in together) > 5, "too few events: cancels of messages in batch rows"


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_seeds(block: int) -> None:
    for seed in range(10_000 + 100 * block, 10_100 + 100 * block):
        try:
            run_world(seed)
        except BaseException as error:
            error.add_note(f"replay with: run_world({seed})")
            raise


@pytest.mark.parametrize("block", few_of(range(10), 4))
def test_random_crash_points(block: int) -> None:
    crashes = deliveries = redeliveries = repeated = 0
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            world = run_world(seed)
        except BaseException as error:
            error.add_note(f"replay with: run_world({seed})")
            raise
        crashes += world.crashes
        deliveries += world.oracle.deliveries
        redeliveries += world.oracle.redeliveries
        repeated += world.repeater.repeated
    assert crashes == LIVES * SEEDS // 10
    assert deliveries > 1000
    assert redeliveries > 0
    assert repeated > 0
