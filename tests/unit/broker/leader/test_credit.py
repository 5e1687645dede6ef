"""Tests of the lateness objective: it counts messages that were due while a consumer had credit for them."""

from __future__ import annotations

import pytest

from sandq.broker.leader.partition_leader import RETURN_MS
from sandq.broker.leader.subscription import Subscription
from sandq.model.features import KNOWN
from sandq.partition import commands as c
from tests.support.partition.leader_bed import LeaderBed
from tests.unit.broker.leader.test_moved_leases import MOVED

LATE_MS = 1000


class Counting(LeaderBed):
    """A bed that has led for a long time, so a new consumer does not count as returning."""

    def __init__(self) -> None:
        super().__init__()
        self.advance(2 * RETURN_MS)

    def advance(self, ms: int) -> None:
        self.clock.ms += ms
        self.settle()

    @property
    def counted(self) -> tuple[int, int]:
        """Number of counted deliveries, and number of late deliveries among them."""
        return self.delivery.stats.slo_deliveries, self.delivery.stats.slo_late


@pytest.fixture
def bed() -> Counting:
    return Counting()


def attach(bed: LeaderBed, credit: int = 100) -> Subscription:
    subscription = bed.subscription("s")
    subscription.credit = credit
    bed.delivery.attach(subscription)
    return subscription


def give(bed: LeaderBed, subscription: Subscription, more: int) -> None:
    subscription.credit += more
    subscription.notify_credit()
    bed.settle()


def test_due_messages_count_while_there_is_credit(bed: Counting) -> None:
    attach(bed)
    bed.produce(100)
    bed.produce(0)
    bed.advance(100)
    assert bed.counted == (2, 0)


def test_delivery_after_a_stall_counts_as_late(bed: Counting) -> None:
    attach(bed)
    bed.produce(100)
    bed.advance(100 + LATE_MS)
    assert bed.counted == (1, 1)


def test_message_due_before_a_consumer_came_does_not_count(bed: Counting) -> None:
    bed.produce(0)
    bed.advance(LATE_MS)
    attach(bed)
    bed.settle()
    assert len(bed.pushed) == 1 and bed.counted == (0, 0)
    bed.produce(0)
    assert bed.counted == (1, 0)


def test_message_due_while_all_consumers_were_busy_does_not_count(bed: Counting) -> None:
    consumer = attach(bed, credit=1)
    bed.produce(0)
    bed.produce(0)
    bed.advance(LATE_MS)
    assert bed.counted == (1, 0)
    give(bed, consumer, 1)
    assert len(bed.pushed) == 2 and bed.counted == (1, 0)
    give(bed, consumer, 1)
    bed.produce(100)
    bed.advance(100 + LATE_MS)
    assert bed.counted == (2, 1), "the consumer had credit in time, and the node was late"


def test_message_due_while_the_group_was_paused_does_not_count(bed: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed.host, "_check_level", lambda level: None)
    bed.call(c.RaiseLevel(KNOWN.highest))
    attach(bed)
    bed.call(c.PauseGroup("g", True))
    bed.produce(0)
    bed.advance(LATE_MS)
    bed.call(c.PauseGroup("g", False))
    assert len(bed.pushed) == 1 and bed.counted == (0, 0)
    bed.produce(0)
    assert bed.counted == (1, 0)


def test_message_due_without_a_leader_counts(bed: Counting) -> None:
    """A consumer that subscribes soon after a failover was subscribed to the previous leader."""
    attach(bed)
    bed.delivery.end_subscriptions(MOVED)
    bed.produce(0)
    bed.advance(LATE_MS)
    bed.delivery.lead()
    attach(bed)
    bed.settle()
    assert bed.counted == (1, 1)
