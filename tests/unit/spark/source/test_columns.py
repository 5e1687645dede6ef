"""Tests of pieces of a log as Arrow columns, against a reference that reads message by message."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.client.messages.fetch import open_piece
from sandq.errors import InvalidRequest, ProtocolError
from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode, headers_pack, headers_unpack
from sandq.model.offset_texts import texts_of_column, texts_of_run, times_of_column
from sandq.model.piece import Piece
from sandq.protocol.requests_log import FetchReply
from sandq.spark.source.columns import BATCH_BYTES, BATCH_ROWS, Rows, header_bytes, schema
from sandq.spark.source.options import COLUMNS, PLAIN, Extra, parse_options
from sandq.spark.source.planning import Task
from sandq.spark.source.reading import read_pages
from tests.support.hostile_rows import CELLS, HEADERS, NO_HEADERS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = 1_700_000_000_000
BASE = offsets.pack(MS, 77, 5, 3)


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def expected(pieces: Sequence[Piece], extra: Extra = PLAIN) -> list[dict[str, Any]]:
    """Return the fields of each message by the client's own iterator."""
    rows = []
    for piece in pieces:
        found, positions = open_piece("piece", piece)
        values = found.values()
        for position in positions:
            row: dict[str, Any] = {
                "key": found.key(position),
                "value": values[position],
                "topic": "t",
                "partition": 3,
                "offset": offsets.to_text(found.offset(position)),
                "timestamp": at(found.created_ms(position)),
                "deliver_at": at(offsets.deliver_ms(found.offset(position))),
                "message_id": offsets.to_text(found.id(position)),
            }
            cell = found.headers(position)
            if extra.headers:
                row["headers"] = None if cell is None else as_headers(cell)
            if extra.raw:
                ttls = Batch.parse(piece.batch).int_column(Column.TTL_MS)
                row |= {"raw_headers": cell, "ttl_ms": None if ttls is None else ttls[position]}
            if extra.rank:
                batch = Batch.parse(piece.batch)
                priorities, tenants = batch.int_column(Column.PRIORITY), batch.bytes_column(Column.TENANT)
                tenant = None if tenants is None else tenants[position]
                row["priority"] = None if priorities is None else priorities[position]
                row["tenant"] = None if tenant is None else tenant.decode()
            rows.append({name: row[name] for name in row if extra.has(name)})
    return rows


def as_headers(cell: bytes) -> list[dict[str, Any]]:
    return [{"key": key, "value": header_bytes(value)} for key, value in headers_unpack(cell).items()]


def read(pieces: Sequence[Piece], partition: int = 3, *, extra: Extra = PLAIN) -> list[Any]:
    """Return the record batches of a task that gets the pieces in one page."""
    task = Task("t", 1, partition, offsets.FIRST, offsets.LAST, pending=True)
    page = FetchReply(None, MS, offsets.FIRST, 1, pieces)
    return list(read_pages(task, lambda cursor: page, extra))


def got(pieces: Sequence[Piece], extra: Extra = PLAIN) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in read(pieces, extra=extra):
        batch.validate(full=True)
        assert batch.schema.equals(schema(extra), check_metadata=True)
        rows += batch.to_pylist()
    return rows


cells = st.one_of(st.none(), st.binary(max_size=12))
some_headers = st.dictionaries(
    st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=4), st.text(max_size=4), st.integers(0, 9)), max_size=3
)
an_offset = st.builds(
    offsets.pack, st.integers(0, 2**47), st.integers(0, 2**48 - 1), st.integers(0, 2**20 - 100), st.just(3)
)


@st.composite
def live_ranges(draw: st.DrawFn, count: int) -> list[list[int]] | None:
    if draw(st.booleans()):
        return None
    bounds = sorted(draw(st.sets(st.integers(0, count), max_size=8)))
    return [[first, stop - first] for first, stop in zip(bounds[::2], bounds[1::2], strict=False)]


@st.composite
def a_piece(draw: st.DrawFn) -> Piece:
    """Return a piece of a log with random columns, offsets and gaps."""
    count = draw(st.integers(1, 40))

    def column(of: st.SearchStrategy[Any]) -> list[Any]:
        found: list[Any] = draw(st.lists(of, min_size=count, max_size=count))
        return found

    columns: dict[int, list[Any]] = {Column.VALUE: column(cells)}
    if draw(st.booleans()):
        columns[Column.KEY] = column(cells)
    if draw(st.booleans()):
        columns[Column.HEADERS] = [headers_pack(headers) for headers in column(some_headers)]
    if draw(st.booleans()):
        columns[Column.TTL_MS] = column(st.one_of(st.none(), st.integers(1, 2**40)))
    if draw(st.booleans()):
        columns[Column.PRIORITY] = column(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)))
    if draw(st.booleans()):
        columns[Column.TENANT] = column(st.one_of(st.none(), st.sampled_from([b"acme", b"acme.eu", b"default"])))
    batch = encode(columns, compress=draw(st.booleans()))
    return Piece(
        draw(an_offset) if draw(st.booleans()) else b"".join(column(an_offset)),
        b"".join(column(an_offset)) if draw(st.booleans()) else None,
        draw(st.integers(0, 2**47))
        if draw(st.booleans())
        else b"".join(ms.to_bytes(8, "little") for ms in column(st.integers(0, 2**47))),
        draw(live_ranges(count)),
        batch,
    )


def shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with sorted columns. The strategies stay within the range of Python's datetime."""
    return [dict(sorted(row.items())) for row in rows]


def of_columns(names: set[str]) -> Extra:
    return parse_options({"subscribe": "t", "columns": ",".join(names)}).extra


some_columns = st.one_of(
    st.builds(Extra, st.booleans(), st.booleans(), st.booleans(), st.just(())),
    st.builds(of_columns, st.sets(st.sampled_from(COLUMNS), min_size=1)),
)


@given(st.lists(a_piece(), max_size=4), some_columns)
def test_columns_equal_the_messages_of_the_client(pieces: list[Piece], extra: Extra) -> None:
    assert shown(got(pieces, extra)) == shown(expected(pieces, extra))


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=30))
def test_texts_of_any_offsets(column: list[bytes]) -> None:
    joined = b"".join(column)
    assert texts_of_column(joined).decode() == "".join(map(offsets.to_text, column))
    times = [int.from_bytes(times_of_column(joined)[at : at + 8], "little") for at in range(0, 8 * len(column), 8)]
    assert times == [offsets.deliver_ms(offset) for offset in column]


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1023, 1024, 1025, 3000])
def test_texts_across_blocks_and_lanes(count: int) -> None:
    chance = random.Random(count)
    for partition in (0, 3, 1023, 1024, 4095):
        place = chance.randrange(2**20 - count)
        base = offsets.pack(chance.randrange(2**48), chance.randrange(2**48), place, partition)
        run = offsets.run(base, count)
        wanted = "".join(map(offsets.to_text, run))
        assert texts_of_run(base, count).decode() == wanted, (count, partition)
        assert texts_of_column(b"".join(run)).decode() == wanted, (count, partition)
    last = offsets.pack(1, 1, 2**20 - count, 0)
    assert len(texts_of_run(last, count)) == 26 * count
    with pytest.raises(InvalidRequest):
        texts_of_run(last, count + 1)


def run_of(count: int, *, size: int = 10, live: list[list[int]] | None = None) -> Piece:
    return Piece(BASE, None, MS - 1, live, encode({Column.VALUE: [b"%d" % n * size for n in range(count)]}))


def test_schema_is_exact() -> None:
    utc = pa.timestamp("us", tz="UTC")
    plain = {"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32()}
    plain |= {"offset": pa.string(), "timestamp": utc, "deliver_at": utc, "message_id": pa.string()}
    assert [(field.name, field.type) for field in schema()] == list(plain.items())
    every = schema(Extra(headers=True, raw=True, rank=True))
    assert all(field.nullable for field in every)
    more = ["raw_headers", "ttl_ms", "priority", "tenant"]
    assert every.names == [*list(plain)[:6], "headers", "deliver_at", "message_id", *more]
    assert str(every.field("headers").type) == "list<element: struct<key: string, value: binary>>"
    assert (every.field("raw_headers").type, every.field("ttl_ms").type) == (pa.binary(), pa.int64())
    assert (every.field("priority").type, every.field("tenant").type) == (pa.int32(), pa.string())


def test_a_null_is_not_empty() -> None:
    piece = Piece(BASE, None, MS, None, encode({Column.VALUE: [None, b"", b"x"], Column.KEY: [b"", None, b"k"]}))
    rows = got([piece])
    assert [row["value"] for row in rows] == [None, b"", b"x"]
    assert [row["key"] for row in rows] == [b"", None, b"k"]


def test_small_pieces_are_merged_and_large_ones_are_not_cut() -> None:
    sizes = [len(batch) for batch in read([run_of(900)] * 25)]
    assert sizes == [10_800, 10_800, 900]
    assert [len(batch) for batch in read([run_of(30_000)])] == [30_000]
    large = run_of(2, size=BATCH_BYTES // 3)
    assert [len(batch) for batch in read([large] * 3)] == [4, 2]
    assert BATCH_ROWS == 10_000


def test_empty_pieces_give_no_rows() -> None:
    assert read([]) == []
    assert read([run_of(5, live=[])]) == []
    rows = Rows("t", 3)
    rows.add(run_of(5))
    assert len(rows.take()) == 5
    rows.add(run_of(2))
    assert len(rows.take()) == 2, "it begins anew"


def test_many_live_ranges() -> None:
    live = [[n, 1] for n in range(0, 1000, 2)]
    pieces = [run_of(1000, live=live), run_of(1000, live=[[0, 3], [990, 10]])]
    assert got(pieces) == expected(pieces)


def test_single_piece_is_wrapped_without_a_copy() -> None:
    piece = run_of(100)
    (batch,) = read([piece])
    held = pa.py_buffer(piece.batch)
    data = batch.column("value").buffers()[2]
    assert held.address <= data.address < held.address + held.size


@pytest.mark.parametrize(
    ("value", "seen"),
    [(b"\xff", b"\xff"), ("ä", "ä".encode()), (None, None), (5, b"5"), (True, b"true"), (1.5, b"1.5"), ([1], b"[1]")],
)
def test_header_value_becomes_bytes(value: object, seen: bytes | None) -> None:
    assert header_bytes(value) == seen


@pytest.mark.parametrize(
    "wrong",
    [
        run_of(5)._replace(offsets=BASE * 4),
        run_of(5)._replace(ids=BASE * 4),
        run_of(5)._replace(created_ms=bytes(8 * 6)),
        run_of(5, live=[[3, 3]]),
        run_of(5)._replace(batch=b"nothing"),
        run_of(5)._replace(batch=run_of(5).batch[:-1] + b"?"),
    ],
)
def test_a_malformed_piece_is_refused(wrong: Piece) -> None:
    with pytest.raises(ProtocolError):
        read([wrong])


@pytest.mark.parametrize(
    ("column", "cell", "says"), [(Column.PRIORITY, 2**31, "priority"), (Column.TENANT, b"\xff", "tenant")]
)
def test_a_rank_that_no_broker_takes_is_refused(column: int, cell: Any, says: str) -> None:
    piece = Piece(BASE, None, MS, None, encode({Column.VALUE: [b""], column: [cell]}))
    assert len(read([piece])) == 1
    with pytest.raises(ProtocolError, match=says):
        read([piece], extra=Extra(rank=True))


def test_headers_that_are_no_map_are_given_as_they_are() -> None:
    cells = [b"\x01", headers_pack({"a": 1}), b"", b"\x81\xa1a\x81\xa1b\xc1"]
    piece = Piece(BASE, None, MS, None, encode({Column.VALUE: [b""] * 4, Column.HEADERS: cells}))
    (batch,) = read([piece], 0, extra=Extra(headers=True))
    found = [[tuple(pair.values()) for pair in row] for row in batch.column("headers").to_pylist()]
    assert found == [[("headers", cells[0])], [("a", b"1")], [("headers", cells[2])], [("headers", cells[3])]]


def test_headers_of_any_bytes_make_a_row() -> None:
    cells = [*NO_HEADERS.values(), *HEADERS.values()]
    piece = Piece(BASE, None, MS, None, encode({Column.VALUE: [b""] * len(cells), Column.HEADERS: cells}))
    (batch,) = read([piece], 0, extra=Extra(headers=True, raw=True))
    assert batch.column("raw_headers").to_pylist() == cells
    for cell, row in zip(cells, batch.column("headers").to_pylist(), strict=True):
        found = [tuple(pair.values()) for pair in row]
        assert found == ([("headers", cell)] if cell in NO_HEADERS.values() else as_pairs(cell))


def as_pairs(cell: bytes) -> list[tuple[str, bytes | None]]:
    return [(key, header_bytes(value)) for key, value in headers_unpack(cell).items()]


@pytest.mark.parametrize("name", CELLS)
def test_values_and_keys_of_any_bytes_are_read_as_they_are(name: str) -> None:
    cell = CELLS[name]
    piece = Piece(BASE, None, MS, None, encode({Column.VALUE: [cell], Column.KEY: [cell]}))
    (batch,) = read([piece], 0)
    assert (batch.column("value").to_pylist(), batch.column("key").to_pylist()) == ([cell], [cell])
