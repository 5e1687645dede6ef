"""Tests of thousands of consumers in one group: only consumers that may have credit are checked."""

from __future__ import annotations

from sandq.broker.leader.partition_leader import MAX_GRANTS
from sandq.broker.leader.subscription import Subscription
from sandq.broker.replication.replica import Delivery
from tests.support.nodes.fake_receiver import FakeReceiver
from tests.support.partition.leader_bed import LEASE_MS, LeaderBed

CONSUMERS = 1000


class Crowd(LeaderBed):
    """Counts the credit checks of consumers, and records which consumers got messages."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0
        self.congested: set[str] = set()
        self.given: list[str] = []

    def consumer(self, name: str, credit: int) -> Subscription:
        """Add a consumer, and return its subscription."""

        def push(delivery: Delivery) -> None:
            self.given.append(name)

        def congested() -> bool:
            self.looked += 1
            return name in self.congested

        subscription = Subscription(
            group="g",
            consumer=name,
            credit=credit,
            lease_ms=LEASE_MS,
            receiver=FakeReceiver(push, is_congested=congested),
        )
        self.delivery.attach(subscription)
        return subscription


def add_credit(subscription: Subscription, more: int) -> None:
    subscription.credit += more
    subscription.notify_credit()


def test_consumers_without_credit_are_checked_once() -> None:
    crowd = Crowd()
    crowd.produce(0)
    consumers = [crowd.consumer(f"c{number}", 0) for number in range(CONSUMERS)]
    assert crowd.looked == CONSUMERS
    add_credit(consumers[500], 1)
    crowd.settle()
    assert crowd.given == ["c500"]
    crowd.produce(0)
    crowd.delivery.detach(consumers[500])
    assert crowd.looked < CONSUMERS + 10, "the other consumers are not checked again"
    add_credit(consumers[501], 1)
    crowd.settle()
    assert crowd.given == ["c500", "c501"]


def test_consumers_with_credit_are_checked_only_as_messages_are_assigned() -> None:
    crowd = Crowd()
    for number in range(CONSUMERS):
        crowd.consumer(f"c{number}", 10)
    for number in range(3):
        crowd.looked = 0
        crowd.produce(0)
        assert len(crowd.given) == number + 1
        assert crowd.looked <= 3 * MAX_GRANTS
    assert len(set(crowd.given)) == 3, "one after the other"


def test_a_client_that_takes_nothing_is_given_something_once_it_does() -> None:
    crowd = Crowd()
    crowd.congested = {"slow"}
    slow = crowd.consumer("slow", 10)
    crowd.produce(0)
    assert crowd.given == []
    crowd.congested = set()
    slow.notify_credit()
    crowd.settle()
    assert crowd.given == ["slow"]


def test_closed_consumer_gets_nothing_for_later_credit() -> None:
    crowd = Crowd()
    gone = crowd.consumer("c", 0)
    crowd.produce(0)
    crowd.delivery.detach(gone)
    there = crowd.consumer("c", 0)
    add_credit(gone, 1)
    crowd.settle()
    assert crowd.given == []
    add_credit(there, 1)
    crowd.settle()
    assert len(crowd.given) == 1 and there.credit == 0
