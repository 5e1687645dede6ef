"""A partition that this node leads, on virtual time. The test drives the commit batches."""

from __future__ import annotations

import random
from typing import Any

from sandq.broker.leader.lease_window import LeaseWindow
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.leader.subscription import Subscription
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import Delivery, PartitionReplica
from sandq.broker.stats.node_stats import NodeStats
from sandq.metadata.state import Partition, Topic
from sandq.model.batch import Column, encode
from sandq.model.errors import SandqError
from sandq.model.limits import Limits
from sandq.model.names import TIMER
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.raft import Members
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from tests.support.nodes.fake_receiver import FakeReceiver
from tests.support.simulation.stepped import Stepped, VirtualClock
from tests.support.storage.log_bed import SEGMENT_BYTES

GROUP = 7
CREDIT, LEASE_MS, LEASE_AHEAD_MS = 100, 60_000, 50


class LeaderBed(Stepped):
    """A partition of this node, and the messages of its consumer "c" for each subscription."""

    def __init__(self, lease_ahead_ms: int = LEASE_AHEAD_MS, kind: str = TIMER, **given: Any) -> None:
        """`given`: settings of the topic."""
        self.clock = VirtualClock()
        super().__init__(random.Random(0), self.clock)
        self.node_log = NodeLog(
            MemoryFiles(),
            MemoryStores(),
            node_id="n1",
            now_ms=self.clock.now_ms,
            publish=self.published.append,
            segment_bytes=SEGMENT_BYTES,
            limits=Limits(),
        )
        settings = parse_settings(given, kind).record()
        topic = Topic(
            name="t",
            number=1,
            kind=kind,
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
