"""A batch that is sent again because its answer was lost meets its own messages: no conflict of unique keys."""

from __future__ import annotations

import pytest

from sandq.model.batch import Column, encode
from sandq.partition import commands as c
from sandq.partition.log import Stored
from tests.unit.partition.bench import Bench, T


def append(bench: Bench, at: int, on_conflict: int, *, sequence: int, producer_id: int = 7) -> Stored:
    """Two messages with unique keys; the second has the key of the first."""
    columns = {Column.VALUE: [b"a", b"b"], Column.UNIQUE_KEY: [b"u", b"u"], Column.DELIVER_MS: [T + 500, T + 500]}
    command = c.Append(encode(columns), producer_id, 1, sequence, on_conflict, split=True)
    stored = bench.apply(at, command)[0]
    assert isinstance(stored, Stored)
    return stored


@pytest.mark.parametrize("at", (1, 600), ids=("pending", "delivered"))
def test_reject(at: int) -> None:
    bench = Bench()
    bench.open()
    first = append(bench, 0, c.REJECT, sequence=1)
    assert first.refused == [(1, "delayed")]
    if at > 500:
        assert bench.values(bench.lease(at=500)) == ["a"]
    state = "delayed" if at < 500 else "delivered"
    for _ in range(2):
        again = append(bench, at, c.REJECT, sequence=1)
        assert (again.offsets, again.refused) == (first.offsets, [(1, state)])
        bench.restart()
    assert append(bench, at, c.REJECT, sequence=2).refused == [(0, state), (1, state)], "another batch"
    assert bench.status().messages == 1


def test_replace() -> None:
    bench = Bench()
    bench.open()
    batch = encode({Column.VALUE: [b"a"], Column.UNIQUE_KEY: [b"u"], Column.DELIVER_MS: [T + 500]})
    first = bench.apply(0, c.Append(batch, 7, 1, 1, c.REPLACE, split=True))[0]
    again = bench.apply(1, c.Append(batch, 7, 1, 1, c.REPLACE, split=True))[0]
    assert again == first
    assert bench.apply(2, c.Append(batch, 7, 1, 2, c.REPLACE, split=True))[0] != first, "another batch"
    assert bench.status().messages == 1


def test_without_a_producer_id_nothing_is_known() -> None:
    bench = Bench()
    append(bench, 0, c.REJECT, sequence=0, producer_id=0)
    again = append(bench, 1, c.REJECT, sequence=0, producer_id=0)
    assert again.refused == [(0, "delayed"), (1, "delayed")]
