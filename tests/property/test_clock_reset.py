"""After random work under a wrong clock, and a clock reset, no message is lost, early or delivered twice."""

from __future__ import annotations

import pytest

from sandq.partition import clock_reset
from sandq.partition.log import appends, sweep, trim
from sandq.partition.ready import queue_entries
from tests.support.examples import seeds
from tests.support.partition.ranked_reset_sequence import RankedResetSequence
from tests.support.partition.reset_sequence import ResetSequence
from tests.support.partition.spilling import spilling_by


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_reset, "STEP_ROWS", 3)
    monkeypatch.setattr(clock_reset, "STEP_MESSAGES", 3)
    monkeypatch.setattr(appends, "WHOLE_MESSAGES", 2)
    monkeypatch.setattr(trim, "PIN_MS", 3000)  # groups soon copy waiting and blocked messages


@pytest.mark.parametrize("per_key", [None, 1, 2])
@pytest.mark.parametrize("seed", seeds(6, 300))
def test_after_a_reset_everything_comes_once_and_in_time(seed: int, per_key: int | None) -> None:
    with spilling_by(seed // 2):
        check_wrong_clock_and_reset(ResetSequence(seed, per_key=per_key, delete_on_ack=seed % 3 > 0))


@pytest.mark.parametrize("kind", ["priority", "fair"])
@pytest.mark.parametrize("seed", seeds(6, 300))
def test_after_a_reset_everything_comes_once_by_its_rank(seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "LEAST_SETTLED", 2)
    monkeypatch.setattr(sweep, "SWEEP_ROWS", 3)
    monkeypatch.setattr(queue_entries, "HEAD_ENTRIES", 2)
    with spilling_by(seed):
        check_wrong_clock_and_reset(RankedResetSequence(seed, kind))


def check_wrong_clock_and_reset(walk: ResetSequence) -> None:
    """Run random work, let the clock go wrong one or more times, set it back, and drain all messages."""
    draw = walk.random
    walk.work(draw.randrange(40))
    for _ in range(draw.choice([1, 1, 2])):
        for _ in range(draw.choice([1, 1, 2])):
            walk.skew = draw.choice([20_000, 300_000, 90_000_000])
            walk.work(draw.choice([1, 3, 30]))
            walk.skew = 0
            walk.work(draw.randrange(40))
        if walk.ahead >= clock_reset.LEAST_AHEAD_MS:
            walk.reset()
            walk.check_rows()
        walk.work(draw.randrange(30))
    walk.drain()
