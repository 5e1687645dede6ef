"""Tests of the messages that a batch reads."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.errors import InvalidRequest, UnknownTopic
from sandq.model import offsets
from sandq.model.names import RANKED
from sandq.spark.source.batches import plan_batch
from sandq.spark.source.latest import LatestTask, plan_latest
from sandq.spark.source.narrowing import WHOLE, Narrowed
from sandq.spark.source.options import parse_options
from sandq.spark.source.planning import Task
from tests.support.spark.fake_brokers import MS, FakeBrokers, at, instant


@pytest.fixture
def brokers() -> FakeBrokers:
    """Topic "t" with two partitions of 100 messages, one every 10 ms. The log is closed up to message 50."""
    brokers = FakeBrokers()
    brokers.add("t", 2)
    for partition in (0, 1):
        for number in range(100):
            brokers.append("t", number * 10, 1, partition)
    brokers.closed_ms = 500
    return brokers


def planned(brokers: FakeBrokers, narrowed: Narrowed = WHOLE, **options: Any) -> list[Task]:
    texts = {"subscribe": "t", **{name: str(value) for name, value in options.items()}}
    if {"subscribePattern", "assign"} & texts.keys():
        del texts["subscribe"]
    found = parse_options(texts)
    found.check_batch()
    return plan_batch(found, brokers, narrowed)


def rows_of(brokers: FakeBrokers, tasks: list[Task]) -> list[list[bytes]]:
    """Return the values that each task would read."""
    logs = {
        (name, partition): log for name, topic in brokers.topics.items() for partition, log in enumerate(topic.logs)
    }
    return [[row for row in logs[task.topic, task.partition].rows if task.start <= row < task.end] for task in tasks]


def times(brokers: FakeBrokers, tasks: list[Task]) -> list[int]:
    """Return the due times of the messages of partition 0 that the tasks read, in ms after MS."""
    rows = [
        row for task, rows in zip(tasks, rows_of(brokers, tasks), strict=True) for row in rows if not task.partition
    ]
    return [offsets.deliver_ms(row) - MS for row in rows]


def test_batch_reads_all_closed_messages(brokers: FakeBrokers) -> None:
    tasks = planned(brokers)
    assert [(task.partition, task.start, task.end) for task in tasks] == [
        (partition, at(0, 0, partition), instant(500)) for partition in (0, 1)
    ]
    assert times(brokers, tasks) == [*range(0, 500, 10)]


def test_filters_narrow_the_batch(brokers: FakeBrokers) -> None:
    between = Narrowed(start_ms=MS + 105, end_ms=MS + 200)
    assert times(brokers, planned(brokers, between)) == [*range(110, 200, 10)]
    assert times(brokers, planned(brokers, between, startingTimestamp=MS + 150)) == [*range(150, 200, 10)]
    assert times(brokers, planned(brokers, between, endingTimestamp=MS + 150)) == [*range(110, 150, 10)]
    named = f'{{"t": {{"0": "{offsets.to_text(at(20))}"}}}}'
    assert times(brokers, planned(brokers, between, startingOffsets=named)) == [*range(110, 200, 10)]
    assert times(brokers, planned(brokers, Narrowed(end_ms=MS + 10**6))) == [*range(0, 500, 10)], (
        "the log is closed up to there"
    )
    assert planned(brokers, Narrowed(start_ms=MS + 300, end_ms=MS + 300)) == []
    assert times(brokers, planned(brokers, Narrowed(end_ms=MS + 800), view="pending")) == [*range(500, 800, 10)]
    assert [task.partition for task in planned(brokers, Narrowed(partitions=frozenset({1})))] == [1]
    assert planned(brokers, Narrowed(topics=frozenset({"u"}))) == []
    brokers.add("kv", 3, "compacted")
    found = parse_options({"subscribe": "kv", "view": "latest"})
    assert [task.partition for task in plan_latest(found, brokers, Narrowed(partitions=frozenset({2, 9})))] == [2]


def test_between_times(brokers: FakeBrokers) -> None:
    tasks = planned(brokers, startingTimestamp=MS + 105, endingTimestamp=MS + 200)
    assert times(brokers, tasks) == [*range(110, 200, 10)]
    assert times(brokers, planned(brokers, startingTimestamp=MS + 450, endingTimestamp=MS + 10**6)) == [
        *range(450, 500, 10)
    ]
    assert planned(brokers, startingTimestamp=MS + 501, endingTimestamp=MS + 600) == []
    assert planned(brokers, startingTimestamp=MS + 300, endingTimestamp=MS + 200) == []


def test_between_offsets(brokers: FakeBrokers) -> None:
    def named(ms: int) -> str:
        return f'{{"t": {{"0": "{offsets.to_text(at(ms))}"}}}}'

    tasks = planned(brokers, startingOffsets=named(100), endingOffsets=named(200))
    assert times(brokers, tasks) == [*range(100, 200, 10)]
    assert len(rows_of(brokers, tasks)[1]) == 50, "a partition without a named offset is read completely"
    with pytest.raises(InvalidRequest, match="may still be added before"):
        planned(brokers, endingOffsets=named(600))
    with pytest.raises(InvalidRequest, match="is after"):
        planned(brokers, startingOffsets=named(200), endingOffsets=named(100))
    # A named offset claims to exist. A read finds out that it does not.
    brokers.trim("t", at(150))
    assert planned(brokers, startingOffsets=named(100))[0].start == at(100)


def test_pending_view_reads_pending_messages(brokers: FakeBrokers) -> None:
    assert times(brokers, planned(brokers, view="pending")) == [*range(500, 1000, 10)]
    some = planned(brokers, view="pending", startingTimestamp=MS + 100, endingTimestamp=MS + 600)
    assert times(brokers, some) == [*range(500, 600, 10)]
    assert times(brokers, planned(brokers, view="all", startingTimestamp=MS + 100)) == [*range(100, 1000, 10)]
    assert all(task.pending for task in some)
    assert not any(task.pending for task in planned(brokers))


@pytest.mark.parametrize("parts", [3, 7, 40, 1000])
@pytest.mark.parametrize("step", [3, 1000])
def test_tasks_have_about_as_many_messages_each(brokers: FakeBrokers, parts: int, step: int) -> None:
    brokers.step = step
    brokers.append("t", 100, 300)  # a burst in one millisecond
    tasks = planned(brokers, minPartitions=parts)
    sizes = [len(rows) for rows in rows_of(brokers, tasks)]
    assert sum(sizes) == 400 and len(tasks) == min(parts, 400) and max(sizes) <= -(-400 // parts) + 60
    assert times(brokers, tasks) == sorted([*range(0, 500, 10), *[100] * 300])


def test_patterns_and_partitions(brokers: FakeBrokers) -> None:
    brokers.add("t2").logs[0].rows.append(at(5))
    assert {task.topic for task in planned(brokers, subscribePattern="t.*")} == {"t", "t2"}
    assert [task.partition for task in planned(brokers, assign='{"t": [1]}')] == [1]
    with pytest.raises(UnknownTopic):
        planned(brokers, subscribe="t3")


def test_views_are_of_kinds(brokers: FakeBrokers) -> None:
    brokers.add("kv", 2, "compacted")
    assert planned(brokers, subscribe="kv") == []
    with pytest.raises(InvalidRequest, match="for timer, priority and fair topics; 'kv' is none"):
        planned(brokers, subscribe="t,kv", view="all")
    options = parse_options({"subscribe": "kv", "view": "latest"})
    assert plan_latest(options, brokers) == [LatestTask("kv", 2, 0), LatestTask("kv", 2, 1)]
    with pytest.raises(InvalidRequest, match="for compacted topics; 't' is none"):
        plan_latest(parse_options({"subscribe": "t", "view": "latest"}), brokers)


@pytest.mark.parametrize("kind", RANKED)
def test_views_of_priority_and_fair_topics(brokers: FakeBrokers, kind: str) -> None:
    brokers.add("ranked", 1, kind)
    brokers.append("ranked", 5)
    brokers.append("ranked", 60_000)
    assert [
        rows_of(brokers, planned(brokers, subscribe="ranked", view=view)) for view in ("log", "pending", "all")
    ] == [
        [[at(5)]],
        [[at(60_000)]],
        [[at(5), at(60_000)]],
    ]


def test_tasks_are_of_the_epoch_in_which_they_were_planned(brokers: FakeBrokers) -> None:
    brokers.topics["t"].logs[1].clock_epoch = 3
    assert [task.clock_epoch for task in planned(brokers, minPartitions=4)] == [0, 0, 3, 3]
