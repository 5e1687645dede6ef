"""A node with a wrong clock stamps nothing, even if other nodes answer slowly, so no message is early."""

from __future__ import annotations

import pytest

from sandq.broker.clock.peer_clocks import PeerClocks, Standing
from tests.support.simulation.clock_world import ClockWorld
from tests.support.simulation.seeds import run_each

STEPS = 1200
"""Number of steps: one minute of virtual time."""
LOOKED_AT_S = 0.25
"""An earlier version ignored the answers of round trips that took longer, in seconds."""


def run_world(seed: int) -> ClockWorld:
    world = ClockWorld(seed)
    world.live(STEPS)
    return world


def test_worlds() -> None:
    worlds = run_each(run_world, range(16))
    assert sum(world.changes for world in worlds) > 100
    assert sum(world.given_up for world in worlds) > 20
    assert sum(world.found_off for world in worlds) > 1000
    assert min(world.stamped for world in worlds) > STEPS / 3, "a leader waits only for a short time"
    assert {world.starts_wrong for world in worlds} == {False, True}


@pytest.mark.parametrize("seed", [1523])
def test_worlds_that_found_something(seed: int) -> None:
    """A node with a wrong clock was silent for a long time. It then knew of no better clock, and led at once."""
    run_each(run_world, [seed])


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_worlds(block: int) -> None:
    run_each(run_world, range(1000 + 50 * block, 1050 + 50 * block))


def test_long_round_trips_that_are_not_looked_at_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = PeerClocks.heard

    def heard_soon(
        peers: PeerClocks, node: str, guarded_s: float, standing: Standing, asked_s: float, now_s: float
    ) -> None:
        if now_s - asked_s <= LOOKED_AT_S:
            heard(peers, node, guarded_s, standing, asked_s, now_s)

    monkeypatch.setattr(PeerClocks, "heard", heard_soon)
    with pytest.raises(AssertionError, match="early"):
        run_each(run_world, range(16))


def test_a_leader_that_does_not_wait_until_it_has_compared_its_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node, whose clock is an hour ahead, leads before it has information about other clocks."""
    monkeypatch.setattr(PeerClocks, "waits", lambda peers, now_s: False)
    with pytest.raises(AssertionError, match="early"):
        run_each(run_world, range(16))
