"""The topics that metadata knows, and those of their partitions that run on this node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.peers.metadata_barrier import ANSWER_S, MetadataBarrier, Unsure
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.routes import Routes
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP, MetadataView
from sandq.broker.stats.node_stats import TopicStats
from sandq.metadata.records import Topic
from sandq.model.auto_create import NO_AUTO_CREATE, AutoCreate
from sandq.model.errors import (
    CREATABLE,
    LeaseLost,
    NotLeader,
    SandqError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from sandq.model.group_limits import next_epoch
from sandq.partition import commands as c
from sandq.partition.produce_validation import BatchTarget

READY_POLL_S = 0.002


class OpenTopic(NamedTuple):
    """A topic with the partitions of which a replica runs here."""

    record: Topic
    partitions: dict[int, PartitionLeader]
    targets: dict[int, BatchTarget]
    stats: TopicStats
    attended: set[PartitionLeader]
    """Those of them that somebody takes part in or watches."""

    def led(self) -> dict[int, PartitionLeader]:
        """The partitions that this node leads, and may answer for."""
        return {partition: leader for partition, leader in self.partitions.items() if leader.raft_group.ready}


class Catalog:
    def __init__(
        self,
        node_log: NodeLog,
        clock: GuardedClock,
        timers: Timers,
        routes: Routes,
        barrier: MetadataBarrier,
        progress: MetadataProgress,
        auto_create: AutoCreate = NO_AUTO_CREATE,
    ) -> None:
        self.topics: dict[str, OpenTopic] = {}
        self.by_group: dict[int, PartitionLeader] = {}
        self._led: dict[str, list[PartitionLeader]] = {}
        """By topic, as far as it was asked for since that changed last."""
        self._auto_create = auto_create
        self._barrier = barrier
        self._progress = progress
        self._node_log = node_log
        self._clock = clock
        self._timers = timers
        self._routes = routes

    async def until_ready(self, hosts: Sequence[RaftGroup]) -> None:
        """Wait until this node may answer for all of these groups, but for those whose replicas are shut."""
        while not all(host.ready or host.shut is not None for host in hosts):
            if self._node_log.failed is not None:
                raise self._node_log.failed
            await trio.sleep(READY_POLL_S)

    @property
    def view(self) -> MetadataView:
        view: MetadataView = self._node_log.metadata.status
        return view

    @property
    def known_view(self) -> MetadataView | None:
        """View of the metadata; None while this node belongs to no cluster."""
        return self.view if METADATA_GROUP in self._node_log.hosts else None

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only voter of the metadata and is ready, so that its copy is the newest."""
        metadata = self._node_log.metadata
        return metadata.group.is_only_voter and metadata.ready

    async def catch_up(self) -> None:
        """Wait until this node has done everything that metadata acknowledged before this call. Raises Unavailable."""
        if (shut := self._node_log.metadata.shut) is not None:
            raise Unavailable(f"what there is at present is not known here: the metadata is shut: {shut.reason}")
        await self._progress.until(await self._barrier.index())

    # -- asking ---------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> OpenTopic:
        """Raises UnknownTopic; Unsure, while this node does not know whether there is none; Unavailable."""
        topic = self.topics.get(name)
        if topic is None:
            if name in self.view.topics:
                raise Unavailable(f"topic {name!r} is being opened; ask again in a moment", topic=name)
            raise self._unknown(self._no_topic(name), partial(self.topic, name))
        return topic

    def _no_topic(self, name: str) -> UnknownTopic:
        """The error of a topic that is not there; it says whether to use it would make it."""
        no_topic, auto_create = f"there is no topic {name!r}", self._auto_create
        if not auto_create.is_on:
            return UnknownTopic(no_topic, topic=name)
        if not auto_create.matches(name):
            why = f"and none of auto_create_topics is like that ({auto_create}): create it"
            return UnknownTopic(f"{no_topic}, {why}", topic=name)
        text = f"{no_topic} yet: it is made when somebody produces to it or subscribes to it"
        return UnknownTopic(text, topic=name, **{CREATABLE: True})

    def led(self, name: str) -> Sequence[PartitionLeader]:
        """The partitions of a topic that this node leads, and may answer for, as it was told last. Raises as `topic`
        does."""
        topic = self.topic(name)
        found = self._led.get(name)
        if found is None:
            found = list(topic.led().values())
            if found:
                self._led[name] = found
        return found

    def partition(self, name: str, partition: int) -> PartitionLeader:
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

    def of_group(self, group: int, partition: int) -> PartitionLeader:
        """The replica here of the partition that a lease names. Raises LeaseLost, NotLeader; Unsure, Unavailable."""
        found = self.by_group.get(group)
        if found is not None and found.partition == partition:
            return found
        view = self.view
        name, at = view.partition_of_group.get(group, ("", -1))
        if at == partition and name in self.topics:
            return self.partition(name, partition)
        if name:
            raise Unavailable(f"partition {group}.{partition} is being opened; ask again in a moment")
        lost = LeaseLost(f"leases of {group}.{partition} are lost: there is no such partition (any more)")
        if group < view.next_group:
            raise lost  # it was deleted: the number is given to no other
        raise self._unknown(lost, partial(self.of_group, group, partition))

    def topic_of_group(self, group: int) -> str | None:
        """The topic of which a Raft group is a partition, as far as is known here."""
        placed = self.view.partition_of_group.get(group)
        if placed is not None:
            return placed[0]
        leader = self.by_group.get(group)
        if leader is None:
            return None
        return next((name for name, topic in self.topics.items() if leader in topic.partitions.values()), "")

    @property
    def led_here(self) -> list[int]:
        """The groups that this node leads, and may answer for."""
        return self._routes.led_here

    def leader(self, topic: OpenTopic, partition: int) -> str | None:
        """The node that leads a partition, as far as is known here."""
        return self._routes.leader(topic.record.partitions[partition].group)

    def _unknown(self, claim: SandqError, look: Callable[[], object]) -> SandqError:
        """What to raise where `look` finds nothing: this node may not have heard of it yet."""
        if self.is_alone:
            return claim  # there is nobody to hear it from
        return Unsure(claim, partial(self._settled, claim, look))

    async def _settled(self, claim: SandqError, look: Callable[[], object]) -> SandqError:
        """What to answer, once this node has heard of everything that was acknowledged before this call."""
        with trio.move_on_after(ANSWER_S):
            try:
                await self.catch_up()
                look()
            except Unsure:
                return claim
            except SandqError as error:
                return error
        return Unavailable(f"{claim.message}, as far as this node knows; ask again in a moment", **claim.details)

    # -- replicas that come and go -------------------------------------------------------------------------------

    def opened(self, name: str, leader: PartitionLeader) -> None:
        """A replica runs here from now on."""
        self.by_group[leader.raft_group.number] = leader
        self._led.pop(name, None)
        host = leader.raft_group
        host.listen(
            on_ready=partial(self._on_ready, name, leader),
            on_route=lambda here: self._routes.led(host.number, host.group.term, here),
        )
        leader.raft_group.notify_changed()

    def closed(self, leader: PartitionLeader) -> None:
        """A replica runs here no more."""
        number = leader.raft_group.number
        self.by_group.pop(number, None)
        self._led.clear()  # its topic may be gone already
        for opened in self.topics.values():
            if opened.partitions.get(leader.partition) is leader:
                del opened.partitions[leader.partition], opened.targets[leader.partition]
        self._routes.led(number, 0, False)

    def changed(self, before: Topic, opened: OpenTopic) -> None:
        """Metadata says something else of a topic now."""
        name = opened.record.name
        for leader in opened.partitions.values():
            self._configure(name, leader)
        if len(before.partitions) < len(opened.record.partitions):
            more = NotLeader(f"topic {name!r} has more partitions now")
            for leader in opened.partitions.values():
                leader.end_subscriptions(more)

    # -- leading --------------------------------------------------------------------------------------------------

    def _on_ready(self, name: str, leader: PartitionLeader, ready: bool) -> None:
        """This node begins, or ceases, to lead a partition."""
        self._led.pop(name, None)
        opened = self.topics.get(name)
        if opened is None or opened.partitions.get(leader.partition) is not leader:
            return
        # Consumers ask again, and say what they hold: so they get what was leased to them and never reached them.
        moved = NotLeader(f"partition {leader.partition} of topic {name!r} is led by another node now")
        # Of thousands that begin to be led one after the other most are nobody's: they are not gone through each time.
        for other in list(opened.attended):
            other.end_subscriptions(moved)
        if ready:
            self._configure(name, leader)
            leader.lead()

    def _configure(self, name: str, leader: PartitionLeader) -> None:
        """Give a partition that is led here the topic's settings where it has others."""
        host, settings = leader.raft_group, self.topics[name].record.settings
        leader.limits_wanted = next_epoch(settings)
        if host.ready and host.status.settings != settings:
            try:
                host.submit(c.Configure(settings), partial(self._configured, name, leader))
            except SandqError as error:
                self._configured(name, leader, error)

    def _configured(self, name: str, leader: PartitionLeader, result: object) -> None:
        if isinstance(result, SandqError) and name in self.topics and not leader.closed:
            self._timers.at(self._clock.now_ms() + 100, partial(self._configure_again, name, leader))

    def _configure_again(self, name: str, leader: PartitionLeader) -> None:
        if name in self.topics and not leader.closed:
            self._configure(name, leader)
