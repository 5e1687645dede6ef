"""Tests of the number of messages that a piece names."""

from __future__ import annotations

from sandq.model.batch import Column, encode
from sandq.model.piece import Piece

BATCH = encode({Column.VALUE: [b"a", b"b", b"c", b"d"]})


def test_piece_without_live_ranges_means_all_messages_of_its_batch() -> None:
    assert Piece(bytes(16), None, 0, None, BATCH).count == 4


def test_piece_with_live_ranges_means_those() -> None:
    assert Piece(bytes(16), None, 0, [(0, 1), (2, 2)], BATCH).count == 3
