"""Tests of the leader of a home partition: its ledger writes and its requests, step by step, without partitions."""

from __future__ import annotations

from typing import Any

from sandq.broker.delivery.limit_home import ASK_MS, FRESH_MS, LimitHome, Report
from sandq.broker.delivery.limit_plan import ROTATION_MS, LimitPlan, PartitionUse
from sandq.model.group_limits import GroupLimit
from sandq.model.pauses import FOREVER
from sandq.partition import commands as c
from sandq.partition.limits.allowance import LimitPause, fresh
from sandq.partition.limits.ledger import Confirmed, Ledger, Member

NOW_MS = 1_000_000


class Home:
    """A home partition of which only the ledger exists."""

    def __init__(self, partitions: int, most: int | None = None, burst: int | None = None) -> None:
        limit = GroupLimit(1, partitions, most, None if burst is None else 1_000_000, burst)
        self.ledger, self.home, self.own = Ledger(fresh(limit, True)), LimitHome(), report_of(0)
        self.now_ms, self.entries = NOW_MS, 0
        for partition in range(1, partitions):
            self.heard(report_of(partition), partition)
        self.decide()
        assert not self.ledger.unheard()

    def heard(self, one: Report, partition: int) -> None:
        self.home.heard(partition, one, self.now_ms)

    def decide(self) -> c.ShareLimit | None:
        command = self.home.decide("g", self.ledger.status(), self.own, self.now_ms)
        if command is not None:
            self.entries += 1
            self.ledger.confirm([Confirmed(*one) for one in command.reports], self.now_ms * 1000)
            self.ledger.share_out(command.targets, self.own.leased, self.entries, self.now_ms * 1000)
        return command

    def asked(self) -> list[int]:
        return [partition for partition, _ in self.home.asks(self.ledger.status(), self.own, self.now_ms)]


def report_of(partition: int, version: int = 0, leased: int = 0, **more: Any) -> Report:
    one = Report("g", "", 1, 1, version, leased, 0, 0, 0, 0, 0)
    return one._replace(**more)


def test_waiting_partition_gets_unused_share() -> None:
    home = Home(3, most=8)
    home.heard(report_of(1, wants_in_flight=3), 1)
    home.heard(report_of(2, wants_in_flight=100), 2)
    home.decide()
    assert [home.ledger.shares[partition].in_flight for partition in (1, 2)] == [3, 5]
    assert home.decide() is None, "nothing is written while nothing changes"


def test_no_shares_are_written_without_waiters() -> None:
    home = Home(3, most=8, burst=5)
    assert home.entries == 1
    for partition in (1, 2):
        home.heard(report_of(partition, leased=0, used=7), partition)
    assert home.decide() is None and home.asked() == []
    assert not home.home.needs_recheck(home.ledger.status(), home.own, home.now_ms)


def test_partition_is_asked_again_later_until_it_confirms() -> None:
    home = Home(2, most=8)
    home.heard(report_of(1, wants_in_flight=2), 1)
    home.decide()
    assert home.asked() == [1] and home.asked() == []
    home.now_ms += ASK_MS
    assert home.asked() == [1]
    home.heard(report_of(1, version=home.ledger.shares[1].version), 1)
    home.decide()
    assert home.ledger.shares[1].confirmed and home.asked() == []


def test_silent_partition_keeps_its_share_without_log_writes() -> None:
    """Meanwhile waiting partitions get the remaining shares, and the log does not grow."""
    home = Home(3, most=4, burst=4)
    home.heard(report_of(1, wants_in_flight=4, wants_units=1), 1)
    home.decide()
    assert home.ledger.shares[1].units == 4 and not home.ledger.shares[1].confirmed
    before = home.entries
    for _ in range(20):
        home.now_ms += ROTATION_MS
        home.heard(report_of(2, wants_in_flight=4, wants_units=1), 2)
        home.decide()
    assert home.entries == before
    home.heard(report_of(1, version=home.ledger.shares[1].version, used=4), 1)
    for _ in range(3):
        home.now_ms += ROTATION_MS
        home.heard(report_of(2, wants_in_flight=4, wants_units=1), 2)
        home.decide()
        home.heard(report_of(1, version=home.ledger.shares[1].version, used=4), 1)
    assert home.ledger.shares[2].units > 0 and home.ledger.shares[2].in_flight > 0


def test_old_report_is_not_trusted() -> None:
    home = Home(2, most=8)
    home.heard(report_of(1, wants_in_flight=2), 1)
    home.now_ms += FRESH_MS
    assert home.decide() is None


def test_repeated_report_is_no_change_until_it_expires() -> None:
    home, waits = LimitHome(), report_of(1, wants_in_flight=2)
    assert home.heard(1, waits, NOW_MS)
    assert not home.heard(1, waits, NOW_MS + ASK_MS)
    assert home.heard(1, waits._replace(leased=1), NOW_MS + ASK_MS)
    assert home.heard(1, waits._replace(leased=1), NOW_MS + ASK_MS + FRESH_MS)


def test_partitions_share_units_when_there_are_fewer_units() -> None:
    plan, limit = LimitPlan(), GroupLimit(1, 4, 1, None, None)
    has, used, turns, now_ms = 0, [0, 0, 0, 0], [], NOW_MS
    for _ in range(12):
        now_ms += ROTATION_MS
        used[has] += 1
        standings = {
            partition: PartitionUse(int(partition == has), int(partition == has), 0, used[partition], 5)
            for partition in range(4)
        }
        changes = plan.plan(limit, standings, now_ms)
        left = 1 - sum(target[0] for target in changes.values())
        if changes:
            has = next((partition for partition, target in changes.items() if target[0]), 0 if left else has)
        turns.append(has)
    assert sorted(turns) == sorted([*range(4)] * 3), turns


def test_turn_without_a_lease_continues() -> None:
    """The one message that may be in flight can be held for hours. No entry is written for the wait."""
    plan, limit = LimitPlan(), GroupLimit(1, 3, 1, None, None)
    standings = {0: PartitionUse(0, 0, 0, 0, 5), 1: PartitionUse(1, 1, 0, 1, 5), 2: PartitionUse(0, 0, 0, 0, 5)}
    now_ms, changes = NOW_MS, 0
    for _ in range(50):
        now_ms += ROTATION_MS
        for partition, target in plan.plan(limit, standings, now_ms).items():
            changes += 1
            standings[partition] = standings[partition]._replace(in_flight=target[0])
    assert changes <= 3


def test_partitions_keep_their_turn_between_two_messages() -> None:
    """The last message is settled and the next is not leased yet. So the partition does not wait."""
    plan, limit = LimitPlan(), GroupLimit(1, 2, 1, None, None)
    waits = PartitionUse(0, 0, 0, 7, 5)
    assert plan.plan(limit, {0: waits, 1: PartitionUse(0, 1, 0, 9, 5)}, NOW_MS) == {}
    now_ms = NOW_MS + ROTATION_MS
    assert plan.plan(limit, {0: waits, 1: PartitionUse(1, 1, 0, 10, 5)}, now_ms) == {1: (0, 0)}
    between = {0: PartitionUse(0, 1, 0, 8), 1: waits}
    assert plan.plan(limit, between, now_ms + ROTATION_MS - 1) == {}
    now_ms += ROTATION_MS
    assert plan.plan(limit, between, now_ms) == {1: (1, 0)}
    between = {0: waits, 1: PartitionUse(0, 1, 0, 11)}
    assert plan.plan(limit, between, now_ms + ROTATION_MS - 1) == {}
    assert plan.plan(limit, between, now_ms + ROTATION_MS) == {1: (0, 0)}


TOKENS = GroupLimit(1, 4, None, 1000, 100, "tokens")
"""A limit whose rate has a unit."""


def waiting_for(units: int, has: int = 0, used: int = 0) -> PartitionUse:
    """Return the use of a partition whose next message needs this many units."""
    return PartitionUse(0, 0, has, used, wants_units=units)


def test_partition_gets_the_units_of_its_next_message() -> None:
    uses = {0: waiting_for(10, has=100), 1: waiting_for(70), 2: waiting_for(5)}
    assert LimitPlan().plan(TOKENS, uses, NOW_MS) == {1: (0, 70), 2: (0, 15)}


def test_large_message_waits_for_the_units_of_all_others() -> None:
    """Partition 3 waits for all units. The turns of the others end one after the other."""
    plan = LimitPlan()
    uses = {0: waiting_for(0, has=40), 1: waiting_for(20, has=30), 2: waiting_for(20, has=30), 3: waiting_for(100)}
    plan.plan(TOKENS, uses, NOW_MS)
    now_ms = NOW_MS + 2 * ROTATION_MS
    uses |= {one: waiting_for(20, has=30, used=300) for one in (1, 2)}
    targets = plan.plan(TOKENS, uses, now_ms)
    assert targets == {1: (0, 0), 2: (0, 0), 3: (0, 100)}


def test_partitions_that_do_not_wait_give_all_units_for_a_large_message() -> None:
    plan = LimitPlan()
    idle = PartitionUse(0, 0, 30, 5)
    uses = {0: PartitionUse(0, 0, 40, 5), 1: idle, 2: idle, 3: waiting_for(90)}
    plan.plan(TOKENS, uses, NOW_MS)
    busy = PartitionUse(0, 0, 30, 50)
    targets = plan.plan(TOKENS, {0: PartitionUse(0, 0, 40, 50), 1: busy, 2: busy, 3: waiting_for(90)}, NOW_MS + 9999)
    assert targets == {1: (0, 0), 2: (0, 0), 3: (0, 100)}


def test_large_messages_leave_others_their_share() -> None:
    """Partition 1 has used 400 units for one message. It gets no other turn before the small ones catch up."""
    plan, small = LimitPlan(), waiting_for(1)
    plan.plan(TOKENS, {0: waiting_for(0, has=100), 1: waiting_for(100), 2: small}, NOW_MS)
    after = {0: PartitionUse(0, 0, 0, 0), 1: waiting_for(100, has=100, used=400), 2: small}
    assert plan.plan(TOKENS, after, NOW_MS + ROTATION_MS) == {1: (0, 0), 2: (0, 100)}
    after |= {1: waiting_for(100, used=400), 2: waiting_for(1, has=100, used=250)}
    assert plan.plan(TOKENS, after, NOW_MS + 3 * ROTATION_MS) == {}
    after |= {2: waiting_for(1, has=100, used=420)}
    assert plan.plan(TOKENS, after, NOW_MS + 5 * ROTATION_MS) == {1: (0, 100), 2: (0, 0)}


def test_partitions_that_wait_for_acks_get_shares_after_very_many_units() -> None:
    limit, plan = TOKENS._replace(max_in_flight=1), LimitPlan()
    for used in (0, 2**41):
        uses = {number: PartitionUse(0, 0, 0, used, 1, TOKENS.burst or 0) for number in (1, 2)}
        uses[0] = PartitionUse(0, 1, TOKENS.burst or 0, 0)
        assert plan.plan(limit, uses, NOW_MS + used) != {}


def test_member_that_missed_a_shorter_pause_is_asked_after_its_end() -> None:
    """The member may still apply an earlier, longer pause."""
    own, home = fresh(GroupLimit(1, 0, 5, None, None), True), LimitHome()
    ledger = Ledger(own, {4096: Member(7, 1, "g")})
    report = Report("g", "llm", 1, 1, 0, 0, 0, 0, 0, 0, 0, pause=2)
    home.heard(4096, report, NOW_MS)
    ledger.confirm([Confirmed(4096, 0, 0, 0)], NOW_MS * 1000)
    own.pause = LimitPause(2, FOREVER, "an operator")
    nothing = Report("llm", "", 1, 1, 0, 0, 0, 0, 0, 0, 0)
    assert not [*home.asks(ledger.status(), nothing, NOW_MS)] and not home.needs_recheck(
        ledger.status(), nothing, NOW_MS
    )
    own.pause = LimitPause(3, NOW_MS + 200, "an operator")
    later_ms = NOW_MS + 60_000
    ((number, offer),) = home.asks(ledger.status(), nothing, later_ms)
    assert (number, offer.pause) == (4096, own.pause) and home.needs_recheck(ledger.status(), nothing, later_ms)
