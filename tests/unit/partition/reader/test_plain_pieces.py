"""Tests that messages of plain rows give the same pieces together as one by one."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.view import View
from sandq.partition.reader.pieces import PIECE_BYTES, PIECE_MESSAGES, MessageReader
from sandq.storage.stores import MemoryStores


def stored(count: int, value_bytes: int, moved: int | None = None) -> tuple[View, list[Range]]:
    """Return a log of `count` messages, of which one may have been moved."""
    view, ranges = View(MemoryStores()), []
    for at in range(count):
        offset = offsets.pack(1000 + at, at + 1, 0, 0)
        fields = {Column.VALUE: b"%08d" % at + bytes(value_bytes)} | ({Column.KEY: b"k"} if at % 3 else {})
        original_id = offsets.pack(7, 1, 0, 0) if at == moved else None
        for key, row in rows.message_rows(offset, at, fields, original_id, {})[0]:
            view.put(key, row)
        ranges.append(Range(offset, 1))
    return view, ranges


@pytest.mark.parametrize("moved", [None, 0, 5])
@pytest.mark.parametrize(
    "count, value_bytes",
    [(8, 0), (PIECE_MESSAGES, 1), (PIECE_MESSAGES + 1, 1), (2 * PIECE_MESSAGES + 1, 1), (900, rows.INLINE_BYTES // 2)],
)
def test_plain_pieces_equal_single_pieces(count: int, value_bytes: int, moved: int | None) -> None:
    view, ranges = stored(count, value_bytes, moved)
    reader = MessageReader()
    pieces = reader.pieces(view, ranges)
    start, stop = rows.tag_bounds(rows.LOG)
    found = dict(view.scan(start, stop, limit=count, max_bytes=1 << 40))
    assert pieces == [*reader.each_piece(view, ranges, found)]
    assert max(piece.count for piece in pieces) <= PIECE_MESSAGES
    assert max(len(piece.batch) for piece in pieces) <= PIECE_BYTES
    values = [value for piece in pieces for value in Batch.parse(piece.batch).values()]
    assert [(value or b"")[:8] for value in values] == [b"%08d" % at for at in range(count)]


def test_rows_that_lie_between_them_are_not_theirs() -> None:
    """A lease skips held messages and messages that were dead on arrival."""
    view, ranges = stored(40, 1)
    wanted = ranges[::2]
    (piece,) = MessageReader().pieces(view, wanted)
    assert piece.offsets == b"".join([base for base, _ in wanted])
    values = Batch.parse(piece.batch).values()
    assert [(value or b"")[:8] for value in values] == [b"%08d" % at for at in range(0, 40, 2)]
