"""Read what happened to the keys of a compacted topic behind a version: for those who watch.

A watcher goes through the log, a bounded part at a time, and takes what its keys are concerned with. Compaction takes
writes out of the log, and who comes too late has missed them: `mark` is how far what matters to a watcher may have been
taken out. Whoever stood behind it, or has seen the same mark before, has missed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.model.errors import HistoryGone
from sandq.model.piece import Piece
from sandq.partition.base.view import View
from sandq.partition.kv.compacted import CompactedPartition
from sandq.partition.reader.reader import AnswerReader

LOOKED_AT = 10_000
"""Messages that one answer looks at, wanted or not."""
LOOKED_BYTES = 4 << 20


class Watch(NamedTuple):
    """What is watched. `after`: a version, or where an answer ended; None: nothing but where the log ends is asked for.
    `mark`: that of the answer before. `every`: also what a later write of its key came after."""

    after: bytes | None
    mark: bytes | None
    every: bool
    start: bytes
    stop: bytes | None


class Changes(NamedTuple):
    through: bytes
    """Everything up to there was looked at."""
    mark: bytes
    pieces: list[Piece]
    is_behind: bool
    """There is more in the log."""
    bytes: int
    """Looked at."""


def changes(machine: CompactedPartition, asked: Watch, max_messages: int, max_bytes: int, view: View) -> Changes:
    """A bounded part. Raises HistoryGone when what comes behind `after` was compacted."""
    compactor, give_way = machine.compactor, machine.shared.give_way
    give_way()
    mark = compactor.removed if asked.every else compactor.forgotten
    if asked.after is None:
        return Changes(machine.end(), mark, [], False, 0)
    if offsets.FIRST < asked.after < mark != asked.mark and not _has_last(machine, asked, view):
        raise HistoryGone(
            f"partition {machine.partition}: changes behind {offsets.to_text(asked.after)} are gone, up to "
            f"{offsets.to_text(mark)}: they were compacted. Watch from the earliest on, or what is latest of each key"
        )
    rows_read: dict[bytes, bytes] = {}
    reader = AnswerReader(asked.after, give_way, rows_read)
    wants_all = asked.every and not asked.start and asked.stop is None
    # Of whom only some concern it must be told of few at a time, but not look at as few.
    most, most_bytes = (
        (min(max_messages, LOOKED_AT), min(max_bytes, LOOKED_BYTES)) if wants_all else (LOOKED_AT, LOOKED_BYTES)
    )
    ranges, looked_bytes, _ = reader.take(view, offsets.U48_MAX, most, most_bytes)
    is_behind = reader.head(view) is not None
    through = reader.cursor if is_behind else max(machine.end(), asked.after)
    pieces: list[Piece] = []
    for piece in machine.log.reader.each_piece(view, ranges, rows_read, give_way):
        if wants_all:
            pieces.append(piece)
            continue
        part, last = _wanted(piece, machine, asked, view, max_messages)
        if part is not None:
            pieces.append(part)
            max_messages -= part.count
            max_bytes -= len(part.batch)
            if max_messages <= 0 or max_bytes <= 0:
                return Changes(last, mark, pieces, True, looked_bytes)
    return Changes(through, mark, pieces, is_behind, looked_bytes)


def _has_last(machine: CompactedPartition, asked: Watch, view: View) -> bool:
    """Whether who watches one key has seen its last write."""
    key, after = asked.start, asked.after
    return asked.stop == key + b"\0" and after is not None and machine.keys.is_latest(key, after, view)


def _wanted(
    piece: Piece, machine: CompactedPartition, asked: Watch, view: View, most: int
) -> tuple[Piece | None, bytes]:
    """The first `most` messages of a piece that are asked for, if any; and the offset up to which it was looked at."""
    batch = Batch.parse(piece.batch)
    keys = batch.bytes_column(Column.KEY)
    assert keys is not None
    positions = _positions(piece, batch.count)
    wanted: list[int] = []
    looked = positions
    for at, position in enumerate(machine.shared.in_turns(positions)):
        key = keys[position]
        assert key is not None
        if key < asked.start or (asked.stop is not None and key >= asked.stop):
            continue
        if asked.every or machine.keys.is_latest(key, _offset(piece, position), view):
            wanted.append(position)
            if len(wanted) == most:
                looked = positions[: at + 1]
                break
    last = _offset(piece, looked[-1])
    if len(wanted) == len(positions):
        return piece, last
    if not wanted:
        return None, last
    created = piece.created_ms
    if isinstance(created, bytes):
        created = b"".join([created[8 * at : 8 * at + 8] for at in wanted])
    column = b"".join([_offset(piece, position) for position in wanted])
    return Piece(column, None, created, None, batch.take(wanted)), last


def _positions(piece: Piece, count: int) -> Sequence[int]:
    if piece.live is None:
        return range(count)
    return [position for first, length in piece.live for position in range(first, first + length)]


def _offset(piece: Piece, position: int) -> bytes:
    if len(piece.offsets) == offsets.OFFSET_BYTES:
        return offsets.shift(piece.offsets, position)
    start = position * offsets.OFFSET_BYTES
    return piece.offsets[start : start + offsets.OFFSET_BYTES]
