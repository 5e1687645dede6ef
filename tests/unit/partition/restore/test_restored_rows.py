"""Tests that rows of a backup are checked one by one before they enter a log, and together at the end."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import msgpack
import pytest

from sandq.model.batch import Column, encode
from sandq.model.errors import Conflict, InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.names import COMPACTED
from sandq.model.row_kinds import COMPACTED_TAGS, TAGS
from sandq.model.stored_rows import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    ROW_ITEMS,
    check_rows,
    decode_chunk,
    problem_of_row,
)
from sandq.partition.base import rows
from sandq.partition.base.view import Row
from sandq.partition.kv import key_table
from sandq.partition.kv.compacted import COMPACTION
from sandq.partition.restore import whole
from sandq.partition.restore.restoring import encode_chunk
from tests.support.partition.bench import Bench, T
from tests.support.partition.damaged_rows import KINDS, source_of
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.restore_bench import begin, empty_like, end, put, restored, rows_of

OFFSET = T.to_bytes(6, "big") + bytes(10)
GROUP = (1).to_bytes(4, "big")


def test_every_tag_of_rows_is_known() -> None:
    of_rows = {
        value for name, value in vars(rows).items() if name.isupper() and isinstance(value, bytes) and len(value) == 1
    }
    of_keys = {key_table.VALUE, key_table.EXPIRY, key_table.DELETION, key_table.STATE, COMPACTION}
    assert of_rows | of_keys == TAGS
    assert of_keys == {*COMPACTED_TAGS}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_partition_are_taken(kind: str) -> None:
    source = source_of(kind)
    flat = [part for row in rows_of(source) for part in row]
    check_rows(encode_chunk(flat), 0, {"keys": "timer"}.get(kind, kind))
    restored(source)


@pytest.mark.parametrize("later", [[], [True], [False, True], [True, True], [False, False, 3]])
def test_optional_fields_of_a_group_are_taken(later: list[object]) -> None:
    row = rows.pack("g", OFFSET, [], T, {"on_expiry": "drop"}, [0, 0], *later)
    assert problem_of_row(b"g" + GROUP, row, 0, "timer") is None


def packed(*fields: object) -> bytes:
    return rows.pack(*fields)


def batch_row(*, count: int = 1, **columns: object) -> bytes:
    cells = {Column.VALUE: [b"x"]} | {Column[name.upper()]: [cell] for name, cell in columns.items()}
    return rows.batch_row(count, T, encode(cells))  # type: ignore[arg-type]


LEASE_OF_MANY = packed(1, "c", 1, T, T, OFFSET + b"\xff" * 4, T, T, False, [])
ODD_JOB = packed(bytes(16), "x", {}, 1, 1, T, "done", OFFSET, 0, 0, 0, T, T)
DAMAGED: list[tuple[str, bytes, bytes, str]] = [
    ("an unknown tag", b"?", b"", "no rows with this tag"),
    ("a log row of another partition", b"m" + OFFSET[:-1] + b"\x01", batch_row(), "its key"),
    ("a log row without a header", b"m" + OFFSET, b"\x02\x01", "at least 16 bytes"),
    ("a log row of an unknown kind", b"m" + OFFSET, b"\x09" + batch_row()[1:], "kind 9"),
    ("a batch with a wrong checksum", b"m" + OFFSET, batch_row()[:-1] + b"\x01", "crc"),
    ("a batch of another count", b"m" + OFFSET, batch_row(count=2), "2 messages"),
    ("a batch behind the last place", b"m" + OFFSET[:12] + b"\xff\xff\xf0\x00", b"", "at least 16 bytes"),
    ("a message without a value", b"m" + OFFSET, rows.LOG_HEADER.pack(2, 0, 1, T) + packed(None, {}), "a value"),
    ("a priority that is none", b"m" + OFFSET, batch_row(priority=2**40), "PRIORITY"),
    ("a tenant that is none", b"m" + OFFSET, batch_row(tenant=b"\xff"), "TENANT"),
    ("a ttl of nothing", b"m" + OFFSET, batch_row(ttl_ms=0), "TTL_MS"),
    ("a group without a cursor", b"g" + GROUP, packed("g", b"", [], T, {}, [0, 0]), "its fields"),
    ("a group with settings of no group", b"g" + GROUP, packed("g", OFFSET, [], T, {"x": 1}, [0, 0]), "its fields"),
    ("a group of number 0", b"g" + bytes(4), packed("g", OFFSET, [], T, {}, [0, 0]), "its key"),
    ("a lease of four billion messages", b"l" + bytes(8), LEASE_OF_MANY, "its fields"),
    ("a hold without an offset", b"hreader", packed(None, T), "its fields"),
    ("a job of an unknown kind", b"j" + bytes(16), ODD_JOB, "its fields"),
    ("a state that is none", b"s", packed(1), "state"),
    ("a state with settings of no topic", b"s", b"", "cannot be decoded"),
    ("what is no MessagePack", b"i" + OFFSET, b"\xc1", "cannot be decoded"),
    ("a ready queue of a timer topic", b"Q" + GROUP + b"\0\x80\0\0\0", packed(1, OFFSET), "no rows with this tag"),
    ("a schedule without a value", b"Stick", packed(1), "its fields"),
    ("a unique key without a digest", b"K" + bytes(16), packed(0, OFFSET, None, None), "its key"),
    ("a unique key without a message", b"K" + bytes(17), packed(0, b"", None, None), "its fields"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "problem"), [one[1:] for one in DAMAGED], ids=[one[0] for one in DAMAGED])
def test_damaged_row_is_refused_with_its_key(key: bytes, value: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as refused:
        check_rows(encode_chunk([b"hok", packed(OFFSET, T), key, value]), 0, "timer")
    assert refused.value.message.startswith(
        f"row 2 of the chunk is damaged, and nothing of it was taken: row {key.hex()}"
    )


def test_a_message_of_a_compacted_topic_has_a_key() -> None:
    assert "has a key" in str(problem_of_row(b"m" + OFFSET, batch_row(), 0, COMPACTED))
    assert problem_of_row(b"m" + OFFSET, batch_row(key=b"k"), 0, COMPACTED) is None


def _peak(check: bytes) -> int:
    """Return the maximum number of bytes for the check of a chunk, which must be refused."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            check_rows(check, 0, "timer")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_arrays_within_arrays_take_no_more_memory_than_a_chunk() -> None:
    inner = b"\xdc" + (16_000).to_bytes(2, "big") + b"\x90" * 16_000
    count = (CHUNK_BYTES - 10) // len(inner)
    assert _peak(b"\xdc" + count.to_bytes(2, "big") + inner * count) < 2 * CHUNK_BYTES
    row = (b"\xdc" + (60_000).to_bytes(2, "big") + b"\x90" * 60_000) * 300
    row = b"\xdc" + (300).to_bytes(2, "big") + row
    assert ROW_ITEMS < 300 * 60_000
    assert _peak(encode_chunk([b"g" + GROUP, row])) < 3 * CHUNK_BYTES


@pytest.mark.parametrize(
    "chunk",
    [
        b"",
        b"\x00",
        msgpack.packb([b"k"]),
        msgpack.packb([b"", b"v"]),
        msgpack.packb([b"k", "v"]),
        msgpack.packb([b"k", []]),
        msgpack.packb([b"k", b"v"]) + b"\x00",
        msgpack.packb([b"k", b"v"])[:-1],
        msgpack.packb([b"k", b""] * (CHUNK_ROWS + 1)),
    ],
)
def test_invalid_chunk_is_refused(chunk: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_chunk(chunk)


def ended(source: Bench, stored: list[Row]) -> object:
    """Return the result of a restore of these rows, each of which is valid."""
    chunk = encode_chunk([part for row in stored for part in row])
    check_rows(chunk, 0, "timer")
    made = empty_like(source)
    begin(made)
    put(made, 0, chunk)
    return end(made, 1)


def _leased() -> Bench:
    bench = Bench()
    bench.open()
    bench.append("a", due=[0])
    bench.lease()
    return bench


def test_a_group_that_is_not_there_yet_is_refused_at_the_end() -> None:
    bench = _leased()
    blocked = (b"b" + (9).to_bytes(4, "big") + OFFSET, packed(1))
    told = ended(bench, [*rows_of(bench), blocked])
    assert isinstance(told, Conflict) and "names group 9" in told.message


def test_a_leased_message_without_a_row_is_refused_at_the_end() -> None:
    bench = _leased()
    told = ended(bench, [row for row in rows_of(bench) if row[0][:1] != rows.LOG])
    assert isinstance(told, Conflict) and "has no row" in told.message


@pytest.mark.parametrize(
    ("kind", "name", "row", "problem"),
    [
        ("priority", b"tacme", [T], "pauses a tenant, and the topic has none"),
        ("timer", b"tacme", [T], "pauses a tenant, and the topic has none"),
        ("timer", b"k" + bytes(8), [T], "pauses a key, and the topic has none"),
        ("ordered", b"k" + bytes(8), [T, b"a"], "has the key of another pause"),
        ("fair", b"tacme", [T, b"a"], "has the key of another pause"),
    ],
)
def test_pause_that_does_not_fit_the_topic_is_refused_at_the_end(
    kind: str, name: bytes, row: list[object], problem: str
) -> None:
    bench = (
        RankedBench(kind) if kind in ("priority", "fair") else Bench(ordering="key" if kind == "ordered" else "none")
    )
    bench.open()
    told = ended(bench, [*rows_of(bench), (rows.PAUSE + GROUP + name, rows.pack(*row))])
    assert isinstance(told, Conflict) and problem in told.message


def test_more_pauses_than_allowed_are_refused_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "FIXED", replace(FIXED, paused_parts=2))
    bench = Bench(ordering="key")
    bench.open()
    pauses = [(rows.PAUSE + GROUP + b"k" + n.to_bytes(8, "big"), rows.pack(T)) for n in range(3)]
    told = ended(bench, [*rows_of(bench), *pauses])
    assert isinstance(told, Conflict) and "more than 2 paused" in told.message


def test_a_message_that_two_leases_hold_is_refused_at_the_end() -> None:
    bench = _leased()
    (lease,) = bench.rows(rows.LEASE)
    told = ended(bench, [*rows_of(bench), (rows.LEASE + bytes(8), lease[1])])
    assert isinstance(told, Conflict) and "held twice" in told.message


def test_a_payload_that_is_missing_is_refused_at_the_end() -> None:
    bench = Bench()
    bench.send("x" * 9000, ttls=[1000])
    told = ended(bench, [row for row in rows_of(bench) if row[0][:1] != rows.PAYLOAD])
    assert isinstance(told, Conflict) and "a payload of" in told.message


def test_two_groups_of_one_name_are_refused_at_the_end() -> None:
    """A name finds only one of two groups. Upkeep once searched the other by its name without end."""
    bench = _leased()
    bench.open("h")
    (key, group), (other, _) = bench.rows(rows.GROUP)
    told = ended(bench, [*[row for row in rows_of(bench) if row[0] != other], (other, group)])
    assert isinstance(told, Conflict) and "2 groups are called 'g'" in told.message, key
