"""Tests of the feature level of a partition: every replica applies the new rules from the same entry on (ADR 19)."""

from __future__ import annotations

import pytest

from sandq.model.features import FIRST_LEVEL, KNOWN
from sandq.partition import commands as c
from sandq.partition.base import rows
from tests.support.partition.bench import Bench
from tests.support.partition.key_bench import KeyBench

LEVEL_FIELD = 11
"""Position of the level in the row of the state."""
NEXT = KNOWN.highest + 1


def stored_level(bench: Bench) -> object:
    ((_, row),) = bench.rows(rows.STATE_KEY)
    return rows.unpack(row)[LEVEL_FIELD]


@pytest.mark.parametrize("make", [Bench, KeyBench])
def test_partition_begins_at_the_first_level(make: type[Bench]) -> None:
    bench = make()
    bench.open()
    for _ in range(2):
        assert (bench.status().level, stored_level(bench)) == (FIRST_LEVEL, FIRST_LEVEL)
        bench.restart()


@pytest.mark.parametrize("make", [Bench, KeyBench])
def test_level_is_raised_by_an_entry_and_stays(make: type[Bench]) -> None:
    bench = make()
    assert bench.apply(0, c.RaiseLevel(NEXT)) == [NEXT]
    for _ in range(2):
        assert (bench.status().level, stored_level(bench)) == (NEXT, NEXT)
        bench.restart()
    assert bench.apply(0, c.RaiseLevel(FIRST_LEVEL), c.RaiseLevel(NEXT)) == [NEXT, NEXT], "it never falls"


def test_every_command_is_known_from_the_first_level_on() -> None:
    commands = [one for one in vars(c).values() if isinstance(one, type) and issubclass(one, c.Command)]
    assert {command.feature_level for command in commands} == {FIRST_LEVEL}
