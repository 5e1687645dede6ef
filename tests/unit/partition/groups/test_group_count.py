"""Tests of the maximum number of groups of a partition."""

from __future__ import annotations

from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from tests.support.partition.bench import Bench


def test_groups_of_a_partition_are_limited() -> None:
    bench = Bench()
    opened = bench.apply(0, *[c.OpenGroup(f"g{number}", "earliest") for number in range(FIXED.groups_per_topic)])
    assert len({*opened}) == FIXED.groups_per_topic
    (refused,) = bench.apply(1, c.OpenGroup("more", "earliest"))
    assert isinstance(refused, InvalidRequest) and refused.details["limit"] == "groups_per_topic"
    assert "a topic has 1000 groups at most (groups_per_topic, which is fixed); delete some" in refused.message
    assert bench.open("g7") == opened[7], "existing groups continue"
    bench.restart()
    assert bench.open("g7") == opened[7] and len(bench.machine.groups.by_id) == FIXED.groups_per_topic
    bench.apply(2, c.DropGroup("g7"))
    assert isinstance(bench.open("more"), int)
