"""Schedules change, and their messages are moved, at any moment. Each occurrence is delivered once or counted."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any, Final

import pytest

from sandq.broker.leader.schedule_firing import plan
from sandq.broker.requests.schedule_requests import _is_due, _plan_puts
from sandq.model.batch import Column
from sandq.model.headers import headers_unpack
from sandq.partition import commands as c
from sandq.partition.schedules import schedule_queries
from sandq.partition.schedules.schedule import Schedule
from sandq.schedules.settings import Checked, check
from tests.support.examples import seeds
from tests.support.partition.bench import Bench, T, by_id

END_MS: Final = 900_000
RECURRENCES: Final[tuple[dict[str, Any], ...]] = (
    {"every_ms": 5_000, "start_ms": T + 77, "jitter_ms": 4_999},
    {"every_ms": 1_000, "start_ms": T, "jitter_ms": 999},
    {"every_ms": 1_000, "start_ms": T},
    {"cron": "*/5 * * * * *", "jitter_ms": 30_000},
    {"cron": "3,17,18 * * * * *", "jitter_ms": 60_000},
)
OTHERS: Final = ({}, {"misfire": "all"}, {"misfire": "skip"}, {"overlap_group": "nobody"})
STEPS_MS: Final = (*(0, 1, 50, 300, 999, 1_000, 2_500) * 3, 10_000, 61_000, 100_000)


class Change:
    """One schedule in two partitions that apply the same entries. The second partition is restarted repeatedly."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.bench, self.other = Bench(lease="1h"), Bench(lease="1h")
        for bench in (self.bench, self.other):
            bench.open()
        self.wanted: Checked = check(random.choice(RECURRENCES) | random.choice(OTHERS), T)
        self.at = 0
        self.puts = 0
        self.taken: set[tuple[str, int, int | None]] = set()
        self.came: defaultdict[int, set[bytes]] = defaultdict(set)
        self.put()
        first_ms = self.now.expected_ms
        assert first_ms is not None
        self.first_ms = first_ms

    @property
    def now(self) -> Schedule:
        found = self.bench.machine.schedules.find("s", self.bench.view)
        assert found is not None
        return found

    def apply(self, *entry: c.Command) -> list[Any]:
        results = self.bench.apply(self.at, *entry)
        assert repr(self.other.apply(self.at, *entry)) == repr(results)
        if self.random.random() < 0.3:
            self.other.restart()
        for tag in (b"S", b"F", b"L"):
            assert self.other.rows(tag) == self.bench.rows(tag)
        return results

    def fire(self) -> None:
        stored = schedule_queries.due(self.bench.view, T + self.at, 10)
        if stored:
            self.apply(*[c.FireSchedules(plan(stored, T + self.at))] * self.random.choice((1, 1, 2)))

    def put(self) -> None:
        """Give the schedule another value, after all due occurrences have fired."""
        self.puts += 1
        outcome = "taken"
        while outcome == "taken":
            found = self.bench.machine.schedules.find("s", self.bench.view)
            if found is not None and _is_due(found, T + self.at):
                self.fire()
                continue
            wanted = "s", None, self.wanted, {Column.VALUE: b"%d" % self.puts}, None
            (item,), _ = _plan_puts([wanted], {} if found is None else {"s": found}, T + self.at, self.taken)
            (((outcome, *_),),) = self.apply(c.PutSchedules([item]))
            self.taken.add((item[0], item[3], item[4]))

    def move(self) -> None:
        """Move the message of the next occurrence to another time."""
        made = self.now.made
        if made is not None:
            self.apply(c.Move([(by_id(made), self.random.choice((0, 500, 3_000, 20_000)), True)]))

    def consume(self) -> None:
        for lease, again in zip(*[bench.lease(1000, at=self.at) for bench in (self.bench, self.other)], strict=True):
            for message in self.bench.messages(lease):
                headers = headers_unpack(message.fields[Column.HEADERS])
                self.came[headers["sandq-occurrence"]].add(message.id)
            self.bench.ack(lease.token, at=self.at)
            self.other.ack(again.token, at=self.at)


@pytest.mark.parametrize("seed", seeds(14, 200))
def test_an_occurrence_comes_once_or_is_counted_as_missed(seed: int) -> None:
    random = Random(seed)
    change = Change(random)
    while change.at < END_MS:
        change.at += random.choice(STEPS_MS)
        random.choice((change.fire, change.fire, change.fire, change.put, change.move, change.consume))()
    while _is_due(change.now, T + change.at):
        change.fire()
    change.at += 100_000
    change.consume()
    now = change.now
    assert now.expected_ms is not None
    over = change.wanted.recurrence.occurrences(change.first_ms - 1, now.expected_ms - 1, END_MS)
    assert {len(ids) for ids in change.came.values()} == {1}
    assert change.came.keys() <= {*over, now.expected_ms}
    assert len([ms for ms in over if ms not in change.came]) == now.missed
