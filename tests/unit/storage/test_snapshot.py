"""Tests of snapshots: a description and chunks of rows. Malformed ones are refused."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from sandq.model.errors import ClosedError, Corruption, StorageFailed
from sandq.storage import small_file
from sandq.storage.keys import store_prefix, store_range
from sandq.storage.snapshot import (
    CHUNK_BYTES,
    CHUNK_BYTES_AT_MOST,
    CHUNK_MAGIC,
    CHUNK_ROWS,
    META_BYTES,
    META_MAGIC,
    ROW_BYTES,
    Exporter,
    Importer,
    Meta,
)
from sandq.storage.stores import LevelStores, MemoryStores, Row, Stores
from tests.support.documents import document

PAGE = document("protocol")
META = Meta(7, bytes(range(16)), 41, 3, ("n1#1", "n2#4"), ("n3#9",), 5000)
FROM, TO = 3, 9


def filled(rows: list[Row], stores: Stores | None = None) -> Stores:
    """Return stores with these rows in store FROM and other rows around it."""
    stores = stores if stores is not None else MemoryStores()
    stores.write([(store_prefix(FROM) + key, value) for key, value in rows])
    stores.write([(store_prefix(FROM - 1) + b"\xff", b"below"), (store_prefix(FROM + 1), b"above")])
    return stores


def exporter(rows: list[Row], stores: Stores | None = None) -> Exporter:
    return Exporter(filled(rows, stores).snapshot(), FROM)


def content(stores: Stores, store: int) -> list[Row]:
    return [(key[4:], value) for key, value in stores.scan(*store_range(store))]


def chunk(after: object, last: object, flat: object, *, magic: bytes = CHUNK_MAGIC, version: int = 1) -> bytes:
    return small_file.encode(magic, version, [after, last, flat])


def copied(source: Exporter, stores: Stores) -> list[tuple[int, int]]:
    """Import into store TO. Return (rows, bytes of rows) of each chunk."""
    importer = Importer(stores, TO)
    sizes = []
    last = False
    while not last:
        found = source.chunk(importer.position)
        _, _, flat = msgpack.unpackb(found.data[20:])
        sizes.append((len(flat) // 2, sum(map(len, flat)) + len(flat) // 2 * ROW_BYTES))
        last = importer.add(found.data)
        assert (importer.position, last) == (found.position, found.last)
    return sizes


# The description


def test_description_round_trips() -> None:
    assert Meta.decode(META.encode()) == META
    bare = Meta(0, bytes(16), 1, 0, (), (), 0)
    assert Meta.decode(bare.encode()) == bare


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group", -1),
        ("group", 2**32),
        ("group", "7"),
        ("group", True),
        ("snapshot_id", bytes(15)),
        ("snapshot_id", "0123456789abcdef"),
        ("index", 0),
        ("index", 1.0),
        ("term", None),
        ("total_bytes", -5),
        ("voters", "n1#1"),
        ("voters", ["n1#1", 2]),
        ("voters", ["n1"]),
        ("voters", ["n1#"]),
        ("learners", ["#1"]),
        ("learners", {"n1#1": 1}),
    ],
)
def test_a_description_with_a_wrong_field_is_refused(field: str, value: Any) -> None:
    with pytest.raises(Corruption, match="a snapshot"):
        Meta.decode(dataclasses.replace(META, **{field: value}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        META.encode()[:-1],
        META.encode() + b"\0",
        small_file.encode(META_MAGIC, 2, list(dataclasses.astuple(META))),
        small_file.encode(META_MAGIC, 1, [*dataclasses.astuple(META), 1]),
        small_file.encode(META_MAGIC, 1, {"group": 7}),
        small_file.encode(CHUNK_MAGIC, 1, list(dataclasses.astuple(META))),
        dataclasses.replace(META, voters=tuple(f"n{n}#1" for n in range(META_BYTES))).encode(),
    ],
)
def test_invalid_description_is_refused(data: bytes) -> None:
    with pytest.raises(Corruption, match="a snapshot's description"):
        Meta.decode(data)


# Chunks


def test_a_chunk_is_bounded_in_bytes_and_rows() -> None:
    small = [(b"a%05d" % number, b"") for number in range(CHUNK_ROWS + 10)]
    middle = [(b"b%05d" % number, bytes(999)) for number in range(600)]
    large = [(b"c%05d" % number, bytes(CHUNK_BYTES + number)) for number in range(3)]
    rows = [*small, *middle, *large, (b"d", b"last")]
    target = MemoryStores()
    sizes = copied(exporter(rows), target)
    assert content(target, TO) == rows
    assert all(size <= CHUNK_BYTES or count == 1 for count, size in sizes)
    assert [count for count, _ in sizes[:1]] == [CHUNK_ROWS]
    assert [count for count, _ in sizes[-4:]] == [1, 1, 1, 1]
    assert len(sizes) < 10, "they are filled"


def test_long_keys_count_too() -> None:
    rows = [(b"%04d" % number + bytes(2000), b"") for number in range(500)]
    target = MemoryStores()
    assert all(size <= CHUNK_BYTES for _, size in copied(exporter(rows), target))
    assert content(target, TO) == rows


def test_an_empty_store_is_one_chunk() -> None:
    target = MemoryStores()
    assert copied(exporter([]), target) == [(0, 0)]
    assert content(target, TO) == []


def test_row_with_empty_key_is_copied() -> None:
    rows = [(b"", b"bare"), (b"\0", b"next")]
    target = MemoryStores()
    copied(exporter(rows), target)
    assert content(target, TO) == rows


def test_resuming_behind_the_last_row_ends_at_once() -> None:
    source = exporter([(b"a", b"1")])
    found = source.chunk(b"a")
    assert (found.position, found.last) == (b"a", True)


def test_snapshot_of_a_changing_store_is_consistent(tmp_path: Path) -> None:
    """The snapshot covers tables and memtable. Concurrent writes, deletions and compactions are not visible."""
    rng = random.Random(5)
    rows = sorted(
        {rng.randbytes(rng.randint(1, 30)): rng.randbytes(rng.choice([0, 9, 900])) for _ in range(6000)}.items()
    )
    one, two = LevelStores(tmp_path / "one"), LevelStores(tmp_path / "two")
    filled(rows[::2], one)
    one.flush()
    source, target = exporter(rows, one), Importer(two, TO)
    assert source.total_bytes > 500_000
    one.write([(store_prefix(FROM) + key, None) for key, _ in rows])
    one.flush()
    one.compact(*store_range(FROM))
    last = False
    while not last:
        last = target.add(source.chunk(target.position).data)
        one.write([(store_prefix(FROM) + rng.randbytes(5), b"later")])
    two.flush()
    two.close()
    one.close()
    with pytest.raises(ClosedError):
        source.chunk(None)
    two = LevelStores(tmp_path / "two", create=False)
    assert content(two, TO) == rows
    two.close()


# Chunks that an importer refuses


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (chunk(None, False, [b"c", b"1"]), "those behind 62 are next"),  # from the beginning again
        (chunk(b"c", False, [b"d", b"1"]), "those behind 62 are next"),  # one chunk was left out
        (chunk(b"b", False, [b"b", b"1"]), "do not rise"),
        (chunk(b"b", False, [b"a", b"1"]), "do not rise"),
        (chunk(b"b", False, [b"d", b"1", b"c", b"1"]), "do not rise"),
        (chunk(b"b", False, [b"d", b"1", b"d", b"2"]), "do not rise"),
        (chunk(b"b", False, [b"c"]), "holds no rows"),
        (chunk(b"b", False, [b"c", None]), "holds no rows"),
        (chunk(b"b", False, ["c", b"1"]), "holds no rows"),
        (chunk(b"b", 1, [b"c", b"1"]), "holds no rows"),
        (chunk("b", False, [b"c", b"1"]), "holds no rows"),
        (chunk(b"b", False, {b"c": b"1"}), "holds no rows"),
        (small_file.encode(CHUNK_MAGIC, 1, [b"b", False]), "holds no rows"),
        (small_file.encode(CHUNK_MAGIC, 1, 5), "holds no rows"),
        (chunk(b"b", False, [b"c", b"1"], version=2), "version 2"),
        (chunk(b"b", False, [b"c", b"1"], magic=META_MAGIC), "magic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "chunk",
)
def test_a_chunk_that_does_not_fit_is_refused_and_writes_nothing(data: bytes, why: str) -> None:
    stores = MemoryStores()
    importer = Importer(stores, TO)
    importer.add(chunk(None, False, [b"a", b"1", b"b", b"2"]))
    with pytest.raises(Corruption, match=why):
        importer.add(data)
    assert importer.position == b"b" and content(stores, TO) == [(b"a", b"1"), (b"b", b"2")]
    assert importer.add(chunk(b"b", True, [b"c", b"3"])), "the right chunk is still accepted"


def test_a_chunk_that_is_too_large_is_not_even_looked_at() -> None:
    with pytest.raises(Corruption, match=f"more than {CHUNK_BYTES_AT_MOST}"):
        Importer(MemoryStores(), TO).add(bytes(CHUNK_BYTES_AT_MOST + 1))


def test_a_flipped_bit_anywhere_is_refused() -> None:
    data = chunk(b"b", False, [b"c", b"1", b"d", b"2"])
    stores = MemoryStores()
    importer = Importer(stores, TO)
    importer.add(chunk(None, False, [b"b", b"1"]))
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corruption):
            importer.add(bytes(flipped))
    assert content(stores, TO) == [(b"b", b"1")]


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda body: _sealed(body)))
def test_garbage_is_a_clear_error(data: bytes) -> None:
    importer = Importer(MemoryStores(), TO)
    for read in (importer.add, Meta.decode):
        with pytest.raises(Corruption):
            read(data)


def _sealed(body: bytes) -> bytes:
    """Return the body, which need not be msgpack, in a valid envelope."""
    whole = small_file.encode(CHUNK_MAGIC, 1, b"")
    header = whole[:12] + len(body).to_bytes(4, "little")
    return header + value(header + body).to_bytes(4, "little") + body


def test_a_store_that_cannot_be_written_is_where_it_was() -> None:
    class Full(MemoryStores):
        def write(self, changes: Any) -> None:
            raise StorageFailed("the disk is full")

    importer = Importer(Full(), TO)
    with pytest.raises(StorageFailed):
        importer.add(chunk(None, False, [b"a", b"1"]))
    assert importer.position is None


# The document


def test_documented_examples_match() -> None:
    assert Meta.decode(example("description")) == META and META.encode() == example("description")
    source = exporter([(b"a", b"1"), (b"b", b"2")])
    assert source.chunk(b"a").data == example("chunk")


def example(name: str) -> bytes:
    (block,) = re.findall(rf"^```snapshot-hex {name}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    content = b""
    for line in block.splitlines():
        digits, _, comment = line.partition("#")
        assert int(comment.split()[0]) == len(content), line
        content += bytes.fromhex(digits)
    return content
