"""Tests that messages of a large batch are cancelled, moved and leased again without one read of its row per
message."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.base import view as view_module
from sandq.partition.base.view import Bounds, Row, View
from sandq.partition.log.message_log import LARGE_ROW_BYTES
from sandq.partition.reader.reader import NEAR_BYTES
from tests.support.partition.bench import Bench, T, by_id

MESSAGES = 3000
VALUE = "x" * (2 * NEAR_BYTES // MESSAGES)


class CountingRows:
    """Stored rows that count reads of large rows and of all rows."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self.large_reads = self.reads = 0

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._rows.get(key)
        self._count([] if value is None else [(key, value)])
        return value

    def scan(self, start: bytes, stop: bytes, **bounds: Any) -> list[Row]:
        found: list[Row] = self._rows.scan(start, stop, **bounds)
        self._count(found)
        return found

    def vacant(self, ranges: Sequence[Bounds]) -> list[bool]:
        self.reads += 1
        found: list[bool] = self._rows.vacant(ranges)
        return found

    def _count(self, found: list[Row]) -> None:
        self.reads += 1
        self.large_reads += sum(len(value) > LARGE_ROW_BYTES for _, value in found)


class LargeBatch(Bench):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.open()
        self.base = self.append(*[VALUE] * MESSAGES)[0]
        self.stored = CountingRows(self.stores)
        self.view = View(self.stored)

    def ids(self, count: int) -> list[bytes]:
        """Return the ids of `count` of its messages, in random order."""
        return [offsets.shift(self.base, at) for at in random.Random(1).sample(range(MESSAGES), count)]


def test_cancelling_by_id_reads_the_row_once() -> None:
    batch = LargeBatch()
    ids = batch.ids(1000)
    outcomes = batch.apply(1, c.Cancel([by_id(one) for one in ids]))[0]
    assert outcomes == [("cancelled", one) for one in ids]
    assert batch.stored.large_reads == 1
    assert batch.stored.reads < 100, "missing rows are not looked up one by one either"
    assert batch.machine.log.state.messages == MESSAGES - 1000


def test_row_stays_cached_and_cancelled_messages_stay_cancelled() -> None:
    batch = LargeBatch()
    first, second = batch.ids(2)
    assert batch.cancel(first) == ("cancelled", first)
    assert batch.cancel(second) == ("cancelled", second)
    assert batch.stored.large_reads == 1
    again = batch.apply(2, c.Cancel([by_id(first), by_id(second)]))[0]
    assert again == [("cancelled", first), ("cancelled", second)]
    assert batch.machine.log.state.messages == MESSAGES - 2


def test_an_id_twice_in_a_command_is_taken_out_once() -> None:
    batch = LargeBatch()
    (one,) = batch.ids(1)
    batch.apply(1, c.Cancel([by_id(one), by_id(one)]))
    assert batch.machine.log.state.messages == MESSAGES - 1


def test_moving_by_id_reads_the_row_once_to_find_and_once_to_copy() -> None:
    batch = LargeBatch()
    ids = batch.ids(100)
    outcomes = batch.apply(1, c.Move([(by_id(one), T + 60_000, False) for one in ids]))[0]
    assert [outcome[0] for outcome in outcomes] == ["moved"] * 100
    assert batch.stored.large_reads == 2
    assert batch.apply(2, c.Cancel([by_id(one) for one in ids]))[0] == [("cancelled", one) for one in ids]


def test_cancel_job_step_reads_a_large_row_at_most_twice() -> None:
    batch = LargeBatch()
    batch.start_job("cancel")
    batch.stored.large_reads = 0
    batch.upkeep()
    assert batch.stored.large_reads == 2
    batch.upkeep()
    assert batch.stored.large_reads == 3
    batch.trim()
    assert batch.machine.log.state.messages == 0


def test_a_redelivery_reads_the_row_once() -> None:
    batch = LargeBatch(max_attempts=None)
    batch.lease(1000)
    batch.expire(at=40_000)
    batch.stored.large_reads = 0
    lease = batch.one(limit=10, at=50_000)
    assert (lease.total, lease.attempt) == (10, 2)
    assert batch.stored.large_reads == 1


def test_a_row_that_was_trimmed_is_not_known_any_more() -> None:
    batch = LargeBatch()
    (one,) = batch.ids(1)
    batch.cancel(one)
    while leases := batch.lease(MESSAGES, at=1):
        batch.ack(leases[0].token, at=1)
    batch.trim(at=100_000_000)
    for other in batch.ids(10)[1:]:
        assert batch.cancel(other, at=100_000_001) == ("too_late", "gone")


@pytest.mark.parametrize("rows_ahead", [1, 7, 4096])
def test_batches_that_are_full_of_tombstones_answer_the_same(monkeypatch: pytest.MonkeyPatch, rows_ahead: int) -> None:
    monkeypatch.setattr(view_module, "AHEAD_ROWS", rows_ahead)
    monkeypatch.setattr(view_module, "AHEAD_STRETCHES", 3)
    batch, gone = LargeBatch(), set[bytes]()
    for round_ in range(5):
        targets = random.Random(round_).sample(range(MESSAGES), 200)
        ids = [offsets.shift(batch.base, at) for at in targets]
        outcomes = batch.apply(round_, c.Cancel([by_id(one) for one in ids]))[0]
        assert outcomes == [("cancelled", one) for one in ids]
        gone.update(ids)
        assert batch.machine.log.state.messages == MESSAGES - len(gone)
