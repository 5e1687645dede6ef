"""The catalog: the topics of the cluster's metadata, and their partitions on this node."""

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
from sandq.model.access import Access
from sandq.model.auto_create import NO_AUTO_CREATE, AutoCreate
from sandq.model.errors import (
    CREATABLE,
    InvalidRequest,
    LeaseLost,
    NotLeader,
    SandqError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from sandq.model.group_limits import next_epoch
from sandq.model.message_targets import PUSH_TARGETS, TargetRules
from sandq.model.names import COMPACTED
from sandq.model.push_targets import PushRules
from sandq.model.topic_limits import TopicLimits, limits_of
from sandq.partition import commands as c
from sandq.partition.produce_validation import BatchTarget

READY_POLL_S = 0.002
"""Interval in s at which `until_ready` checks the groups."""


class OpenTopic(NamedTuple):
    """A topic, and those of its partitions that have a replica on this node."""

    record: Topic
    partitions: dict[int, PartitionLeader]
    targets: dict[int, BatchTarget]
    stats: TopicStats
    attended: set[PartitionLeader]
    """Partitions that have a subscription or a watcher (`PartitionLeader.watch`)."""

    def led(self) -> dict[int, PartitionLeader]:
        """Return the partitions that this node leads and for which it may answer requests."""
        return {partition: leader for partition, leader in self.partitions.items() if leader.raft_group.ready}


class Catalog:
    """Finds topics and partitions. The error for a missing object says either that the object does not exist, or that
    this node may not know it yet."""

    def __init__(
        self,
        node_log: NodeLog,
        clock: GuardedClock,
        timers: Timers,
        routes: Routes,
        barrier: MetadataBarrier,
        progress: MetadataProgress,
        push_rules: PushRules,
        auto_create: AutoCreate = NO_AUTO_CREATE,
    ) -> None:
        """`push_rules`: URLs that the messages of topics with `push_targets` may have."""
        self.topics: dict[str, OpenTopic] = {}
        self.by_group: dict[int, PartitionLeader] = {}
        self._led: dict[str, list[PartitionLeader]] = {}
        """Cache: partitions that this node leads, by topic. If they change, the entry of the topic is removed."""
        self._auto_create = auto_create
        self._push_rules = push_rules
        self._barrier = barrier
        self._progress = progress
        self._node_log = node_log
        self._clock = clock
        self._timers = timers
        self._routes = routes

    async def until_ready(self, hosts: Sequence[RaftGroup]) -> None:
        """Wait until each of these replicas is ready to answer requests, or is shut."""
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
        """The metadata; None while this node belongs to no cluster."""
        return self.view if METADATA_GROUP in self._node_log.hosts else None

    @property
    def is_alone(self) -> bool:
        """True if this node is ready and is the only voter of the metadata group. Its copy of the metadata is then the
        newest."""
        metadata = self._node_log.metadata
        return metadata.group.is_only_voter and metadata.ready

    async def catch_up(self) -> None:
        """Wait until this node has carried out every metadata change that was acknowledged before this call.

        Raise Unavailable."""
        if (shut := self._node_log.metadata.shut) is not None:
            raise Unavailable(f"the current metadata is not known here, as its replica is shut: {shut.reason}")
        await self._progress.until(await self._barrier.index())

    def limits_of(self, topic: Topic, access: Access | None) -> TopicLimits | None:
        """Return the limits of a topic; None if it has none. `access`: rights of the caller; None: all."""
        targets = None
        if topic.settings.get(PUSH_TARGETS):
            targets = TargetRules(self._push_rules, self.check_callback, access)
        return limits_of(topic.name, topic.settings, targets)

    def check_callback(self, name: str) -> None:
        """Raise InvalidRequest unless callbacks of pushed messages may be sent to a topic. Raise Unsure if other nodes
        may know the topic."""
        record = self.view.topics.get(name)
        if record is None:
            claim = InvalidRequest(f"there is no topic {name!r}, to which callbacks are to be sent", topic=name)
            raise self._unknown(claim, partial(self.check_callback, name))
        if record.kind == COMPACTED:
            raise InvalidRequest(f"topic {name!r} is a compacted topic, to which no callbacks are sent", topic=name)

    # -- lookups --------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> OpenTopic:
        """Return a topic.

        Raise UnknownTopic if there is no such topic; Unsure if other nodes may know the topic; Unavailable while the
        topic is being opened."""
        topic = self.topics.get(name)
        if topic is None:
            if name in self.view.topics:
                raise Unavailable(f"topic {name!r} is being opened; ask again in a moment", topic=name)
            raise self._unknown(self._no_topic(name), partial(self.topic, name))
        return topic

    def _no_topic(self, name: str) -> UnknownTopic:
        """Return the error for a missing topic. The error says whether producing or subscribing would create the
        topic."""
        no_topic, auto_create = f"there is no topic {name!r}", self._auto_create
        if not auto_create.is_on:
            return UnknownTopic(no_topic, topic=name)
        if not auto_create.matches(name):
            why = f"and it matches no pattern in auto_create_topics ({auto_create}): create it"
            return UnknownTopic(f"{no_topic}, {why}", topic=name)
        text = f"{no_topic} yet: it is created when a client produces to it or subscribes to it"
        return UnknownTopic(text, topic=name, **{CREATABLE: True})

    def led(self, name: str) -> Sequence[PartitionLeader]:
        """Return the partitions of a topic that this node leads and for which it may answer requests. Raise the errors
        of `topic`."""
        topic = self.topic(name)
        found = self._led.get(name)
        if found is None:
            found = list(topic.led().values())
            if found:
                self._led[name] = found
        return found

    def partition(self, name: str, partition: int) -> PartitionLeader:
        """Return this node's replica of a partition.

        Raise the errors of `topic`; UnknownPartition; NotLeader if this node has no replica of the partition."""
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
        """Return this node's replica of the partition that a lease names.

        `group`: number of the partition's Raft group. Raise LeaseLost, NotLeader, Unsure, Unavailable."""
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
            raise lost  # the partition was deleted, and group numbers are never reused
        raise self._unknown(lost, partial(self.of_group, group, partition))

    def topic_of_group(self, group: int) -> str | None:
        """Return the name of the topic to which the Raft group of a partition belongs.

        Return "" if a replica of the group is on this node, but its topic is not known. Return None if the group is
        unknown."""
        placed = self.view.partition_of_group.get(group)
        if placed is not None:
            return placed[0]
        leader = self.by_group.get(group)
        if leader is None:
            return None
        return next((name for name, topic in self.topics.items() if leader in topic.partitions.values()), "")

    @property
    def led_here(self) -> list[int]:
        """The groups that this node leads and for which it may answer requests."""
        return self._routes.led_here

    def leader(self, topic: OpenTopic, partition: int) -> str | None:
        """Return the leader of a partition, as far as this node knows; None if no leader is known.

        The metadata may have more partitions than the opened topic."""
        partitions = topic.record.partitions
        return self._routes.leader(partitions[partition].group) if partition < len(partitions) else None

    def _unknown(self, claim: SandqError, find: Callable[[], object]) -> SandqError:
        """Return the error for an object that this node does not know.

        The error is `claim` if the metadata here is certainly current, else Unsure. `find` looks up the object
        again."""
        if self.is_alone:
            return claim  # no other node could know the object
        return Unsure(claim, partial(self._error_to_report, claim, find))

    async def _error_to_report(self, claim: SandqError, find: Callable[[], object]) -> SandqError:
        """Bring this node's metadata up to date, look up the object again, and return the error to report.

        If the object is found now, or the metadata cannot be updated in time, return Unavailable."""
        with trio.move_on_after(ANSWER_S):
            try:
                await self.catch_up()
                find()
            except Unsure:
                return claim
            except SandqError as error:
                return error
        return Unavailable(f"{claim.message}, as far as this node knows; ask again in a moment", **claim.details)

    # -- replicas that come and go -------------------------------------------------------------------------------

    def opened(self, name: str, leader: PartitionLeader) -> None:
        """Register a replica that was opened on this node."""
        self.by_group[leader.raft_group.number] = leader
        self._led.pop(name, None)
        host = leader.raft_group
        host.listen(
            on_ready=partial(self._on_ready, name, leader),
            on_route=lambda here: self._routes.led(host.number, host.group.term, here),
        )
        leader.raft_group.notify_changed()

    def closed(self, leader: PartitionLeader) -> None:
        """Remove a replica that was closed on this node."""
        number = leader.raft_group.number
        self.by_group.pop(number, None)
        self._led.clear()  # for all topics: the topic of this replica may be deleted already
        for opened in self.topics.values():
            if opened.partitions.get(leader.partition) is leader:
                del opened.partitions[leader.partition], opened.targets[leader.partition]
        self._routes.led(number, 0, False)

    def changed(self, before: Topic, opened: OpenTopic) -> None:
        """Pass changed settings of a topic to its partitions. If it has more partitions than `before`, end its
        subscriptions."""
        name = opened.record.name
        for leader in opened.partitions.values():
            self._configure(name, leader)
        if len(before.partitions) < len(opened.record.partitions):
            more = NotLeader(f"topic {name!r} has more partitions now")
            for leader in opened.partitions.values():
                leader.end_subscriptions(more)

    # -- leading --------------------------------------------------------------------------------------------------

    def _on_ready(self, name: str, leader: PartitionLeader, ready: bool) -> None:
        """End the topic's subscriptions, because this node starts or stops leading a partition. If it starts, begin the
        leader's work."""
        self._led.pop(name, None)
        opened = self.topics.get(name)
        if opened is None or opened.partitions.get(leader.partition) is not leader:
            return
        # End the subscriptions of the topic. The consumers subscribe again and name the leases that they know. Then the
        # leader pushes the leases that they did not name.
        moved = NotLeader(f"partition {leader.partition} of topic {name!r} is led by a different node now")
        # This method runs once per partition, and a topic may have thousands. So visit only the attended partitions.
        for other in list(opened.attended):
            other.end_subscriptions(moved)
        if ready:
            self._configure(name, leader)
            leader.lead()

    def _configure(self, name: str, leader: PartitionLeader) -> None:
        """If a partition that this node leads has other settings than its topic, submit a command that updates the
        settings."""
        host, settings = leader.raft_group, self.topics[name].record.settings
        leader.limits_wanted = next_epoch(settings)
        if host.ready and host.status.settings != settings:
            try:
                host.submit(c.Configure(settings), partial(self._configured, name, leader))
            except SandqError as error:
                self._configured(name, leader, error)

    def _configured(self, name: str, leader: PartitionLeader, result: object) -> None:
        """If the command failed, configure the partition again after 100 ms."""
        if isinstance(result, SandqError) and name in self.topics and not leader.closed:
            self._timers.at(self._clock.now_ms() + 100, partial(self._retry_configure, name, leader))

    def _retry_configure(self, name: str, leader: PartitionLeader) -> None:
        """Configure a partition again, unless it was closed meanwhile."""
        if name in self.topics and not leader.closed:
            self._configure(name, leader)
