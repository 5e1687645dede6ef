"""Tests of filters that Spark pushes down, and of the remaining filters."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra sandq[spark] is not installed: make spark")

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from sandq.model.offsets import PARTITION_MAX
from sandq.spark.source.filters import narrowed
from sandq.spark.source.narrowing import WHOLE

START = datetime(2030, 1, 1, tzinfo=UTC)
MS = 1_893_456_000_000
COMPARED = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def at(microseconds: int) -> datetime:
    return START + timedelta(microseconds=microseconds)


def test_partitions() -> None:
    column = ("partition",)
    assert narrowed([EqualTo(column, 3)]).partitions == {3}
    assert narrowed([In(column, (1, None, 9))]).partitions == {1, 9}
    assert narrowed([GreaterThan(column, 2), LessThanOrEqual(column, 5)]).partitions == {3, 4, 5}
    assert narrowed([EqualTo(column, 3), EqualTo(column, 4)]).partitions == frozenset()
    assert not narrowed([EqualTo(column, PARTITION_MAX + 1)]).has("t", 0)


def test_topics_and_keys() -> None:
    found = narrowed([In(("topic",), ("a", "b")), EqualTo(("topic",), "b"), EqualTo(("key",), b"k")])
    assert [found.has(topic, 0) for topic in "abc"] == [False, True, False]
    assert not narrowed([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")]).has("a", 0)
    batch = pa.record_batch({"key": pa.array([b"k", None, b"l", b"k"]), "value": pa.array([b"1", b"2", b"3", b"4"])})
    assert found.rows(batch).column("value").to_pylist() == [b"1", b"4"]
    assert narrowed([In(("key",), (b"l",)), EqualTo(("key",), b"k")]).rows(batch).num_rows == 0
    assert WHOLE.rows(batch) is batch


@pytest.mark.parametrize("seed", range(20))
def test_time_filters_select_exactly_the_wanted_times(seed: int) -> None:
    """No message is read in vain. Delivery times are whole milliseconds, but filters have microseconds."""
    rng = random.Random(seed)
    filters: list[Filter] = [
        rng.choice(COMPARED)(("deliver_at",), at(rng.randrange(-3000, 3000))) for _ in range(rng.randrange(1, 4))
    ]
    if rng.random() < 0.3:
        filters = [In(("deliver_at",), (at(1000),))]
    found = narrowed(filters)

    def wants(one: Any, time: datetime) -> bool:
        if isinstance(one, In):
            return time in one.value
        value = one.value
        return {
            EqualTo: time == value,
            EqualNullSafe: time == value,
            GreaterThan: time > value,
            GreaterThanOrEqual: time >= value,
            LessThan: time < value,
            LessThanOrEqual: time <= value,
        }[type(one)]

    for ms in range(-5, 6):
        wanted = all(wants(one, at(1000 * ms)) for one in filters)
        assert (found.start_ms <= MS + ms < found.end_ms) is wanted, f"seed {seed}, {ms} ms, {filters}"


@pytest.mark.parametrize(
    "one",
    [
        IsNotNull(("key",)),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "a"),
        GreaterThan(("topic",), "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("deliver_at",), datetime(2030, 1, 1)),  # without a zone the time is ambiguous
        EqualNullSafe(("key",), None),
        In(("partition",), (None,)),
    ],
)
def test_unusable_filter_is_ignored(one: Filter) -> None:
    assert narrowed([one]) == WHOLE
