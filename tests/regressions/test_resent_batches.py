"""A batch that is resent after a lost answer must not conflict with the unique keys of its own first copy.

This also holds if the partition has forgotten its producer, and would store the batch again."""

from __future__ import annotations

import pytest

from sandq.model.batch import Column, encode
from sandq.partition import commands as c
from sandq.partition.log.appends import Stored
from sandq.partition.producers import producers
from tests.support.partition.bench import Bench, T


def append(bench: Bench, at: int, on_conflict: int, *, sequence: int, producer_id: int = 7) -> Stored:
    """Append two messages with the same unique key."""
    columns = {Column.VALUE: [b"a", b"b"], Column.UNIQUE_KEY: [b"u", b"u"], Column.DELIVER_MS: [T + 500, T + 500]}
    command = c.Append(encode(columns), producer_id, 1, sequence, on_conflict, split=True)
    stored = bench.apply(at, command)[0]
    assert isinstance(stored, Stored)
    return stored


def forget(bench: Bench) -> None:
    """Let other producers replace this one, because the partition remembers only one producer here."""
    bench.apply(0, c.Append(encode({Column.VALUE: [b"x"]}), 5, 1, 1))
    bench.apply(0, c.Append(encode({Column.VALUE: [b"x"]}), 6, 1, 1))


@pytest.mark.parametrize("forgotten", (False, True), ids=("known", "forgotten"))
@pytest.mark.parametrize("at", (1, 600), ids=("pending", "delivered"))
def test_resent_batch_with_reject_has_first_answer(at: int, forgotten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS", 1)
    bench = Bench()
    bench.open()
    first = append(bench, 0, c.REJECT, sequence=1)
    assert first.refused == [(1, "delayed")]
    if at > 500:
        assert bench.values(bench.lease(at=500)) == ["a"]
    state = "delayed" if at < 500 else "delivered"
    for _ in range(2):
        if forgotten:
            forget(bench)
        stored = bench.status().messages
        again = append(bench, at, c.REJECT, sequence=1)
        assert (again.offsets, again.refused) == (first.offsets, [(1, state if forgotten else "delayed")])
        assert bench.status().messages == stored
        bench.restart()
    assert append(bench, at, c.REJECT, sequence=2).refused == [(0, state), (1, state)], "another batch"


@pytest.mark.parametrize("forgotten", (False, True), ids=("known", "forgotten"))
def test_resent_batch_with_replace_has_first_answer(forgotten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS", 1)
    bench = Bench()
    bench.open()
    batch = encode({Column.VALUE: [b"a"], Column.UNIQUE_KEY: [b"u"], Column.DELIVER_MS: [T + 500]})
    first = bench.apply(0, c.Append(batch, 7, 1, 1, c.REPLACE, split=True))[0]
    if forgotten:
        forget(bench)
    again = bench.apply(1, c.Append(batch, 7, 1, 1, c.REPLACE, split=True))[0]
    assert again == first
    assert bench.apply(2, c.Append(batch, 7, 1, 2, c.REPLACE, split=True))[0] != first, "another batch"
    assert bench.status().messages == (3 if forgotten else 1)


def test_resent_batch_without_producer_id_conflicts() -> None:
    bench = Bench()
    append(bench, 0, c.REJECT, sequence=0, producer_id=0)
    again = append(bench, 1, c.REJECT, sequence=0, producer_id=0)
    assert again.refused == [(0, "delayed"), (1, "delayed")]
