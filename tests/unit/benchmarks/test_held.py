"""Tests that the loads on a partition's state machine do the stated work. Speed is not tested."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import held
from benchmarks.process import Where
from benchmarks.result import Row, Setting


@pytest.mark.parametrize("row", held.ROWS, ids=lambda row: row.name)
def test_a_row_is_measured_with_little_and_with_more(row: Row) -> None:
    measured = row.measure(Setting(Where(None, None), row.name, quick=True))
    assert measured.messages == held.QUICK
    assert len(measured.details) == 1


def test_cancelled_messages_are_leased() -> None:
    steps = list(itertools.islice(held.cancels(2000), 3))
    partition = steps[0].args[0]  # type: ignore[attr-defined]
    for step in steps:
        step()
    group = partition._machine.groups.named("g")
    assert sum(lease.total for lease in group.leases.values()) == 2000 + 3
    assert all(len(lease.ranges) == lease.total for lease in group.leases.values())


def test_acked_messages_have_their_own_ranges() -> None:
    steps = list(itertools.islice(held.acks(20), 3))
    partition = steps[0].func.__self__  # type: ignore[attr-defined]
    for step in steps:
        step()
    (lease,) = partition._machine.groups.named("g").leases.values()
    assert (len(lease.ranges), lease.acked.bit_count()) == (20, 3)
