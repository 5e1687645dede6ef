"""The broker: topics and their partitions on this node, and what may be asked of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

import structlog
import trio
import trio.lowlevel

from sandq.broker.catalog import Catalog, OpenTopic
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.controller.administration import Administration
from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.delivery.lease_once import LeaseOnce, Taken, Taker, release
from sandq.broker.delivery.partition_leader import PartitionLeader
from sandq.broker.delivery.subscribe import Subscriber, held_by, open_group
from sandq.broker.delivery.subscription import Subscription
from sandq.broker.peers.routes import Routes
from sandq.broker.produce_validation import check_batch
from sandq.broker.queries.fan_out import call_all, read_all
from sandq.broker.queries.kv_watch import KvWatches
from sandq.broker.queries.linearizable_reads import LinearizableReads
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import Done, RaftGroup
from sandq.broker.replication.replica import Delivery, MetadataView
from sandq.broker.replication.runner import Runner
from sandq.broker.stats import NodeStats
from sandq.broker.timers import Timers
from sandq.model.errors import (
    InvalidRequest,
    NotLeader,
    SandqError,
    UnknownTopic,
)
from sandq.model.limits import Limits
from sandq.model.names import check_name
from sandq.partition import commands as c

log = structlog.get_logger("sandq.broker")
T = TypeVar("T")

LEASE_MS_RANGE = (1_000, 43_200_000)
REQUEST_BYTES = 64
"""Roughly what a request takes until it is answered, beside what it brings."""


class Broker:
    def __init__(
        self,
        node_log: NodeLog,
        runner: Runner,
        clock: GuardedClock,
        timers: Timers,
        limits: Limits,
        stats: NodeStats,
        up: Callable[[], Collection[str]],
        routes: Routes,
        catalog: Catalog,
        reconciler: Reconciler,
        administration: Administration,
        nursery: trio.Nursery,
    ) -> None:
        """`up`: the nodes that can be reached, this one included. `nursery` outlives every connection."""
        self.node_log = node_log
        self.clock = clock
        self.limits = limits
        self.stats = stats
        self.up = up
        self.routes = routes
        self.catalog = catalog
        self.reconciler = reconciler
        self.administration = administration
        self.reads = LinearizableReads(runner, nursery)
        self.kv_watches = KvWatches(runner, nursery)
        self._runner = runner
        self.is_busy, self.drain = runner.is_busy, runner.drain
        self._timers = timers
        self._turn = 0

    # -- starting -------------------------------------------------------------------------------------------------

    async def start(self, metadata: RaftGroup) -> None:
        """Open what metadata places here."""
        if metadata.group.is_only_voter:
            await self.catalog.until_ready([metadata])
        await self.reconciler.start(metadata)

    @property
    def metadata_host(self) -> RaftGroup:
        """The local replica of the metadata group; KeyError before this node takes part in a cluster."""
        return self.node_log.metadata

    @property
    def metadata(self) -> MetadataView:
        view: MetadataView = self.metadata_host.status
        return view

    def topic(self, name: str) -> OpenTopic:
        return self.catalog.topic(name)

    def topics(self) -> list[OpenTopic]:
        return list(self.catalog.topics.values())

    def partition(self, topic: str, partition: int) -> PartitionLeader:
        return self.catalog.partition(topic, partition)

    def led(self, topic: str) -> list[PartitionLeader]:
        """The partitions of a topic that this node leads. Raises UnknownTopic, NotLeader when there are none."""
        opened = self.topic(topic)
        led = list(opened.led().values())
        if not led:
            hints = (self.catalog.leader(opened, partition) for partition in range(len(opened.record.partitions)))
            leader = next((node for node in hints if node is not None and node != self.node_log.node_id), None)
            hint = {"node_id": leader} if leader is not None else {}
            raise NotLeader(f"this node leads no partition of topic {topic!r} (yet)", **hint)
        return led

    # -- messages -------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        producer_id: int,
        epoch: int,
        sequence: int,
        on_conflict: int,
        done: Done,
        *,
        requests: int = 1,
    ) -> None:
        """`done` gets (base, count), or `Stored`, once the batch is stored. `requests`: that wait for its answer."""
        delivery = self.partition(topic, partition)
        where = self.catalog.topics[topic].places[partition]
        messages, split = check_batch(batch, self.clock.now_ms(), self.limits, where)
        command = c.Append(batch, producer_id, epoch, sequence, on_conflict, split)
        delivery.host.submit(command, done, size=len(batch) + REQUEST_BYTES * requests, messages=messages)

    def settle(self, group_number: int, partition: int, command: c.Ack | c.Nack | c.Extend, done: Done) -> None:
        """Ack, nack or extend leases. A lease of a topic that is no more is lost."""
        delivery = self.catalog.of_group(group_number, partition)
        if isinstance(command, c.Extend):
            low, high = LEASE_MS_RANGE
            for _, lease_ms in command.items:
                if not low <= lease_ms <= high:
                    raise InvalidRequest(f"a lease of {lease_ms} ms; {low} to {high} are allowed")
        delivery.host.submit(command, done, size=_size_of(command))

    # -- subscriptions --------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        asked: Subscriber,
        push: Callable[[int, int, Delivery], None],
        congested: Callable[[], bool],
        ended: Callable[[SandqError], None],
    ) -> tuple[Subscription, list[int]]:
        """Opens the group where it is new, pushes leases of this consumer that it does not know of, then takes part.

        Returns the subscription and the partitions led here. Raises UnknownTopic, InvalidRequest, NotLeader.
        """
        topic = self.topic(asked.topic)
        check_name("group", asked.group)
        deliveries = self.led(asked.topic)
        subscription = Subscription(
            asked.group, asked.consumer, asked.credit, self._lease_ms(topic, asked.lease_ms), push, congested, ended
        )
        await open_group(deliveries, asked.group, asked.start)
        await read_all([delivery.host for delivery in deliveries])
        lost_pushes = await self._runner.ask(partial(held_by, deliveries, asked, self.limits))
        if any(delivery.closed for delivery in deliveries):
            raise UnknownTopic(f"topic {asked.topic!r} was deleted", topic=asked.topic)
        if deliveries != self.led(asked.topic):
            # Who subscribes to what is led here now gets what was leased to it there, too.
            raise NotLeader(f"partitions of topic {asked.topic!r} were moved meanwhile; subscribe again")
        for delivery, lost_push in lost_pushes:
            subscription.credit -= lost_push.count
            delivery.push(subscription, lost_push)
        for delivery in deliveries:
            delivery.attach(subscription)
        return subscription, sorted(delivery.partition for delivery in deliveries)

    async def take(self, asked: Taker, congested: Callable[[], bool]) -> list[Taken]:
        """Lease what is due, once, without a subscription. Raises UnknownTopic, InvalidRequest, NotLeader.

        Whoever is cancelled meanwhile has leased nothing: it is given back.
        """
        topic = self.topic(asked.topic)
        check_name("group", asked.group)
        lease_ms = self._lease_ms(topic, asked.lease_ms)
        deliveries = self.led(asked.topic)
        await open_group(deliveries, asked.group, asked.start)
        self._turn += 1
        lease_once = LeaseOnce(asked, deliveries, lease_ms, self.clock, self._timers, self._turn, congested)
        try:
            taken = await lease_once.run()
            # Cancelled when the answer had just come: nobody takes it.
            await trio.lowlevel.checkpoint_if_cancelled()
            return taken
        except BaseException:
            self.give_back(asked)
            raise

    def give_back(self, asked: Taker) -> None:
        """Nobody is there any more to get what was leased, or is being leased."""
        opened = self.catalog.topics.get(asked.topic)
        release(opened.partitions.values() if opened else (), asked)

    def _lease_ms(self, topic: OpenTopic, asked_ms: int | None) -> int:
        lease_ms: int = asked_ms if asked_ms is not None else topic.record.settings["lease_ms"]
        low, high = LEASE_MS_RANGE
        if not low <= lease_ms <= high:
            raise InvalidRequest(f"a lease of {lease_ms} ms; {low} to {high} are allowed")
        return lease_ms

    def add_credit(self, subscription: Subscription, more: int) -> None:
        subscription.credit = min(subscription.credit + more, self.limits.credit_max)
        subscription.notify_room()

    def detach(self, topic: str, subscription: Subscription) -> list[PartitionLeader]:
        """The connection is gone: the leases run on. Returns where the subscription took part."""
        subscription.closed = True
        opened = self.catalog.topics.get(topic)
        return [d for d in opened.partitions.values() if d.detach(subscription)] if opened else []

    async def unsubscribe(self, topic: str, subscription: Subscription) -> None:
        """The consumer leaves cleanly: its leases are given back at once."""
        release = c.Release(subscription.group, subscription.consumer)
        await call_all([(delivery.host, release) for delivery in self.detach(topic, subscription)])

    # -- looking --------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[], T]) -> T:
        """Run on the thread that owns the state of all partitions."""
        return await self._runner.ask(question)


def _size_of(command: c.Ack | c.Nack | c.Extend) -> int:
    """Roughly what a command takes until it is applied, in bytes."""
    size = 64
    for item in command.items:
        size += 64
        if isinstance(item[1], list):
            size += sum([64 + (len(extent) if isinstance(extent, bytes) else 0) for _, extent in item[1]])
    return size
