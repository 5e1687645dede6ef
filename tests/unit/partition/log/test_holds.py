"""Tests of named holds: messages above a hold are not trimmed for any reason while the hold exists."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.errors import Conflict, InvalidName, InvalidRequest
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.log.holds import HOLDS_MOST, LEAST_TTL_MS, MOST_TTL_MS
from tests.support.partition.bench import FOREVER_MS, Bench, T
from tests.support.partition.key_bench import KeyBench

MINUTE = 60_000
HOUR = 60 * MINUTE


def hold(bench: Bench, offset: bytes | None, *, at: int = 0, ttl: int = HOUR, name: str = "spark") -> Any:
    return bench.apply(at, c.Hold(name, offset, ttl))[0]


def run_upkeep(bench: Bench, start: int, stop: int) -> None:
    """Propose an upkeep whenever one is due, as a leader does."""
    at = start
    for _ in range(10_000):
        due_ms = bench.status().upkeep_ms
        if due_ms is None or due_ms > T + stop:
            return
        at = max(at, due_ms - T)
        bench.upkeep(at=at)
    raise AssertionError("upkeep is due for ever")


def appended(bench: Bench, *values: str, at: int = 0) -> list[bytes]:
    """Append each value as its own row. Return the offsets."""
    return [bench.append(value, at=at)[0] for value in values]


def acked(bench: Bench, *values: str, at: int = 0) -> list[bytes]:
    """Append the values and let a group ack them. Return the offsets."""
    bench.open()
    found = appended(bench, *values, at=at)
    for lease in bench.lease(at=at):
        bench.ack(lease.token, at=at)
    return found


def held(bench: Bench) -> list[bytes]:
    """Return the rows of the log as a reader sees them that continues where it stopped."""
    return [key[1:] for key, _ in bench.rows(rows.LOG)]


class TestLife:
    def test_messages_above_the_hold_stay_and_those_below_are_trimmed(self) -> None:
        bench = Bench()
        _, second, third, fourth = acked(bench, "a", "b", "c", "d")
        assert hold(bench, second) == offsets.FIRST, "no message is trimmed yet"
        run_upkeep(bench, 0, MINUTE)
        assert held(bench) == [third, fourth]
        assert bench.status().trimmed == second

    def test_hold_ends_at_its_time(self) -> None:
        bench = Bench()
        (only,) = acked(bench, "a")
        hold(bench, offsets.FIRST, ttl=HOUR)
        run_upkeep(bench, 0, HOUR - 1)
        assert held(bench) == [only] and bench.status().upkeep_ms == T + HOUR
        run_upkeep(bench, HOUR - 1, HOUR)
        assert held(bench) == [] and bench.status().holds == () and bench.rows(rows.HOLD) == []
        assert (bench.status().upkeep_ms or FOREVER_MS) > T + 100 * HOUR, "no work is left"

    def test_renewed_hold_continues_and_read_messages_are_trimmed(self) -> None:
        bench = Bench()
        first, second, third = acked(bench, "a", "b", "c")
        hold(bench, first, ttl=HOUR)
        run_upkeep(bench, 0, MINUTE)
        assert held(bench) == [second, third]
        assert hold(bench, second, at=HOUR // 2, ttl=HOUR) == first, "the log is trimmed up to there"
        run_upkeep(bench, HOUR // 2, HOUR + 1)
        assert held(bench) == [third]
        run_upkeep(bench, HOUR, HOUR + HOUR // 2)
        assert held(bench) == []

    def test_released_it_keeps_nothing(self) -> None:
        bench = Bench()
        acked(bench, "a")
        hold(bench, offsets.FIRST)
        run_upkeep(bench, 0, MINUTE)
        hold(bench, None, at=MINUTE)
        run_upkeep(bench, MINUTE, MINUTE)
        assert held(bench) == [] and bench.status().holds == () and bench.rows(rows.HOLD) == []

    def test_released_again_it_is_released(self) -> None:
        bench = Bench()
        (only,) = acked(bench, "a")
        run_upkeep(bench, 0, 0)
        assert hold(bench, None) == only
        assert hold(bench, None) == only

    def test_hold_may_move_back_to_untrimmed_messages(self) -> None:
        bench = Bench()
        first, second, third = acked(bench, "a", "b", "c")
        hold(bench, first)
        run_upkeep(bench, 0, MINUTE)
        assert hold(bench, offsets.FIRST, at=MINUTE) == first, "the reply shows that trimmed messages are lost"
        run_upkeep(bench, MINUTE, 2 * MINUTE)
        assert held(bench) == [second, third]
        hold(bench, third, at=2 * MINUTE)
        run_upkeep(bench, 2 * MINUTE, 3 * MINUTE)
        assert held(bench) == []

    def test_lowest_hold_applies(self) -> None:
        bench = Bench()
        first, second, third = acked(bench, "a", "b", "c")
        hold(bench, second, name="fast")
        hold(bench, first, name="slow", ttl=MINUTE)
        run_upkeep(bench, 0, MINUTE - 1)
        assert held(bench) == [second, third]
        run_upkeep(bench, MINUTE, MINUTE)
        assert held(bench) == [third]
        assert [one.name for one in bench.status().holds] == ["fast"]

    def test_time_is_that_of_the_entry_and_never_goes_back(self) -> None:
        bench = Bench()
        bench.apply(MINUTE, c.Clock())
        hold(bench, offsets.FIRST, at=0, ttl=HOUR)
        assert bench.status().holds == (("spark", offsets.FIRST, T + MINUTE + HOUR),)

    def test_a_restart_changes_nothing(self) -> None:
        bench = Bench()
        first, second = acked(bench, "a", "b")
        hold(bench, first, ttl=HOUR)
        hold(bench, second, name="other", ttl=2 * HOUR)
        before = bench.status().holds
        assert len(before) == 2
        bench.restart()
        assert bench.status().holds == before and bench.status().upkeep_ms == T
        run_upkeep(bench, 0, HOUR - 1)
        assert held(bench) == [second]
        bench.restart()
        run_upkeep(bench, HOUR, HOUR)
        assert held(bench) == [] and len(bench.status().holds) == 1

    def test_an_idle_partition_with_a_hold_asks_for_nothing_meanwhile(self) -> None:
        bench = Bench()
        acked(bench, "a")
        hold(bench, offsets.FIRST, ttl=HOUR)
        run_upkeep(bench, 0, MINUTE)
        steps = bench.index
        run_upkeep(bench, MINUTE, HOUR - 1)
        assert bench.index == steps


class TestLimits:
    def test_number_of_holds_is_limited(self) -> None:
        bench = Bench()
        for number in range(HOLDS_MOST):
            hold(bench, offsets.FIRST, name=f"h{number}", ttl=HOUR if number else MINUTE)
        refusal = hold(bench, offsets.FIRST, name="one-more")
        assert isinstance(refusal, Conflict) and "limit" in refusal.message
        assert hold(bench, offsets.LAST, name="h7") == offsets.FIRST, "a renewed hold is no additional hold"
        hold(bench, None, name="h7")
        assert hold(bench, offsets.FIRST, name="one-more") == offsets.FIRST
        assert isinstance(hold(bench, offsets.FIRST, name="another"), Conflict)
        # A hold has expired, although no upkeep has removed it.
        assert hold(bench, offsets.FIRST, name="another", at=MINUTE) == offsets.FIRST
        assert len(bench.status().holds) == len(bench.rows(rows.HOLD)) == HOLDS_MOST

    @pytest.mark.parametrize("ttl", [0, -1, LEAST_TTL_MS - 1, MOST_TTL_MS + 1])
    def test_ttl_of_hold_has_bounds(self, ttl: int) -> None:
        bench = Bench()
        refusal = hold(bench, offsets.FIRST, ttl=ttl)
        assert isinstance(refusal, InvalidRequest) and str(LEAST_TTL_MS) in refusal.message
        assert bench.status().holds == ()

    @pytest.mark.parametrize("ttl", [LEAST_TTL_MS, MOST_TTL_MS])
    def test_within_them_it_is_made(self, ttl: int) -> None:
        bench = Bench()
        assert hold(bench, offsets.FIRST, ttl=ttl) == offsets.FIRST
        assert bench.status().holds[0].until_ms == T + ttl

    @pytest.mark.parametrize("name", ["", "no name", "x" * 250])
    def test_name_of_hold_is_checked(self, name: str) -> None:
        assert isinstance(hold(Bench(), offsets.FIRST, name=name), InvalidName)

    def test_a_refusal_for_their_number_changes_nothing(self) -> None:
        bench = Bench()
        for number in range(HOLDS_MOST):
            hold(bench, offsets.FIRST, name=f"h{number}")
        before = bench.everything()
        hold(bench, offsets.LAST, name="one-more")
        changed = {key for key, _ in set(bench.everything()) ^ set(before)}
        assert changed == {rows.STATE_KEY}, "the applied index"

    @pytest.mark.parametrize("offset", [offsets.FIRST, None])
    def test_a_compacted_topic_has_none(self, offset: bytes | None) -> None:
        refusal = hold(KeyBench(), offset)
        assert isinstance(refusal, InvalidRequest) and "compacted" in refusal.message


class TestKinds:
    """Tests of all reasons to trim."""

    def test_hold_prevents_trimming_by_age(self) -> None:
        bench = Bench(delete_on_ack=False, retain="10m")
        first, second = appended(bench, "a", "b")
        hold(bench, first, ttl=2 * HOUR)
        run_upkeep(bench, 0, HOUR)
        assert held(bench) == [second]
        run_upkeep(bench, HOUR, 2 * HOUR + 2 * MINUTE)
        assert held(bench) == []

    def test_hold_prevents_trimming_by_size(self) -> None:
        bench = Bench(delete_on_ack=False, retain_bytes="1MiB")
        found = [bench.append("x" * 100_000, at=n)[0] for n in range(20)]
        hold(bench, found[3], at=20, ttl=HOUR)
        run_upkeep(bench, 20, MINUTE)
        assert held(bench) == found[4:]
        run_upkeep(bench, MINUTE, HOUR + MINUTE)
        assert held(bench) == found[10:]

    def test_hold_prevents_trimming_by_retention(self) -> None:
        bench = Bench(retention="10m")
        first, second = acked(bench, "a", "b")
        hold(bench, first, ttl=2 * HOUR)
        run_upkeep(bench, 0, 2 * HOUR - 1)
        assert held(bench) == [second]
        run_upkeep(bench, 2 * HOUR, 2 * HOUR + MINUTE)
        assert held(bench) == [], "the messages must not be kept for another retention period"

    def test_hold_without_groups_keeps_messages_that_stay_anyway(self) -> None:
        bench = Bench()
        (only,) = appended(bench, "a")
        hold(bench, only)
        run_upkeep(bench, 0, HOUR)
        assert held(bench) == [only] and bench.status().holds == ()
        bench.open(at=HOUR)
        bench.ack(bench.one(at=HOUR).token, at=HOUR)
        run_upkeep(bench, HOUR, HOUR)
        assert held(bench) == []

    def test_hold_ends_in_a_log_that_keeps_everything(self) -> None:
        bench = Bench(delete_on_ack=False)
        (only,) = acked(bench, "a")
        hold(bench, offsets.FIRST, ttl=MINUTE)
        run_upkeep(bench, 0, HOUR)
        assert held(bench) == [only] and bench.status().holds == ()

    def test_batch_that_contains_the_hold_stays_complete(self) -> None:
        """Read messages and cancelled messages at its end stay. Otherwise the reader would see a gap."""
        bench = Bench()
        bench.open()
        base, _ = bench.append("a", "b", "c", "d")
        bench.cancel(offsets.shift(base, 3))
        bench.ack(bench.one().token)
        hold(bench, offsets.shift(base, 2))
        run_upkeep(bench, 0, MINUTE)
        assert bench.status().messages == 3 and bench.status().trimmed == offsets.FIRST
        hold(bench, offsets.shift(base, 3), at=MINUTE)
        run_upkeep(bench, MINUTE, MINUTE)
        assert bench.status().messages == 0

    def test_a_hold_between_tombstones(self) -> None:
        bench = Bench()
        bench.open()
        found = appended(bench, "a", "b", "c")
        for offset in found:
            bench.cancel(offset)
        bench.append("d")
        bench.ack(bench.one(at=1).token, at=1)
        hold(bench, found[1], at=1)
        run_upkeep(bench, 1, 1)
        assert bench.status().trimmed == found[1]
        assert [key[1:] for key, _ in bench.rows(rows.TOMBSTONE)][-1] == found[2]

    def test_held_messages_change_their_state_as_usual(self) -> None:
        """Dead, acked and sought messages: a hold affects only trimming."""
        bench = Bench(max_attempts=1)
        bench.open()
        first, second = appended(bench, "a", "b")
        hold(bench, offsets.FIRST, ttl=10 * MINUTE)
        one, two = bench.one(limit=1), bench.one(limit=1)
        bench.nack(one.token, at=1)
        bench.ack(two.token, at=1)
        run_upkeep(bench, 1, 5 * MINUTE)
        assert [bench.state_of(first), bench.state_of(second)] == ["dead", "acked"]
        assert held(bench) == [first, second]
        bench.seek("earliest", at=5 * MINUTE)
        assert bench.values(bench.lease(at=5 * MINUTE)) == ["a", "b"]
        run_upkeep(bench, 5 * MINUTE, 9 * MINUTE)
        assert held(bench) == [first, second]

    def test_long_leased_message_is_copied_and_stays_held(self) -> None:
        bench = Bench()
        bench.open()
        first, second = appended(bench, "slow", "b")
        hold(bench, offsets.FIRST, ttl=10 * MINUTE)
        lease = bench.one(limit=1, ms=HOUR)
        bench.ack(bench.one(limit=1).token)
        run_upkeep(bench, 0, 5 * MINUTE)
        assert held(bench) == [first, second]
        run_upkeep(bench, 5 * MINUTE, 10 * MINUTE)
        assert held(bench) == []
        assert bench.values([lease]) == ["slow"] and bench.ack(lease.token, at=11 * MINUTE) is None

    def test_hold_below_the_trimmed_position_stops_trimming(self) -> None:
        bench = Bench()
        first, second = acked(bench, "a", "b")
        run_upkeep(bench, 0, 0)
        third = bench.append("c", at=1)[0]
        bench.ack(bench.one(at=1).token, at=1)
        assert hold(bench, first, at=1) == second
        run_upkeep(bench, 1, MINUTE)
        assert held(bench) == [third] and bench.status().trimmed == second

    def test_replicas_with_holds_are_equal_after_restarts(self) -> None:
        one, other = Bench(retention="1m"), Bench(retention="1m")
        for bench in (one, other):
            first, second, third = acked(bench, "a", "b", "c")
            hold(bench, second, name="b", ttl=HOUR)
            hold(bench, first, name="a", ttl=5 * MINUTE)
            if bench is other:
                bench.restart()
            run_upkeep(bench, 0, 10 * MINUTE)
        assert one.everything() == other.everything() and held(one) == [third]
