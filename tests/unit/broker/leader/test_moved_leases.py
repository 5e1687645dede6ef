"""Tests of pending leases when partitions move: the consumer returns with another subscription."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sandq.broker.leader.lease_window import LEAST_MS, MESSAGES_PER_S, MOST_MS, STORE_MS, LeaseWindow
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.leader.subscription import Subscription
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import Delivery, PartitionReplica
from sandq.broker.stats.node_stats import NodeStats
from sandq.metadata.state import Partition, Topic
from sandq.model.batch import Column, encode
from sandq.model.errors import NotLeader, SandqError
from sandq.model.limits import Limits
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.raft import Members
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from tests.support.nodes.fake_receiver import FakeReceiver
from tests.support.simulation.stepped import Stepped, VirtualClock

GROUP = 7
CREDIT, LEASE_MS, LEASE_AHEAD_MS = 100, 60_000, 50
MOVED = NotLeader("partition 1 is led by another node now")


class Bed(Stepped):
    """A partition of this node, and the messages of its consumer "c" for each subscription."""

    def __init__(self, lease_ahead_ms: int = LEASE_AHEAD_MS, **given: Any) -> None:
        """`given`: settings of the topic."""
        self.clock = VirtualClock()
        super().__init__(random.Random(0), self.clock)
        self.node_log = NodeLog(
            MemoryFiles(),
            MemoryStores(),
            node_id="n1",
            now_ms=self.clock.now_ms,
            publish=self.published.append,
            limits=Limits(),
        )
        settings = parse_settings(given).record()
        topic = Topic(
            name="t",
            number=1,
            kind="timer",
            initial_partitions=1,
            replicas=1,
            settings=settings,
            created_ms=0,
            partitions=(Partition(GROUP, ("n1#1",), ("n1#1",)),),
            first_settings=settings,
        )
        self.node_log.install([(GROUP, "n1#1", Members(("n1#1",)))])
        self.host = self.node_log.open_partition(topic, 0)
        self.window = LeaseWindow(self.timers, ahead_ms=lease_ahead_ms, stats=NodeStats())  # type: ignore[arg-type]
        self.node_log.group_commit.before_proposals = lambda: self.window.before_proposals(self.clock.ms)
        self.delivery = PartitionLeader(
            raft_group=self.host, partition=0, clock=self.clock, timers=self.timers, window=self.window
        )  # type: ignore[arg-type]
        self.pushed: list[tuple[str, int]] = []
        self.counts: list[int] = []
        """Messages of each push."""
        self.settle()
        self.call(c.OpenGroup("g", "earliest"))

    def settle(self) -> None:
        for _ in range(50):
            self.drive()

    def call(self, command: Any, *, messages: int = 0) -> None:
        results: list[Any] = []
        self.host.submit(command, results.append, messages=messages)
        self.settle()
        assert not isinstance(results[0], SandqError), results

    def produce(self, in_ms: int, messages: int = 1) -> None:
        columns = {Column.VALUE: [b"x"] * messages, Column.DELIVER_MS: [self.clock.ms + in_ms] * messages}
        self.call(c.Append(encode(columns)), messages=messages)

    def subscription(self, name: str, *, acks: bool = False) -> Subscription:
        """Return a subscription of the consumer "c". `acks`: ack each message at once, which frees credit."""

        def push(delivery: Delivery) -> None:
            self.pushed.append((name, delivery.token))
            self.counts.append(delivery.count)
            if acks:
                self.host.submit(c.Ack([(delivery.token, None)]), lambda result: None)
                subscription.credit += delivery.count

        subscription = Subscription(
            group="g",
            consumer="c",
            credit=CREDIT,
            lease_ms=LEASE_MS,
            receiver=FakeReceiver(push),
        )
        return subscription

    def come_back(self, name: str, epoch: int = 0) -> Subscription:
        """Subscribe as `Broker.subscribe` does: leases that the consumer does not know come first."""
        again = self.subscription(name)
        again.epoch = epoch
        self.node_log.applier.write()
        replica = self.host.replica
        assert isinstance(replica, PartitionReplica)
        for lease in list(replica.held_by("g", "c", {token for _, token in self.pushed}, epoch)):
            again.credit -= lease.count
            self.delivery.push(again, lease)
        self.delivery.attach(again)
        return again


@pytest.fixture
def bed() -> Bed:
    return Bed()


def leave(bed: Bed, subscription: Subscription, *, moved: bool) -> None:
    if moved:
        bed.delivery.end_subscriptions(MOVED)
    else:
        # The connection is gone (`Broker.detach`).
        subscription.closed = True
        bed.delivery.detach(subscription)


@pytest.mark.parametrize("moved", [True, False])
def test_a_lease_that_is_granted_meanwhile(bed: Bed, moved: bool) -> None:
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
def test_a_lease_ahead_of_its_time_comes_once(bed: Bed, moved: bool) -> None:
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


def test_lease_of_absent_consumer_is_not_pushed(bed: Bed) -> None:
    bed.produce(LEASE_AHEAD_MS // 2)
    first = bed.subscription("first")
    bed.delivery.attach(first)
    bed.settle()
    leave(bed, first, moved=True)
    bed.clock.ms += LEASE_AHEAD_MS
    bed.settle()
    assert bed.pushed == []


def test_lease_that_ended_meanwhile_uses_no_credit(bed: Bed) -> None:
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


def test_returned_message_comes_first_though_its_timer_is_late(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
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
    bed = Bed(lease_ahead_ms)
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


@pytest.mark.parametrize("precision_ms", [1, 10, 100])
@pytest.mark.parametrize("in_ms", [0, 20])
def test_messages_of_a_precision_are_leased_together(precision_ms: int, in_ms: int) -> None:
    """`in_ms`: how long before its time each message is produced."""
    bed, span_ms = Bed(5, precision=precision_ms / 1000), 1000
    subscription = bed.subscription("first", acks=True)
    subscription.credit = 10_000
    bed.delivery.attach(subscription)
    bed.clock.ms += 2 * precision_ms
    begun_ms = bed.clock.ms
    for now_ms in range(begun_ms, begun_ms + in_ms + span_ms + precision_ms):
        bed.clock.ms = now_ms
        if now_ms < begun_ms + span_ms:
            bed.produce(in_ms, 2)
        bed.settle()
        passed_ms = now_ms - begun_ms - in_ms
        assert min(passed_ms - precision_ms + 1, span_ms) * 2 <= sum(bed.counts), "a message is too late"
        assert sum(bed.counts) <= max(passed_ms + 1, 0) * 2, "a message is early"
    assert sum(bed.counts) == 2 * span_ms
    assert len(bed.counts) <= 1.5 * span_ms / max(precision_ms - STORE_MS, 1) + 1


def test_changed_precision_applies_from_the_next_lease_on() -> None:
    bed = Bed(5, precision="1s")
    bed.delivery.attach(bed.subscription("first"))
    for in_ms in (0, 0):
        bed.produce(in_ms)
    assert bed.counts == [1], "the second message waits for others"
    bed.call(c.Configure(parse_settings({}).record()))
    bed.clock.ms += 1000
    bed.settle()
    assert bed.counts == [1, 1]
    bed.produce(0)
    assert bed.counts == [1, 1, 1]


@pytest.mark.parametrize("precision", ["auto", "1s"])
def test_a_message_alone_comes_at_its_time(precision: str) -> None:
    bed = Bed(precision=precision)
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
    bed = Bed(5)
    subscription = bed.subscription("first")
    bed.delivery.attach(subscription)
    bed.produce(7)
    for _ in range(3):
        bed.produce(0, 50)
        assert sum(bed.counts) % 50 == 0
        subscription.credit = CREDIT
        subscription.notify_credit()
    assert sum(bed.counts) == 150


def test_due_messages_are_leased_immediately(bed: Bed) -> None:
    bed.delivery.attach(bed.subscription("first"))
    for _ in range(3):
        bed.produce(0)
    assert bed.counts == [1, 1, 1]
