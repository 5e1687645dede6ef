"""Tests of the partition of a row, and of rows that a topic does not accept."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from sandq.errors import InvalidRequest, UnknownTopic
from sandq.model.partitioning import partition_for
from sandq.protocol.replies import TopicRecord
from sandq.spark.sink.columns import RowErrors
from sandq.spark.sink.partitioner import Router, Target
from tests.support.spark.sink_bed import record


def split(
    rows: Any, *topics: TopicRecord, topic: str | None = "t", partition: int = 0, first: int = 0
) -> list[tuple[Target, list[Any]]]:
    """Return the targets and the values of their rows."""
    records = {one.name: one for one in topics or (record(),)}
    router = Router(topic, records.__getitem__, partition, RowErrors(partition))
    return [(target, part.column("value").to_pylist()) for target, part in router.split(rows, first)]


def table(**columns: Any) -> Any:
    count = len(next(iter(columns.values())))
    kinds = {"partition": pa.int32(), "delay_ms": pa.int64(), "deliver_at": pa.int64(), "topic": pa.string()}
    kinds |= {"priority": pa.int64()}
    made = {name: pa.array(cells, kinds.get(name, pa.binary())) for name, cells in columns.items()}
    return pa.record_batch({"value": pa.array([b"%d" % place for place in range(count)]), **made})


def test_rows_are_partitioned_by_key() -> None:
    keys = [b"key %d" % (place % 40) for place in range(400)]
    found = split(table(key=keys), record(7))
    assert {target.partition for target, _ in found} == {partition_for(key, 7) for key in keys}
    for target, values in found:
        assert values == [b"%d" % place for place, key in enumerate(keys) if partition_for(key, 7) == target.partition]


def test_partition_by_option_then_by_key_then_round_robin() -> None:
    rows = table(partition=[2, None, None, 0], key=[b"a", b"a", None, None])
    found = {value: target.partition for target, values in split(rows, record(3), partition=7) for value in values}
    assert found == {b"0": 2, b"1": partition_for(b"a", 3), b"2": 7 % 3, b"3": 0}
    unique = table(partition=[None, None], key=[b"b", None], unique_key=[b"b", b"a"])
    found = {value: target.partition for target, values in split(unique, record(3)) for value in values}
    assert found == {b"0": partition_for(b"b", 3), b"1": partition_for(b"a", 3)}


@pytest.mark.parametrize("topic", [record(3), record(5, initial=3), record(3, kind="priority")])
def test_key_chooses_before_the_unique_key(topic: TopicRecord) -> None:
    keys = [None if place % 3 == 0 else b"key %d" % (place % 7) for place in range(40)]
    unique = [None if place % 5 == 0 else b"u%d" % place for place in range(40)]
    rows = table(key=keys, unique_key=unique)
    found = {value: target.partition for target, values in split(rows, topic) for value in values}
    for place, (key, unique_key) in enumerate(zip(keys, unique, strict=True)):
        by = unique_key if key is None else key
        assert found[b"%d" % place] == (0 if by is None else partition_for(by, 3))
    asked = [None if place % 2 else found[b"%d" % place] for place in range(40)]
    assert split(table(key=keys, unique_key=unique, partition=asked), topic) == split(rows, topic)
    alone = (partition_for(b"a", 3) + 1) % 3
    ((target, _),) = split(table(key=[b"a"], unique_key=[None], partition=[alone]), topic)
    assert target.partition == alone, "a key alone does not bind a row to a partition"


def test_blocks_go_round_robin() -> None:
    router = Router("t", lambda name: record(3), 4, RowErrors(4))
    found = [target.partition for _ in range(5) for target, _ in router.split(table(key=[None, None]), 0)]
    assert found == [1, 2, 0, 1, 2], "from the index of the Spark partition on"


def test_more_partitions_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rows = table(key=[b"key %d" % place for place in range(50)] + [None])
    before = split(rows, record(4), partition=3)
    with caplog.at_level(logging.WARNING, "sandq.spark"):
        assert split(rows, record(9, initial=4), partition=3) == before
    assert "topic t has 9 partitions and was created with 4" in caplog.text
    ((target, _),) = split(table(partition=[8]), record(9, initial=4))
    assert target.partition == 8


def test_delays_go_apart() -> None:
    found = split(table(delay_ms=[5, None, 0, None], deliver_at=[None, 10**12, None, None]))
    assert found == [(Target("t", 0, False), [b"1", b"3"]), (Target("t", 0, True), [b"0", b"2"])]


def test_topics_by_the_column() -> None:
    rows = table(topic=["a", "b", "a", "b"], partition=[1, 0, 0, 0])
    found = split(rows, record(2, name="a"), record(1, name="b"), topic=None)
    assert found == [
        (Target("a", 0, False), [b"2"]),
        (Target("a", 1, False), [b"0"]),
        (Target("b", 0, False), [b"1", b"3"]),
    ]


def test_a_topic_is_asked_for_once() -> None:
    asked: list[str] = []

    def ask(name: str) -> TopicRecord:
        asked.append(name)
        if name == "none":
            raise UnknownTopic("there is none")
        return record(name=name)

    router = Router(None, ask, 0, RowErrors(0))
    for _ in range(3):
        assert len(list(router.split(table(topic=["a", "b", "a"]), 0))) == 2
    assert asked == ["a", "b"]
    with pytest.raises(UnknownTopic):
        list(router.split(table(topic=["none"]), 0))


COMPACTED = record(3, kind="compacted")


def test_keys_of_a_compacted_topic() -> None:
    rows = table(key=[b"a", b"b"], partition=[None, partition_for(b"b", 3)])
    rows = rows.set_column(0, "value", pa.array([b"1", None]))
    found = {value: target.partition for target, values in split(rows, COMPACTED) for value in values}
    assert found == {b"1": partition_for(b"a", 3), None: partition_for(b"b", 3)}


FAIR = record(3, kind="fair")
PRIORITY = record(3, kind="priority")
TENANTS = [b"acme", b"acme.eu", None, b"shop", b"default"]


def test_only_the_tenant_selects_the_partition_in_a_fair_topic() -> None:
    """The initial partitions of the topic decide. A key may differ from the unique key."""
    rows = table(tenant=TENANTS, key=[b"k"] * 5, unique_key=[b"u", None, b"v", None, b"w"])
    places = [partition_for(tenant or b"default", 3) for tenant in TENANTS]
    assert len(set(places)) > 1
    for topic in (FAIR, record(5, kind="fair", initial=3)):
        found = {value: target.partition for target, values in split(rows, topic) for value in values}
        assert found == {b"%d" % at: place for at, place in enumerate(places)}
        named = rows.append_column("partition", pa.array([None, *places[1:]], pa.int32()))
        assert split(named, topic) == split(rows, topic)


def test_priorities_choose_nothing() -> None:
    plain, ranked = table(key=[b"a", b"b", None]), table(key=[b"a", b"b", None], priority=[1, None, -1])
    assert split(ranked, PRIORITY) == split(plain, PRIORITY)
    assert split(ranked.append_column("tenant", pa.nulls(3, pa.binary())), PRIORITY) == split(plain, PRIORITY)


def test_nulls_are_of_no_rank() -> None:
    """Rows that were read from a timer topic with `includeRank` can be written to a timer topic."""
    rows = table(key=[b"a", b"b"], priority=[None, None], tenant=[None, None])
    for topic in (record(3), COMPACTED):
        assert sum(len(values) for _, values in split(rows, topic)) == 2


def test_rows_without_a_tenant_are_of_the_default_one() -> None:
    place = partition_for(b"default", 3)
    rows = table(key=[b"a", None, b"b"], unique_key=[None, b"u", b"c"], partition=[None, None, place])
    assert {target.partition for target, _ in split(rows, FAIR)} == {place}
    assert {target.partition for target, _ in split(table(key=[None, b"x"]), FAIR)} == {place}


BAD = [
    (FAIR, {"partition": [None, (partition_for(b"default", 3) + 1) % 3]}, "row's tenant belongs to"),
    (
        FAIR,
        {"partition": [None, (partition_for(b"acme", 3) + 1) % 3], "tenant": [None, b"acme"]},
        "row's tenant belongs to",
    ),
    (PRIORITY, {"tenant": [None, b"acme"]}, "tenant: 't' is a priority topic; only fair topics accept it"),
    (record(3), {"tenant": [None, b"acme"]}, "tenant: 't' is a timer topic; only fair topics accept it"),
    (
        record(3),
        {"priority": [None, 0]},
        "priority: 't' is a timer topic; only priority or fair topics accept it",
    ),
    (
        COMPACTED,
        {"key": [b"a", b"b"], "priority": [None, 1]},
        "priority: 't' is a compacted topic; only priority or fair topics accept it",
    ),
    (
        PRIORITY,
        {
            "partition": [None, 1 - partition_for(b"k", 3) % 2],
            "unique_key": [b"u", b"u"],
            "key": [b"k", b"k"],
        },
        f"row's key belongs to {partition_for(b'k', 3)}, not",
    ),
    (record(3), {"partition": [0, 3]}, "partition: topic 't' has partitions 0..2, there is no 3"),
    (
        record(3),
        {"partition": [None, 1 - partition_for(b"u", 3) % 2], "unique_key": [None, b"u"]},
        "row's unique_key belongs to",
    ),
    (record(), {"value": [b"1", None]}, "value: it is null: topic 't' is not compacted, so there is no key"),
    (
        COMPACTED,
        {"key": [b"a", None]},
        "key: it is missing or empty: topic 't' is compacted, each of its messages writes",
    ),
    (COMPACTED, {"key": [b"a", b""]}, "key: it is missing or empty: topic 't' is compacted"),
    (COMPACTED, {"key": [b"a", b"b"], "partition": [None, 1 - partition_for(b"b", 3) % 2]}, "row's key belongs to"),
    (
        COMPACTED,
        {"key": [b"a", b"b"], "deliver_at": [None, 10**12]},
        "deliver_at: topic 't' is compacted and does not support it",
    ),
    (COMPACTED, {"key": [b"a", b"b"], "delay_ms": [None, 1]}, "delay_ms: topic 't' is compacted"),
    (COMPACTED, {"key": [b"a", b"b"], "unique_key": [None, b"b"]}, "unique_key: topic 't' is compacted"),
]


@pytest.mark.parametrize(("topic", "columns", "says"), BAD, ids=[says[:30] for _, _, says in BAD])
@pytest.mark.parametrize("by_column", [False, True])
def test_a_bad_row_is_named(topic: TopicRecord, columns: dict[str, Any], says: str, by_column: bool) -> None:
    rows = table(**{"key": [None, None], **columns})
    number = 501
    if "value" in columns:
        rows = pa.record_batch({name: pa.array(cells, pa.binary()) for name, cells in columns.items()})
    if by_column:  # rows of another topic lie between
        rows = rows.take(pa.array([0, 0, 1])).append_column("topic", pa.array(["t", "other", "t"]))
        other = record(3, kind=topic.kind, name="other")
        number = 502
    else:
        other = record(name="unused")
    with pytest.raises(InvalidRequest) as refused:
        split(rows, topic, other, topic=None if by_column else "t", first=500)
    assert says in refused.value.message
    assert refused.value.details["row"] == number


def test_a_key_without_a_message_of_its_own() -> None:
    with pytest.raises(InvalidRequest, match="column key: it is missing or empty: topic 't' is compacted"):
        split(pa.record_batch({"value": [b"x"]}), COMPACTED)
