"""Tests of pending leases when partitions move: the consumer returns with another subscription."""

from __future__ import annotations

import pytest

from sandq.broker.leader.lease_window import LEAST_MS, MESSAGES_PER_S, MOST_MS
from sandq.broker.leader.subscription import Subscription
from sandq.model.errors import NotLeader
from sandq.partition import commands as c
from tests.support.partition.leader_bed import CREDIT, LEASE_AHEAD_MS, LeaderBed

MOVED = NotLeader("partition 1 is led by another node now")


@pytest.fixture
def bed() -> LeaderBed:
    return LeaderBed()


def leave(bed: LeaderBed, subscription: Subscription, *, moved: bool) -> None:
    if moved:
        bed.delivery.end_subscriptions(MOVED)
    else:
        # The connection is gone (`Broker.detach`).
        subscription.closed = True
        bed.delivery.detach(subscription)


@pytest.mark.parametrize("moved", [True, False])
def test_a_lease_that_is_granted_meanwhile(bed: LeaderBed, moved: bool) -> None:
    """The lease was requested before the consumer reconnected, and is granted afterwards.

    A lease for a lost connection is not given to the new subscription: it expires.
    """
    bed.produce(0)
    first = bed.subscription("first")
    bed.delivery.attach(first)  # the subscription requests a lease at once
    leave(bed, first, moved=moved)
    second = bed.come_back("second")
    bed.settle()
    assert [name for name, _ in bed.pushed] == (["second"] if moved else [])
    assert second.credit == (CREDIT - 1 if moved else CREDIT)


@pytest.mark.parametrize("moved", [True, False])
def test_a_lease_ahead_of_its_time_comes_once(bed: LeaderBed, moved: bool) -> None:
    """The message is pushed once, at its due time, to the subscription of that time."""
    bed.produce(LEASE_AHEAD_MS // 2)
    first = bed.subscription("first")
    bed.delivery.attach(first)
    bed.settle()
    assert bed.pushed == [] and first.credit == CREDIT - 1, "the message is leased but not due"
    leave(bed, first, moved=moved)
    second = bed.come_back("second")
    bed.clock.ms += LEASE_AHEAD_MS
    bed.settle()
    assert [name for name, _ in bed.pushed] == ["second"]
    assert second.credit == CREDIT - 1


def test_lease_of_absent_consumer_is_not_pushed(bed: LeaderBed) -> None:
    bed.produce(LEASE_AHEAD_MS // 2)
    first = bed.subscription("first")
    bed.delivery.attach(first)
    bed.settle()
    leave(bed, first, moved=True)
    bed.clock.ms += LEASE_AHEAD_MS
    bed.settle()
    assert bed.pushed == []


def test_lease_that_ended_meanwhile_uses_no_credit(bed: LeaderBed) -> None:
    """A seek ended the lease meanwhile. No subscription gets the lease, and the credit of the new subscription is
    unchanged."""
    bed.produce(LEASE_AHEAD_MS // 2)
    first = bed.subscription("first")
    bed.delivery.attach(first)
    bed.settle()
    leave(bed, first, moved=True)
    second = bed.subscription("second")
    bed.delivery.attach(second)
    bed.settle()
    bed.call(c.Seek("g", "latest"))
    bed.clock.ms += LEASE_AHEAD_MS
    bed.settle()
    assert bed.pushed == []
    assert second.credit == CREDIT


def test_returned_message_comes_first_though_its_timer_is_late(bed: LeaderBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overloaded node learns of a lease before it handles timers that were due earlier."""
    bed.delivery.attach(bed.subscription("first"))
    bed.produce(LEASE_AHEAD_MS // 2)
    bed.clock.ms += LEAST_MS
    bed.produce(LEASE_AHEAD_MS // 2)
    assert bed.pushed == []
    with monkeypatch.context() as late:
        late.setattr(bed.timers, "fire", lambda: None)
        bed.clock.ms += LEASE_AHEAD_MS
        bed.produce(0)
        tokens = [token for _, token in bed.pushed]
        assert len(tokens) == 3 and tokens == sorted(tokens)
    bed.settle()
    assert len(bed.pushed) == 3, "and once each"


@pytest.mark.parametrize("lease_ahead_ms, each_ms, acks", [(0, 1, False), (5, 2, True), (LEASE_AHEAD_MS, 5, False)])
def test_messages_of_a_window_are_leased_together(lease_ahead_ms: int, each_ms: int, acks: bool) -> None:
    """A lease is requested once per window, and no message waits longer for it. Acks do not shorten the windows."""
    bed = LeaderBed(lease_ahead_ms)
    subscription = bed.subscription("first", acks=acks)
    subscription.credit = 10_000
    bed.delivery.attach(subscription)
    begun_ms, first_ms, span_ms = bed.clock.ms, 2 * LEASE_AHEAD_MS, 800
    longest_ms = min(1000 * each_ms // MESSAGES_PER_S, MOST_MS)
    for at in range(span_ms):
        bed.produce(first_ms + at, each_ms)
    leases = 0
    for now_ms in range(begun_ms, begun_ms + first_ms + span_ms + longest_ms + 1):
        if now_ms == begun_ms + first_ms + span_ms // 2:
            leases = len(bed.counts)
        bed.clock.ms = now_ms
        bed.settle()
        due_ms = now_ms - begun_ms - first_ms
        assert min(due_ms - longest_ms, span_ms) * each_ms <= sum(bed.counts), "a message is too late"
        assert sum(bed.counts) <= max(due_ms + 1, 0) * each_ms, "a message is early"
    assert sum(bed.counts) == span_ms * each_ms
    assert len(bed.counts) - leases <= 1.5 * span_ms / 2 / longest_ms


@pytest.mark.parametrize("precision", ["auto", "1s"])
def test_a_message_alone_comes_at_its_time(precision: str) -> None:
    bed = LeaderBed(precision=precision)
    bed.clock.ms += 2000
    bed.delivery.attach(bed.subscription("first"))
    for step_ms in (2000, 1100, 5000):
        begun_ms = bed.clock.ms
        bed.produce(step_ms)
        before = len(bed.counts)
        for at_ms in (LEASE_AHEAD_MS, 1, 0):
            assert len(bed.counts) == before
            bed.clock.ms = begun_ms + step_ms - at_ms
            bed.settle()
        assert len(bed.counts) == before + 1


def test_simultaneous_messages_do_not_extend_the_look_ahead() -> None:
    """With many messages at one time and a few later ones, the first would wait for the others."""
    bed = LeaderBed(5)
    subscription = bed.subscription("first")
    bed.delivery.attach(subscription)
    bed.produce(7)
    for _ in range(3):
        bed.produce(0, 50)
        assert sum(bed.counts) % 50 == 0
        subscription.credit = CREDIT
        subscription.notify_credit()
    assert sum(bed.counts) == 150


def test_due_messages_are_leased_immediately(bed: LeaderBed) -> None:
    bed.delivery.attach(bed.subscription("first"))
    for _ in range(3):
        bed.produce(0)
    assert bed.counts == [1, 1, 1]
