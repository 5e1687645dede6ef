"""Tests of the sink's columns: their names, their effects, and errors that name the row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from sandq.client.producer.validation import MessageValidation
from sandq.errors import InvalidRequest, InvalidSetting
from sandq.model.headers import headers_pack, headers_unpack
from sandq.spark.sink.columns import Columns, RowErrors, check_columns
from sandq.spark.source import columns as source
from sandq.spark.source.options import Extra

LIMITS = {"message_bytes": 100, "key_bytes": 20, "headers_bytes": 30}
TIMES = pa.timestamp("us", tz="Europe/Vienna")
MS = 1_800_000_000_000


def read(first: int = 0, **columns: Any) -> dict[str, list[Any]]:
    batch = pa.record_batch({"value": [b"v"] * len(next(iter(columns.values()))), **columns})
    found = Columns(batch.schema.names, MessageValidation(LIMITS), RowErrors(3)).read(batch, first)
    assert found.schema.names == [*batch.schema.names, "size"]
    return {name: found.column(name).to_pylist() for name in found.schema.names}


def test_a_frame_with_all_columns() -> None:
    fields = [
        ("value", "binary"),
        ("key", "string"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("topic", "string"),
        ("partition", "int"),
        ("deliver_at", "timestamp"),
        ("delay_ms", "bigint"),
        ("ttl_ms", "bigint"),
        ("unique_key", "binary"),
        ("priority", "int"),
        ("tenant", "string"),
    ]
    assert check_columns(fields, None) == tuple(name for name, _ in fields)
    assert "topic" not in check_columns(fields, "t"), "the option wins over the column"


def test_rows_of_the_source_can_be_written() -> None:
    names = {"timestamp[us, tz=UTC]": "timestamp", "int32": "int"}
    extra = Extra(headers=True)
    fields = [(field.name, names.get(str(field.type), str(field.type))) for field in source.schema(extra)]
    fields[fields.index(("headers", str(source.HEADERS)))] = ("headers", "array<struct<key:string,value:binary>>")
    written = check_columns([*fields, ("state", "string"), ("attempts", "int")], None)
    assert written == ("key", "value", "topic", "partition", "headers", "deliver_at")
    names |= {"int64": "bigint"}
    extra = Extra(raw=True, rank=True)
    fields = [(field.name, names.get(str(field.type), str(field.type))) for field in source.schema(extra)]
    written = check_columns(fields, None)
    assert written == (
        "key",
        "value",
        "topic",
        "partition",
        "deliver_at",
        "raw_headers",
        "ttl_ms",
        "priority",
        "tenant",
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([("key", "binary")], "value: the column is missing"),
        (
            [("value", "binary"), ("headers", "map<string,string>"), ("raw_headers", "binary")],
            "raw_headers: there is also a column headers; drop one of them",
        ),
        ([("value", "int")], "value: the type binary or string is expected, not int; cast it"),
        ([("values", "binary")], "values: no such column; there are value, key, headers, raw_headers, topic, "),
        (
            [("value", "binary"), ("deliver_at", "timestamp_ntz")],
            "deliver_at: the type timestamp or bigint is expected",
        ),
        ([("value", "binary"), ("headers", "map<string,int>")], "headers: the type "),
        ([("value", "binary"), ("value", "binary")], "value: there are two columns of this name"),
        ([("value", "binary"), ("priority", "string")], "priority: the type bigint or int or smallint or tinyint is"),
        ([("value", "binary"), ("tenant", "binary")], "tenant: the type string is expected, not binary; cast it"),
    ],
)
def test_a_frame_that_cannot_be_written(fields: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        check_columns(fields, "t")
    assert says in refused.value.message
    with pytest.raises(InvalidSetting, match="topic: neither the option nor the column is given"):
        check_columns(fields, None)
    assert check_columns([("value", "varchar(10)"), ("key", "char(3)")], "t") == ("value", "key")


def test_times_are_rounded_up() -> None:
    instants = [datetime(2030, 1, 1, 0, 0, 0, micros, UTC) for micros in (0, 1, 999, 1000, 1001)]
    found = read(deliver_at=pa.array([*instants, None], TIMES))["deliver_at"]
    first = int(instants[0].timestamp() * 1000)
    assert found == [first, first + 1, first + 1, first + 1, first + 2, None]
    assert read(deliver_at=pa.array([MS, None], pa.int64()))["deliver_at"] == [MS, None]
    found = read(delay_ms=pa.array([0, None], pa.int32()), ttl_ms=pa.array([1, None], pa.int64()))
    assert (found["delay_ms"], found["ttl_ms"]) == ([0, None], [1, None])


def test_text_is_utf_8_and_sizes_are_bytes() -> None:
    columns = {"value": pa.array(["ä", None, ""]), "key": pa.array(["k", None, None], pa.large_string())}
    found = read(**columns, unique_key=pa.array([b"k", None, None]))
    assert found["value"] == ["ä".encode(), None, b""]
    assert found["size"] == [32 + 2 + 1 + 1, 32, 32]


@pytest.mark.parametrize("kind", ["map", "array"])
def test_headers(kind: str) -> None:
    rows: list[list[tuple[str, Any]] | None] = [[("a", b"1"), ("b", None)], None, [], [("a", b"1"), ("b", None)]]
    if kind == "map":
        headers = pa.array(rows, pa.map_(pa.string(), pa.binary()))
    else:
        structs = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
        headers = pa.array(structs, source.HEADERS)
    found = read(headers=headers)["headers"]
    assert [headers_unpack(cell) for cell in found] == [{"a": b"1", "b": None}, {}, {}, {"a": b"1", "b": None}]
    assert found[1] is found[2] is None
    text = read(headers=pa.array([[("a", "1")], [("a", "2")]], pa.map_(pa.string(), pa.string())))["headers"]
    assert [headers_unpack(cell) for cell in text] == [{"a": "1"}, {"a": "2"}]


BAD = [
    ({"value": ["v", "v" * 101]}, "value: 101 bytes; 100 is the limit (message_bytes)"),
    ({"key": ["k", "k" * 21]}, "key: 21 bytes; 20 is the limit (key_bytes)"),
    ({"unique_key": ["u", "u" * 1025]}, "unique_key: 1025 bytes; 1024 is the limit (unique_key_bytes)"),
    ({"unique_key": ["u", ""]}, "unique_key: it is empty"),
    ({"priority": pa.array([0, 2**31])}, "priority: 2147483648 is not within -2147483648..2147483647"),
    ({"priority": pa.array([None, -(2**31) - 1])}, "priority: -2147483649 is not within"),
    ({"tenant": ["acme", "a b"]}, "tenant: 'a b' is not allowed; the rule: 1 to 8 names of"),
    ({"tenant": [None, ""]}, "tenant: '' is not allowed"),
    ({"tenant": ["a.b.c.d.e.f.g.h", "a.b.c.d.e.f.g.h.i"]}, "tenant: 'a.b.c.d.e.f.g.h.i' is not allowed"),
    ({"tenant": ["a", "x" * 256]}, "(256 characters) is not allowed"),
    ({"partition": [0, -1]}, "partition: it must not be negative"),
    ({"topic": ["t", None]}, "topic: it is null"),
    ({"deliver_at": pa.array([None, 1_800_000_000])}, "deliver_at: 1800000000 ms looks like seconds"),
    ({"deliver_at": pa.array([MS, 2**48])}, "deliver_at: it is after the last possible time, 281474976710655 ms"),
    ({"deliver_at": pa.array([None, -1], TIMES)}, "deliver_at: 0 ms is before March 1973"),
    ({"delay_ms": pa.array([0, -1])}, "delay_ms: -1 is not within 0..140737488355328"),
    ({"delay_ms": pa.array([0, 2**62])}, "delay_ms: 4611686018427387904 is not within"),
    ({"ttl_ms": pa.array([1, 0])}, "ttl_ms: 0 is not within 1.."),
    ({"deliver_at": pa.array([MS, MS]), "delay_ms": pa.array([None, 5])}, "delay_ms: deliver_at is set as well"),
    ({"headers": pa.array([[], [("a", b"x" * 40)]], pa.map_(pa.string(), pa.binary()))}, "headers: 45 bytes, 30 are"),
    ({"headers": pa.array([[], [("a", b"1"), ("a", b"2")]], pa.map_(pa.string(), pa.binary()))}, "a name occurs twice"),
    ({"headers": pa.array([[], [None]], source.HEADERS)}, "headers: a key must be a string"),
]


@pytest.mark.parametrize(("columns", "says"), BAD, ids=[says[:30] for _, says in BAD])
def test_a_bad_row_is_named(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(1000, **columns)
    assert refused.value.message.startswith("sandq sink: row 1001 of Spark partition 3 (both from 0), column ")
    assert says in refused.value.message
    assert refused.value.details["row"] == 1001


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()])
def test_priorities_and_tenants(kind: pa.DataType) -> None:
    found = read(priority=pa.array([-3, None, 7, 0], kind), tenant=["acme", None, "acme.eu", "acme"])
    assert (found["priority"], found["tenant"]) == ([-3, None, 7, 0], [b"acme", None, b"acme.eu", b"acme"])
    assert found["size"] == [32 + 1 + length for length in (4, 0, 7, 4)]


def test_many_headers_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.spark.sink.columns.HEADERS_KEPT_BYTES", 1200)
    rows = [[("a", b"%d" % (number % 7))] for number in range(50)]
    batch = pa.record_batch({"value": [b"x"] * 50, "headers": pa.array(rows, pa.map_(pa.string(), pa.binary()))})
    columns = Columns(batch.schema.names, MessageValidation({}), RowErrors(0))
    found = columns.read(batch, 0).column("headers").to_pylist()
    assert [headers_unpack(cell)["a"] for cell in found] == [row[0][1] for row in rows]
    assert len(columns._headers) <= 3


def test_raw_headers_are_written_as_they_are() -> None:
    cells = [b"\x81\xa1n\x07", None, b"\x80"]
    batch = pa.record_batch({"value": [b"1", b"2", b"3"], "raw_headers": pa.array(cells, pa.binary())})
    found = Columns(batch.schema.names, MessageValidation({}), RowErrors(0)).read(batch, 0)
    assert found.column("headers").to_pylist() == cells and "raw_headers" not in found.schema.names
    for cell, says in (
        (b"\xff\xff", "row 1 .* column raw_headers: not msgpack"),
        (b"\x07", "row 1 .* column raw_headers: a map"),
        (headers_pack({"n": bytes(100_000)}, max_bytes=1 << 20), "row 1 .* column headers: 100008 bytes"),
    ):
        wrong = pa.record_batch({"value": [b"1", b"2"], "raw_headers": [b"\x80", cell]})
        with pytest.raises(InvalidRequest, match=says):
            Columns(wrong.schema.names, MessageValidation({}), RowErrors(0)).read(wrong, 0)
