"""Damaged rows of a backup are refused at the door or at the end of the restore, or they do no harm: no command that
comes later fails with an error that `apply` does not know."""

from __future__ import annotations

import pytest

from tests.support.partition.damaged_rows import try_rows
from tests.support.simulation.seeds import few_of, run_each

SEEDS = 250


@pytest.mark.parametrize("first", few_of(range(0, 40 * SEEDS, SEEDS), 2))
def test_damaged_rows_end_no_partition(first: int) -> None:
    assert len({*run_each(try_rows, range(first, first + SEEDS))}) >= 3, "all are refused in one way, or none is"


@pytest.mark.parametrize(
    "seed", [189, 305, 891, 933, 5499, 8007, 9823, 12143, 15284, 107215, 112112, 116560, 120781, 140370, 202412]
)
def test_damaged_rows_that_found_something_are_refused(seed: int) -> None:
    try_rows(seed)
