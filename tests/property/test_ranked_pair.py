"""A partition of a fair topic behaves the same if it is loaded from its rows before each entry.

Limits and rates hold. If a lease grants no message, the group rests until a message is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.partition.ranked_pair import (
    RankedPair,
    run_plain,
    run_with_few_gaps,
    run_with_few_queues,
    run_with_spills,
    run_with_wrong_clock,
)
from tests.support.simulation.seeds import run_each

SEEDS, MORE_SEEDS = (1, 3, 4), 40
WALKS = [run_plain, run_with_wrong_clock, run_with_few_gaps, run_with_few_queues, run_with_spills]


@pytest.mark.parametrize("walk", WALKS)
def test_reloaded_partition_equals_living_one(walk: Callable[[int], RankedPair]) -> None:
    happened: Counter[str] = Counter()
    for pair in run_each(walk, SEEDS):
        happened += pair.happened
    expected = ["given", "repeated", "full", "at_rate", "rested", "held_up", "group_full"]
    expected += (
        ["resets"]
        if walk is run_with_wrong_clock
        else ["stalled"]
        if walk in (run_with_few_gaps, run_with_few_queues)
        else []
    )
    expected += ["crowded"] if walk is run_with_few_gaps else []
    assert all(happened[what] for what in expected), f"too few events: {happened}"


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("walk", WALKS)
def test_many_pairs(walk: Callable[[int], RankedPair], block: int) -> None:
    first = 100_000 + MORE_SEEDS * block
    run_each(walk, range(first, first + MORE_SEEDS))
