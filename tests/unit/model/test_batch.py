"""Tests of a batch's bytes, and of refused batches. Round trips and fuzz tests are in tests/property/test_batch.py."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
import zstandard

from sandq.model import batch_format
from sandq.model.batch import HEADER_BYTES, MAX_MESSAGES, Batch, Column, encode, peek
from sandq.model.errors import InvalidRequest, TooLarge

GOLDEN = bytes.fromhex(
    "535142b1" "8ce07ce0" "01" "00" "0100" "03000000" "98000000" "70000000" "0000000000000000" "0a00000000000000"
    "03000000" "00000000"
    "0100" "01" "01" "20000000"
    "0200" "01" "00" "18000000"
    "0400" "02" "00" "18000000"
    "0500000000000000" "00000000" "01000000" "01000000" "03000000" "6162630000000000"
    "00000000" "01000000" "01000000" "02000000" "6b6c000000000000"
    "0000000000000000" "0500000000000000" "0a00000000000000"
)  # fmt: skip


def sealed(data: bytes | bytearray) -> bytes:
    """Return the bytes with the right magic, size and crc, as a faulty or malicious encoder could write them."""
    data = bytearray(data)
    data[:4] = batch_format.MAGIC
    data[16:20] = len(data).to_bytes(4, "little")
    if data[9] == batch_format.CODEC_NONE:
        data[20:24] = (len(data) - HEADER_BYTES).to_bytes(4, "little")
    data[4:8] = google_crc32c.value(bytes(data[8:])).to_bytes(4, "little")
    return bytes(data)


def refused(data: bytes, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        Batch.parse(data)


def test_batch_format_is_unchanged() -> None:
    columns = {Column.DELIVER_MS: [0, 5, 10], Column.KEY: [b"k", b"", b"l"], Column.VALUE: [b"a", None, b"bc"]}
    data = encode(columns, relative=True)
    assert data.hex() == GOLDEN.hex()
    batch = Batch.parse(data)
    assert batch.values() == [b"a", None, b"bc"]
    assert batch.bytes_column(Column.KEY) == [b"k", b"", b"l"]
    assert batch.int_column(Column.DELIVER_MS) == [0, 5, 10]
    assert (batch.count, len(batch), batch.relative, batch.raw) == (3, 3, True, data)
    assert (batch.min_deliver_ms, batch.max_deliver_ms) == (0, 10)
    assert batch.columns == (1, 2, 4)
    assert peek(data) == (3, 1, 0, 10, len(data))
    assert peek(memoryview(data)).relative


def test_absent_columns() -> None:
    batch = Batch.parse(encode({Column.VALUE: [b"a"], Column.KEY: [None], Column.PRIORITY: [None]}))
    assert batch.columns == (Column.VALUE,)
    assert batch.bytes_column(Column.KEY) is None
    assert batch.int_column(Column.PRIORITY) is None
    assert batch.int_column(Column.VALUE) is None  # a column of the other type
    assert (batch.min_deliver_ms, batch.max_deliver_ms, batch.relative) == (0, 0, False)
    with pytest.raises(KeyError):
        batch.buffers(Column.KEY)


def test_null_is_not_empty() -> None:
    batch = Batch.parse(encode({Column.VALUE: [None, b""], Column.KEY: [b"", None]}))
    assert batch.values() == [None, b""]
    assert batch.bytes_column(Column.KEY) == [b"", None]
    assert Batch.parse(encode({Column.VALUE: [None]})).values() == [None]


def test_missing_delivery_time_is_zero() -> None:
    batch = Batch.parse(encode({Column.VALUE: [b"a", b"b"], Column.DELIVER_MS: [None, 7]}))
    assert (batch.min_deliver_ms, batch.max_deliver_ms) == (0, 7)
    assert batch.int_column(Column.DELIVER_MS) == [None, 7]
    later = Batch.parse(batch.slice(1, 2))
    assert (later.min_deliver_ms, later.max_deliver_ms) == (7, 7)


def test_largest_batch_is_accepted_and_a_larger_one_refused() -> None:
    batch = Batch.parse(encode({Column.VALUE: [b""] * MAX_MESSAGES}))
    assert len(batch.values()) == MAX_MESSAGES
    with pytest.raises(TooLarge):
        encode({Column.VALUE: [b""] * (MAX_MESSAGES + 1)})


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {Column.KEY: [b"a"]},
        {Column.VALUE: []},
        {Column.VALUE: [b"a"], Column.KEY: [b"a", b"b"]},
        {Column.VALUE: ["text"]},
        {Column.VALUE: [None, "text"]},
        {Column.VALUE: [5]},
        {Column.VALUE: b"abc"},
        {Column.VALUE: "abc"},
        {Column.VALUE: [b"a"], Column.KEY: b"a"},
        {Column.VALUE: [memoryview(b"abcdefgh").cast("q")]},
        {Column.VALUE: [b"a"], Column.KEY: [5]},
        {Column.VALUE: [b"a"], Column.PRIORITY: [b"1"]},
        {Column.VALUE: [b"a"], Column.PRIORITY: [1.5]},
        {Column.VALUE: [b"a"], Column.PRIORITY: [2**63]},
        {Column.VALUE: [b"a"], Column.PRIORITY: [10**400]},
        {Column.VALUE: [b"a"], Column.DELIVER_MS: [-1]},
        {Column.VALUE: [b"a"], Column.DELIVER_MS: [2**48]},
        {Column.VALUE: [b"a"], Column.TTL_MS: [-1]},
        {Column.VALUE: [b"a"], 0: [b"a"]},
        {Column.VALUE: [b"a"], 2**16: [b"a"]},
        {Column.VALUE: [b"a"], 77: ["text"]},
    ],
)
def test_invalid_columns_are_refused(columns: dict[int, list[bytes | None]]) -> None:
    with pytest.raises(InvalidRequest, match=r"^batch: "):
        encode(columns)


def test_unknown_columns_are_kept() -> None:
    columns = {
        Column.VALUE: [b"a", b"b", b"c"],
        77: [1, None, -3],
        40_000: [b"x", None, b"yz"],
        40_001: [b"", b"", b""],
    }
    batch = Batch.parse(Batch.parse(encode(columns)).take([2, 1]))
    assert batch.columns == (1, 77, 40_000, 40_001)
    assert batch.int_column(77) == [-3, None]
    assert batch.bytes_column(40_000) == [b"yz", None]
    assert batch.bytes_column(40_001) == [b"", b""]


def test_compression_only_where_it_helps() -> None:
    columns = {Column.VALUE: [b"the same words"] * 500}
    packed = encode(columns, compress=True)
    assert len(packed) < len(encode(columns)) / 5
    batch = Batch.parse(packed)
    assert batch.values() == columns[Column.VALUE]
    assert batch.raw == packed == batch.slice(0, 500)
    assert encode({Column.VALUE: [b"a"]}, compress=True) == encode({Column.VALUE: [b"a"]})


def test_a_compressed_bomb_is_refused_before_it_grows() -> None:
    small = encode({Column.VALUE: [bytes(1 << 20)]}, compress=True)
    assert len(small) < 500
    with pytest.raises(TooLarge, match="when decompressed"):
        Batch.parse(small, max_bytes=1 << 19)
    # The header has a small size, but the inner frame claims or holds more.
    data = bytearray(small)
    data[20:24] = (1 << 10).to_bytes(4, "little")
    refused(sealed(data), "another size")
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    refused(sealed(small[:20] + (1 << 10).to_bytes(4, "little") + small[24:HEADER_BYTES] + silent), "size|decompress")


def test_compressed_body_must_be_one_complete_frame() -> None:
    small = encode({Column.VALUE: [b"abc"] * 100}, compress=True)
    for body in (b"", b"garbage", small[HEADER_BYTES:-1], small[HEADER_BYTES:] + b"x"):
        refused(sealed(small[:HEADER_BYTES] + body), "decompress")


def header_changed(offset: int, code: str, value: int) -> bytes:
    data = bytearray(encode({Column.VALUE: [b"a", b"b"], Column.DELIVER_MS: [3, 9]}))
    struct.pack_into(code, data, offset, value)
    data[4:8] = google_crc32c.value(bytes(data[8:])).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("offset", "code", "value", "match"),
    [
        (0, "<I", 0, "magic"),
        (8, "B", 0, "version 0"),
        (8, "B", 2, "version 2"),
        (9, "B", 2, "codec"),
        (9, "B", 1, "decompress"),
        (10, "<H", 2, "flags"),
        (12, "<I", 0, "0 messages"),
        (12, "<I", MAX_MESSAGES + 1, "65537 messages"),
        (12, "<I", 1, "do not fit"),
        (12, "<I", 3, "do not fit|fall"),
        (16, "<I", 5, "says 5 bytes"),
        (20, "<I", 5, "sizes"),
        (24, "<Q", 2, "header says"),
        (32, "<Q", 10, "header says"),
        (24, "<Q", 10, "not within"),
        (32, "<Q", 2**48, "not within"),
    ],
)
def test_headers_that_lie(offset: int, code: str, value: int, match: str) -> None:
    refused(header_changed(offset, code, value), match)


def test_crc_is_checked() -> None:
    data = bytearray(encode({Column.VALUE: [b"a"]}))
    data[-8] ^= 1
    refused(bytes(data), "crc")
    assert peek(bytes(data)).count == 1  # parsing without decoding costs no memory


def body_of(columns: list[tuple[int, int, int, bytes]], *, count: int = 2, tail: bytes = b"", more: int = 0) -> bytes:
    header = encode({Column.VALUE: [b""] * count})[:HEADER_BYTES]
    body = struct.pack("<II", len(columns) + more, 0)
    body += b"".join(struct.pack("<HBBI", *entry[:3], len(entry[3])) for entry in columns)
    return sealed(header + body + b"".join(entry[3] for entry in columns) + tail)


def offsets_of(*bounds: int) -> bytes:
    packed = struct.pack(f"<{len(bounds)}i", *bounds)
    return packed + bytes(-len(packed) % 8)


PLAIN = offsets_of(0, 1, 2) + b"ab" + bytes(6)


def test_helper_of_these_tests_makes_valid_batches() -> None:
    assert Batch.parse(body_of([(1, 1, 0, PLAIN)])).values() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (body_of([]), "no VALUE"),
        (body_of([(2, 1, 0, PLAIN)]), "no VALUE"),
        (body_of([(1, 1, 0, PLAIN), (1, 1, 0, PLAIN)]), "out of order"),
        (body_of([(2, 1, 0, PLAIN), (1, 1, 0, PLAIN)]), "out of order"),
        (body_of([(0, 1, 0, PLAIN), (1, 1, 0, PLAIN)]), "out of order"),
        (body_of([(1, 2, 0, bytes(16))]), "wrong type"),
        (body_of([(1, 1, 0, PLAIN), (6, 1, 0, PLAIN)]), "wrong type"),
        (body_of([(1, 3, 0, PLAIN)]), "entry 1"),
        (body_of([(1, 1, 2, PLAIN)]), "entry 1"),
        (body_of([(1, 1, 0, PLAIN)], tail=bytes(8)), "after the last"),
        (body_of([(1, 1, 0, PLAIN)], more=1), "past the end|entry|fit"),
        (body_of([(1, 1, 0, PLAIN)], more=2**20), "directory"),
        (body_of([(1, 1, 0, PLAIN[:-8])]), "fit its length"),
        (body_of([(1, 1, 0, PLAIN + bytes(8))]), "fit its length"),
        (body_of([(1, 1, 0, b"")]), "fit its length"),
        (body_of([(1, 1, 0, offsets_of(1, 1, 2) + b"ab" + bytes(6))]), "begin at 0"),
        (body_of([(1, 1, 0, offsets_of(0, 2, 1) + b"ab" + bytes(6))]), "fall"),
        (body_of([(1, 1, 0, offsets_of(0, -1, 2) + b"ab" + bytes(6))]), "fall"),
        (body_of([(1, 1, 0, offsets_of(0, 1, 2**31 - 1) + b"ab" + bytes(6))]), "fit its length"),
        (body_of([(1, 1, 0, offsets_of(0, 1, 2) + b"ab" + b"\x00\x00\x00\x00\x00\x01")]), "fit its length"),
        (body_of([(1, 1, 1, bytes([3]) + bytes(6) + b"\x01" + PLAIN)]), "fit its length"),
        (body_of([(1, 1, 1, bytes([7]) + bytes(7) + PLAIN)]), "beyond its last"),
        (body_of([(1, 1, 1, bytes([2]) + bytes(7) + PLAIN)]), "not empty"),
        (body_of([(1, 1, 0, PLAIN), (6, 2, 1, bytes([1]) + bytes(15) + b"\x05" + bytes(7))]), "not empty"),
        (body_of([(1, 1, 0, PLAIN), (6, 2, 0, bytes(24))]), "fit its length"),
        (body_of([(1, 1, 0, PLAIN), (6, 2, 0, bytes(8))]), "fit its length"),
        (body_of([(1, 1, 0, PLAIN), (5, 2, 0, struct.pack("<qq", 0, -1))]), "TTL_MS -1"),
        (sealed(encode({Column.VALUE: [b""]})[:HEADER_BYTES]), "too short"),
        (sealed(encode({Column.VALUE: [b""]})[:HEADER_BYTES] + struct.pack("<II", 0, 1)), "directory"),
        (b"", "less than a header"),
        (bytes(HEADER_BYTES), "magic"),
    ],
)
def test_bodies_that_lie(data: bytes, match: str) -> None:
    refused(data, match)


def test_positions_must_be_there() -> None:
    batch = Batch.parse(encode({Column.VALUE: [b"a", b"b"]}))
    for positions in ([], [2], [-1], [0, 5]):
        with pytest.raises(InvalidRequest, match="positions"):
            batch.take(positions)
    for start, stop in ((0, 0), (1, 1), (2, 3), (-1, 1), (1, 0), (0, 3)):
        with pytest.raises(InvalidRequest, match="slice"):
            batch.slice(start, stop)


def test_a_batch_is_frozen() -> None:
    batch = Batch.parse(encode({Column.VALUE: [b"a"]}))
    with pytest.raises(AttributeError):
        batch.count = 2  # type: ignore[misc]
    assert repr(batch) == f"<Batch of 1 messages, {len(batch.raw)} bytes>"
    assert batch == Batch.parse(memoryview(batch.raw))
