"""Batches whose messages each have a time of their own: where they are, whoever looks ahead, however large they are."""

from __future__ import annotations

import random

import pytest

from sandq.model import offsets
from sandq.partition import rows
from sandq.partition.log import reader
from tests.support.partition.bench import Bench

HOUR_MS = 3_600_000


def column_of(joined: bytes) -> list[bytes]:
    return [joined[at : at + offsets.OFFSET_BYTES] for at in range(0, len(joined), offsets.OFFSET_BYTES)]


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_groups_that_look_ahead_see_what_is_put_among_it(
    monkeypatch: pytest.MonkeyPatch, seed: int, restart: bool
) -> None:
    """Of several groups, one has taken a part, one none; the look-ahead is short, so that much lies beyond it."""
    rng = random.Random(seed)
    bench = Bench()
    monkeypatch.setattr(reader, "FEW", 3)
    bench.open("g")
    bench.open("h")
    due: dict[str, int] = {}
    taken: list[str] = []
    now = 0
    for turn in range(12):
        names = [f"{turn}.{at}" for at in range(rng.randrange(1, 9))]
        times = [now + rng.randrange(1, 2 * HOUR_MS) for _ in names]
        bench.append(*names, at=now, due=times)
        due.update(zip(names, times, strict=True))
        now += rng.randrange(HOUR_MS)
        taken += bench.values(bench.lease(rng.randrange(20), at=now))
        if restart:
            bench.restart()
    everything = sorted(due, key=lambda name: due[name])
    end = now + 3 * HOUR_MS
    assert taken + bench.values(bench.lease(1000, at=end)) == everything, seed
    assert bench.values(bench.lease(1000, at=end, group="h")) == everything, seed
    assert bench.status().messages == len(everything)


def test_the_seconds_are_counted(bench: Bench) -> None:
    bench.open()
    bench.append(*"abcde", at=500, due=[400, 900, 1_000, HOUR_MS, HOUR_MS + 1])
    status = bench.status()
    assert (status.messages, status.later) == (5, 3)
    bench.append(*"xy", at=2_000, due=[2_500, 3_000])
    assert (bench.status().messages, bench.status().later) == (7, 3)
    assert len(bench.values(bench.lease(100, at=2 * HOUR_MS))) == 7
    assert bench.status().later == 0


@pytest.mark.parametrize("large", [0, 1, 2])
def test_one_message_that_is_too_large_to_be_moved_about(bench: Bench, large: int) -> None:
    """It has its payload apart, and the others are as they are without it."""
    values = ["a", "b", "c"]
    values[large] = "L" * (rows.INLINE_BYTES + 1)
    bench.open()
    column = column_of(bench.append(*values, due=[3_000, 2_000, 1_000]))
    assert len(bench.rows(rows.PAYLOAD)) == 1
    assert [key[1:] for key, _ in bench.rows(rows.LOG)] == sorted(column)
    assert bench.status().bytes > rows.INLINE_BYTES
    assert bench.values(bench.lease(10, at=5_000)) == values[::-1]


def test_rows_and_sizes_are_those_of_messages_that_came_alone() -> None:
    """The same messages, one entry with three and three entries."""
    together, alone = Bench(), Bench()
    together.append("a", "bb", "ccc", due=[3_000, 2_000, 1_000])
    for value, due in zip(("a", "bb", "ccc"), (3_000, 2_000, 1_000), strict=True):
        alone.append(value, due=[due])
    assert [value for _, value in together.rows(rows.LOG)] == [value for _, value in alone.rows(rows.LOG)]
    assert together.status().bytes == alone.status().bytes
