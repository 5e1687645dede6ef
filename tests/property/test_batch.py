from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.batch import Batch, Column, encode, headers_pack, headers_unpack, peek, plain_single
from sandq.model.errors import InvalidRequest
from tests.support.examples import examples

BYTES = (Column.VALUE, Column.KEY, Column.HEADERS, Column.TENANT, Column.UNIQUE_KEY)
TIMES = (Column.DELIVER_MS, Column.TTL_MS)
INTS = (Column.PRIORITY, Column.ORDERING_HASH)

CELLS: dict[int, st.SearchStrategy[Any]] = {
    **{column: st.none() | st.binary(max_size=12) for column in BYTES},
    **{column: st.none() | st.integers(0, 2**48 - 1) for column in TIMES},
    **{column: st.none() | st.integers(-(2**63), 2**63 - 1) for column in INTS},
    200: st.binary(max_size=3),
    40_000: st.integers(-(2**63), 2**63 - 1),
}


@st.composite
def columns_of(draw: st.DrawFn) -> dict[int, list[Any]]:
    count = draw(st.integers(1, 20))
    ids = draw(st.sets(st.sampled_from(sorted(CELLS)))) | {Column.VALUE}
    return {column: draw(st.lists(CELLS[column], min_size=count, max_size=count)) for column in ids}


def read(batch: Batch) -> dict[int, list[Any]]:
    read = {}
    for column in batch.columns:
        cells = batch.bytes_column(column) or batch.int_column(column)  # the batch stores the type of each column
        assert cells is not None
        read[int(column)] = list(cells)
    return read


def expected(columns: dict[int, list[Any]]) -> dict[int, list[Any]]:
    kept = {c: cells for c, cells in columns.items() if c == Column.VALUE or cells.count(None) < len(cells)}
    return {int(column): list(cells) for column, cells in kept.items()}


@given(columns_of())
def test_cells_at_returns_the_column_values_of_a_message(columns: dict[int, list[Any]]) -> None:
    batch = Batch.parse(encode(columns))
    cells = read(batch)
    for position in range(batch.count):
        expected = {column: cells[column][position] for column in cells if cells[column][position] is not None}
        assert batch.cells_at(position) == expected


@settings(max_examples=examples(200), deadline=None)
@given(columns_of(), st.booleans(), st.booleans())
def test_round_trip(columns: dict[int, list[Any]], relative: bool, compress: bool) -> None:
    data = encode(columns, relative=relative, compress=compress)
    batch = Batch.parse(data)
    assert read(batch) == expected(columns)
    assert list(batch.columns) == sorted(batch.columns)
    times = [time or 0 for time in columns.get(Column.DELIVER_MS, [])] or [0]
    assert peek(data) == (batch.count, int(relative), min(times), max(times), len(data))
    assert (batch.min_deliver_ms, batch.max_deliver_ms, batch.relative) == (min(times), max(times), relative)
    assert len(data) % 8 == 0 or compress
    assert encode(read(batch), relative=relative) == encode(columns, relative=relative)


@settings(max_examples=examples(150), deadline=None)
@given(columns_of(), st.booleans(), st.data())
def test_takes_and_slices_are_python_lists(columns: dict[int, list[Any]], compress: bool, data: st.DataObject) -> None:
    batch = Batch.parse(encode(columns, relative=True, compress=compress))
    positions = data.draw(st.lists(st.integers(0, batch.count - 1), min_size=1, max_size=30))
    taken = batch.take(positions)
    picked = {column: [cells[at] for at in positions] for column, cells in columns.items()}
    assert taken == encode(picked, relative=True)
    start = data.draw(st.integers(0, batch.count - 1))
    stop = data.draw(st.integers(start + 1, batch.count))
    cut = batch.slice(start, stop)
    if stop - start < batch.count:
        assert cut == encode({c: cells[start:stop] for c, cells in columns.items()}, relative=True)
        assert cut == batch.take(range(start, stop))
    assert read(Batch.parse(cut)) == expected({c: cells[start:stop] for c, cells in columns.items()})


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    for function in (Batch.parse, peek):
        try:
            function(data)
        except InvalidRequest:
            continue
        pytest.fail(f"random bytes made a batch: {data!r}")


@settings(max_examples=examples(300), deadline=None)
@given(columns_of(), st.booleans(), st.data())
def test_bytes_changed_under_a_good_crc_parse_or_are_refused(
    columns: dict[int, list[Any]], compress: bool, data: st.DataObject
) -> None:
    """A batch of an attacker, with changed bytes and a correct checksum, is parsed or rejected."""
    import google_crc32c

    raw = bytearray(encode(columns, compress=compress))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw[4:8] = google_crc32c.value(bytes(raw[8:])).to_bytes(4, "little")
    try:
        batch = Batch.parse(bytes(raw))
    except InvalidRequest:
        return
    cells = read(batch)
    assert all(len(column) == batch.count for column in cells.values())
    assert read(Batch.parse(batch.take(range(batch.count)))) == expected(cells)


@settings(max_examples=examples(100), deadline=None)
@given(columns_of(), st.booleans(), st.randoms(use_true_random=False))
def test_flipped_and_cut_bits_are_found(columns: dict[int, list[Any]], compress: bool, rng: random.Random) -> None:
    raw = encode(columns, compress=compress)
    for _ in range(10):
        damaged = bytearray(raw)
        bit = rng.randrange(8 * len(raw))
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidRequest):
            Batch.parse(bytes(damaged))
    for changed in (raw[: rng.randrange(len(raw))], raw + b"\x00"):
        with pytest.raises(InvalidRequest):
            Batch.parse(changed)


def wrapped(batch: Batch, column: int, kind: pa.DataType) -> pa.Array:
    validity, offsets, data = batch.buffers(column)
    buffers = [None if validity is None else pa.py_buffer(validity)]
    if len(offsets):
        buffers.append(pa.py_buffer(offsets))
    return pa.Array.from_buffers(kind, batch.count, [*buffers, pa.py_buffer(data)])


@settings(max_examples=examples(60), deadline=None)
@given(columns_of())
def test_arrow_wraps_columns_without_a_copy(columns: dict[int, list[Any]]) -> None:
    batch = Batch.parse(encode(columns))
    begin = pa.py_buffer(batch.raw).address
    for column, cells in expected(columns).items():
        array = wrapped(batch, column, pa.binary() if column in (*BYTES, 200) else pa.int64())
        array.validate(full=True)
        assert array.to_pylist() == cells
        assert array.null_count == cells.count(None)
        for buffer in array.buffers():
            if buffer is not None and buffer.size:
                assert begin <= buffer.address <= begin + len(batch.raw) - buffer.size
                assert buffer.address % 8 == 0


def test_arrow_wraps_a_view_of_a_frame() -> None:
    frame = b"xyz" + encode({Column.VALUE: [b"a", b"bc"], Column.PRIORITY: [1, 2]}) + b"more"
    batch = Batch.parse(memoryview(frame)[3:-4])
    array = wrapped(batch, Column.VALUE, pa.binary())
    assert array.to_pylist() == [b"a", b"bc"]
    assert all(buffer.address % 8 == 0 for buffer in array.buffers() if buffer is not None)


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.text(), SCALARS, max_size=5))
def test_headers_round_trip(headers: dict[str, Any]) -> None:
    packed = headers_pack(headers)
    assert headers_unpack(packed) == headers
    assert (packed is None) == (not headers)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_headers_or_are_refused(cell: bytes) -> None:
    try:
        headers = headers_unpack(cell)
    except InvalidRequest:
        return
    assert all(isinstance(key, str) for key in headers)


@given(st.binary(max_size=40))
def test_a_plain_single_is_one_that_parses(value: bytes) -> None:
    raw = encode({Column.VALUE: [value]})
    assert plain_single(raw) == len(value)
    assert Batch.parse(raw).values() == [value]


@given(st.binary(min_size=1, max_size=20), st.data())
def test_a_changed_single_is_left_to_the_parser(value: bytes, data: st.DataObject) -> None:
    raw = bytearray(encode({Column.VALUE: [value]}))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert plain_single(bytes(raw)) is None


@given(st.binary(max_size=200))
def test_other_batches_are_not_taken_for_a_plain_single(raw: bytes) -> None:
    assert plain_single(raw) is None
    for other in (
        encode({Column.VALUE: [None]}),
        encode({Column.VALUE: [b"a", b"b"]}),
        encode({Column.VALUE: [b"a"], Column.KEY: [b"k"]}),
        encode({Column.VALUE: [b"a"], Column.DELIVER_MS: [5]}),
        encode({Column.VALUE: [b"a" * 1000]}, compress=True),
        encode({Column.VALUE: [raw]}) + b"\0",
    ):
        assert plain_single(other) is None
