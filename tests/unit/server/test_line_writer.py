"""Tests that lines go to a descriptor in order, and are dropped and counted if it is full."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sandq.server.line_writer import LineWriter
from tests.support.pipes import fill
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        os.close(end)


def written_lines(reader: int, count: int) -> list[bytes]:
    read = b""
    while read.count(b"\n") < count:
        read += os.read(reader, 65_536)
    return read.splitlines()


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    lines = LineWriter(pipe[1])
    for number in range(100):
        lines.write(f"{number}\n")
    assert lines.finish(PATIENCE_S)
    assert written_lines(pipe[0], 100) == [b"%d" % number for number in range(100)]
    assert lines.dropped == 0


def test_lines_refused_by_a_full_disk_are_dropped_and_counted() -> None:
    with open("/dev/full", "wb") as full:
        lines = LineWriter(full.fileno())
        for _ in range(3):
            lines.write("x\n")
        assert lines.finish(PATIENCE_S)
        assert lines.dropped == 3


def test_lines_to_a_broken_pipe_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, pipe[0])  # the reader is closed, and the descriptor number stays owned by the test
    os.close(nowhere)
    lines = LineWriter(pipe[1])
    for _ in range(3):
        lines.write("x\n")
    assert lines.finish(PATIENCE_S)
    assert lines.dropped == 3


def test_unread_pipe_blocks_no_caller_and_keeps_a_bounded_number(pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    lines = LineWriter(pipe[1], limit=40)
    for number in range(10):
        lines.write(f"{number:09}\n")
    assert lines.dropped == 6
    assert not lines.finish(0)
    read = written_lines(pipe[0], 4)
    assert lines.finish(PATIENCE_S)
    assert [line.lstrip(b".") for line in read] == [b"%09d" % number for number in range(4)]
    lines.write("again\n")
    assert written_lines(pipe[0], 1) == [b"again"]
    assert lines.dropped == 6


def test_a_pipe_that_others_made_non_blocking_is_waited_for(pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    os.set_blocking(pipe[1], False)
    lines = LineWriter(pipe[1])
    lines.write("x\n")
    assert written_lines(pipe[0], 1)[-1].lstrip(b".") == b"x"
    assert lines.finish(PATIENCE_S)
    assert lines.dropped == 0


def test_line_after_a_torn_one_begins_on_a_new_line(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    room = [3, 0, 100, 100]
    write = os.write

    def scant(descriptor: int, data: bytes) -> int:
        if descriptor != pipe[1]:
            return write(descriptor, data)
        size = room.pop(0)
        if not size:
            raise OSError(28, "no space left")
        return write(descriptor, data[:size])

    monkeypatch.setattr("sandq.server.line_writer.os.write", scant)
    lines = LineWriter(pipe[1])
    lines.write("first\n")
    lines.write("second\n")
    assert lines.finish(PATIENCE_S)
    assert written_lines(pipe[0], 2) == [b"fir", b"second"]
    assert lines.dropped == 1


def test_lines_are_dropped_without_descriptor() -> None:
    lines = LineWriter(None)
    assert lines.write("x\n") == 2
    assert lines.finish(PATIENCE_S)
    assert lines.dropped == 1
