"""Tests of the specification docs/storage-format.md: its hex examples are decoded and encoded again."""

from __future__ import annotations

import re
from pathlib import Path

import msgpack

from sandq.broker.stats.node_stats import NodeStats
from sandq.broker.stats.slo_book import HOUR_MS, SloBook
from sandq.model.config_schema import Address
from sandq.storage import identity, keys, known_addresses, level_check, small_file, wal_format
from sandq.storage.known_peers import KnownPeers
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.pointers import Pointers, StorePointer
from sandq.storage.wal import Kind, Wal
from tests.support.documents import document
from tests.support.storage.key_strings import take_string

PAGE = document("storage-format")
MEMBERS = (("n1#1", "n2#4"), ("n3#9",))


def example(name: str) -> bytes:
    """Return the bytes of a block marked `hex NAME`. Every offset in the block must be right."""
    (block,) = re.findall(rf"^```hex {name}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    content = b""
    for line in block.splitlines():
        digits, _, comment = line.partition("#")
        if digits.strip():
            assert int(comment.split()[0]) == len(content), line
            content += bytes.fromhex(digits)
    return content


def test_segment_example_decodes() -> None:
    data = example("wal-segment").ljust(4096, b"\0")
    header = wal_format.decode_segment_header(data, 2)
    assert header == wal_format.SegmentHeader(2, previous_end=200, opening_end=200, batch_number=12, size=4096)
    reader = wal_format.Reader(data, header)
    assert list(reader) == [
        (Kind.HARD_STATE, 7, 0, 3, msgpack.packb("n1#1")),
        (Kind.BASE, 7, 41, 2, msgpack.packb([list(names) for names in MEMBERS])),
        (Kind.ENTRY, 7, 41, 3, b"hello"),
    ]
    assert (reader.end, reader.why, reader.last_batch, reader.batch_start) == (264, None, 13, 200)


def test_segment_example_equals_written_segment() -> None:
    data = example("wal-segment")
    reader = wal_format.Reader(data, wal_format.SegmentHeader(2, 200, 200, 12, len(data)))
    hard_state, base, entry = reader
    opening = wal_format.encode_batch(2, 64, 12, [hard_state, base])
    header = wal_format.SegmentHeader(2, 200, 64 + len(opening), 12, 4096).encode()
    assert data == header + opening + wal_format.encode_batch(2, 200, 13, [entry])


def test_a_log_of_the_segment_recovers() -> None:
    files = MemoryFiles()
    files.make_dir("wal")
    files.open("wal/0000000002.wal", create_bytes=4096).write_at(0, example("wal-segment"))
    _, groups = Wal.open(files, segment_bytes=4096, known_groups=lambda group: group == 7)
    group = groups[7]
    assert (group.term, group.voted_for, group.base_index) == (3, "n1#1", 41)
    assert (group.voters, group.learners) == (["n1#1", "n2#4"], ["n3#9"])
    assert group.entries == [(b"hello", 41, 3)]


def test_pointers_example_decodes_and_encodes() -> None:
    files = MemoryFiles()
    files.replace("stores", example("pointers"))
    pointers = Pointers.open(files)
    pointer = StorePointer(7, 4, 2, 41, 3, *MEMBERS)
    assert pointers.all() == [pointer] and pointers.metadata_index == 5
    pointers.update(put=[pointer])
    assert files.read("stores") == example("pointers")
    assert pointers.mint() == range(3, 4)


def test_identity_example_decodes_and_encodes() -> None:
    files = MemoryFiles()
    files.replace("identity", example("identity"))
    found = identity.load(files)
    assert found == identity.Identity("n1", "6a204bd8-9f3c-4b7e-8a0e-0c2a2f0d6f11", None)
    identity.save(files, found)
    assert files.read("identity") == example("identity")


def test_known_addresses_example_decodes_and_encodes() -> None:
    files = MemoryFiles()
    files.replace("known-addresses", example("known-addresses"))
    assert known_addresses.load(files) == [Address("10.0.0.2", 9900)]
    files.remove("known-addresses")
    known_addresses.save(files, [Address("10.0.0.2", 9900)])
    assert files.read("known-addresses") == example("known-addresses")


def test_known_peers_example_decodes_and_encodes() -> None:
    files = MemoryFiles()
    files.replace("known-peers", example("known-peers"))
    known = KnownPeers.open(files)
    assert known.all() == {"n2": "6a204bd8-9f3c-4b7e-8a0e-0c2a2f0d6f11"}
    files.remove("known-peers")
    KnownPeers.open(files).pin("n2", "6a204bd8-9f3c-4b7e-8a0e-0c2a2f0d6f11")
    assert files.read("known-peers") == example("known-peers")


def test_lateness_example_decodes_and_encodes() -> None:
    stats, now_ms = NodeStats(), 1_800_000_000_000
    book = SloBook(stats, HOUR_MS, now_ms)
    stats.slo.observe(0.003, 5)
    stats.slo.observe(0.2)
    book.take(now_ms, is_trusted=True)
    assert book.encode() == example("slo")
    assert sum(SloBook(NodeStats(), HOUR_MS, now_ms, example("slo")).over(now_ms, HOUR_MS).counts) == 6


def test_mark_example_decodes(tmp_path: Path) -> None:
    assert small_file.decode(example("mark"), b"SANDQMRK", 1, level_check.MARK) == ["MANIFEST-000002", 50]


def test_key_example_decodes_and_encodes() -> None:
    key = example("key")
    assert keys.store_of(key) == 2
    assert take_string(key, 8) == (b"a\0b", 14)
    fields = keys.u32(5) + keys.string(b"a\0b") + keys.u48(1_700_000_000_000) + keys.u64(9)
    assert key == keys.store_prefix(2) + fields
