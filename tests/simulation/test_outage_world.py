"""An outage of a downstream service: messages of some tenants fail again and again, those of others are not delayed.

On three nodes with crashes and cut connections, no message is lost, none is leased twice at once, and an acked message
is not delivered again. In memory, a group holds only the retries that are due next."""

from __future__ import annotations

import pytest

from tests.support.simulation.outage_world import OutageWorld, run_outage

WINDOW = 20
FLYING = 60
"""Maximum number of messages of a group that are leased, and may fail, at the same time."""


def check_memory(world: OutageWorld, least_spilled: int, window: int) -> None:
    assert world.spilled > least_spilled, "too few events: spilled messages"
    assert world.most_ranges <= window + FLYING


@pytest.mark.parametrize("seed", [2, 4])
def test_outage_with_crashes_loses_nothing(seed: int) -> None:
    world = run_outage(seed, 20, window=WINDOW, backoff_s=4, has_faults=True, is_down=True)
    check_memory(world, 50, WINDOW)
    assert world.crashes > 0 and world.clients.nacks > 150


def test_outage_does_not_delay_healthy_tenants() -> None:
    options = {"window": WINDOW, "backoff_s": 4, "has_faults": False}
    outage = run_outage(3, 15, is_down=True, **options)  # type: ignore[arg-type]
    usual = run_outage(3, 15, is_down=False, **options)  # type: ignore[arg-type]
    check_memory(outage, 50, WINDOW)
    assert usual.spilled == 0 and usual.clients.nacks == 0
    assert outage.p99_ms <= 2 * usual.p99_ms, (outage.p99_ms, usual.p99_ms)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_outage_of_ten_minutes(seed: int) -> None:
    """A node crashes every second, so a group gets through some hundred messages in the back-off of 30 s."""
    world = run_outage(seed, 600, window=100, backoff_s=30, has_faults=True, is_down=True)
    check_memory(world, 100, 100)
