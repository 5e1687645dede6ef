"""Act on the metadata: open the replicas that this node must hold, and remove obsolete replicas.

A replica is removed only after the metadata finally excludes it. This means that its topic was deleted, or that its
group has reached an assignment without this replica (`Partition.may_have`). After a crash, this node may first read old
metadata. So this node removes nothing before it has again applied all the metadata that it had acted on
(`Pointers.metadata_index`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from sandq.broker.catalog import Catalog, OpenTopic
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.delivery.sending_acks import target_of
from sandq.broker.leader.lease_window import LeaseWindow
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.leader.schedule_firing import ScheduleFiring
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP, MetadataView
from sandq.broker.replication.runner import Runner
from sandq.broker.replication.store_compaction import StoreCompaction, StoreSweeper
from sandq.broker.snapshots.snapshots import Snapshots
from sandq.broker.stats.node_stats import NodeStats, TopicStats
from sandq.metadata.records import Partition, Topic
from sandq.model.errors import NotLeader, SandqError, StorageFailed, UnknownTopic
from sandq.model.features import FIRST_LEVEL
from sandq.model.logger import get_logger
from sandq.partition.partition_status import Status
from sandq.raft import Members

log = get_logger("sandq.broker")

FOLLOW_RETRY_S = 1.0
OPENED_AT_ONCE = 8
"""Number of replicas opened in one time slice. Opening a replica takes 1 or 2 ms."""


class Reconciler:
    """Opens and removes the replicas of this node."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        progress: MetadataProgress,
        snapshots: Snapshots,
        sweeper: StoreSweeper,
        node_log: NodeLog,
        runner: Runner,
        clock: GuardedClock,
        timers: Timers,
        window: LeaseWindow,
        stats: NodeStats,
        limits: LimitShares,
        outbox: OutboxSender,
        nursery: trio.Nursery,
    ) -> None:
        """`nursery` must outlive every connection."""
        self._progress = progress
        self._snapshots = snapshots
        self._sweeper = sweeper
        self._catalog = catalog
        self._node_log = node_log
        self._runner = runner
        self._clock = clock
        self._timers = timers
        self._window = window
        self._stats = stats
        self._limits = limits
        self._outbox = outbox
        self._nursery = nursery
        self._planning = trio.CapacityLimiter(1)
        """Limits the number of threads that plan schedules. Each such thread competes with the event loop for the
        interpreter lock (GIL)."""
        self._changed = trio.Event()
        self._level = FIRST_LEVEL
        """Feature level to which the partitions here were last raised."""
        self._done: dict[str, Topic] | None = None
        """Topics by name, as of the last time that this node had acted on all metadata. None before the first time."""

    async def start(self, metadata: RaftGroup) -> None:
        """Act on the metadata now, and from then on after each change.

        Return when each partition whose only voter is on this node is ready."""
        metadata.listen(on_status=lambda: self._changed.set())
        await self._follow()
        alone = [d.raft_group for d in self._catalog.by_group.values() if d.raft_group.group.is_only_voter]
        await self._catalog.until_ready(alone)
        self._nursery.start_soon(self._keep_following)

    async def _keep_following(self) -> None:
        """Act on the metadata after each change, until this node can no longer write. After an error of the storage,
        try again."""
        while self._node_log.failed is None:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                await self._follow()
            except StorageFailed as error:
                log.error("a change of metadata could not be applied here; trying again", error=error.message)
                self._changed.set()
                await trio.sleep(FOLLOW_RETRY_S)

    async def _follow(self) -> None:
        """Act on the current metadata, and report that this node has done so."""
        view = self._catalog.view
        # A changed topic has a new record object. So topics with the same object as before are skipped.
        done = self._done if self._done is not None else {}
        changed = [topic for name, topic in view.topics.items() if done.get(name) is not topic]
        if changed or done.keys() - view.topics.keys() or self._done is None:
            await self._do(view, changed)
        if view.feature_level != self._level:
            self._level = view.feature_level
            for leader in self._catalog.by_group.values():
                leader.raise_level()
        self._progress.advance(view.applied_index)

    async def _do(self, view: MetadataView, changed: Sequence[Topic]) -> None:
        """Close deleted topics, remove obsolete replicas, and open the replicas of changed topics."""
        # After a crash, this node may first read older metadata than it had acted on. Then remove nothing.
        is_news = view.applied_index >= self._node_log.pointers.metadata_index
        for name, opened in list(self._catalog.topics.items()):
            topic = view.topics.get(name)
            if topic is None or topic.number != opened.record.number:
                await self._close_topic(opened)
        if is_news:
            await self._remove_obsolete(view)
            await self._install_missing(changed, view.applied_index)
        for topic in changed:
            await self._open(topic)
        if is_news:
            self._done = dict(view.topics)

    # -- replicas to keep or open ---------------------------------------------------------------------------------

    async def _remove_obsolete(self, view: MetadataView) -> None:
        """Remove the replicas that their groups no longer need. Keep replicas of groups that this node does not know
        yet."""
        gone = []
        for pointer in self._node_log.pointers.all():
            if not METADATA_GROUP < pointer.group < view.next_group:
                continue
            wanted = view.partition(pointer.group)
            if wanted is None or not wanted.may_have(self._node_log.node_id, pointer.incarnation):
                gone.append(pointer.group)
        moved = NotLeader("the partition has moved to other nodes")
        for group in gone:
            leader = self._catalog.by_group.get(group)
            if leader is not None:
                self._close(leader, moved)
            else:
                self._close_group(group, moved)  # drop the recovered log: a later replica must not start with it
        await self._remove(gone, view.applied_index)

    async def _install_missing(self, topics: Sequence[Topic], metadata_index: int) -> None:
        """Store the initial state of the replicas that this node must hold but does not have yet."""
        new = []
        for topic in topics:
            for partition in topic.partitions:
                member = partition.wanted_on(self._node_log.node_id)
                if member is not None and self._node_log.pointers.get(partition.group) is None:
                    new.append((partition.group, member, beginning(partition, member)))
        if new:
            await self._runner.on_maintenance(partial(self._node_log.install, new, metadata_index))

    async def _open(self, topic: Topic) -> None:
        """Open those installed replicas of a topic that are not open yet.

        After every `OPENED_AT_ONCE` replicas, let other tasks run."""
        opened = self._catalog.topics.get(topic.name)
        is_new = opened is None
        if opened is None:
            opened = OpenTopic(topic, {}, {}, TopicStats(self._stats), set())
        before, opened = opened.record, opened._replace(record=topic)
        self._catalog.topics[topic.name] = opened
        fresh = []
        for at, partition in enumerate(topic.partitions):
            if at not in opened.partitions and self._node_log.pointers.get(partition.group) is not None:
                leader = opened.partitions[at] = self._deliver(topic, at, opened)
                opened.targets[at] = target_of(topic, at)
                self._catalog.opened(topic.name, leader)
                fresh.append(leader)
                if len(fresh) % OPENED_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                    await self._runner.until_short()
        if is_new:
            count = len(topic.partitions)
            log.info("topic opened", topic=topic.name, partitions=count, replicas_here=len(opened.partitions))
        elif fresh:
            log.info("replicas opened", topic=topic.name, partitions=[leader.partition for leader in fresh])
        if before is not topic:
            self._catalog.changed(before, opened)

    def _deliver(self, topic: Topic, partition: int, opened: OpenTopic) -> PartitionLeader:
        """Open a replica, and return the object that delivers its messages while this node leads."""
        host = self._node_log.open_partition(topic, partition)
        compaction = StoreCompaction(host, self._node_log, self._runner, self._nursery)
        firing = ScheduleFiring(host, self._runner, self._clock, self._timers, self._nursery, self._planning)

        def on_status(status: Status) -> None:
            compaction.on_status(status)
            firing.on_status(status)

        return PartitionLeader(
            raft_group=host,
            partition=partition,
            clock=self._clock,
            timers=self._timers,
            window=self._window,
            on_status=on_status,
            stats=opened.stats,
            cluster_level=lambda: self._catalog.view.feature_level,
            attended=opened.attended,
            on_limits=self._limits.on_change,
            on_outbox=self._outbox.on_change,
            highest_level=self._node_log.levels.highest,
        )

    # -- replicas to remove ---------------------------------------------------------------------------------------

    async def _close_topic(self, opened: OpenTopic) -> None:
        """Close a topic that was deleted, or whose name belongs to a new topic."""
        name = opened.record.name
        gone = UnknownTopic(f"topic {name!r} was deleted", topic=name)
        del self._catalog.topics[name]
        for leader in list(opened.partitions.values()):
            self._close(leader, gone)
        log.info("topic closed", topic=name)

    def _close(self, leader: PartitionLeader, error: SandqError) -> None:
        """Stop a replica, and end its requests with `error`."""
        self._catalog.closed(leader)
        leader.close(error)
        self._close_group(leader.raft_group.number, error)

    def _close_group(self, number: int, error: SandqError) -> None:
        """Close a Raft group on this node, and end its requests with `error`."""
        self._node_log.close_group(number, error)
        self._snapshots.forget(number)

    async def _remove(self, groups: list[int], metadata_index: int) -> None:
        """Delete the replicas of closed groups."""
        if not groups:
            return
        # The apply thread may still have entries of these groups. Delete the rows only after these entries are done.
        await self._runner.ask(lambda: None)
        await self._runner.on_maintenance(partial(self._node_log.uninstall, groups, metadata_index))
        await self._runner.on_wal(partial(self._node_log.forget, groups))
        self._sweeper.sweep_soon()


def beginning(partition: Partition, member: str) -> Members:
    """Return the configuration with which a new replica starts, before it has any log entry.

    A founding member is a voter. A later member starts as a learner, and gets the configuration from the log."""
    if member in partition.first:
        return Members(partition.first)
    return Members(tuple([other for other in partition.members if other != member]), (member,))
