"""Partitions with a backlog use a rate with a unit almost fully, and each gets its share, also with large costs.

The world is that of `test_group_limits`, with a delay for each log entry and each frame instead of random faults."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sandq.model.batch import Column, encode
from sandq.model.group_limits import limits_of
from sandq.partition import commands as c
from tests.property.test_group_limits import T, World

STEP_MS = 5
"""Time of one log entry, or of one frame."""
BACKLOG = 20
WARM_MS, RUN_MS = 5_000, 30_000


class TimedWorld(World):
    """Each partition always has due messages, and each lease is acked at once."""

    def __init__(self, partitions: int, limit: dict[str, Any], costs: list[list[int]]) -> None:
        super().__init__(random.Random(0), partitions, limit)
        self.costs_of = costs
        self.leased_of = [0] * partitions
        self.due_of = [0] * partitions

    def run(self, until_ms: int) -> None:
        """Let this time pass."""
        while self.at < until_ms:
            self.at += STEP_MS
            now, self.wires = self.wires, []
            for frame in now:  # frames that these cause arrive one step later
                later, self.wires = self.wires, [frame]
                self.deliver(may_lose=False)
                self.wires = later + self.wires
            for part in self.parts:
                self.fill(part.number)
                self.take(part.number)
                self.send_report(part)
            if self.at % (2 * STEP_MS) == 0:
                self.check_limits()

    def fill(self, number: int) -> None:
        """Add messages, so that the partition has a backlog."""
        costs = [self.draw.choice(self.costs_of[number]) for _ in range(BACKLOG - self.due_of[number])]
        if not costs:
            return
        columns: dict[int, Any] = {Column.VALUE: [b"%d" % (len(self.cost_of) + at) for at in range(len(costs))]}
        columns[Column.COST] = [None if cost == 1 else cost for cost in costs]
        self.parts[number].apply(self.at, c.Append(encode(columns), split=max(costs) > 1))
        self.cost_of += costs
        self.due_of[number] += len(costs)

    def take(self, number: int) -> None:
        """Lease messages if the status says that it is time, and ack them."""
        part = self.parts[number]
        found = part.machine.status(part.view).groups.get("g")
        now_ms = T + self.at + part.skew_ms
        assert found is not None and found.limit is not None
        if found.next_ms is None or found.not_before_ms > now_ms:
            return
        before = len(self.went)
        self.lease(part, 5)
        self.leased_of[number] += sum(cost for *_, cost in self.went[before:])
        while self.held:
            part, lease = self.held.pop()
            self.due_of[number] -= lease.total
            part.apply(self.at, c.Ack([(lease.token, None)]))


@pytest.mark.parametrize(
    ("rate", "costs"),
    [
        (10, [[1, 2, 5]] * 6),
        (10, [[35]] * 3),
        (1500, [[1200], [1200], [100], [100]]),
        (1500, [[4000], [100], [1, 10]]),
    ],
)
def test_rate_with_a_unit_is_used_and_shared(rate: int, costs: list[list[int]]) -> None:
    world = TimedWorld(len(costs), {"rate": rate, "burst": rate, "unit": "tokens"}, costs)
    world.known |= {limit.epoch: limit for limit in limits_of(world.settings).values()}
    world.run(WARM_MS)
    before = list(world.leased_of)
    world.run(WARM_MS + RUN_MS)
    used = [now - was for now, was in zip(world.leased_of, before, strict=True)]
    due = rate * RUN_MS / 1000
    assert sum(used) >= 0.95 * due - max(map(max, costs)), used
    share, largest = due / len(costs), max(map(max, costs))
    assert all(abs(one - share) <= 0.1 * share + 2 * largest for one in used), used
    world.check_rate()
