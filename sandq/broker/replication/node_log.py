"""The log and the state of a node: WAL, stores, Raft groups and their state machines.

A store holds the rows of one replica. A pointer names the store of a group. If no pointer names a store, and no
snapshot is being written to it, the store is garbage. To tick a group means to handle its messages and proposals, and
to collect the records for the WAL.

Each step of the work is a plain function; the caller chooses the thread. The node (`runner.py`) runs `commit` on the
WAL thread, the applier on the apply thread, and `stores.write_one` on the rows thread. A simulation calls the steps one
after the other, and simulates crashes in between.

A commit batch: `tick` -> `commit(records)` -> `synced`. The caller passes the tasks returned by `tick` and by `synced`
to the applier, in this order. A checkpoint: `applied_indices` (apply thread) -> `stores.flush` (maintenance) ->
`truncate` -> a commit batch -> `release`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sandq.broker.memory_budget import LOGS_SHARE, PRODUCERS_SHARE, ROWS_SHARE, MemoryBudget
from sandq.broker.replication.applier import Applier, Apply, DigestView, Published
from sandq.broker.replication.journals import open_journal
from sandq.broker.replication.raft_group import BATCH_WORK, RaftGroup
from sandq.broker.replication.replica import (
    METADATA_GROUP,
    MetadataReplica,
    PartitionReplica,
    Replica,
    loaded_status,
)
from sandq.broker.replication.requests import Backlog
from sandq.metadata import commands as metadata_commands
from sandq.metadata.records import Topic
from sandq.model.errors import Conflict, Corruption, SandqError, StartupError, StorageFailed, Unavailable
from sandq.model.features import FIRST_LEVEL, KNOWN, Levels
from sandq.model.limits import Limits
from sandq.model.members import incarnation_of, member_id, own_member
from sandq.partition import commands as partition_commands
from sandq.partition.reader.look_aheads import LookAhead
from sandq.raft import Committed, GroupCommit, Members
from sandq.raft.wire import REGULAR
from sandq.storage.files import Files
from sandq.storage.keys import store_of, store_prefix, store_range
from sandq.storage.pointers import Pointers, StorePointer
from sandq.storage.stores import Stores, StoresSnapshot
from sandq.storage.wal import SEGMENT_BYTES, Record, Wal
from sandq.storage.write_behind import WriteBehindStores

PINNED_SEGMENTS = 1
"""Maximum number of full WAL segments that the tail of one log may keep from deletion.

The tail of a log is its entries that are not cut yet. If it keeps more segments, it is appended to the WAL again."""
COPY_BYTES = 1 << 20
"""Maximum size in bytes of a tail that is appended again."""
SHUT_LOG_BYTES: Final = 16 << 20
"""Maximum bytes of log that a shut replica accepts in one term. The log is kept until the replica opens again."""
UNAPPLIED_WORK = 2 * BATCH_WORK
"""Proposed and unapplied work above which a group proposes nothing more.

So most requests stay in the fair queue, which may still change their order. Proposed requests have a fixed order."""
KEPT_BYTES = 256 << 10
"""Bytes of a log kept below the applied index, for members that lag slightly."""
LAG_BYTES = 64 << 20
"""Maximum bytes of a log that a leader keeps for members that lag further behind.

If the log is larger, it is cut, and these members need a snapshot."""
KEPT_SHARE = 1 / 4
"""Part of the logs' memory that all groups together may use for members that lag slightly (`KEPT_BYTES` per group).

If the node has many groups, each group keeps less than `KEPT_BYTES`."""
ENTRY_BYTES = 120
"""Approximate memory of a log entry in addition to its command, in bytes."""
PRODUCER_BYTES = 400
"""Approximate memory of a known producer, in bytes."""
LAG_WAL_BYTES = 512 << 20
"""Bytes of WAL segments that the tail of one log may keep from deletion.

If the tail keeps more, the log is cut even if members need the entries."""
SWEEP_ROWS = 500
SWEEP_BYTES = 2 << 20
LAST_KEY = b"\xff" * 5
"""Key above all rows of all stores."""


@dataclass(slots=True, kw_only=True)
class Hooks:
    """Callbacks of a node's log. A component that is created after the log sets its callbacks later."""

    wake: Callable[[], None] = lambda: None
    """Called when there is something to commit."""
    accepts: Callable[[str], bool] = lambda node: True
    """Return whether the queue to a node accepts more messages."""
    on_leads: Callable[[RaftGroup], None] = lambda host: None
    """Called with each group that this node starts to lead. The group is not ready yet."""
    reason_to_wait: Callable[[RaftGroup], str | None] = lambda host: None
    """Return why a group that this node leads must not create entries now, for example a wrong clock; None if it
    may."""
    on_sync: Callable[[float], None] = lambda seconds: None
    """Called with the duration of each sync, in seconds."""
    on_applied: Callable[[int, float], None] = lambda entries, apply_s: None
    """See `Applier`."""
    on_written: Callable[[float], None] = lambda seconds: None
    """See `WriteBehindStores`."""
    on_digest: Callable[[DigestView], None] = lambda view: view.rows.close()
    """Called with the rows of which a digest was requested."""
    on_shut: Callable[[RaftGroup], None] = lambda host: None
    """Called with each group whose replica on this node was shut."""


class NodeLog:
    """The WAL, stores and Raft groups of a node."""

    def __init__(
        self,
        files: Files,
        stores: Stores,
        *,
        node_id: str,
        now_ms: Callable[[], int],
        publish: Callable[[Published], None],
        limits: Limits,
        segment_bytes: int = SEGMENT_BYTES,
        create: bool = True,
        hooks: Hooks | None = None,
        levels: Levels = KNOWN,
    ) -> None:
        """Open the pointers and recover the WAL.

        `create`: create missing files. `now_ms()`: return the time for new entries. `publish` is called with the
        outcome of each run, on the thread that ran the applier. Raise Corruption, StorageFailed."""
        self.memory = MemoryBudget(limits.memory_bytes)
        """Memory budget of this node."""
        self._hooks = hooks = hooks or Hooks()
        self.stores = WriteBehindStores(stores, ROWS_SHARE * limits.memory_bytes, hooks.on_written)
        self.memory.measure("rows", ROWS_SHARE, lambda: self.stores.bytes)
        self._held: set[int] = set()
        """Groups that propose nothing until more of their rows are written, or more of their entries applied."""
        self.limits = limits
        self.node_id = node_id
        self.pointers = Pointers.open(files, create=create)
        self.wal, self._recovered = Wal.open(
            files,
            segment_bytes=segment_bytes,
            known_groups=lambda group: self.pointers.get(group) is not None,
            create=create,
            on_sync=hooks.on_sync,
        )
        self.group_commit = GroupCommit(
            wake=hooks.wake,
            may_send=hooks.accepts,
            takes_entries=self._takes_entries,
        )
        self._applying = 0
        """Bytes of the commands in tasks for the applier whose outcome is not published yet."""
        self.backlog = Backlog(limits.apply_backlog_bytes)
        self.hosts: dict[int, RaftGroup] = {}
        self.filling: set[int] = set()
        """Stores into which a snapshot is being written. No pointer names these stores yet, but `sweep` must keep
        them."""
        self._loads: dict[int, Callable[[int], Replica]] = {}
        """By group: function that loads the replica of the group from a store."""
        self.failed: StorageFailed | None = None
        self.stalled: str | None = None
        """Why this node is stalled; None if it makes progress."""
        self._logs = self.memory.measure("logs", LOGS_SHARE, self._log_bytes)
        self.producers = self.memory.measure("producers", PRODUCERS_SHARE, self._producer_bytes)
        evict = partial(self.memory.look_aheads.evict, self._readers)
        self.applier = Applier(self.stores, publish, hooks.on_applied, evict)
        self._now_ms = now_ms
        self._levels = levels
        self._checkpoint_mark = self._applied_mark = self.wal.mark
        self._segment_bytes = segment_bytes
        self._overdue: set[int] = set()
        """Groups whose tails keep too much of the WAL. The next checkpoint cuts these tails."""

    # -- groups ---------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> RaftGroup:
        """The metadata group. Raises KeyError if `open_metadata` was not called yet."""
        return self.hosts[METADATA_GROUP]

    @property
    def levels(self) -> Levels:
        """The feature levels that this node's version supports."""
        return self._levels

    @property
    def feature_level(self) -> int | None:
        """The feature level of the cluster, as far as this node knows; None while the node is not in a cluster."""
        metadata = self.hosts.get(METADATA_GROUP)
        return None if metadata is None else int(metadata.status.feature_level)

    @property
    def nodes(self) -> int:
        """The number of nodes of the cluster, including this one, as far as this node knows.

        The larger of two numbers: the registered nodes, and the members of the metadata group."""
        metadata = self.hosts.get(METADATA_GROUP)
        if metadata is None:
            return 0
        return max(len(metadata.status.nodes), len(metadata.members.voters) + len(metadata.members.learners))

    def install(self, groups: Sequence[tuple[int, str, Members]], metadata_index: int = 0) -> None:
        """Assign a store to each of these replicas, durably. Skip groups that have a store. Blocks on the disk.

        Each replica is given as (group, member, initial configuration). `metadata_index`: index of the metadata entry
        that creates the replicas on this node.

        Call `install` before a group's first WAL record: recovery drops the records of groups without a pointer."""
        new = [(group, member, members) for group, member, members in groups if self.pointers.get(group) is None]
        if new:
            stores = self.pointers.mint(len(new))
            pointers = [
                StorePointer(group, incarnation_of(member), store, voters=members.voters, learners=members.learners)
                for (group, member, members), store in zip(new, stores, strict=True)
            ]
            self.pointers.update(put=pointers, metadata_index=metadata_index)

    def own(self, members: Members) -> str | None:
        """Return which of these members is on this node; None if no member is."""
        return own_member(self.node_id, (*members.voters, *members.learners))

    def open_metadata(self, members: Members | None = None, index: int = 0) -> RaftGroup:
        """Open the metadata group. If this node has no store for the group, create one.

        `members`: the founding members of the group; None: this node alone. `index`: metadata index to record for a new
        replica. Metadata entries up to `index` need no action on this node."""
        members = members or Members((member_id(self.node_id, 1),))
        own = self.own(members)
        assert own is not None, "a node opens the metadata of a cluster that it is a member of"
        self.install([(METADATA_GROUP, own, members)], index)
        host = self._open(
            METADATA_GROUP,
            lambda store: MetadataReplica(self.stores, store, self._levels),
            lambda commands: metadata_commands.Entry(self._now_ms(), commands).encode(),
            what="the metadata of the cluster",
        )
        replica = host.replica
        assert isinstance(replica, MetadataReplica)
        for command, position, _ in host.group.journal:
            # Check the unapplied entries now, before this node serves clients: they are applied later.
            if position > replica.applied_index and command[0] == REGULAR:
                _check_known(replica, command[1:])
        return host

    def check_level(self, needed: int) -> None:
        """Raise Conflict if the cluster's feature level is below `needed`.

        Raise Unavailable if the cluster is about to reach that level, or if this node may not know the current level
        yet.
        """
        level = self.feature_level or FIRST_LEVEL
        if needed <= level:
            return
        # If the applied metadata may be old, the cluster may have reached the level already.
        group, applied = self.metadata.group, self.metadata.status.applied_index
        if needed in self._levels and (group.age_s() is None or applied < group.commit_index):
            raise Unavailable("this node does not know the cluster's feature level yet; ask again in a moment")
        nodes = self.metadata.status.nodes.values()
        # A cluster that is being formed may have no registered node yet.
        if needed in self._levels and all([needed in node.levels for node in nodes]):
            raise Unavailable(f"the cluster is about to reach feature level {needed}; ask again in a moment")
        raise Conflict(
            f"this needs feature level {needed}, and the cluster is at {level}: it gets there by itself once all of "
            "its nodes run a version that supports it",
            feature_level=level,
        )

    def open_partition(self, topic: Topic, partition: int) -> RaftGroup:
        """Open the local replica of a partition, and return its group. The replica must be installed."""
        group, settings = topic.partitions[partition].group, topic.first_settings
        return self._open(
            group,
            lambda store: PartitionReplica(
                self.stores,
                store,
                group,
                partition,
                settings,
                topic.kind,
                self.memory.look_aheads,
                self.applier.yield_now,
            ),
            lambda commands: partition_commands.Entry(self._now_ms(), commands).encode(),
        )

    def _open(
        self,
        number: int,
        load: Callable[[int], Replica],
        encode: Callable[[Sequence[Any]], bytes],
        what: str = "the partition",
    ) -> RaftGroup:
        """Open the installed replica of a group. Raise Corruption if its log is missing."""
        pointer = self.pointers.get(number)
        if pointer is None:
            raise ValueError(f"raft group {number} is not installed here")
        replica = load(pointer.store)
        found = self._recovered.pop(number, None)
        applied = replica.applied_index
        if applied and not pointer.snapshot_index and (found is None or not found.entries):
            raise Corruption(f"raft group {number} has applied entry {applied}, and the WAL holds none of its entries")
        journal = open_journal(self.group_commit.records, pointer, found, applied)
        if replica.failure is not None:
            # If the rows are unreadable, the applied index may be too low. The first entry of a log is always applied.
            applied = max(applied, journal.first_index)
        host = RaftGroup(
            number=number,
            member=member_id(self.node_id, pointer.incarnation),
            journal=journal,
            applied=applied,
            replica=replica,
            encode=encode,
            group_commit=self.group_commit,
            backlog=self.backlog,
            limits=self.limits,
            check_level=self.check_level,
            reason_to_wait=self._hooks.reason_to_wait,
            may_propose=self._may_propose,
            what=what,
            settles=number == METADATA_GROUP,
        )
        self.hosts[number] = host
        self._loads[number] = load
        if host.shut is not None:
            self._hooks.on_shut(host)
        if not host.group.term and self.own(Members(pointer.voters[:1])):
            host.group.campaign_soon()  # the first member of a new group is meant to lead it
        return host

    def close_group(self, number: int, error: SandqError) -> None:
        """Stop running a group that metadata no longer assigns to this node. Its pending requests get `error`."""
        host = self.hosts.pop(number, None)
        self._held.discard(number)
        if host is not None:
            self.group_commit.remove(host.group)
            host.close(error)
        self._recovered.pop(number, None)
        self._loads.pop(number, None)

    def _readers(self) -> list[LookAhead]:
        """Return the look-aheads of all consumer groups of all partitions (apply thread)."""
        replicas = [host.replica for host in list(self.hosts.values())]
        partitions = [one for one in replicas if isinstance(one, PartitionReplica) and one.failure is None]
        return [reader for partition in partitions for reader in partition.machine.groups.readers()]

    # -- snapshots ------------------------------------------------------------------------------------------------

    def view(self, host: RaftGroup) -> tuple[StoresSnapshot, int]:
        """Return a snapshot of all rows as of now, and the applied index of this group in the snapshot (apply
        thread)."""
        self.applier.write()
        return self.stores.snapshot(), host.replica.applied_index

    def check_runs(self, host: RaftGroup) -> None:
        """Raise Unavailable if this node no longer runs this group."""
        if self.hosts.get(host.number) is not host:
            raise Unavailable(f"group {host.number} no longer runs here")

    def load(self, number: int, store: int) -> tuple[Replica, Any]:
        """Load the replica of group `number` from a store. Return the replica and its status (apply thread).

        Raise Unavailable if this node no longer runs the group."""
        load = self._loads.get(number)
        if load is None:
            raise Unavailable(f"group {number} no longer runs here")
        replica = load(store)
        return replica, loaded_status(replica)

    def suspend(self, host: RaftGroup, index: int) -> None:
        """Stop a group whose state will be replaced by a snapshot of `index`. Call this between commit batches.

        Raise Unavailable if the group no longer needs the snapshot."""
        if self.hosts.get(host.number) is not host or host.group.is_leader or host.status.applied_index >= index:
            raise Unavailable(f"group {host.number} no longer needs a snapshot of entry {index}")
        self.group_commit.remove(host.group)

    def suspend_shut(self, host: RaftGroup) -> None:
        """Stop a group whose replica is shut. Then the replica can be loaded again. Call this between commit batches.

        Raise Unavailable if the replica was opened or the group was closed in the meantime."""
        if self.hosts.get(host.number) is not host or host.shut is None:
            raise Unavailable(f"group {host.number} is no longer shut")
        self.group_commit.remove(host.group, keeps_log=True)

    def reopen(self, host: RaftGroup, replica: Replica, status: Any) -> None:
        """Continue a suspended group with a loaded replica (between commit batches). The group's pointer must already
        name the store of this replica."""
        pointer = self.pointers.get(host.number)
        if self.hosts.get(host.number) is not host or pointer is None:
            return  # its topic was deleted in the meantime
        old = host.group
        journal = open_journal(self.group_commit.records, pointer, old.journal.recovered(), replica.applied_index)
        host.group = self.group_commit.add(
            host.number,
            old.member,
            journal,
            applied=replica.applied_index
            if replica.failure is None
            else max(replica.applied_index, journal.first_index),
            before_tick=host.flush,
            settles=host.number == METADATA_GROUP,
        )
        host.replace(replica, status)
        if host.shut is not None:
            self._hooks.on_shut(host)

    def uninstall(self, groups: Sequence[int], metadata_index: int = 0) -> None:
        """Drop the pointers of closed groups, durably. Their rows and logs become garbage. Blocks on the disk.

        `metadata_index`: index of the metadata entry that removed the groups from this node."""
        self.pointers.update(drop=groups, metadata_index=metadata_index)

    def forget(self, groups: Sequence[int]) -> None:
        """Release the records of these groups in the WAL. Call on the WAL thread."""
        for group in groups:
            self.wal.forget(group)

    SWEEP_START = store_prefix(1)

    def sweep(self, start: bytes) -> tuple[bytes | None, tuple[bytes, bytes] | None]:
        """Delete a bounded number of rows, from `start` on, of stores that no pointer names (apply thread).

        Only the apply thread may pass row changes to the stores. Return two values. The first is the key from which to
        continue; None at the end. The second is the key range of a store that has become empty; None if there is
        none."""
        kept = {pointer.store for pointer in self.pointers.all()} | self.filling
        while True:
            found = self.stores.scan(start, LAST_KEY, limit=1, max_bytes=1)
            if not found:
                return None, None
            store = store_of(found[0][0])
            first, stop = store_range(store)
            if store not in kept:
                # Begin at the found row: a scan from the first key of the store would visit every deleted row.
                rows = self.stores.scan(found[0][0], stop, limit=SWEEP_ROWS, max_bytes=SWEEP_BYTES)
                self.stores.write([(key, None) for key, _ in rows])
                last = rows[-1][0] + b"\x00"
                return (last, None) if self.stores.scan(last, stop, limit=1, max_bytes=1) else (stop, (first, stop))
            start = stop

    # -- a commit batch -------------------------------------------------------------------------------------------

    def tick(self) -> tuple[list[Record], list[Apply]]:
        """Tick all groups that have work. Return the records to write and the tasks to apply."""
        records, committed = self.group_commit.tick()
        return records, self._tasks(committed)

    def end_tick(self) -> tuple[list[Record], list[Apply]]:
        """End a tick that was run in parts (see `GroupCommit`)."""
        records, committed = self.group_commit.end_tick()
        return records, self._tasks(committed)

    def commit(self, records: Sequence[Record]) -> None:
        """Write the records durably. If this raises StorageFailed, call `fail` and run no further commit batch."""
        self.wal.commit(records)

    def synced(self) -> list[Apply]:
        """Record that the records of the commit batch are on disk. Return the tasks to apply. Notify the groups that
        this node has started or stopped leading.

        After this call, the messages of `group_commit.take_outgoing` may be sent."""
        tasks = self._tasks(self.group_commit.synced())
        changed, self.group_commit.changed = self.group_commit.changed, {}
        for group in changed:
            host = self.hosts.get(group.number)
            if host is not None:
                if group.is_leader:
                    self._hooks.on_leads(host)
                host.notify_changed()
        return tasks

    def _tasks(self, committed: Sequence[Committed]) -> list[Apply]:
        """Return the tasks that apply these committed entries. Discard the entries of groups with a shut replica."""
        hosts = [(self.hosts[c.group], c) for c in committed if c.group in self.hosts]
        tasks = [host.task(c.index, c.command, c.skip) for host, c in hosts if host.shut is None]
        for host, entry in hosts:
            if host.shut is not None:
                host.discard(entry.index, entry.skip)
        self._applying += sum([len(task.command) for task in tasks])
        return tasks

    def _takes_entries(self, group: int) -> bool:
        """Return whether a follower's replica accepts more entries. A replica that applies or writes entries too slowly
        does not."""
        host = self.hosts.get(group)
        if host is not None and host.shut is not None:
            return host.taken_while_shut < SHUT_LOG_BYTES
        fits = host is None or self.stores.takes(store_prefix(host.replica.store))
        return fits and self._applying < self.limits.apply_backlog_bytes

    def _may_propose(self, host: RaftGroup) -> bool:
        """Return whether a group may propose more.

        The group must wait while too much of its proposed work is unapplied, or too many of its rows are unwritten.
        Then the group is added to `_held`, and ticked again later (`propose_again`)."""
        prefix = store_prefix(host.replica.store)
        has_work = host.requests.unapplied_work < UNAPPLIED_WORK
        if has_work and self.stores.takes(prefix, host.requests.unapplied_bytes):
            return True
        self._held.add(host.number)
        if not has_work:
            return False
        # Check again: if the rows were written just before the group was added to `_held`, no later write wakes the
        # group.
        if not self.stores.takes(prefix, host.requests.unapplied_bytes):
            return False
        self._held.discard(host.number)
        return True

    @property
    def has_held(self) -> bool:
        """True if a group waits until rows are written or entries applied. Any thread may ask."""
        return bool(self._held)

    def propose_again(self) -> None:
        """Tick the groups in `_held`, because rows were written or entries applied."""
        held, self._held = self._held, set()
        for number in held:
            if number in self.hosts:
                self.group_commit.mark(self.hosts[number].group)

    def fail(self, error: StorageFailed) -> None:
        """Stop accepting requests in all groups, because the log or the stores cannot be written any more.

        The outcome of uncommitted requests is unknown."""
        self.failed = error
        for host in self.hosts.values():
            host.fail(error)
            host.notify_changed()

    def expire(self, timeout_s: float) -> None:
        """Answer with an error all requests that have been pending since the last call. Call `expire` every
        `timeout_s`."""
        if self.backlog.bytes:
            for host in self.hosts.values():
                host.expire(timeout_s)

    def stall(self, why: str) -> None:
        """Fail the pending requests, because the log or the state is stalled.

        If groups are added during the stall, call this function again."""
        self.stalled = why
        for host in self.hosts.values():
            if host.stalled != why:
                host.stall(why)

    def resume(self) -> None:
        """Continue after a stall."""
        if self.stalled is not None:
            self.stalled = None
            for host in self.hosts.values():
                host.resume()

    def published(self, published: Published) -> None:
        """Deliver the outcome of a run of the applier to the groups (on the event loop)."""
        self._applying -= published.applied_bytes
        for number, status in published.statuses.items():
            if number in self.hosts:
                self.hosts[number].status = status
        # Publish statuses first: a client that gets a result may send a query at once, and must not see an older
        # status.
        for number in published.statuses:
            if number in self.hosts:
                self.hosts[number].notify_changed()
                self.hosts[number].notify_status()
        for number, index, results in published.results:
            if number in self.hosts:
                self.hosts[number].applied(index, results)
        for number, replica in published.shut:
            found = self.hosts.get(number)
            if found is not None and found.replica is replica:
                found.shut_off()
                self._hooks.on_shut(found)
        for answered, value in published.answers:
            answered(value)
        for view in published.views:
            self._hooks.on_digest(view)
        if self._held:
            self.propose_again()

    # -- a checkpoint ---------------------------------------------------------------------------------------------

    @property
    def bytes_since_checkpoint(self) -> int:
        """Bytes of WAL written since the last checkpoint."""
        return self.wal.bytes_since(self._checkpoint_mark)

    @property
    def entries_kept(self) -> int:
        """The number of log entries in memory."""
        return sum([len(host.group.journal) for host in self.hosts.values()])

    def applied_indices(self) -> dict[int, int]:
        """Hand the rows of all applied entries to the stores. Return the applied indices by group (apply thread)."""
        self._applied_mark = self.wal.mark
        self.applier.write()
        return {number: host.replica.applied_index for number, host in list(self.hosts.items())}

    def truncate(self, flushed: dict[int, int]) -> None:
        """Cut each log below its index in `flushed`, but keep entries that members or readers need, within limits.

        The stores durably contain the changes of all entries up to these indices."""
        # Records that were written during the flush count towards the next checkpoint. So the mark is the end of the
        # WAL before the flush.
        self._checkpoint_mark = self._applied_mark
        hosts = {self.hosts[number]: applied for number, applied in flushed.items() if number in self.hosts}
        kept_bytes = min(KEPT_BYTES, int(KEPT_SHARE * self._logs.share_bytes) // max(len(self.hosts), 1))
        for host, applied in hosts.items():
            if host.number in self._overdue:
                host.lose_pins()
                needed = applied
            else:
                needed = host.needed_from(LAG_BYTES)
            _cut(host, min(applied, needed), _kept_of(host, kept_bytes))
        self._cut_to_share(hosts, kept_bytes)

    def _cut_to_share(self, hosts: Mapping[RaftGroup, int], kept_bytes: int) -> None:
        """While all logs together exceed their share of the memory, cut the longest logs, even if members need them.

        Logs that are kept for lagging members are cut first. Logs that are pinned by snapshots are cut next, except the
        shortest pinned log."""
        excess = self._logs.bytes - self._logs.share_bytes
        if excess <= 0:
            return
        by_size = sorted(hosts, key=_log_size, reverse=True)
        pinned = [host for host in by_size if host.is_pinned]
        for host in [host for host in by_size if not host.is_pinned] + pinned[:-1]:
            if excess <= 0:
                return
            host.lose_pins()
            excess += _cut(host, hosts[host], _kept_of(host, kept_bytes))

    def _log_bytes(self) -> int:
        """Return the bytes of all logs in memory."""
        return sum([_log_size(host) for host in list(self.hosts.values())])

    def _producer_bytes(self) -> int:
        """Return the approximate bytes of the known producers in all partitions."""
        return PRODUCER_BYTES * sum([getattr(host.status, "producers", 0) for host in list(self.hosts.values())])

    def group_count(self) -> int:
        """Return the number of consumer groups here. A group counts once for each partition on this node."""
        return sum([len(getattr(host.status, "groups", ())) for host in list(self.hosts.values())])

    def release(self) -> dict[int, int]:
        """Remove WAL segments that are no longer needed. Call on the WAL thread.

        Return the number of kept segments for each group whose tail keeps more than `PINNED_SEGMENTS` segments."""
        self.wal.release({n: host.group.journal.first_index for n, host in list(self.hosts.items())})
        return {number: segments for number, segments in self.wal.pinned_by().items() if segments > PINNED_SEGMENTS}

    def copy_tails(self, pinning: Mapping[int, int]) -> bool:
        """Append the short tails of these groups to the WAL again. `pinning`: number of kept segments by group.

        Return True if a tail was appended. Then the caller runs a commit batch, and calls `release` again.

        A long tail belongs to a group under load: the next checkpoint cuts the tail. If a tail keeps more than
        `LAG_WAL_BYTES`, the next checkpoint cuts the tail even if members need it. The rest of such a tail is then
        appended again, at any length."""
        journals = {number: self.hosts[number].group.journal for number in pinning if number in self.hosts}
        copied = [n for n, journal in journals.items() if n in self._overdue or journal.size_bytes <= COPY_BYTES]
        for number in copied:
            journals[number].copy_tail()
        self._overdue = {n for n, segments in pinning.items() if segments * self._segment_bytes > LAG_WAL_BYTES}
        self._overdue.difference_update(copied)
        return bool(copied)


def _check_known(replica: MetadataReplica, command: bytes) -> None:
    """Raise StartupError if a newer version of sandq wrote this metadata entry.

    If the entry cannot be decoded for another reason, the node starts. When the node applies that entry, the metadata
    replica is shut (ADR 46)."""
    try:
        entry = metadata_commands.Entry.decode(command)
    except Exception as error:
        if type(error) is StartupError:
            raise
        return
    replica.check(entry)


def _log_size(host: RaftGroup) -> int:
    """Return the bytes of a group's log in memory."""
    journal = host.group.journal
    return journal.size_bytes + ENTRY_BYTES * len(journal)


def _kept_of(host: RaftGroup, kept_bytes: int) -> int:
    """Return how many bytes of a log to keep below the applied index, for members that lag.

    If the group has no other members and the log exceeds `kept_bytes`, return 0. Otherwise return at least 1, so that
    `truncate_below` keeps at least one entry below the index."""
    voters, learners = host.members
    return 0 if len(voters) + len(learners) == 1 and host.group.journal.size_bytes > kept_bytes else max(kept_bytes, 1)


def _cut(host: RaftGroup, index: int, kept_bytes: int) -> int:
    """Cut a log below an index. Return the change of the log's size in bytes, which is 0 or negative."""
    before = _log_size(host)
    host.group.journal.truncate_below(index, kept_bytes)
    return _log_size(host) - before
