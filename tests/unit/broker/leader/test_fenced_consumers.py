"""Tests of pending leases when a later process of the consumer connects: the old process gets no more messages."""

from __future__ import annotations

import pytest

from sandq.broker.leader.subscription import Subscription
from sandq.model.errors import NotLeader
from sandq.partition import commands as c
from sandq.partition.leasing.lease_reclaim import fenced
from tests.support.partition.leader_bed import LEASE_AHEAD_MS, LEASE_MS, LeaderBed


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> LeaderBed:
    bed = LeaderBed()
    monkeypatch.setattr(bed.host, "_check_level", lambda level: None)
    return bed


def subscribed(bed: LeaderBed, name: str, epoch: int) -> Subscription:
    subscription = bed.subscription(name)
    subscription.epoch = epoch
    bed.delivery.attach(subscription)
    return subscription


def replaced(bed: LeaderBed, subscription: Subscription, *, moved: bool) -> None:
    """Fence the consumer as `Broker` does when a later process subscribes."""
    if moved:
        bed.delivery.end_subscriptions(NotLeader("partition 1 is led by another node now"))
    else:
        bed.delivery.detach(subscription)
        subscription.fence(fenced("g", "c", 2))


@pytest.mark.parametrize("moved", [True, False])
def test_lease_of_replaced_process_is_given_back_and_redelivered(bed: LeaderBed, moved: bool) -> None:
    bed.produce(0)
    replaced(bed, subscribed(bed, "first", 1), moved=moved)
    subscribed(bed, "second", 2)
    bed.settle()
    assert [name for name, _ in bed.pushed] == ["second"]
    (token,) = [token for _, token in bed.pushed]
    lease = bed.host.replica.machine.leases.by_token[token]  # type: ignore[union-attr]
    assert (lease.epoch, lease.attempt) == (2, 1)


@pytest.mark.parametrize("moved", [True, False])
def test_lease_ahead_is_delivered_under_its_new_token(bed: LeaderBed, moved: bool) -> None:
    bed.produce(LEASE_AHEAD_MS // 2)
    first = subscribed(bed, "first", 1)
    bed.settle()
    replaced(bed, first, moved=moved)
    bed.call(c.Reclaim("g", "c", 2, LEASE_MS))
    bed.come_back("second", epoch=2)
    bed.clock.ms += LEASE_AHEAD_MS
    bed.settle()
    assert [name for name, _ in bed.pushed] == ["second"]
    (token,) = [token for _, token in bed.pushed]
    assert bed.host.replica.machine.leases.by_token[token].live  # type: ignore[union-attr]


def test_consumer_without_epochs_gets_leases_granted_before_its_return(bed: LeaderBed) -> None:
    bed.produce(0)
    replaced(bed, subscribed(bed, "first", 0), moved=True)
    subscribed(bed, "second", 0)
    bed.settle()
    assert [name for name, _ in bed.pushed] == ["second"]
