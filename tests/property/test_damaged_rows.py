"""Damaged rows of a backup are rejected on arrival or at the end of the restore, or they do no harm.

A restore cannot detect some damage, for example a missing row. If a later command needs that row, the restored
partition is shut. All other partitions continue.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.partition.damaged_rows import outcome_of, try_rows
from tests.support.simulation.seeds import few_of, run_each

SEEDS = 250
SHUT_MOST = 2
"""Maximum number of seeds whose damage is found only when the partition is used."""


@pytest.mark.parametrize("first", few_of(range(0, 40 * SEEDS, SEEDS), 2))
def test_damaged_rows_end_no_partition(first: int) -> None:
    found = Counter(run_each(outcome_of, range(first, first + SEEDS)))
    assert len(found) >= 3, "the seeds must have at least three different outcomes"
    assert found["shut"] <= SHUT_MOST, found


@pytest.mark.parametrize(
    "seed", [189, 305, 891, 933, 5499, 8007, 9823, 12143, 15284, 107215, 112112, 116560, 120781, 140370, 202412]
)
def test_damaged_rows_that_found_something_are_refused(seed: int) -> None:
    try_rows(seed)
