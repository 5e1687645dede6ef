"""Tests of reading a task page by page: missing messages are found, and the next page is requested in time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sandq.errors import ConnectionLost, HistoryGone, Unavailable
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.piece import Piece
from sandq.protocol.requests_log import FetchReply, MeasureReply
from sandq.spark.source.planning import Task
from sandq.spark.source.reading import check_epoch, read_pages

MS = 1_700_000_000_000
CLOSED_MS = MS + 1000
NUMBER = 7


def at(place: int) -> bytes:
    return offsets.pack(MS, 1, place, 0)


class FakeLog:
    """A partition with messages at places 0, 1, ... and `size` messages per page."""

    def __init__(self, count: int, *, size: int = 10) -> None:
        self.count = count
        self.size = size
        self.closed_ms = CLOSED_MS
        self.end = count
        self.trimmed = offsets.FIRST
        self.asked: list[bytes] = []
        self.trims: dict[int, bytes] = {}  # page number -> offset up to which the log is trimmed before this page
        self.threads: set[int] = set()

    def ask(self, cursor: bytes) -> FetchReply:
        """Return the next page of the log, and trim the log when the test says so."""
        self.threads.add(threading.get_ident())
        self.trimmed = self.trims.get(len(self.asked), self.trimmed)
        self.asked.append(cursor)
        first = max(cursor, at(0), offsets.shift(self.trimmed, 1))
        start = offsets.distance(at(0), first) or 0
        stop = min(self.end, start + self.size)
        if start >= stop:
            return FetchReply(None, self.closed_ms, self.trimmed, NUMBER, [])
        batch = encode({Column.VALUE: [b"%d" % place for place in range(start, stop)]})
        piece = Piece(at(start), None, MS, None, batch)
        return FetchReply(at(stop), self.closed_ms, self.trimmed, NUMBER, [piece])


def task_of(start: bytes = offsets.FIRST, end: bytes = at(1000)) -> Task:
    return Task("t", NUMBER, 0, start, end)


def values(batches: Sequence[Any]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def read(log: FakeLog, task: Task | None = None, **options: bool) -> list[int]:
    task = task or task_of()
    log.end = min(log.count, offsets.distance(at(0), task.end) or 0)
    return values(list(read_pages(task, log.ask, **options)))


def test_pages_are_read_in_order() -> None:
    log = FakeLog(35)
    assert read(log) == [*range(35)]
    assert log.asked == [offsets.FIRST, at(10), at(20), at(30), at(35)]
    assert threading.get_ident() not in log.threads


def test_reading_stops_at_the_end_of_the_task() -> None:
    log = FakeLog(35)
    assert read(log, task_of(at(5), at(15))) == [*range(5, 15)], "the node returns no later messages"
    assert log.asked == [at(5)], "a task must not request the messages of another task"
    assert read(FakeLog(5), task_of(at(5), at(5))) == []


def test_small_pages_are_merged() -> None:
    batches = list(read_pages(task_of(), FakeLog(35).ask))
    assert [len(batch) for batch in batches] == [35]
    large = list(read_pages(task_of(end=at(25_000)), FakeLog(25_000, size=10_000).ask))
    assert [len(batch) for batch in large] == [10_000, 10_000, 5_000]


def test_next_page_is_requested_while_one_is_used() -> None:
    log = FakeLog(30_000, size=10_000)
    came = threading.Event()

    def ask(cursor: bytes) -> FetchReply:
        if cursor == at(10_000):
            came.set()
        return log.ask(cursor)

    batches = read_pages(task_of(end=at(30_000)), ask)
    assert len(next(batches)) == 10_000
    assert came.wait(60), "page 2 is requested although only page 1 was used"
    batches.close()  # type: ignore[attr-defined]  # a generator
    assert at(20_000) not in log.asked


def test_messages_trimmed_before_reading_raise_an_error(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog(40)
    log.trimmed = at(12)
    with pytest.raises(HistoryGone) as caught:
        read(log, task_of(at(5), at(30)))
    assert offsets.to_text(at(5)) in caught.value.message
    assert offsets.to_text(at(12)) in caught.value.message
    assert "topic 't', partition 0" in caught.value.message and "failOnDataLoss" in caught.value.message
    with caplog.at_level(logging.WARNING, "sandq.spark"):
        assert read(log, task_of(at(5), at(30)), fail_on_data_loss=False) == [*range(13, 30)]
    assert len(caplog.records) == 1 and "trimmed before they were read" in caplog.text


def test_completely_trimmed_task_raises_history_gone() -> None:
    log = FakeLog(40)
    log.trimmed = at(39)
    with pytest.raises(HistoryGone, match=f"up to {offsets.to_text(at(30))}"):
        read(log, task_of(at(5), at(30)))


def test_trimmed_first_message_raises_history_gone() -> None:
    log = FakeLog(40)
    log.trimmed = at(5)
    with pytest.raises(HistoryGone):
        read(log, task_of(at(5), at(30)))
    assert read(log, task_of(at(6), at(30))) == [*range(6, 30)]


def test_trimming_while_it_reads() -> None:
    log = FakeLog(40)
    log.trims = {1: at(9), 2: at(19), 3: at(29)}
    assert read(log, task_of(at(1), at(40))) == [*range(1, 11 + 29)], "trimming before the reader's position is no loss"
    log = FakeLog(40)
    log.trims = {2: at(25)}
    with pytest.raises(HistoryGone, match=f"from {offsets.to_text(at(21))} up to {offsets.to_text(at(25))}"):
        read(log, task_of(at(1), at(40)))


def test_first_offset_reports_no_trimmed_messages() -> None:
    log = FakeLog(40)
    log.trimmed = at(9)
    assert read(log) == [*range(10, 40)]


def test_a_node_that_does_not_know_the_range_closed() -> None:
    log = FakeLog(5)
    log.closed_ms = MS
    with pytest.raises(Unavailable, match="may still be added"):
        read(log)
    log.closed_ms = MS + 1
    assert read(log) == [*range(5)]


def test_error_of_a_page_request_is_raised() -> None:
    def ask(cursor: bytes) -> FetchReply:
        raise ConnectionLost("nobody is there")

    with pytest.raises(ConnectionLost, match="nobody is there"):
        list(read_pages(task_of(), ask))


def test_task_that_was_planned_before_a_clock_was_set_back() -> None:
    found = MeasureReply(None, None, 0, MS, offsets.FIRST, NUMBER, 2)
    check_epoch(replace(task_of(), clock_epoch=2), found, fail=True)
    check_epoch(task_of(), found, fail=False)
    with pytest.raises(HistoryGone, match="topic 't', partition 0: its clock was set back"):
        check_epoch(task_of(), found, fail=True)
