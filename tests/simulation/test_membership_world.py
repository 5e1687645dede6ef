"""Whole nodes crash, hang, are cut off, lose their disks, join and leave.

No message is lost or early, and the cluster finishes all its work.
"""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio

from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.metadata.records import Partition
from sandq.model.members import member_id
from tests.support.simulation.kinds_world import KindsWorld
from tests.support.simulation.membership_world import MembershipWorld
from tests.support.simulation.seeds import few_of, run_each
from tests.support.simulation.whole_node import CLOCK

STEPS = 60
"""Number of steps: about 20 seconds of virtual time."""
LONG_STEPS = 200


def run_world(seed: int, steps: int = STEPS) -> MembershipWorld:
    world = MembershipWorld(seed)
    world.run(steps)
    return world


def run_long_world(seed: int) -> MembershipWorld:
    return run_world(seed, LONG_STEPS)


def test_worlds() -> None:
    worlds = run_each(run_world, (2, 3))
    assert all(len(world.stored) > 20 for world in worlds)
    assert sum(world.counts["crashes"] + world.counts["hangs"] + world.counts["cuts"] for world in worlds) > 5
    assert sum(world.counts["compared"] for world in worlds) > 20
    assert sum(machine.applied_on_loop for world in worlds for machine in world.machines.values()) > 100


def run_kinds(seed: int, steps: int = STEPS) -> KindsWorld:
    world = KindsWorld(seed)
    world.run(steps)
    world.check_order()
    return world


def run_long_kinds(seed: int) -> KindsWorld:
    return run_kinds(seed, LONG_STEPS)


def test_topics_of_all_kinds_at_once() -> None:
    worlds = run_each(run_kinds, (1, 5))
    assert all(len(world.stored) > 20 for world in worlds)
    for topic in KindsWorld.topics:
        assert sum(world.delivered_of[topic] for world in worlds) > 20, f"too few events: {topic}"
    assert sum(world.counts["crashes"] + world.counts["hangs"] + world.counts["cuts"] for world in worlds) > 5
    assert sum(order.overtaken for world in worlds for order in world.orders.values()) > 5


async def an_hour_ahead(world: MembershipWorld) -> None:
    """Restart all nodes, n1 with a clock that is an hour ahead. For a while, no node answers about its clock."""
    await trio.sleep(3)
    world.ahead_s["n1"] = 3600.0
    await world.restart_all()
    for machine in world.machines.values():
        machine.hang(CLOCK)
    for _ in range(32):
        await trio.sleep(0.25)
        world.check()
    for machine in world.machines.values():
        machine.resume()
    await trio.sleep(3)


def test_a_world_has_no_threads() -> None:
    """Threads would run in real time, so a seed would not reproduce its world."""
    world, before = MembershipWorld(7), set(threading.enumerate())

    async def check_threads() -> None:
        await trio.sleep(3)
        assert {thread.name for thread in set(threading.enumerate()) - before} == set()

    world.live(check_threads)
    assert world.stored


@pytest.mark.parametrize("seed", few_of(range(50), 2))
def test_node_that_starts_an_hour_ahead_stamps_nothing_before_comparison(seed: int) -> None:
    world = MembershipWorld(seed)
    world.live(partial(an_hour_ahead, world))
    assert world.stored


def test_a_node_that_stamps_before_it_is_compared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClockKeeper, "reason_to_wait", lambda keeper, host: None)
    world = MembershipWorld(0)
    with pytest.raises(AssertionError, match="ms early from n1"):
        world.live(partial(an_hour_ahead, world))


def test_premature_deletion_by_the_reconciler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reconciler delete a replica without checking whether its group can do without it."""
    monkeypatch.setattr(
        Partition, "may_have", lambda placed, node, incarnation: member_id(node, incarnation) in placed.members
    )
    # Only some worlds contain such a move, and any change of a node's code changes in which worlds.
    with pytest.raises(AssertionError, match="is deleted, and metadata wants"):
        run_each(run_world, range(4, 24))


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_worlds_of_all_kinds(block: int) -> None:
    run_each(run_long_kinds, range(5000 + 50 * block, 5050 + 50 * block))


@pytest.mark.long
@pytest.mark.parametrize("block", range(40))
def test_many_worlds(block: int) -> None:
    run_each(run_long_world, range(1000 + 50 * block, 1050 + 50 * block))
