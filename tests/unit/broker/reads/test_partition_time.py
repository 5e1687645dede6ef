"""Tests of the cases in which a reader advances the time of a partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.reads.partition_time import PAUSE_MS, PartitionTime
from sandq.model.errors import Overloaded
from sandq.partition import commands as c

NOW_MS = 1_800_000_000_000


class Group:
    """A group that counts the requested entries."""

    number = 7

    def __init__(self, *, now_ms: int, messages: int = 1, keys_expire_ms: int | None = None) -> None:
        self.status = SimpleNamespace(now_ms=now_ms, messages=messages, dead=0, keys_expire_ms=keys_expire_ms)
        self.error: Exception | None = None
        self.entries = 0

    async def call(self, command: Any, line: Any) -> None:
        assert isinstance(command, c.Clock)
        self.entries += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock() -> Any:
    found = SimpleNamespace(ms=NOW_MS)
    found.now_ms = lambda: found.ms
    return found


@pytest.fixture
def time(clock: Any) -> PartitionTime:
    return PartitionTime(clock)


@pytest.mark.parametrize(
    ("group", "entries"),
    [
        (Group(now_ms=NOW_MS - PAUSE_MS), 1),
        (Group(now_ms=NOW_MS - PAUSE_MS + 1), 0),
        (Group(now_ms=0, messages=0), 0),
    ],
)
async def test_states_are_read_of_a_partition_that_is_not_far_behind(
    time: PartitionTime, group: Any, entries: int
) -> None:
    await time.advance_for_states(group)
    assert group.entries == entries


@pytest.mark.parametrize(("end_ms", "entries"), [(None, 1), (NOW_MS - 4, 1), (NOW_MS - 5, 0)])
async def test_log_is_closed_only_as_far_as_it_is_read(time: PartitionTime, end_ms: int | None, entries: int) -> None:
    group: Any = Group(now_ms=NOW_MS - 5)
    await time.advance_for_log(group, end_ms)
    assert group.entries == entries


@pytest.mark.parametrize(
    ("expires_ms", "log_ms", "entries"),
    [(NOW_MS, NOW_MS - 1, 1), (NOW_MS + 1, NOW_MS - 1, 0), (NOW_MS, NOW_MS, 0), (None, 0, 0)],
)
async def test_values_that_are_over_end(time: PartitionTime, expires_ms: int | None, log_ms: int, entries: int) -> None:
    group: Any = Group(now_ms=log_ms, keys_expire_ms=expires_ms)
    await time.advance_for_values(group)
    assert group.entries == entries


async def test_reads_advance_the_partition_time_at_most_once_per_pause(clock: Any, time: PartitionTime) -> None:
    group: Any = Group(now_ms=NOW_MS - 10_000)
    for after_ms, entries in ((0, 1), (PAUSE_MS - 1, 1), (1, 2)):
        clock.ms += after_ms
        await time.advance_for_log(group, None)
        await time.advance_for_states(group)
        assert group.entries == entries


async def test_clock_that_was_ahead_and_is_right_again_advances_a_group(clock: Any, time: PartitionTime) -> None:
    group: Any = Group(now_ms=NOW_MS - 10_000)
    clock.ms += 86_400_000
    await time.advance_for_log(group, None)
    clock.ms = NOW_MS
    await time.advance_for_log(group, None)
    assert group.entries == 2


async def test_group_that_takes_no_entries_is_read_as_it_is_but_not_as_closed(time: PartitionTime) -> None:
    group: Any = Group(now_ms=NOW_MS - 10_000, keys_expire_ms=NOW_MS)
    group.error = Overloaded("full")
    await time.advance_for_values(group)
    await time.advance_for_states(group)
    other: Any = Group(now_ms=NOW_MS - 10_000)
    other.number, other.error = 8, Overloaded("full")
    with pytest.raises(Overloaded):
        await time.advance_for_log(other, None)
