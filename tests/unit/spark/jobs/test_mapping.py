"""Tests of the arguments and file names of the job schedule, before Spark is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import InvalidRequest, InvalidSetting, InvalidTime
from sandq.spark.jobs.files import OPEN_BYTES, SPLIT_BYTES, SPLITS, InputFile, cutting, kind_of, write_id_of
from sandq.spark.jobs.mapping import parse_pairs, row_mapping
from sandq.spark.jobs.schedule import Allowed
from sandq.spark.jobs.session import failure

GOOD = {"value": "body", "deliver_at": "at"}


def test_a_mapping_with_everything() -> None:
    found = row_mapping(
        {**GOOD, "key": "k", "unique_key": "k", "ttl_ms": "t", "header.a.b": "x"},
        default_delay="1h",
        time_zone="Europe/Vienna",
        on_conflict="replace",
    )
    assert found.columns == {**GOOD, "key": "k", "unique_key": "k", "ttl_ms": "t"}
    assert (found.headers, found.default_delay_ms) == ({"a.b": "x"}, 3_600_000)
    ranked = {**GOOD, "priority": "p", "tenant": "account"}
    assert row_mapping(ranked).columns == ranked


@pytest.mark.parametrize(
    ("mapping", "more", "said"),
    [
        ({}, {}, "value: either map"),
        ({"deliver_at": "at"}, {}, "value: either map"),
        (GOOD, {"value_json": ["a"]}, "value: either map"),
        ({"value": "v"}, {}, "time: map deliver_at=COLUMN"),
        ({**GOOD, "deliverat": "x"}, {}, "did you mean deliver_at"),
        ({**GOOD, "topic": "x"}, {}, "'topic' is no part of a message; there are value, key"),
        ({**GOOD, "header.": "x"}, {}, "neither may be empty"),
        ({**GOOD, "headers": "h", "header.x": "x"}, {}, "either one column with all headers"),
        ({**GOOD, **{f"header.{n}": "x" for n in range(101)}}, {}, "101 headers; 100 are allowed"),
        ({"deliver_at": "at"}, {"value_json": ["*", "a"]}, "name no other column with it"),
        ({"deliver_at": "at"}, {"value_json": ["a", ""]}, "a column without a name"),
        (GOOD, {"time_zone": "Wien"}, "time_zone: 'Wien' is not known"),
        (GOOD, {"time_zone": "../../etc/passwd"}, "is not known"),
        (GOOD, {"on_conflict": "reject"}, "it needs a unique_key"),
        ({**GOOD, "unique_key": "u"}, {"on_conflict": "keep"}, "one of ignore, replace, reject"[:6]),
        ({**GOOD, "unique_key": "u"}, {"on_conflict": "debounce"}, "one of reject, replace, ignore is expected"),
        ({**GOOD, "unique_key": "u"}, {"on_conflict": "throttle"}, "one of reject, replace, ignore is expected"),
    ],
)
def test_a_mapping_that_cannot_be(mapping: dict[str, str], more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        row_mapping(mapping, **more)
    assert said in caught.value.message


def test_every_mistake_is_reported() -> None:
    with pytest.raises(InvalidSetting) as caught:
        row_mapping({"valu": "v"}, time_zone="Wien")
    assert caught.value.message.count(";") >= 3 and "did you mean value" in caught.value.message
    with pytest.raises(InvalidTime):
        row_mapping(GOOD, default_delay="soon")


def test_pairs() -> None:
    assert parse_pairs(["value=a=b", "key=k"], "--map") == {"value": "a=b", "key": "k"}
    for bad in (["value"], ["=x"], ["value="], ["a=1", "a=2"]):
        with pytest.raises(InvalidRequest, match="--map: "):
            parse_pairs(bad, "--map")


def test_allowed_bad_rows_are_parsed() -> None:
    assert Allowed.parse(7).of(1) == Allowed.parse("7").of(10**9) == 7
    assert [Allowed.parse(text).of(1000) for text in ("0%", "0.5%", "100%")] == [0, 5, 1000]
    assert Allowed.parse("0.1%").of(999) == 0
    for bad in ("", "-1", "5 %", "101%", "1e3", "many", "%"):
        with pytest.raises(InvalidRequest, match="max_rejected"):
            Allowed.parse(bad)


def file(path: str, size: int = 10, modified_ms: int = 1) -> InputFile:
    return InputFile(path, size, modified_ms)


def test_a_format_by_names() -> None:
    for name, kind in (
        ("a.parquet", "parquet"),
        ("a.PQ", "parquet"),
        ("part-0.snappy.parquet", "parquet"),
        ("a.csv.gz", "csv"),
        ("a.json", "json"),
        ("a.jsonl.zst", "json"),
        ("a.ndjson", "json"),
    ):
        assert kind_of([file(f"file:/x.csv/{name}")]) == kind, name
    assert kind_of([file("a.txt")], "csv") == "csv"
    for names, said in (
        (["a.txt"], "a.txt: its name does not show"),
        (["noname"], "does not show"),
        (["a.csv", "b.parquet"], "several formats (a.csv, b.parquet)"),
        (["a.csv", "b"], "b: its name"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            kind_of([file(name) for name in names])
        assert said in caught.value.message
    with pytest.raises(InvalidRequest, match="format: one of"):
        kind_of([file("a.csv")], "orc")


def test_write_id_depends_on_topic_files_and_mapping() -> None:
    what = {"mapping": row_mapping(GOOD).record()}
    same = write_id_of("t", [file("a"), file("b")], what)
    assert same == write_id_of(
        "t", [file("a"), file("b")], {"mapping": row_mapping(dict(reversed(GOOD.items()))).record()}
    )
    others = [
        write_id_of("u", [file("a"), file("b")], what),
        write_id_of("t", [file("a")], what),
        write_id_of("t", [file("a", size=11), file("b")], what),
        write_id_of("t", [file("a", modified_ms=2), file("b")], what),
        write_id_of("t", [file("a"), file("c")], what),
        *(
            write_id_of("t", [file("a"), file("b")], {"mapping": row_mapping(mapping, **more).record()})
            for mapping, more in (
                ({**GOOD, "key": "k"}, {}),
                ({**GOOD, "value": "other"}, {}),
                ({**GOOD, "header.key": "k"}, {}),
                (GOOD, {"default_delay": "1s"}),
                (GOOD, {"time_zone": "UTC"}),
            )
        ),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_write_id_is_unchanged() -> None:
    """A later version that reruns a job must not send everything again."""
    found = write_id_of("t", [file("file:/in/a.csv", 17, 1_900_000_000_000)], {"mapping": row_mapping(GOOD).record()})
    assert found == "schedule-fb739f97da6fa16555c1387de353d852"


def test_files_are_cut_by_their_sizes_alone() -> None:
    small = cutting([file("a", 100)])
    assert small["spark.sql.files.maxPartitionBytes"] == str(SPLIT_BYTES)
    assert small["spark.sql.files.minPartitionNum"] == "1", "otherwise the number of cores counts"
    large = [file(f"f{n}", 4 * SPLIT_BYTES) for n in range(SPLITS)]
    bytes_each = int(cutting(large)["spark.sql.files.maxPartitionBytes"])
    assert sum(one.size + OPEN_BYTES for one in large) <= bytes_each * SPLITS, (
        "the broker can remember so few producers"
    )


def test_error_of_task_is_found_in_spark_error() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed\n  File x\n"
        "sandq.model.errors.DuplicateKey: unique key 'a' is taken\n\n\tat org.apache.spark.api.python.Runner"
    )
    assert failure(RuntimeError(text), "sending").message == "sending: unique key 'a' is taken"
    assert failure(RuntimeError("\n first\nsecond"), "sending").message == "sending: first"
    own = InvalidRequest("x")
    assert failure(own, "sending") is own
