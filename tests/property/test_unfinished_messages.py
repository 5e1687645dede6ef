"""If some group has yet to finish a message, the message exists, after any commands in any order."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.partition import clock_reset
from sandq.partition.log import sweep, trim
from tests.support.examples import seeds
from tests.support.partition.spilling import spilling_by
from tests.support.partition.unfinished_sequence import UnfinishedSequence

STEPS = 120
TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ordered": {"ordering": "key"},
    "two_per_key": {"max_in_flight_per_key": 2, "retention": "30s"},
    "retain": {"delete_on_ack": False, "retain": "10s"},
    "ttl": {"ttl": "50s", "ordering": "key", "max_attempts": 3},
    "priority": {"kind": "priority"},
}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "PIN_MS", 2000)
    monkeypatch.setattr(trim, "TRIM_ROWS", 3)
    monkeypatch.setattr(trim, "UNPIN_MESSAGES", 2)
    monkeypatch.setattr(sweep, "LEAST_SETTLED", 2)
    monkeypatch.setattr(sweep, "SWEEP_ROWS", 3)
    monkeypatch.setattr(clock_reset, "STEP_ROWS", 3)
    monkeypatch.setattr(clock_reset, "STEP_MESSAGES", 3)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("seed", seeds(8, 400))
def test_every_unfinished_message_exists(seed: int, topic: str) -> None:
    walk = UnfinishedSequence(seed, **TOPICS[topic])
    with spilling_by(seed):
        for _ in range(STEPS):
            walk.step()
        walk.drain()
