"""The job prepares rows before it sends them: it reads files, and parses times by the common grammar."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sandq.client.producer.validation import MessageValidation
from sandq.model.errors import InvalidRequest, InvalidSetting, InvalidTime
from sandq.model.times import instant_ms
from sandq.spark.jobs.checking import check, own_session
from sandq.spark.jobs.files import cutting, find_files
from sandq.spark.jobs.instants import instant, wrong_instant
from sandq.spark.jobs.mapping import row_mapping
from sandq.spark.jobs.origins import Field, Origin, read_files
from sandq.spark.jobs.rows import as_bytes, messages

LIMITS = MessageValidation({})
TEXTS = [
    *("2030-01-31T08:00:00Z", "2030-01-31t08:00:00z", "2030-01-31 08:00:00+01:00", "2030-01-31T08:00:00-11:30"),
    *("2030-01-31T08:00:00.0001Z", "2030-01-31T08:00:00.001Z", "2030-01-31T08:00:00.0010000001Z"),
    *("2030-01-31T08:00:00.123456789012Z", "2030-01-31T23:59:59.9999999Z", "1969-12-31T23:59:59Z"),
    *("1900000000000", "1900000000", "99999999999", "100000000000", "281474976710655", "281474976710656", "0"),
    *("2030-02-30T00:00:00Z", "2030-01-31T24:00:00Z", "2030-01-31T08:00Z", "2030-01-31", "2030", "tomorrow", "-5"),
    *("1900000000000.0", "1.9e12", "08:00:00Z", "2030-01-31T08:00:00 Europe/Vienna", "2030-1-1T00:00:00Z", ""),
    *("999999999999999999", "9" * 30, "9999-12-31T23:59:59.9999Z", "2030-01-31T08:00:00+0100"),
]


def expected(text: str) -> int | None:
    try:
        return instant_ms(text)
    except InvalidTime:
        return None


def test_texts_are_read_as_everywhere(spark: Any) -> None:
    """The job parses times as `sandq.model.times` does."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    some = [
        f"{datetime(2030, 1, 1) + timedelta(microseconds=chance.randrange(10**15)):%Y-%m-%dT%H:%M:%S}"
        f".{chance.randrange(10 ** chance.randrange(1, 10)):0{chance.randrange(1, 9)}d}"
        f"{chance.choice(['Z', '+14:00', '-09:30', '+00:00'])}"
        for _ in range(200)
    ]
    from pyspark.sql import functions as F

    own = own_session(spark, {})
    frame = own.createDataFrame([(text,) for text in TEXTS + some], "text string")
    field = Field(F.col("text"), "string")
    wrong = wrong_instant(field, F.col("ms"), None).values()
    bad = F.coalesce(*(F.when(failed, F.lit(True)) for failed in wrong), F.lit(False))
    rows = frame.withColumn("ms", instant(field, None)).select("text", "ms", bad.alias("bad")).collect()
    assert len(rows) == len(TEXTS) + len(some)
    for row in rows:
        ms = expected(row.text)
        assert row.bad is (ms is None) and (row.bad or row.ms == ms), (seed, row, ms)


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2030-01-31 08:00:00", "2030-01-31T07:00:00Z"),
        ("2030-07-01T08:00:00.5", "2030-07-01T06:00:00.5Z"),
        ("2030-03-31 02:30:00", "2030-03-31T01:30:00Z"),  # in the gap of a change forward: moved on by its length
        ("2030-10-27 02:30:00", "2030-10-27T00:30:00Z"),  # ambiguous after a change back: the first of the two
        ("2030-01-31T08:00:00Z", "2030-01-31T08:00:00Z"),
    ],
)
def test_local_times(spark: Any, text: str, utc: str) -> None:
    from pyspark.sql import functions as F

    own = own_session(spark, {})
    frame = own.createDataFrame([(text,)], "text string")
    columns = {"string": F.col("text")}
    if "Z" not in text:
        columns["timestamp_ntz"] = F.to_timestamp_ntz("text")
    for kind, column in columns.items():
        found = instant(Field(column, kind), "Europe/Vienna")
        assert frame.select(found).collect()[0][0] == instant_ms(utc), kind


def test_time_stamps_are_rounded_up_and_dates_are_midnights(spark: Any) -> None:
    from pyspark.sql import functions as F

    own = own_session(spark, {})
    frame = own.createDataFrame([("2030-01-31 08:00:00.000001Z", "2030-07-01")], "at string, day string")
    at = instant(Field(F.to_timestamp("at"), "timestamp"), None)
    day = instant(Field(F.to_date("day"), "date"), "Europe/Vienna")
    row = frame.select(at, day).collect()[0]
    assert (row[0], row[1]) == (instant_ms("2030-01-31T08:00:00.001Z"), instant_ms("2030-06-30T22:00:00Z"))
    for kind in ("timestamp_ntz", "date", "double", "boolean", "struct<a:int>"):
        with pytest.raises(InvalidSetting):
            instant(Field(F.col("at"), kind), None)


def origin_of(spark: Any, path: Path, kind: str, **options: str) -> Origin:
    return read_files(own_session(spark, {}), [path.as_uri().replace("%20", " ")], kind, options)


def made(origin: Origin, mapping: dict[str, str], *value_json: str) -> dict[str, Any]:
    """Return the message of the first row."""
    found = messages(origin, row_mapping(mapping, value_json=value_json), LIMITS)
    return found.frame.select(*(column.alias(name) for name, column in found.columns.items())).first().asDict(True)


def test_values_of_every_type(spark: Any, tmp_path: Path) -> None:
    at = pa.array([datetime(2030, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    headers = pa.array([[("k", b"\x01")]], pa.map_(pa.string(), pa.binary()))
    table = pa.table(
        {
            **{"at": at, "bytes": pa.array([b"\xff\x00"]), "text": ["ü"], "n": [17], "yes": [True], "x": [1.5]},
            **{"one": [{"a": 1, "b": [{"c": "d"}]}], "map": headers, "dotted.name": ["dotted"]},
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    origin = origin_of(spark, tmp_path / "a.parquet", "parquet")
    expected = {
        **{"bytes": b"\xff\x00", "text": "ü".encode(), "n": b"17", "yes": b"true", "X": b"1.5", "one.a": b"1"},
        **{"one": b'{"a":1,"b":[{"c":"d"}]}', "dotted.name": b"dotted"},
    }
    fields = [as_bytes(origin.field(name)).alias(f"f{at}") for at, name in enumerate(expected)]
    assert [bytes(value) for value in origin.frame.select(*fields).first()] == list(expected.values())
    found = made(origin, {"deliver_at": "at", "headers": "map"}, "n", "one", "bytes")
    assert found == {
        "value": b'{"n":17,"one":{"a":1,"b":[{"c":"d"}]},"bytes":"/wA="}',
        "headers": {"k": b"\x01"},
        "deliver_at": instant_ms("2030-01-01T00:00:00Z"),
    }
    found = made(origin, {"value": "n", "deliver_at": "at", "header.n": "n", "header.t": "text"})
    assert found["headers"] == {"n": "17", "t": "ü"}
    for mapping in ({"value": "nosuch"}, {"value": "text.part"}, {"value": "text", "headers": "text"}):
        with pytest.raises(InvalidSetting):
            messages(origin, row_mapping({"deliver_at": "at", **mapping}), LIMITS)


def test_documents_keep_types_and_bytes(spark: Any, tmp_path: Path) -> None:
    line = '{"at": "2030-01-01T00:00:00Z", "a": {"b": [1, "x", null]}, "s": "17", "n": 17, "it\'s": "q"}'
    (tmp_path / "a.json").write_text(f"{line}\r\n\r\n  \n{line}")
    origin, mapping = origin_of(spark, tmp_path / "a.json", "json"), {"deliver_at": "at"}
    assert origin.frame.count() == 2
    assert made(origin, mapping, "*")["value"].decode() == line
    found = made(origin, mapping, "a", "s", "n", "none")
    assert found["value"] == b'{"a":{"b":[1,"x",null]},"s":"17","n":17,"none":null}'
    expected = {"a.b": b'[1,"x",null]', "s": b"17", "it's": b"q"}
    fields = [as_bytes(origin.field(name)).alias(f"f{at}") for at, name in enumerate(expected)]
    assert [bytes(value) for value in origin.frame.select(*fields).first()] == list(expected.values())
    with pytest.raises(InvalidSetting, match="no row has the field 'k'"):
        check(spark, "t", [str(tmp_path / "a.json")], row_mapping({**mapping, "value": "s", "key": "k"}), LIMITS)


def test_files_are_found_sorted_once_and_only_those_that_spark_reads(spark: Any, tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "_SUCCESS", ".hidden.csv", "sub/c.csv", "_tmp/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    found = find_files(spark, [str(tmp_path), str(tmp_path / "a.csv"), f"{tmp_path}/?.csv"])
    assert [file.path.rpartition("/")[2] for file in found] == ["a.csv", "b.csv", "c.csv"]
    assert all(file.size == 4 and file.modified_ms > 0 for file in found)
    for bad in (tmp_path / "nosuch", tmp_path / "*.parquet", tmp_path / "_tmp" / "sub", "nosuch://x/y"):
        with pytest.raises(InvalidRequest, match=r"there is no file|cannot be listed"):
            find_files(spark, [str(bad)])


def test_rows_get_the_same_partitions_in_any_session(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions depend neither on the session of the caller nor on the number of cores."""
    from pyspark.sql import functions as F

    monkeypatch.setattr("sandq.spark.jobs.files.SPLIT_BYTES", 20_000)
    monkeypatch.setattr("sandq.spark.jobs.files.OPEN_BYTES", 1_000)
    for name in "cab":
        (tmp_path / f"{name}.json").write_text("".join(f'{{"n": "{name}{number}"}}\n' for number in range(5000)))
    files = find_files(spark, [str(tmp_path)])
    seen = []
    for most, cores in (("1000", "1"), ("128m", "50")):
        caller = spark.newSession()
        caller.conf.set("spark.sql.files.maxPartitionBytes", most)
        own = own_session(caller, cutting(files))
        own.conf.set("spark.sql.leafNodeDefaultParallelism", cores)
        frame = read_files(own, [file.path for file in files], "json").frame
        seen.append(frame.select(F.spark_partition_id(), "_sandq_line").collect())
    assert seen[0] == seen[1] and len(seen[0]) == 15_000 and len({row[0] for row in seen[0]}) > 8


def test_options_of_the_reader(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v;at\nx;1900000000000\n")
    found = made(origin_of(spark, tmp_path / "a.csv", "csv", sep=";"), {"value": "v", "deliver_at": "at"})
    assert found["value"] == b"x"
    for name in ("mode", "HEADER", "ignoreCorruptFiles", "modifiedAfter"):
        with pytest.raises(InvalidSetting, match="cannot be set here"):
            origin_of(spark, tmp_path / "a.csv", "csv", **{name: "x"})
