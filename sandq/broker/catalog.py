"""The topics that metadata knows, and those of their partitions that run on this node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import structlog
import trio

from sandq.metadata.state import Topic
from sandq.model.config import NodeConfig
from sandq.model.errors import (
    LeaseLost,
    NotLeader,
    SandqError,
    StorageFailed,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from sandq.partition import commands as c
from sandq.raft import Members

from .clock import GuardedClock
from .deliverer import PartitionDelivery
from .engine import METADATA_GROUP, Engine
from .host import GroupHost
from .latest import ANSWER_S, Latest, Unsure
from .publisher import Place
from .replica import MetadataView, PartitionReplica
from .routes import Routes
from .runner import Runner
from .stats import NodeStats, TopicStats
from .timers import Timers

log = structlog.get_logger("sandq.broker")

READY_POLL_S = 0.002
FOLLOW_AGAIN_S = 1.0


class OpenTopic(NamedTuple):
    """A topic with the partitions of which a replica runs here."""

    record: Topic
    partitions: dict[int, PartitionDelivery]
    places: dict[int, Place]
    stats: TopicStats

    def led(self) -> dict[int, PartitionDelivery]:
        """The partitions that this node leads, and may answer for."""
        return {partition: delivery for partition, delivery in self.partitions.items() if delivery.host.ready}


class Catalog:
    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        clock: GuardedClock,
        timers: Timers,
        config: NodeConfig,
        stats: NodeStats,
        routes: Routes,
    ) -> None:
        self.topics: dict[str, OpenTopic] = {}
        self.by_group: dict[int, PartitionDelivery] = {}
        self.followed_index = 0
        """What metadata had applied when this node did last what it says."""
        self.on_followed: Callable[[int], None] = lambda index: None
        self._engine = engine
        self._runner = runner
        self._clock = clock
        self._timers = timers
        self._config = config
        self._stats = stats
        self._routes = routes
        self.latest = Latest(engine)
        self._metadata: GroupHost
        self._nursery: trio.Nursery
        self._changed = trio.Event()
        self._followed = trio.Event()

    async def start(self, nursery: trio.Nursery, metadata: GroupHost) -> None:
        """Open what metadata places here; what it does not place here any more is removed. `nursery` outlives every
        connection."""
        self._nursery, self._metadata = nursery, metadata
        metadata.on_status = self._on_metadata
        await self._follow()
        alone = [d.host for d in self.by_group.values() if d.host.group.is_only_voter]
        await self.until_ready(alone)
        nursery.start_soon(self._keep_following)

    async def until_ready(self, hosts: Sequence[GroupHost]) -> None:
        while not all(host.ready for host in hosts):
            if self._engine.failed is not None:
                raise self._engine.failed
            await trio.sleep(READY_POLL_S)

    @property
    def view(self) -> MetadataView:
        view: MetadataView = self._metadata.status
        return view

    # -- asking ---------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> OpenTopic:
        """Raises UnknownTopic; Unsure, while this node does not know whether there is none; Unavailable."""
        topic = self.topics.get(name)
        if topic is None:
            if name in self.view.topics:
                raise Unavailable(f"topic {name!r} is being opened; ask again in a moment", topic=name)
            raise self._unknown(UnknownTopic(f"there is no topic {name!r}", topic=name), partial(self.topic, name))
        return topic

    def partition(self, name: str, partition: int) -> PartitionDelivery:
        """The replica here. Raises as `topic` does, UnknownPartition; NotLeader where there is none."""
        topic = self.topic(name)
        found = topic.partitions.get(partition)
        if found is not None:
            return found
        count = len(topic.record.partitions)
        if not 0 <= partition < count:
            raise UnknownPartition(f"topic {name!r} has no partition {partition}; it has {count}", topic=name)
        leader = self.leader(topic, partition)
        hint = {"node_id": leader} if leader is not None else {}
        raise NotLeader(f"partition {partition} of topic {name!r} is not on this node", **hint)

    def of_group(self, group: int, partition: int) -> PartitionDelivery:
        """The replica here of the partition that a lease names. Raises LeaseLost, NotLeader; Unsure, Unavailable."""
        found = self.by_group.get(group)
        if found is not None and found.partition == partition:
            return found
        for topic in self.topics.values():
            if partition < len(topic.record.partitions) and topic.record.partitions[partition].group == group:
                return self.partition(topic.record.name, partition)
        view = self.view
        if any(placed.group == group for topic in view.topics.values() for placed in topic.partitions):
            raise Unavailable(f"partition {group}.{partition} is being opened; ask again in a moment")
        lost = LeaseLost(f"leases of {group}.{partition} are lost: there is no such partition (any more)")
        if group < view.next_group:
            raise lost  # it was deleted: the number is given to no other
        raise self._unknown(lost, partial(self.of_group, group, partition))

    def leader(self, topic: OpenTopic, partition: int) -> str | None:
        """The node that leads a partition, as far as is known here."""
        return self._routes.leader(topic.record.partitions[partition].group)

    def _unknown(self, claim: SandqError, look: Callable[[], object]) -> SandqError:
        """What to raise where `look` finds nothing: this node may not have heard of it yet."""
        if self._metadata.group.is_only_voter and self._metadata.ready:
            return claim  # there is nobody to hear it from
        return Unsure(claim, partial(self._settled, claim, look))

    async def _settled(self, claim: SandqError, look: Callable[[], object]) -> SandqError:
        """What to answer, once this node has heard of everything that was acknowledged before this call."""
        with trio.move_on_after(ANSWER_S):
            try:
                await self.until_followed(await self.latest.index())
                look()
            except Unsure:
                return claim
            except SandqError as error:
                return error
        return Unavailable(f"{claim.message}, as far as this node knows; ask again in a moment", **claim.details)

    # -- following metadata ---------------------------------------------------------------------------------------

    async def until_followed(self, index: int) -> None:
        """Wait until this node has done what metadata said at an index."""
        while self.followed_index < index:
            await self._followed.wait()

    def _on_metadata(self) -> None:
        self._changed.set()

    async def _keep_following(self) -> None:
        while self._engine.failed is None:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                await self._follow()
            except StorageFailed as error:
                log.error("what metadata says could not be done; it is tried again", error=error.message)
                self._changed.set()
                await trio.sleep(FOLLOW_AGAIN_S)

    async def _follow(self) -> None:
        view = self.view
        for name, opened in list(self.topics.items()):
            topic = view.topics.get(name)
            if topic is None or topic.number != opened.record.number:
                await self._close(opened)
            elif topic is not opened.record:
                self.topics[name] = opened._replace(record=topic)
                for delivery in opened.partitions.values():
                    self._configure(topic.name, delivery)
        for name, topic in view.topics.items():
            if name not in self.topics:
                await self._open(topic)
        await self._remove(self._deleted(view))
        self.followed_index = view.applied_index
        self.on_followed(self.followed_index)
        self._followed.set()
        self._followed = trio.Event()

    def _deleted(self, view: MetadataView) -> list[int]:
        """Groups with a store here that metadata once knew, and knows no more. One that it does not know yet is
        another matter: this node may have been away, and learns last year's news first."""
        placed = {p.group for topic in view.topics.values() for p in topic.partitions}
        return [
            p.group
            for p in self._engine.pointers.all()
            if METADATA_GROUP < p.group < view.next_group and p.group not in placed
        ]

    async def _open(self, topic: Topic) -> None:
        groups = [(p.group, Members(p.members)) for p in topic.partitions]
        await self._runner.on_maintenance(partial(self._engine.install, groups))
        stats = TopicStats(self._stats)
        deliveries = {
            at: self._deliver(topic, at, stats)
            for at, (_, members) in enumerate(groups)
            if self._engine.own(members) is not None
        }
        ordered = topic.settings["ordering"] == "key"
        places = {partition: Place(partition, topic.initial_partitions, ordered) for partition in deliveries}
        self.topics[topic.name] = OpenTopic(topic, deliveries, places, stats)
        for delivery in deliveries.values():
            self.by_group[delivery.host.number] = delivery
            delivery.host.on_ready = partial(self._on_ready, topic.name, delivery)
            delivery.host.look()
        log.info("topic opened", topic=topic.name, partitions=len(groups), replicas_here=len(deliveries))

    def _deliver(self, topic: Topic, partition: int, stats: TopicStats) -> PartitionDelivery:
        host = self._engine.open_partition(topic, partition)
        return PartitionDelivery(
            host,
            partition,
            self._clock,
            self._timers,
            self._config.delivery.lease_ahead_ms,
            lambda: self._nursery.start_soon(self._compact, host),
            stats,
        )

    async def _close(self, opened: OpenTopic) -> None:
        """The topic is no more, or another one has its name."""
        name = opened.record.name
        gone = UnknownTopic(f"topic {name!r} was deleted", topic=name)
        del self.topics[name]
        groups = []
        for delivery in opened.partitions.values():
            number = delivery.host.number
            groups.append(number)
            del self.by_group[number]
            delivery.close(gone)
            self._engine.close_group(number, gone)
            self._routes.led(number, 0, False)
        # The apply thread may still hold entries of these groups; their rows go only after it is through.
        await self._runner.ask(lambda: None)
        await self._remove(groups)
        log.info("topic closed", topic=name)

    # -- leading --------------------------------------------------------------------------------------------------

    def _on_ready(self, name: str, delivery: PartitionDelivery, ready: bool) -> None:
        """This node begins, or ceases, to lead a partition."""
        host = delivery.host
        self._routes.led(host.number, host.group.term, ready)
        opened = self.topics.get(name)
        if opened is None or opened.partitions.get(delivery.partition) is not delivery:
            return
        # Consumers ask again, and say what they hold: so they get what was leased to them and never reached them.
        moved = NotLeader(f"partition {delivery.partition} of topic {name!r} is led by another node now")
        for other in opened.partitions.values():
            other.end_subscriptions(moved)
        if ready:
            self._configure(name, delivery)
            delivery.lead()

    def _configure(self, name: str, delivery: PartitionDelivery) -> None:
        """Give a partition that is led here the topic's settings where it has others."""
        host, settings = delivery.host, self.topics[name].record.settings
        if host.ready and host.status.settings != settings:
            with suppress(SandqError):
                host.submit(c.Configure(settings), partial(self._configured, name, delivery))

    def _configured(self, name: str, delivery: PartitionDelivery, result: object) -> None:
        if isinstance(result, SandqError) and name in self.topics and not delivery.closed:
            self._timers.at(self._clock.now_ms() + 100, partial(self._configure_again, name, delivery))

    def _configure_again(self, name: str, delivery: PartitionDelivery) -> None:
        if name in self.topics and not delivery.closed:
            self._configure(name, delivery)

    # -- space ----------------------------------------------------------------------------------------------------

    async def _compact(self, host: GroupHost) -> None:
        """Let the store forget what was deleted of a partition."""
        replica = host.replica
        assert isinstance(replica, PartitionReplica)
        with suppress(StorageFailed):
            start, stop = await self._runner.ask(replica.take_deleted)
            await self._runner.on_maintenance(partial(self._engine.stores.compact, start, stop))
        delivery = self.by_group.get(host.number)
        if delivery is not None:
            delivery.compacted()

    async def _remove(self, groups: list[int]) -> None:
        if groups:
            await self._runner.on_maintenance(partial(self._engine.uninstall, groups))
            await self._runner.on_wal(partial(self._engine.forget, groups))
            self.sweep_soon()

    def sweep_soon(self) -> None:
        self._nursery.start_soon(self.sweep)

    async def sweep(self) -> None:
        """Reclaim the space of deleted stores, in bounded steps."""
        start: bytes | None = self._engine.SWEEP_START
        with suppress(StorageFailed):
            while start is not None:
                start, range_done = await self._runner.ask(partial(self._engine.sweep, start))
                if range_done is not None:
                    await self._runner.on_maintenance(partial(self._engine.stores.compact, *range_done))
