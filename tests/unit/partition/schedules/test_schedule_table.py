"""Tests of the schedules of a partition: one message per occurrence, for any number of requests that fire it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sandq.errors import InvalidRequest, NotFound
from sandq.model.batch import Column
from sandq.model.headers import headers_unpack
from sandq.partition import commands as c
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.schedules.schedule import GRACE_MS, Schedule
from tests.support.partition.bench import Bench, T, batch_of
from tests.support.partition.key_bench import KeyBench

MINUTE = 60_000


class Schedules:
    """A partition with the schedule "s", which fires every minute. Times count from T."""

    def __init__(self, bench: Bench, **settings: Any) -> None:
        self.bench = bench
        self.settings = {"every_ms": MINUTE, "anchor_ms": T} | settings
        bench.open()
        assert self.put(MINUTE)[0] == "created"

    @property
    def now(self) -> Schedule:
        found = self.bench.machine.schedules.find("s", self.bench.view)
        assert found is not None
        return found

    @property
    def is_there(self) -> bool:
        return self.bench.machine.schedules.find("s", self.bench.view) is not None

    def seen(self) -> tuple[int, int | None]:
        return (self.now.version, self.now.expected_ms) if self.is_there else (0, None)

    def put(
        self, next_at: int | None, at: int = 0, seen: Any = None, value: bytes = b"v", *, paused: bool = False
    ) -> Any:
        next_ms = None if next_at is None else T + next_at
        fields = {Column.VALUE: value}
        item = ("s", self.settings, fields, *(seen or self.seen()), next_ms, next_ms, paused)
        return self.bench.apply(at, c.PutSchedules([item]))[0][0]

    def fire(self, at: int, next_at: int | None, seen: Any = None, missed: int = 0) -> Any:
        next_ms = None if next_at is None else T + next_at
        item = ("s", *(seen or self.seen()), next_ms, next_ms, missed)
        return self.bench.apply(at, c.FireSchedules([item]))[0][0]

    def pause(self, at: int, *, paused: bool = True, next_at: int | None = None) -> Any:
        next_ms = None if next_at is None else T + next_at
        return self.bench.apply(at, c.PauseSchedules([("s", *self.seen(), paused, next_ms, next_ms)]))[0][0]

    def trigger(self, at: int, token: bytes) -> Any:
        return self.bench.apply(at, c.TriggerSchedules([("s", token)]))[0][0]

    def delete(self, at: int) -> Any:
        return self.bench.apply(at, c.DeleteSchedules([("s",)]))[0][0]

    def due(self, at: int) -> list[int]:
        """Lease the due messages. Return their occurrences in ms after T."""
        return [headers["sandq-occurrence"] - T for headers in self.headers(at)]

    def headers(self, at: int) -> list[dict[str, Any]]:
        """Lease and ack all messages that are due, and return their headers."""
        bench = self.bench
        found = []
        for lease in bench.lease(at=at):
            for message in bench.messages(lease):
                found.append(headers_unpack(message.fields[Column.HEADERS]))
            bench.ack(lease.token, at=at)
        return found


def test_next_occurrence_is_a_pending_message(bench: Bench) -> None:
    schedules = Schedules(bench)
    assert bench.status().schedules == 1 and bench.status().schedule_ms == T + MINUTE
    assert bench.status().later == 1
    assert schedules.due(MINUTE - 1) == [] and schedules.due(MINUTE) == [MINUTE]
    assert schedules.fire(MINUTE, 2 * MINUTE) == ["fired", "sent"]
    bench.restart()
    assert bench.status().schedule_ms == T + 2 * MINUTE and bench.status().schedules == 1
    assert schedules.headers(2 * MINUTE) == [{"sandq-schedule": "s", "sandq-occurrence": T + 2 * MINUTE}]
    assert schedules.now.fired == 1 and [one[:3] for one in schedules.now.history] == [[T + MINUTE, T + MINUTE, "sent"]]


def test_occurrence_fires_once_for_any_number_of_requests(bench: Bench) -> None:
    schedules = Schedules(bench)
    seen = schedules.seen()
    assert schedules.fire(MINUTE, 2 * MINUTE, seen) == ["fired", "sent"]
    assert schedules.fire(MINUTE, 2 * MINUTE, seen) == ["stale"]
    assert schedules.fire(MINUTE, 3 * MINUTE) == ["early"]
    assert schedules.due(10 * MINUTE) == [MINUTE, 2 * MINUTE]


def test_last_occurrence_has_no_successor(bench: Bench) -> None:
    schedules = Schedules(bench)
    schedules.fire(MINUTE, None)
    assert schedules.now.expected_ms is None and bench.status().schedule_ms is None and bench.status().schedules == 1
    assert schedules.due(MINUTE) == [MINUTE] and schedules.due(9 * MINUTE) == []


def test_changed_settings_replace_the_pending_occurrence(bench: Bench) -> None:
    schedules = Schedules(bench)
    assert schedules.put(2 * MINUTE, at=1, value=b"new")[0] == "changed"
    assert bench.status().later == 1 and schedules.due(MINUTE) == [] and schedules.due(2 * MINUTE) == [2 * MINUTE]
    # The occurrence was taken, so the request must name a later one.
    assert schedules.put(2 * MINUTE, at=2 * MINUTE) == ["taken"]
    assert schedules.put(3 * MINUTE, at=2 * MINUTE)[0] == "changed"
    assert schedules.now.fired == 1 and schedules.due(3 * MINUTE) == [3 * MINUTE]


def test_change_of_outdated_schedule_is_stale(bench: Bench) -> None:
    schedules = Schedules(bench)
    seen = schedules.seen()
    schedules.put(2 * MINUTE, at=1)
    assert schedules.put(3 * MINUTE, at=1, seen=seen) == ["stale"]
    assert schedules.fire(9 * MINUTE, 10 * MINUTE, seen) == ["stale"]
    schedules.delete(2)
    assert schedules.put(3 * MINUTE, at=3, seen=seen) == ["stale"]
    assert schedules.put(3 * MINUTE, at=3)[0] == "created" and schedules.now.version > seen[0]


def test_a_paused_one_sends_nothing_until_it_is_resumed(bench: Bench) -> None:
    schedules = Schedules(bench)
    assert schedules.pause(1)[0] == "changed" and bench.status().schedule_ms is None and bench.status().later == 0
    assert schedules.pause(2)[0] == "unchanged"
    assert schedules.put(5 * MINUTE, at=3, paused=True)[0] == "changed" and bench.status().later == 0
    assert schedules.pause(7 * MINUTE, paused=False, next_at=8 * MINUTE)[0] == "changed"
    assert schedules.due(8 * MINUTE) == [8 * MINUTE]


def test_a_deleted_one_takes_its_message_along(bench: Bench) -> None:
    schedules = Schedules(bench)
    assert schedules.delete(1)[0] == "changed" and not schedules.is_there
    assert (bench.status().schedules, bench.status().schedule_ms, bench.status().later) == (0, None, 0)
    with pytest.raises(NotFound, match="no schedule 's'"):
        raise schedules.delete(2)
    assert schedules.due(MINUTE) == []


def test_due_message_stays_when_its_schedule_changes(bench: Bench) -> None:
    schedules = Schedules(bench)
    assert schedules.put(2 * MINUTE, at=MINUTE)[0] == "changed" and schedules.now.fired == 1
    assert schedules.pause(2 * MINUTE)[0] == "changed" and schedules.now.fired == 2
    schedules.pause(2 * MINUTE, paused=False, next_at=3 * MINUTE)
    schedules.delete(3 * MINUTE)
    assert schedules.due(3 * MINUTE) == [MINUTE, 2 * MINUTE, 3 * MINUTE]


def test_a_trigger_makes_one_message_for_each_token(bench: Bench) -> None:
    schedules = Schedules(bench)
    made = schedules.trigger(5, b"t1")
    assert made[0] == "triggered" and schedules.trigger(6, b"t1") == made and schedules.trigger(7, b"t2") != made
    assert [one["sandq-triggered"] - T for one in schedules.headers(7)] == [5, 7] and schedules.due(MINUTE) == [MINUTE]
    assert [one[2] for one in schedules.now.history] == ["triggered", "triggered"] and schedules.now.fired == 0


def test_unacked_occurrence_skips_the_next(bench: Bench) -> None:
    schedules = Schedules(bench, overlap_group="g")
    assert bench.status().later == 0  # it is not known yet whether the schedule will exist
    assert schedules.fire(MINUTE, 2 * MINUTE) == ["fired", "sent"]
    lease = bench.one(at=MINUTE)
    assert schedules.fire(2 * MINUTE, 3 * MINUTE) == ["fired", "skipped"]
    bench.nack(lease.token, at=2 * MINUTE, delay=MINUTE)
    bench.restart()
    assert schedules.fire(3 * MINUTE - 1, 4 * MINUTE) == ["early"]
    assert schedules.fire(3 * MINUTE, 4 * MINUTE) == ["fired", "skipped"]
    assert schedules.due(3 * MINUTE) == [MINUTE]
    assert schedules.fire(4 * MINUTE, 5 * MINUTE) == ["fired", "sent"] and schedules.due(4 * MINUTE) == [4 * MINUTE]


def test_unacked_triggered_run_lets_the_next_be_skipped(bench: Bench) -> None:
    bench.apply(0, c.RaiseLevel(18))
    schedules = Schedules(bench, overlap_group="g")
    schedules.trigger(5, b"t1")
    lease = bench.one(at=5)
    for number in range(12):  # more than the history holds
        at = (number + 1) * MINUTE
        assert schedules.fire(at, at + MINUTE) == ["fired", "skipped"]
        bench.extend(lease.token, 2 * MINUTE, at)
        bench.trim(at)
        bench.restart()
    bench.ack(lease.token, at=12 * MINUTE)
    assert schedules.fire(13 * MINUTE, 14 * MINUTE) == ["fired", "sent"] and schedules.due(13 * MINUTE) == [13 * MINUTE]


def test_due_occurrence_fires_before_a_change(bench: Bench) -> None:
    schedules = Schedules(bench, misfire="skip")
    assert schedules.put(2 * MINUTE, at=MINUTE) == ["taken"] and schedules.pause(MINUTE) == ["taken"]
    assert schedules.fire(MINUTE, 2 * MINUTE) == ["fired", "sent"]
    assert schedules.pause(MINUTE)[0] == "changed" and schedules.due(2 * MINUTE) == [MINUTE]


def test_missed_occurrences_are_skipped_with_misfire_skip(bench: Bench) -> None:
    schedules = Schedules(bench, misfire="skip")
    assert schedules.fire(MINUTE + GRACE_MS, 3 * MINUTE) == ["fired", "sent"]
    assert schedules.fire(3 * MINUTE + GRACE_MS + 1, 5 * MINUTE, missed=1) == ["fired", "missed"]
    assert schedules.now.missed == 2 and schedules.due(4 * MINUTE + 1) == [MINUTE]


def test_many_in_one_entry(bench: Bench) -> None:
    bench.open()
    settings = {"every_ms": MINUTE}
    items = [
        (f"s{at}", settings, {Column.VALUE: b"v"}, 0, None, T + MINUTE + at % 7, T + MINUTE + at % 7, False)
        for at in range(300)
    ]
    results = bench.apply(0, c.PutSchedules(items), c.PutSchedules([("t", *items[0][1:])]))
    assert [one[0] for one in (*results[0], *results[1])] == ["created"] * 301
    assert bench.status().schedules == 301 and bench.status().later == 301
    taken = [message.offset for lease in bench.lease(1000, at=MINUTE + 7) for message in bench.messages(lease)]
    assert len({*taken}) == 301


def test_late_messages_have_distinct_offsets(bench: Bench) -> None:
    """An entry stores late messages of all schedule kinds, triggers and producers at its own timestamp."""
    bench.open()
    kinds: list[dict[str, str]] = [
        {},
        {"overlap_group": "nobody"},
        {},
        {"misfire": "skip"},
        {"overlap_group": "nobody"},
    ]
    kinds += [{}, {}]
    names = [f"s{at}" for at in range(len(kinds))]
    puts = [
        (name, {"every_ms": 1000, **kind}, {Column.VALUE: name.encode()}, 0, None, T + 1000, T + 1000, False)
        for name, kind in zip(names, kinds, strict=True)
    ]
    versions = [result[1] for result in bench.apply(0, c.PutSchedules(puts))[0]]
    for ms in (1000, 2000, 3000):
        following = T + ms + 1000
        fires = [(names[at], versions[at], T + ms, following, following, 0) for at in range(len(names))]
        triggers = [(name, b"%d" % ms) for name in names]
        batch = batch_of(["p", "q"])
        bench.apply(9000, c.FireSchedules(fires), c.Append(batch), c.TriggerSchedules(triggers))
    leases = bench.lease(1000, at=9000)
    found = Counter([message.fields[Column.VALUE].decode() for lease in leases for message in bench.messages(lease)])
    # Each schedule has three occurrences and three triggers. If its messages are made ahead, the fourth
    # occurrence is due too.
    wanted = {name: 6 if kind else 7 for name, kind in zip(names, kinds, strict=True)}
    assert found == wanted | {"p": 3, "q": 3}


def test_a_compacted_topic_has_none() -> None:
    with pytest.raises(InvalidRequest, match="no schedules"):
        raise KeyBench().apply(0, c.DeleteSchedules([("s",)]))[0]


def test_many_schedules_yield(bench: Bench) -> None:
    """Commands and queries about many schedules yield to other partitions of the node."""
    schedules = Schedules(bench)
    names = [f"n{number:03}" for number in range(200)]
    items = [(name, schedules.settings, {Column.VALUE: b"v"}, 0, None, T + MINUTE, T + MINUTE, False) for name in names]
    yielded: list[bool] = []
    bench.machine.shared.yield_now = lambda: yielded.append(True)
    bench.apply(0, c.PutSchedules(items))
    assert len(yielded) >= 12
    queries = PartitionQueries(bench.machine, bench.view)
    yielded.clear()
    assert all(queries.schedules_named(names)) and len(yielded) == 25
    yielded.clear()
    assert len(queries.schedules_due(T + MINUTE, 256)) == 201 and len(yielded) == 26
