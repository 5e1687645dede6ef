"""Tests of the memory of a streamed list whose client does not read."""

from __future__ import annotations

import tracemalloc
from typing import Any

from sandq.client.messages.fetch import Fetched, Stretch
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.piece import Piece
from sandq.server.http.guards import PIECES_BYTES


def test_a_batch_and_its_messages_are_counted() -> None:
    cluster: Any = None
    fetched = Fetched(cluster, Stretch("t", 0, offsets.FIRST, None), None)
    tracemalloc.start()
    try:
        batch = encode({Column.VALUE: [bytes(1000)] * 1048})
        messages = fetched._cut(Piece(offsets.FIRST, None, 0, None, batch))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(messages) == 1048
    assert PIECES_BYTES / 2 < held < PIECES_BYTES
