"""Export and import give the rows of the moment of the snapshot, wherever the transfer is cut and resumed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.storage import snapshot as snapshot_module
from sandq.storage.keys import store_prefix, store_range
from sandq.storage.snapshot import Exporter, Importer
from sandq.storage.stores import Change, MemoryStores, Row
from tests.support.examples import examples

KEYS = st.binary(max_size=6) | st.sampled_from([b"\0", b"\xff" * 9, b"a", b"a\0", b"a\0\0"])
ROWS = st.dictionaries(KEYS, st.binary(max_size=40), max_size=40)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=5)), max_size=8)


def rows_of(stores: MemoryStores, store: int) -> list[Row]:
    return [(key[4:], value) for key, value in stores.scan(*store_range(store))]


@settings(max_examples=examples(150))
@given(
    rows=ROWS,
    store=st.integers(1, 2**32 - 2),
    other=st.integers(1, 2**32 - 2),
    chunk_bytes=st.integers(1, 200),
    chunk_rows=st.integers(1, 9),
    breaks=st.lists(st.integers(0, 3), max_size=30),
    later=st.lists(CHANGES, max_size=6),
)
def test_any_rows_any_chunks_any_interruption(
    rows: dict[bytes, bytes],
    store: int,
    other: int,
    chunk_bytes: int,
    chunk_rows: int,
    breaks: list[int],
    later: list[list[Change]],
) -> None:
    """Break a transfer: some chunks in flight are lost, and the sender asks for the position to continue.

    Writes to the source happen in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_module, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(snapshot_module, "CHUNK_ROWS", chunk_rows)
        source, target = MemoryStores(), MemoryStores()
        source.write([(store_prefix(store) + key, value) for key, value in rows.items()])
        exporter, importer = Exporter(source.snapshot(), store), Importer(target, other)
        position, last = None, False
        for ahead in [*breaks, *[0] * (len(rows) + 1)]:
            if last:
                break
            if later:
                source.write([(store_prefix(store) + key, value) for key, value in later.pop()])
            chunk = exporter.chunk(position)
            last = importer.add(chunk.data)
            for _ in range(ahead):
                chunk = exporter.chunk(chunk.position)  # lost
            position = importer.position
        assert last
        assert rows_of(target, other) == sorted(rows.items())
        assert len(target.scan(b"", b"\xff" * 5)) == len(rows), "and nothing elsewhere"
