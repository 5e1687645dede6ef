"""Tests of the pauses of named limits in one partition: in their home, and in a partition with a member."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import NotFound
from sandq.model.group_limits import parse_limit, with_limit
from sandq.model.pauses import FOREVER
from sandq.model.stored_rows import problem_of_row
from sandq.model.times import format_instant
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.limits.allowance import LimitPause
from sandq.partition.queries.limit_reasons import limit_reason
from tests.support.partition.bench import Bench, T

DEFINITION = [5, None, None, None]
BY = "group g of topic t"


def home() -> Bench:
    bench = Bench()
    bench.apply(0, c.Configure(with_limit(bench.settings, "llm", 0, parse_limit({"max_in_flight": 5}))))
    return bench


def pause(bench: Bench, until_ms: int, *, at: int = 0, is_longer: bool = True) -> LimitPause:
    (result,) = bench.apply(at, c.PauseLimit("llm", until_ms, BY, is_longer))
    assert isinstance(result, LimitPause)
    return result


def member(pauses: Any = None) -> Bench:
    """Return a partition whose group may have five messages in flight, with two messages."""
    bench = Bench()
    bench.open()
    bench.apply(0, c.Configure(with_limit(bench.settings, "g", 1, parse_limit({"limit": "llm"}))))
    bench.append("a", "b")
    allow(bench, pauses)
    return bench


def allow(bench: Bench, paused: Any, *, epoch: int = 1, at: int = 0) -> None:
    bench.apply(at, c.AllowLimit([("g", 1, epoch, 1, 5, 0, 0, DEFINITION, paused)]))


def known(bench: Bench, name: str = "g") -> LimitPause:
    status = bench.status().limits
    assert status is not None
    return status.allowances[name].pause


def reason(bench: Bench) -> str | None:
    return limit_reason(bench.machine.groups.named("g"), bench.machine.now_ms)


def test_pause_by_a_lease_is_never_shorter_and_that_of_an_operator_is_exact() -> None:
    bench = home()
    first = pause(bench, T + 1000)
    assert (first.until_ms, first.by) == (T + 1000, BY)
    assert pause(bench, T + 500) == pause(bench, T + 1000) == first
    second = pause(bench, T + 2000)
    assert second.version > first.version
    third = pause(bench, T + 100, is_longer=False)
    assert third.until_ms == T + 100 and third.version > second.version
    assert pause(bench, T + 150, at=200) == third, "an end that has passed changes nothing"
    assert pause(bench, 0, is_longer=False).until_ms == 0
    forever = pause(bench, FOREVER, is_longer=False)
    assert pause(bench, T + 9000) == forever


def test_pause_lasts_over_restarts_and_changes_of_the_limit() -> None:
    bench = home()
    paused = pause(bench, T + 1000)
    bench.restart()
    assert known(bench, "llm") == paused
    changed = with_limit(bench.machine.settings, "llm", 0, parse_limit({"max_in_flight": 7}))
    bench.apply(0, c.Configure(changed))
    ledger = bench.machine.limits.ledger("llm")
    assert ledger is not None and ledger.pause == paused
    bench.apply(0, c.Configure(with_limit(changed, "llm", 0, None)))
    bench.apply(0, c.Configure(with_limit(bench.machine.settings, "llm", 0, parse_limit({"max_in_flight": 7}))))
    assert known(bench, "llm").version == 0, "a limit that was deleted begins without a pause"


@pytest.mark.parametrize("limit", ["unknown", "g"])
def test_unknown_limit_is_not_found(limit: str) -> None:
    bench = home()
    own = with_limit(bench.machine.settings, "g", 1, parse_limit({"max_in_flight": 7}))
    bench.apply(0, c.Configure(own))
    (error,) = bench.apply(0, c.PauseLimit(limit, T + 1000, BY, is_longer=False))
    assert isinstance(error, NotFound)


def test_member_leases_nothing_until_the_pause_ends() -> None:
    bench = member((7, T + 1000, BY))
    assert bench.lease(at=999) == []
    said = f"the limit llm is paused until {format_instant(T + 1000)}, by {BY}"
    assert reason(bench) == said
    group = bench.status().groups.get("g")
    assert group is not None and group.limit is not None
    assert group.due_ms == T + 1000 and group.is_limit_paused(T + 999) and not group.is_limit_paused(T + 1000)
    assert group.limit.holds_up(T + 999) == (False, 0), "a larger share would not help"
    bench.restart()
    assert reason(bench) == said
    assert len(bench.lease(at=1000)) == 1
    assert reason(bench) is None


def test_member_that_is_paused_without_an_end_waits_for_its_resumption() -> None:
    bench = member((7, FOREVER, "an operator"))
    group = bench.status().groups.get("g")
    assert group is not None and group.due_ms is None
    assert reason(bench) == "the limit llm is paused until it is resumed, by an operator"
    allow(bench, (6, 0, "late"))
    assert bench.lease(at=10) == [], "an older change of the pause is ignored"
    allow(bench, (8, 0, "an operator"), at=20)
    assert known(bench).version == 8
    assert len(bench.lease(at=30)) == 1


def test_pause_stays_with_a_new_definition_and_is_ignored_without_a_named_limit() -> None:
    bench = member((7, T + 1000, BY))
    allow(bench, (7, T + 1000, BY), epoch=2)
    assert bench.lease(at=10) == []
    bench.apply(20, c.Configure(with_limit(bench.machine.settings, "g", 1, parse_limit({"max_in_flight": 3}))))
    bench.apply(20, c.AllowLimit([("g", 2, 2, 9, 5, 0, 0, None, (9, FOREVER, BY))]))
    assert len(bench.lease(at=30)) == 1


def test_pause_tells_the_group_of_a_lease_its_limit() -> None:
    bench = member()
    lease = bench.one()
    offset = lease.ranges[0].base
    (paused,) = bench.apply(0, c.PauseByLease([(lease.token, offset, "limit", T + 1000, "g")]))[0]
    assert (paused.until_ms, paused.limit) == (T + 1000, "llm")
    assert known(bench).version == 0, "only the home pauses the limit"
    bench.ack(lease.token)
    assert bench.apply(0, c.PauseByLease([(lease.token, offset, "limit", T + 1000, "g")])) == [[None]]


def test_rows_with_pauses_are_taken_from_a_backup() -> None:
    paused = home()
    pause(paused, FOREVER, is_longer=False)
    for bench in (home(), paused, member(), member((7, T + 1000, BY))):
        ((key, value),) = bench.rows(rows.LIMIT)
        assert problem_of_row(key, value, 0, "timer") is None
        fields = rows.unpack(value)
        assert problem_of_row(key, rows.pack(*fields[:-1], [7, -1, BY]), 0, "timer") is not None


def test_clock_reset_shortens_the_pause_of_a_wrong_clock() -> None:
    bench = home()
    year = 366 * 86_400_000
    before = pause(bench, T + year + 60_000, at=year)
    assert bench.apply(1000, c.ClockReset(T + 1000))[0]["outcome"] == "begun"
    after = known(bench, "llm")
    assert after.until_ms == T + 61_000 and after.version > before.version, "its members must know the new end"


def test_clock_reset_of_a_member_keeps_the_pause_of_the_home() -> None:
    bench = member([1, T + 120_000, BY])
    bench.apply(60_000, c.Clock())
    assert bench.apply(1000, c.ClockReset(T + 1000))[0]["outcome"] == "begun"
    assert known(bench) == LimitPause(1, T + 120_000, BY)
