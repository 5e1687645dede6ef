"""The broker: topics and their partitions on this node, and what may be asked of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import structlog
import trio
import trio.lowlevel

from sandq.metadata import commands as m
from sandq.metadata.state import Topic
from sandq.model.config import NodeConfig
from sandq.model.errors import (
    InvalidRequest,
    LeaseLost,
    SandqError,
    StorageFailed,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from sandq.model.names import check_name
from sandq.model.settings import parse_settings, update_settings
from sandq.partition import commands as c

from .clock import GuardedClock
from .deliverer import PartitionDelivery
from .engine import Engine
from .host import Done, GroupHost, call_all
from .publisher import Place, check_batch
from .replica import Delivery, MetadataView, PartitionReplica
from .runner import Runner
from .stats import NodeStats, TopicStats
from .subscribing import Subscriber, held_by, open_group
from .subscription import Subscription
from .taking import Taken, Taker, Taking, release
from .timers import Timers

log = structlog.get_logger("sandq.broker")
T = TypeVar("T")

READY_POLL_S = 0.002
LEASE_MS_RANGE = (1_000, 43_200_000)
KINDS = ("timer",)


class OpenTopic(NamedTuple):
    """A topic with the partitions that run here."""

    record: Topic
    partitions: dict[int, PartitionDelivery]
    places: dict[int, Place]
    stats: TopicStats


class Broker:
    def __init__(
        self, engine: Engine, runner: Runner, clock: GuardedClock, timers: Timers, config: NodeConfig, stats: NodeStats
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.limits = config.limits
        self.stats = stats
        self._runner = runner
        self.is_busy, self.drain = runner.is_busy, runner.drain
        self._timers = timers
        self._config = config
        self._metadata: GroupHost
        self._nursery: trio.Nursery
        self._topics: dict[str, OpenTopic] = {}
        self._by_group: dict[int, PartitionDelivery] = {}
        self._turn = 0
        self._admin = trio.Lock()
        """Topics are made and deleted one at a time."""

    # -- starting -------------------------------------------------------------------------------------------------

    async def start(self, nursery: trio.Nursery, store_uuid: str, addresses: Mapping[str, str]) -> None:
        """Run the metadata group, register this node, and open what metadata places here. `nursery` outlives every
        connection."""
        self._nursery = nursery
        self._metadata = self.engine.open_metadata()
        await self._until_ready([self._metadata])
        node = self.metadata.nodes.get(self._config.node.id)
        if node is None or node.store_uuid != store_uuid or node.addresses != addresses:
            await self._metadata.call(m.RegisterNode(self._config.node.id, store_uuid, dict(addresses)))
        for topic in self.metadata.topics.values():
            await self._open(topic)
        placed = {p.group for topic in self.metadata.topics.values() for p in topic.partitions}
        gone = [p.group for p in self.engine.pointers.all() if p.group not in placed and p.group != 0]
        await self._remove(gone)

    async def sweep(self) -> None:
        """Reclaim the space of deleted stores, in bounded steps."""
        start: bytes | None = self.engine.SWEEP_START
        with suppress(StorageFailed):
            while start is not None:
                start, range_done = await self._runner.ask(partial(self.engine.sweep, start))
                if range_done is not None:
                    await self._runner.on_maintenance(partial(self.engine.stores.compact, *range_done))

    async def _until_ready(self, hosts: list[GroupHost]) -> None:
        while not all(host.ready for host in hosts):
            if self.engine.failed is not None:
                raise self.engine.failed
            await trio.sleep(READY_POLL_S)

    @property
    def metadata(self) -> MetadataView:
        view: MetadataView = self._metadata.status
        return view

    async def _open(self, topic: Topic) -> None:
        members = [(p.group, member) for p in topic.partitions for member in p.members]
        await self._runner.on_maintenance(partial(self.engine.install, members))
        hosts = [self.engine.open_partition(topic, partition) for partition in range(len(topic.partitions))]
        stats = TopicStats(self.stats)
        await self._until_ready(hosts)
        deliveries = {
            partition: PartitionDelivery(
                host,
                partition,
                self.clock,
                self._timers,
                self._config.delivery.lease_ahead_ms,
                partial(self._compact_soon, host),
                stats,
            )
            for partition, host in enumerate(hosts)
        }
        places = {
            partition: Place(partition, topic.initial_partitions, topic.settings["ordering"] == "key")
            for partition in deliveries
        }
        await self._configure(topic, hosts)
        self._topics[topic.name] = OpenTopic(topic, deliveries, places, stats)
        for delivery in deliveries.values():
            self._by_group[delivery.host.number] = delivery
            delivery.status_changed()

    def _compact_soon(self, host: GroupHost) -> None:
        self._nursery.start_soon(self._compact, host)

    async def _compact(self, host: GroupHost) -> None:
        """Let the store forget what was deleted of a partition."""
        replica = host.replica
        assert isinstance(replica, PartitionReplica)
        with suppress(StorageFailed):
            start, stop = await self._runner.ask(replica.take_deleted)
            await self._runner.on_maintenance(partial(self.engine.stores.compact, start, stop))
        delivery = self._by_group.get(host.number)
        if delivery is not None:
            delivery.compacted()

    async def _remove(self, groups: list[int]) -> None:
        if groups:
            await self._runner.on_maintenance(partial(self.engine.uninstall, groups))
            await self._runner.on_wal(partial(self.engine.forget, groups))
            self._nursery.start_soon(self.sweep)

    # -- topics ---------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> OpenTopic:
        topic = self._topics.get(name)
        if topic is None:
            if name in self.metadata.topics:
                raise Unavailable(f"topic {name!r} is being opened; ask again in a moment", topic=name)
            raise UnknownTopic(f"there is no topic {name!r}", topic=name)
        return topic

    def topics(self) -> list[OpenTopic]:
        return list(self._topics.values())

    def partition(self, topic: str, partition: int) -> PartitionDelivery:
        found = self.topic(topic)
        if partition not in found.partitions:
            raise UnknownPartition(
                f"topic {topic!r} has no partition {partition}; it has {len(found.partitions)}", topic=topic
            )
        return found.partitions[partition]

    async def create_topic(
        self, name: str, kind: str, partitions: int, replicas: int, settings: Mapping[str, Any]
    ) -> Topic:
        """Returns once the topic takes messages. Raises InvalidRequest, TopicExists, StorageFailed."""
        check_name("topic", name)
        if kind not in KINDS:
            raise InvalidRequest(f"kind {kind!r} is not known; this version has: {', '.join(KINDS)}")
        if not 1 <= partitions <= self.limits.partitions_per_topic:
            raise InvalidRequest(f"{partitions} partitions; 1 to {self.limits.partitions_per_topic} are allowed")
        nodes = sorted(self.metadata.nodes)
        if not 1 <= replicas <= len(nodes):
            raise InvalidRequest(
                f"{replicas} replicas, and {len(nodes)} nodes are registered: a node holds one at most"
            )
        record = parse_settings(settings).record()

        async def create() -> Topic:
            if name in self.metadata.topics:
                raise TopicExists(f"there is a topic {name!r} already", topic=name)
            placement = [nodes[:replicas]] * partitions
            topic: Topic = await self._metadata.call(m.CreateTopic(name, kind, placement, record))
            await self._open(topic)
            log.info("topic created", topic=name, partitions=partitions)
            return topic

        return await self._whole(create)

    async def update_topic(self, name: str, settings: Mapping[str, Any]) -> Topic:
        """Change some settings. Raises UnknownTopic, InvalidSetting, StorageFailed."""

        async def update() -> Topic:
            opened = self.topic(name)
            record = update_settings(opened.record.settings, settings).record()
            topic: Topic = await self._metadata.call(m.UpdateTopic(name, record))
            await self._configure(topic, [delivery.host for delivery in opened.partitions.values()])
            self._topics[name] = opened._replace(record=topic)
            log.info("topic updated", topic=name)
            return topic

        return await self._whole(update)

    async def _configure(self, topic: Topic, hosts: list[GroupHost]) -> None:
        """Give partitions the topic's settings where they have others."""
        await call_all(
            [(host, c.Configure(topic.settings)) for host in hosts if host.status.settings != topic.settings]
        )

    async def delete_topic(self, name: str) -> None:
        """Returns once the topic is gone; its space is reclaimed later. Raises UnknownTopic, StorageFailed."""

        async def delete() -> None:
            await self._metadata.call(m.DeleteTopic(name))
            opened = self._topics.pop(name, None)
            gone = UnknownTopic(f"topic {name!r} was deleted", topic=name)
            groups = []
            for delivery in opened.partitions.values() if opened else ():
                groups.append(delivery.host.number)
                del self._by_group[delivery.host.number]
                delivery.close(gone)
                self.engine.close_group(delivery.host.number, gone)
            # The apply thread may still hold entries of these groups; their rows go only after it is through.
            await self._runner.ask(lambda: None)
            await self._remove(groups)
            log.info("topic deleted", topic=name)

        await self._whole(delete)

    async def _whole(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change of topics from its start to its end, one at a time, whatever becomes of who asked for it."""
        answer: list[T | SandqError] = []
        finished = trio.Event()

        async def run() -> None:
            try:
                async with self._admin:
                    answer.append(await change())
            except SandqError as error:
                answer.append(error)
            finished.set()

        self._nursery.start_soon(run)
        await finished.wait()
        if isinstance(answer[0], SandqError):
            raise answer[0]
        return answer[0]

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
    ) -> None:
        """`done` gets (base, count), or `Stored`, once the batch is stored."""
        delivery = self.partition(topic, partition)
        place = self._topics[topic].places[partition]
        messages, split = check_batch(batch, self.clock.now_ms(), self.limits, place)
        command = c.Append(batch, producer_id, epoch, sequence, on_conflict, split)
        delivery.host.submit(command, done, size=len(batch) + 64, messages=messages)

    def settle(self, group_number: int, partition: int, command: c.Ack | c.Nack | c.Extend, done: Done) -> None:
        """Ack, nack or extend leases. A lease of a topic that is no more is lost."""
        delivery = self._by_group.get(group_number)
        if delivery is None or delivery.partition != partition:
            raise LeaseLost(f"leases of {group_number}.{partition} are lost: there is no such partition (any more)")
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
        deliveries = list(topic.partitions.values())
        subscription = Subscription(
            asked.group, asked.consumer, asked.credit, self._lease_ms(topic, asked.lease_ms), push, congested, ended
        )
        await open_group(deliveries, asked.group, asked.start)
        lost_pushes = await self._runner.ask(partial(held_by, deliveries, asked, self.limits))
        if any(delivery.closed for delivery in deliveries):
            raise UnknownTopic(f"topic {asked.topic!r} was deleted", topic=asked.topic)
        for delivery, lost_push in lost_pushes:
            subscription.credit -= lost_push.count
            delivery.push(subscription, lost_push)
        for delivery in deliveries:
            delivery.attach(subscription)
        return subscription, sorted(topic.partitions)

    async def take(self, asked: Taker, congested: Callable[[], bool]) -> list[Taken]:
        """Lease what is due, once, without a subscription. Raises UnknownTopic, InvalidRequest, NotLeader.

        Whoever is cancelled meanwhile has leased nothing: it is given back.
        """
        topic = self.topic(asked.topic)
        check_name("group", asked.group)
        lease_ms = self._lease_ms(topic, asked.lease_ms)
        deliveries = list(topic.partitions.values())
        await open_group(deliveries, asked.group, asked.start)
        self._turn += 1
        taking = Taking(asked, deliveries, lease_ms, self.clock, self._timers, self._turn, congested)
        try:
            taken = await taking.run()
            # Cancelled when the answer had just come: nobody takes it.
            await trio.lowlevel.checkpoint_if_cancelled()
            return taken
        except BaseException:
            self.give_back(asked)
            raise

    def give_back(self, asked: Taker) -> None:
        """Nobody is there any more to get what was leased, or is being leased."""
        opened = self._topics.get(asked.topic)
        release(opened.partitions.values() if opened else (), asked)

    def _lease_ms(self, topic: OpenTopic, asked_ms: int | None) -> int:
        lease_ms: int = asked_ms if asked_ms is not None else topic.record.settings["lease_ms"]
        low, high = LEASE_MS_RANGE
        if not low <= lease_ms <= high:
            raise InvalidRequest(f"a lease of {lease_ms} ms; {low} to {high} are allowed")
        return lease_ms

    def add_credit(self, subscription: Subscription, more: int) -> None:
        subscription.credit = min(subscription.credit + more, self.limits.credit_max)
        subscription.feed()

    def detach(self, topic: str, subscription: Subscription) -> list[PartitionDelivery]:
        """The connection is gone: the leases run on. Returns where the subscription took part."""
        subscription.closed = True
        opened = self._topics.get(topic)
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
