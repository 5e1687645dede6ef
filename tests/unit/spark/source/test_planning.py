"""Tests of the positions of streams, and of the tasks of ranges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.errors import InvalidRequest
from sandq.model import offsets
from sandq.spark.source.options import TASKS_MAX
from sandq.spark.source.planning import Range, Task, plan
from sandq.spark.source.positions import Positions, Step, TopicPartition, lost, steps

MS = 1_700_000_000_000
offset = st.binary(min_size=16, max_size=16)
partitions = st.builds(TopicPartition, st.integers(1, 12), st.integers(0, 12))
positions = st.builds(Positions, st.dictionaries(partitions, offset, max_size=8))


def at(ms: int, slot: int = 0) -> bytes:
    return offsets.pack(MS + ms, 1, slot, 0)


# ----------------------------------------------------------------------------------------------------------- positions


@given(positions)
def test_positions_come_back_from_json(found: Positions) -> None:
    text = json.dumps(found.to_json())
    assert Positions.parse(json.loads(text)) == found
    turned = Positions(dict(reversed(list(found.cursors.items()))), found.hold)
    assert json.dumps(turned.to_json()) == text, "Spark compares positions as text"


def test_positions_survive_json() -> None:
    cursors = {TopicPartition(10, 2): at(1), TopicPartition(9, 10): at(2), TopicPartition(9, 2): at(3)}
    found = Positions(cursors, "h", {}, "a cluster", {10: "ten", 9: "nine", 8: "gone"})
    assert json.dumps(found.to_json()) == json.dumps(
        {
            "version": 2,
            "hold": "h",
            "topics": {
                "9": {"2": offsets.to_text(at(3)), "10": offsets.to_text(at(2))},
                "10": {"2": offsets.to_text(at(1))},
            },
            "cluster": "a cluster",
            "names": {"9": "nine", "10": "ten"},
        }
    )
    again = Positions.parse(found.to_json())
    assert again == found and again.names == {10: "ten", 9: "nine"}
    assert again.shown(TopicPartition(9, 2)) == "partition 2 of topic 'nine' (number 9)"


GOOD = {"version": 2, "hold": "h", "topics": {}, "cluster": "c", "names": {}}


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {"version": 2, "hold": "h", "topics": {}},
        {"version": 3, "hold": "h", "topics": {}, "cluster": "c", "names": {}},
        {"version": 2, "hold": "h", "topics": {}, "cluster": 7, "names": {}},
        {"version": 2, "hold": "h", "topics": {}, "cluster": "c", "names": {"x": "t"}},
        {"hold": "h", "topics": {}},
        GOOD | {"version": 1},
        {"version": 2, "topics": {}, "cluster": "c", "names": {}},
        GOOD | {"hold": 7},
        GOOD | {"topics": {"7": 5}},
        GOOD | {"topics": {"7": {"0": "short"}}},
        GOOD | {"topics": {"7": {"0": None}}},
        GOOD | {"topics": {"-7": {"0": "0" * 26}}},
        GOOD | {"topics": {"7": {"a": "0" * 26}}},
    ],
)
def test_invalid_positions_are_refused(wrong: object) -> None:
    assert Positions.parse(GOOD).hold == "h"
    with pytest.raises(InvalidRequest):
        Positions.parse(wrong)


@given(positions, positions)
def test_steps_go_from_one_to_the_other(one: Positions, other: Positions) -> None:
    furthest = {tp: max(one.cursors.get(tp, offsets.FIRST), cursor) for tp, cursor in other.cursors.items()}
    found = steps(one, Positions(furthest))
    assert all(step.start < step.end == furthest[step.tp] for step in found)
    unchanged = furthest.keys() - {step.tp for step in found}
    # A cursor at the first offset has no message before it.
    assert all(one.cursors.get(tp, offsets.FIRST) == furthest[tp] for tp in unchanged)


def test_steps_between_positions() -> None:
    start = Positions({TopicPartition(1, 0): at(5), TopicPartition(1, 1): at(5), TopicPartition(2, 0): at(1)})
    end = Positions(
        {
            TopicPartition(1, 2): at(9),
            TopicPartition(1, 1): at(5),
            TopicPartition(1, 0): at(8),
            TopicPartition(3, 0): at(2),
        }
    )
    assert steps(start, end) == [
        Step(TopicPartition(1, 0), at(5), at(8)),
        Step(TopicPartition(1, 2), offsets.FIRST, at(9)),
        Step(TopicPartition(3, 0), offsets.FIRST, at(2)),
    ]
    assert lost(start, end) == [TopicPartition(2, 0)]
    assert steps(start, end, lambda tp: at(2))[1:] == [Step(TopicPartition(1, 2), at(2), at(9))]
    assert list(end) == [TopicPartition(1, 0), TopicPartition(1, 1), TopicPartition(1, 2), TopicPartition(3, 0)]


def test_a_start_behind_the_end_is_an_error() -> None:
    start = Positions({TopicPartition(1, 0): at(5), TopicPartition(1, 1): at(7), TopicPartition(1, 2): at(7)})
    end = Positions({TopicPartition(1, 0): at(6), TopicPartition(1, 1): at(6), TopicPartition(1, 2): at(6)})
    with pytest.raises(InvalidRequest, match=r"partition 1 of topic number 1 \(and 1 more\).*is after the end"):
        steps(start, end)


# ------------------------------------------------------------------------------------------------------------ planning


def a_range(partition: int, start: bytes, end: bytes, messages: int | None = None) -> Range:
    return Range("t", 7, partition, start, end, messages)


@st.composite
def some_ranges(draw: st.DrawFn) -> list[Range]:
    """Return random ranges of partitions, some of them small."""
    found = []
    for partition in draw(st.lists(st.integers(0, 20), unique=True, max_size=8)):
        start, end = sorted((draw(offset), draw(offset)))
        if draw(st.booleans()):
            width = draw(st.integers(0, 5 << 12))
            end = min(int.from_bytes(start, "big") + width, 2**128 - 1).to_bytes(16, "big")
        found.append(a_range(partition, start, end, draw(st.one_of(st.none(), st.integers(0, 100)))))
    return found


def by_partition(tasks: Sequence[Task]) -> dict[int, list[Task]]:
    found: dict[int, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.partition, []).append(task)
    return found


@given(some_ranges(), st.integers(1, 40))
def test_each_range_is_covered_once_and_in_order(ranges: list[Range], min_partitions: int) -> None:
    tasks = plan(ranges, min_partitions)
    assert tasks == plan(list(reversed(ranges)), min_partitions), "the order of the partitions does not matter"
    assert tasks == sorted(tasks, key=lambda task: (task.number, task.partition, task.start))
    found = by_partition(tasks)
    filled = {one.partition: one for one in ranges if one.start < one.end}
    assert found.keys() == filled.keys()
    for partition, one in filled.items():
        parts = found[partition]
        assert (parts[0].start, parts[-1].end) == (one.start, one.end)
        assert all(before.end == after.start for before, after in pairwise(parts))
        assert all(part.start < part.end for part in parts)
        assert {part.topic for part in parts} == {"t"}
        # A broker refuses an offset of another partition.
        assert {offsets.unpack(part.start).partition for part in parts[1:]} <= {partition}
    assert len(tasks) <= max(min_partitions, len(filled))


def test_as_many_tasks_as_asked_for() -> None:
    ranges = [a_range(0, at(0), at(1000)), a_range(1, at(0), at(1000))]
    assert [len(plan(ranges, wanted)) for wanted in (1, 2, 3, 8, 100)] == [2, 2, 3, 8, 100]
    assert len(plan(ranges, 10**9)) == TASKS_MAX
    many = [a_range(partition, at(0), at(1)) for partition in range(20)]
    assert len(plan(many, 3)) == 20, "a task never has two partitions"


def test_larger_range_is_split() -> None:
    ranges = [a_range(0, at(0), at(1000), 900), a_range(1, at(0), at(1000), 100), a_range(2, at(0), at(1000), 0)]
    found = by_partition(plan(ranges, 10))
    assert {partition: len(tasks) for partition, tasks in found.items()} == {0: 8, 1: 1, 2: 1}
    few = [a_range(0, at(0), at(1000), 2)]
    assert len(plan(few, 10)) == 2, "no task for less than a message"


def test_parts_are_equal_spans_of_time() -> None:
    tasks = plan([a_range(0, at(0), at(1000))], 4)
    assert [offsets.deliver_ms(task.start) - MS for task in tasks] == [0, 250, 500, 750]


def test_empty_ranges_have_no_tasks_and_wrong_ranges_are_refused() -> None:
    assert plan([], 8) == []
    assert plan([a_range(0, at(5), at(5))], 8) == []
    with pytest.raises(InvalidRequest, match="topic 't', partition 3"):
        plan([a_range(3, at(6), at(5))])


def test_task_as_text() -> None:
    (task,) = plan([a_range(3, at(5), at(6))])
    assert str(task) == f"topic 't', partition 3, from {offsets.to_text(at(5))} up to {offsets.to_text(at(6))}"
