"""Tests of figures: percentiles, medians of rounds, and rows that are made from the JSON of a load."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from benchmarks.process import Used
from benchmarks.result import (
    CPU,
    HANDED,
    MAX,
    Goal,
    Latency,
    LoadResult,
    Measured,
    Result,
    Row,
    Setting,
    as_json,
    at_share,
)


def row(goal: Goal | None = None) -> Row:
    def never(setting: Setting) -> Measured:
        raise AssertionError

    return Row("name", "produce", "what", never, goal=goal)


@pytest.mark.parametrize(
    ("goal", "measured", "ratio"),
    [
        (Goal(100, "msg/s"), 150, 1.5),
        (Goal(10, "ms", at_least=False), 20, 0.5),
        (Goal(10, "ms", at_least=False), 0, float("inf")),
    ],
)
def test_a_ratio_of_one_or_more_reaches_the_goal(goal: Goal, measured: float, ratio: float) -> None:
    assert goal.ratio(measured) == ratio


def test_a_row_may_have_several_goals_each_about_a_figure_of_its_own() -> None:
    goals = (
        Goal(4, "us", at_least=False, of=CPU),
        Goal(10, "ms max", at_least=False, of=MAX),
        Goal(50, "per s", of="per s"),
    )
    both = Row("name", "small", "what", row().measure, goal=Goal(10, "msg/s"), further=goals)
    latency = Latency.of(HANDED, [0.001, 0.002])
    found = Result.of(both, [Measured(1, 20, cpu_us=8, latency=latency, details={"per s": 25})])
    assert (found.ratio, found.ratios) == (2, [2, 0.5, 5, 0.5])
    assert [one["ratio"] for one in found.record()["goals"]] == found.ratios
    without = Result.of(replace(both, goal=None), [found.measured])
    assert (without.ratio, without.ratios) == (None, [0.5, 5, 0.5])


def test_a_goal_is_shown_as_it_is() -> None:
    assert [str(Goal(500_000, "msg/s")), str(Goal(1.25, "x", at_least=False))] == [">= 500,000 msg/s", "<= 1.25 x"]


def test_at_share_returns_the_smallest_value_that_covers_the_share() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert [at_share(ordered, share) for share in (0.0, 0.01, 0.5, 0.99, 0.999, 1.0)] == [1, 1, 50, 99, 100, 100]
    assert at_share([7.0], 0.5) == 7.0


def test_latencies_are_in_ms_and_signed() -> None:
    latency = Latency.of(HANDED, (value / 1000 for value in (3, -1, 2)))
    assert latency is not None
    assert (latency.count, latency.at(0.0), latency.at(0.5), latency.at(1.0)) == (3, -1, 2, 3)
    assert Latency.of(HANDED, []) is None


@pytest.mark.parametrize("seconds", [[], [0.5, 0.25]])
def test_load_result_survives_json(seconds: list[float]) -> None:
    result = LoadResult(10, 2.0, Latency.of(HANDED, seconds), 1, {"early": 0}, 0.5)
    assert LoadResult.of(json.loads(json.dumps(asdict(result)))) == result


def test_measured_has_rate_and_cpu_time_of_both_sides() -> None:
    measured = Measured.of(LoadResult(1000, 2.0, cpu_s=0.01), Used(0.02, 50))
    assert (measured.value, measured.cpu_us, measured.client_cpu_us) == (500, 20, 10)
    assert (measured.fsyncs, measured.messages_per_fsync) == (50, 20)
    assert Measured.of(LoadResult(1000, 2.0), Used(0.02, 0)).messages_per_fsync is None


@pytest.mark.parametrize(("values", "median"), [([5.0], 5), ([9, 1, 5], 5), ([4, 1, 3, 2], 2)])
def test_result_is_the_round_with_the_median_value(values: list[float], median: float) -> None:
    rounds = [Measured(int(value) * 10, value, details={"mine": value}) for value in values]
    found = Result.of(row(), rounds)
    assert (found.measured.value, found.measured.messages, found.measured.details) == (
        median,
        median * 10,
        {"mine": median},
    )
    assert found.values == values


def test_an_error_in_any_round_is_one_of_the_row() -> None:
    rounds = [Measured(1, 1, errors=2), Measured(1, 2), Measured(1, 3)]
    assert Result.of(row(), rounds).measured.errors == 2
    assert rounds[1].errors == 0


def test_json_has_the_goal_and_every_round() -> None:
    found = json.loads(as_json({"cores": 2}, [Result.of(row(Goal(10, "msg/s")), [Measured(1, 5), Measured(1, 20)])]))
    record = found["results"][0]
    assert found["machine"] == {"cores": 2}
    assert (record["value"], record["goal"], record["ratio"], record["rounds"]) == (5, 10, 0.5, [5, 20])
