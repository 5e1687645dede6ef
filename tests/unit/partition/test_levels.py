"""The level of a partition: by whose rules it goes, on every replica from the same entry on (ADR 19)."""

from __future__ import annotations

import pytest

from sandq.model.features import FIRST_LEVEL, KNOWN
from sandq.partition import commands as c
from sandq.partition import levels, rows
from tests.support.partition.bench import Bench
from tests.support.partition.key_bench import KeyBench

STATE_FIELDS = 11
"""Of the state's row as v0.2.0 writes and reads it."""


def state_of(bench: Bench) -> list[object]:
    ((_, row),) = bench.rows(rows.STATE_KEY)
    return rows.unpack(row)


@pytest.mark.parametrize("make", [Bench, KeyBench])
def test_a_partition_begins_at_the_first_level_and_is_stored_as_before(make: type[Bench]) -> None:
    bench = make()
    bench.open()
    assert bench.status().level == FIRST_LEVEL
    assert len(state_of(bench)) == STATE_FIELDS, "a version that knows level 1 alone has to read it"
    bench.restart()
    assert bench.status().level == FIRST_LEVEL


@pytest.mark.parametrize("make", [Bench, KeyBench])
def test_it_is_raised_by_an_entry_and_stays_so(make: type[Bench]) -> None:
    bench = make()
    assert bench.apply(0, c.RaiseLevel(2)) == [2]
    for _ in range(2):
        assert (bench.status().level, state_of(bench)[STATE_FIELDS:]) == (2, [2])
        bench.restart()
    assert bench.apply(0, c.RaiseLevel(1), c.RaiseLevel(2)) == [2, 2], "it never falls"


def test_a_raise_needs_a_cluster_of_that_level() -> None:
    assert c.RaiseLevel.feature_level == 2
    assert KNOWN.lowest == 1, "branches by levels up to the lowest one that is known are to be deleted"
    assert all(KNOWN.lowest < value <= KNOWN.highest for name, value in vars(levels).items() if name.isupper())
