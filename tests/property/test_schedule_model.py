"""Schedules under late leaders, repeated proposals, changes at any moment, restarts and wrong clocks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.broker.leader.schedule_firing import plan
from sandq.model.batch import Column
from sandq.model.headers import headers_unpack
from sandq.partition import commands as c
from sandq.partition.schedules import schedule_queries
from sandq.partition.schedules.schedule_table import ScheduleTable
from tests.support.examples import examples
from tests.support.partition.bench import T
from tests.support.partition.schedule_sequence import DEEDS, ScheduleSequence

STEPS = st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 1 << 16)), min_size=20, max_size=90)


@settings(max_examples=examples(150), deadline=None)
@given(steps=STEPS)
def test_occurrence_is_sent_once_in_any_command_sequence(steps: list[tuple[str, int]]) -> None:
    walk = ScheduleSequence(lease="1h")
    for deed, seed in steps:
        walk.do(deed, seed)


def test_a_partition_that_believes_every_leader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScheduleTable, "_is_other", lambda *seen: False)
    with pytest.raises(AssertionError):
        for seed in range(100):
            random, walk = Random(seed), ScheduleSequence()
            for _ in range(60):
                walk.do(random.choice(DEEDS), random.randrange(1 << 16))


@pytest.mark.parametrize("misfire", ["all", "one", "skip"])
def test_occurrences_are_skipped_only_if_requested(misfire: str) -> None:
    """Leaders are late or repeat old proposals. In the end, each due occurrence is delivered, missed or pending."""
    random = Random(f"schedules {misfire}")
    for _ in range(examples(20)):
        walk = ScheduleSequence()
        bench, every = walk.bench, 1_000
        settings = {"every_ms": every, "start_ms": T} | ({} if misfire == "one" else {"misfire": misfire})
        bench.apply(0, c.PutSchedules([("s", settings, {Column.VALUE: b""}, 0, None, T + every, T + every, False)]))
        stale: list[object] = []
        at = 0
        while at < 60_000:  # ms
            at += random.choice((10, 200, 1_000, 1_000, 7_000))
            items = plan(schedule_queries.due(bench.view, T + at, 10), T + at)
            stale.append(items)
            for said in (items, random.choice(stale)):
                bench.apply(at, c.FireSchedules(said))
            if random.random() < 0.2:
                bench.restart()
        came = []
        for lease in bench.lease(at=at, limit=1000):
            came += [headers_unpack(m.fields[Column.HEADERS])["sandq-occurrence"] - T for m in bench.messages(lease)]
        schedule = walk.bench.machine.schedules.find("s", bench.view)
        assert schedule is not None and schedule.expected_ms is not None
        assert len({*came}) == len(came)
        due = [ms for ms in range(every, at + 1, every)]
        if misfire == "all":
            assert came == due[: len(came)] and len(came) >= len(due) - 70
        # All other occurrences are counted as missed, or are pending.
        pending = [ms for ms in due if ms >= schedule.expected_ms - T]
        assert len(came) + schedule.missed + len([ms for ms in pending if ms not in came]) == len(due)
