"""Reads a part of the log: its messages, or their number. Reading leases and changes nothing.

Below the closed time, no messages are added, and messages are removed only by trimming or compaction. Above the closed
time, messages are pending. These are returned only on request, in their present state.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sandq.model import offsets
from sandq.model.errors import Conflict
from sandq.model.piece import Piece
from sandq.partition.base.rows import Range
from sandq.partition.base.view import View
from sandq.partition.clock_reset import LEAST_AHEAD_MS
from sandq.partition.reader.reader import AnswerReader, LogReader, cursor_before
from sandq.partition.state_machine import TimerPartition

FETCH_BYTES: Final = 16 << 20
FETCH_MESSAGES: Final = 65_536


class Fetched(NamedTuple):
    """A page of the log. `next`: where to continue, None at the end. `closed_ms`: no messages will be inserted before
    this time. `trimmed`: last trimmed offset of the log."""

    pieces: list[Piece]
    next: bytes | None
    closed_ms: int
    trimmed: bytes


class Extent(NamedTuple):
    """The size of a part of the log. `first`: its first message, None if it is empty. `next`: end of the counted
    messages, None if all were counted. `messages`: approximate number of counted messages. `clock_epoch`: number of
    clock resets; offsets and closed times of different epochs must not be compared."""

    first: bytes | None
    next: bytes | None
    messages: int
    closed_ms: int
    trimmed: bytes
    clock_epoch: int


def fetch(
    machine: TimerPartition,
    view: View,
    start: bytes,
    end: bytes | None,
    max_messages: int,
    max_bytes: int,
    pending: bool = False,
) -> Fetched:
    """Return the messages of the log at or above `start`, below `end`, and, unless `pending`, below the closed time.
    Raise Conflict if `start` is from before a clock reset."""
    _check_start(machine, start, pending)
    closed_ms, trimmed = machine.now_ms, machine.log.state.trimmed
    yield_now, rows_read = machine.shared.yield_now, dict[bytes, bytes]()
    reader = AnswerReader(max(cursor_before(start), trimmed), yield_now, rows_read)
    until_ms = _until_ms(machine, end, pending)
    ranges = reader.take(view, until_ms, min(max_messages, FETCH_MESSAGES), min(max_bytes, FETCH_BYTES)).ranges
    following = offsets.behind(reader.cursor) if ranges else None
    if end is not None and ranges and offsets.shift(ranges[-1].base, ranges[-1].length - 1) >= end:
        ranges, following = _below(ranges, end), None
    pieces = [*machine.log.reader.each_piece(view, ranges, rows_read, yield_now)]
    return Fetched(pieces, following, closed_ms, trimmed)


def measure(
    machine: TimerPartition, view: View, start: bytes, end: bytes | None, most: int | None, pending: bool = False
) -> Extent:
    """Count the messages that `fetch` would return, by the counts of whole seconds. If there are more than `most`,
    count up to `next` only.

    The first and the last second may count as a whole, even if they are only partly included. Only in the second in
    which `most` is reached, messages are counted one by one, up to `FETCH_MESSAGES`. So the result may have fewer than
    `most` messages, but at least one; the caller continues at `next`. Raise the same errors as `fetch`.
    """
    _check_start(machine, start, pending)
    trimmed = machine.log.state.trimmed
    read_at = machine.now_ms, trimmed, machine.clock_epoch
    until_ms, yield_now = _until_ms(machine, end, pending), machine.shared.yield_now
    reader = AnswerReader(max(cursor_before(start), trimmed), yield_now)
    head = reader.head(view)
    if head is None or offsets.deliver_ms(head.first) > until_ms or (end is not None and head.first >= end):
        return Extent(None, None, 0, *read_at)
    counted = 0
    for hour in machine.log.counts.hours(
        offsets.deliver_ms(head.first) // 1000, min(until_ms, offsets.U48_MAX - 1) // 1000 + 1, view
    ):
        yield_now()
        for second, messages in hour:
            if most is not None and counted + messages > most:
                begin = offsets.pack(second * 1000, 0, 0, 0)
                if counted == most:
                    return Extent(head.first, begin, counted, *read_at)
                reader.seek(max(cursor_before(begin), reader.cursor))
                more, following = _step(reader, view, until_ms, end, min(most - counted, FETCH_MESSAGES))
                return Extent(head.first, following, counted + more, *read_at)
            counted += messages
    return Extent(head.first, None, counted, *read_at)


def _check_start(machine: TimerPartition, start: bytes, pending: bool) -> None:
    """After a clock reset, raise Conflict for a start beyond the time of the partition. A reader that continued there
    would miss messages that are stored until that time."""
    if pending or not machine.clock_epoch or offsets.deliver_ms(start) < machine.now_ms + LEAST_AHEAD_MS:
        return
    raise Conflict(
        f"offset {offsets.to_text(start)} is beyond the time of the partition, whose clock was set back; read again "
        "from the time of the reset: messages with new offsets may be read twice",
        clock_epoch=machine.clock_epoch,
    )


def _step(reader: LogReader, view: View, until_ms: int, end: bytes | None, count: int) -> tuple[int, bytes | None]:
    """Skip `count` messages. Return (number of skipped messages below `end`, offset after them or None at the end)."""
    ranges = reader.take(view, until_ms, count, FETCH_BYTES).ranges
    if not ranges:
        return 0, None
    if end is not None and offsets.shift(ranges[-1].base, ranges[-1].length - 1) >= end:
        return sum(one.length for one in _below(ranges, end)), None
    return sum(one.length for one in ranges), offsets.behind(reader.cursor)


def _until_ms(machine: TimerPartition, end: bytes | None, pending: bool) -> int:
    """Return the last delivery time in ms that a request reads."""
    until_ms = offsets.U48_MAX if pending else machine.now_ms - 1
    return until_ms if end is None else min(until_ms, offsets.deliver_ms(end))


def _below(ranges: list[Range], end: bytes) -> list[Range]:
    """Return the parts of sorted ranges that are below `end`."""
    cut: list[Range] = []
    for base, length in ranges:
        if base >= end:
            break
        # Number of messages below `end`, for any partition number in `end`. If `end` has a later time or entry, all of
        # them.
        inside = -(-(int.from_bytes(end, "big") - int.from_bytes(base, "big")) // (1 << 12))
        cut.append(Range(base, min(length, inside)))
    return cut
