"""Reads the changes of keys of a compacted topic after a version, for watchers.

A watcher reads the log in bounded parts, and selects the changes of its keys. Compaction removes writes from the log,
so a slow watcher may miss some. `mark` is the offset up to which relevant writes may have been removed. A watcher
has missed nothing if its position is above the mark, or if its last reply had the same mark.
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
"""Maximum number of messages that one reply reads, including messages that are not selected."""
LOOKED_BYTES = 4 << 20


class Watch(NamedTuple):
    """A request to watch. `after`: a version, or the end of the last reply; None: return only the end of the log.
    `mark`: mark of the last reply. `every`: include a write even if its key has a later write."""

    after: bytes | None
    mark: bytes | None
    every: bool
    start: bytes
    stop: bytes | None


class Changes(NamedTuple):
    through: bytes
    """Offset up to which everything was read."""
    mark: bytes
    pieces: list[Piece]
    is_behind: bool
    """Whether the log has more messages."""
    bytes: int
    """Number of bytes that were read."""


def changes(machine: CompactedPartition, asked: Watch, max_messages: int, max_bytes: int, view: View) -> Changes:
    """Return a bounded part of the changes. Raise HistoryGone if changes after `after` were compacted."""
    compactor, yield_now = machine.compactor, machine.shared.yield_now
    yield_now()
    mark = compactor.removed if asked.every else compactor.forgotten
    if asked.after is None:
        return Changes(machine.end(), mark, [], False, 0)
    if offsets.FIRST < asked.after < mark != asked.mark and not _has_last(machine, asked, view):
        raise HistoryGone(
            f"partition {machine.partition}: changes behind {offsets.to_text(asked.after)} are gone, up to "
            f"{offsets.to_text(mark)}: they were compacted. Watch from the earliest on, or what is latest of each key"
        )
    rows_read: dict[bytes, bytes] = {}
    reader = AnswerReader(asked.after, yield_now, rows_read)
    wants_all = asked.every and not asked.start and asked.stop is None
    # If only some messages are selected, read many messages at a time, because few of them are returned.
    most, most_bytes = (
        (min(max_messages, LOOKED_AT), min(max_bytes, LOOKED_BYTES)) if wants_all else (LOOKED_AT, LOOKED_BYTES)
    )
    ranges, looked_bytes, *_ = reader.take(view, offsets.U48_MAX, most, most_bytes)
    is_behind = reader.head(view) is not None
    through = reader.cursor if is_behind else max(machine.end(), asked.after)
    pieces: list[Piece] = []
    for piece in machine.log.reader.each_piece(view, ranges, rows_read, yield_now):
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
    """Return whether the watcher of a single key has seen its last write."""
    key, after = asked.start, asked.after
    return asked.stop == key + b"\0" and after is not None and machine.keys.is_latest(key, after, view)


def _wanted(
    piece: Piece, machine: CompactedPartition, asked: Watch, view: View, most: int
) -> tuple[Piece | None, bytes]:
    """Return (first `most` selected messages of a piece or None, offset up to which the piece was read)."""
    batch = Batch.parse(piece.batch)
    keys = batch.bytes_column(Column.KEY)
    assert keys is not None
    positions = _positions(piece, batch.count)
    wanted: list[int] = []
    looked = positions
    for at, position in enumerate(machine.shared.in_slices(positions)):
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
    """Return the positions of a piece's messages in its batch."""
    if piece.live is None:
        return range(count)
    return [position for first, length in piece.live for position in range(first, first + length)]


def _offset(piece: Piece, position: int) -> bytes:
    """Return the offset of the message at a position of a piece's batch."""
    if len(piece.offsets) == offsets.OFFSET_BYTES:
        return offsets.shift(piece.offsets, position)
    start = position * offsets.OFFSET_BYTES
    return piece.offsets[start : start + offsets.OFFSET_BYTES]
