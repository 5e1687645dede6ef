"""A node's log and state: WAL, stores, Raft groups and their state machines, in steps.

Every step is a plain function; who calls them decides what runs where. The node runs `commit` on the WAL thread, the
applier on the apply thread, and `stores.write_one` on the one that writes rows (`runner.py`); a simulation calls one
after the other and crashes in between.

A pass: `tick` -> `commit(records)` -> `synced`. What `tick` and `synced` return goes to the applier, in that order.
A checkpoint: `applied_indices` (apply thread) -> `stores.flush` (maintenance) -> `truncate` -> a pass -> `release`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sandq.broker.memory_budget import LOGS_SHARE, PRODUCERS_SHARE, ROWS_SHARE, MemoryBudget
from sandq.broker.replication.applier import Applier, Apply, DigestView, Published
from sandq.broker.replication.journals import open_journal
from sandq.broker.replication.raft_group import PASS_WORK, RaftGroup
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
"""A tail that keeps more full segments than this is appended again ..."""
COPY_BYTES = 1 << 20
"""... unless it is larger than this."""
SHUT_LOG_BYTES: Final = 16 << 20
"""Bytes of requests that a replica takes, at most, in one term while it is shut: they stay until it opens again."""
UNAPPLIED_WORK = 2 * PASS_WORK
"""With so much proposed and not yet applied, a group proposes no more: what waits to be proposed has turns, what was
proposed has its order."""
KEPT_BYTES = 256 << 10
"""Of a log below what the stores hold, for members that are a little behind ..."""
LAG_BYTES = 64 << 20
"""... and a leader keeps so much for those that are further behind; then they need a snapshot."""
KEPT_SHARE = 1 / 4
"""Of what all logs may take: where there are many groups, that is less than `KEPT_BYTES` for each."""
ENTRY_BYTES = 120
"""What an entry of a log takes beside its command, about."""
PRODUCER_BYTES = 400
LAG_WAL_BYTES = 512 << 20
"""A log whose tail is kept for others, and keeps more than this of the WAL, of all groups, is cut all the same."""
SWEEP_ROWS = 500
SWEEP_BYTES = 2 << 20
LAST_KEY = b"\xff" * 5


@dataclass(slots=True, kw_only=True)
class Hooks:
    """What the log of a node calls. Whatever is opened after the log sets its own hook."""

    wake: Callable[[], None] = lambda: None
    """Called when there is something to commit."""
    room: Callable[[str], bool] = lambda node: True
    """Whether the queue to a node takes more."""
    on_leads: Callable[[RaftGroup], None] = lambda host: None
    """Told of groups that this node begins to lead, before they are ready."""
    reason_to_wait: Callable[[RaftGroup], str | None] = lambda host: None
    """Why nothing is to be stamped now in a group that this node leads; None: it may be."""
    on_sync: Callable[[float], None] = lambda seconds: None
    """Told how long each sync took."""
    on_applied: Callable[[int, float], None] = lambda entries, apply_s: None
    """See `Applier`."""
    on_written: Callable[[float], None] = lambda seconds: None
    """See `WriteBehindStores`."""
    on_digest: Callable[[DigestView], None] = lambda view: view.rows.close()
    """Given what a digest was asked of."""
    on_shut: Callable[[RaftGroup], None] = lambda host: None
    """Told of each replica that could not apply an entry, or whose rows could not be read."""


class NodeLog:
    """`now_ms` stamps entries."""

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
        """Recovers the WAL. `create`: there may be nothing yet. Raises Corruption, StorageFailed."""
        self.memory = MemoryBudget(limits.memory_bytes)
        """Of this node."""
        self._hooks = hooks = hooks or Hooks()
        self.stores = WriteBehindStores(stores, ROWS_SHARE * limits.memory_bytes, hooks.on_written)
        self.memory.measure("rows", ROWS_SHARE, lambda: self.stores.bytes)
        self._held: set[int] = set()
        """Groups that propose nothing until more of their rows is written, or applied."""
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
            room=hooks.room,
            takes_entries=self._takes_entries,
        )
        self._applying = 0
        """Bytes of entries that were handed to the applier and not applied yet."""
        self.backlog = Backlog(limits.apply_backlog_bytes)
        self.hosts: dict[int, RaftGroup] = {}
        self.filling: set[int] = set()
        """Stores that a snapshot is being put into: nothing points to them yet, and they are no garbage."""
        self._loads: dict[int, Callable[[int], Replica]] = {}
        """How the replica of a group is made of a store."""
        self.failed: StorageFailed | None = None
        self.stalled: str | None = None
        """Why nothing goes on here, for now."""
        self._logs = self.memory.measure("logs", LOGS_SHARE, self._log_bytes)
        self.producers = self.memory.measure("producers", PRODUCERS_SHARE, self._producer_bytes)
        evict = partial(self.memory.look_aheads.evict, self._readers)
        self.applier = Applier(self.stores, publish, hooks.on_applied, evict)
        self._now_ms = now_ms
        self._levels = levels
        self._checkpoint_mark = self._applied_mark = self.wal.mark
        self._segment_bytes = segment_bytes
        self._overdue: set[int] = set()
        """Groups whose tails keep too much of the WAL: the next checkpoint cuts them."""

    # -- groups ---------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> RaftGroup:
        """The replica of the metadata group; KeyError before it was opened."""
        return self.hosts[METADATA_GROUP]

    @property
    def levels(self) -> Levels:
        """The feature levels that this node's version knows."""
        return self._levels

    @property
    def feature_level(self) -> int | None:
        """What the cluster has come to, as far as is known here; None before this node is a member of it."""
        metadata = self.hosts.get(METADATA_GROUP)
        return None if metadata is None else int(metadata.status.feature_level)

    @property
    def nodes(self) -> int:
        """How many nodes the cluster has, this one included, as far as is known here: those that are registered, or
        members of the metadata group."""
        metadata = self.hosts.get(METADATA_GROUP)
        if metadata is None:
            return 0
        return max(len(metadata.status.nodes), len(metadata.members.voters) + len(metadata.members.learners))

    def install(self, groups: Sequence[tuple[int, str, Members]], metadata_index: int = 0) -> None:
        """Give each of these replicas (group, member, the configuration it begins with) a store, durably, unless its
        group has one. Blocks on the disk. `metadata_index`: what metadata had applied that places them here.

        It must be done before a group's first WAL record: recovery drops the records of groups without a pointer.
        """
        new = [(group, member, members) for group, member, members in groups if self.pointers.get(group) is None]
        if new:
            stores = self.pointers.mint(len(new))
            pointers = [
                StorePointer(group, incarnation_of(member), store, voters=members.voters, learners=members.learners)
                for (group, member, members), store in zip(new, stores, strict=True)
            ]
            self.pointers.update(put=pointers, metadata_index=metadata_index)

    def own(self, members: Members) -> str | None:
        """The member that lives on this node."""
        return own_member(self.node_id, (*members.voters, *members.learners))

    def open_metadata(self, members: Members | None = None, index: int = 0) -> RaftGroup:
        """`members`: who founds it; this node alone, unless told otherwise. `index`: for a new replica, what it says
        before it got there is no news."""
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
            # Now rather than when it is applied: by then this node serves.
            if position > replica.applied_index and command[0] == REGULAR:
                _check_known(replica, command[1:])
        return host

    def check_level(self, needed: int) -> None:
        """Raises Conflict for what needs a higher feature level than the cluster's; Unavailable while the cluster is
        about to come to it, and while this node may not have heard yet that it has."""
        level = self.feature_level or FIRST_LEVEL
        if needed <= level:
            return
        group, applied = self.metadata.group, self.metadata.status.applied_index
        if needed in self._levels and (group.age_s() is None or applied < group.commit_index):
            raise Unavailable("this node does not know yet what the cluster's feature level is; ask again in a moment")
        nodes = self.metadata.status.nodes.values()
        # Of a cluster that is being formed there may be none yet.
        if needed in self._levels and all([needed in node.levels for node in nodes]):
            raise Unavailable(f"the cluster is about to come to feature level {needed}; ask again in a moment")
        raise Conflict(
            f"this needs feature level {needed}, and the cluster is at {level}: it comes there by itself once all of "
            "its nodes run a version that knows it",
            feature_level=level,
        )

    def open_partition(self, topic: Topic, partition: int) -> RaftGroup:
        """Run the local replica of a partition, which was installed before."""
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
                self.applier.give_way,
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
            applied = max(applied, journal.first_index)  # rows that cannot be read may not even say how far they are
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
            has_room=self._has_room,
            what=what,
            settles=number == METADATA_GROUP,
        )
        self.hosts[number] = host
        self._loads[number] = load
        if host.shut is not None:
            self._hooks.on_shut(host)
        if not host.group.term and self.own(Members(pointer.voters[:1])):
            host.group.campaign_soon()  # the first of a new group's members is meant to lead it
        return host

    def close_group(self, number: int, error: SandqError) -> None:
        """Stop running a group that metadata no longer places here; what waits for it gets `error`."""
        host = self.hosts.pop(number, None)
        self._held.discard(number)
        if host is not None:
            self.group_commit.remove(host.group)
            host.close(error)
        self._recovered.pop(number, None)
        self._loads.pop(number, None)

    def _readers(self) -> list[LookAhead]:
        """The cursors of the groups of all partitions (apply thread)."""
        replicas = [host.replica for host in list(self.hosts.values())]
        partitions = [one for one in replicas if isinstance(one, PartitionReplica) and one.failure is None]
        return [reader for partition in partitions for reader in partition.machine.groups.readers()]

    # -- snapshots ------------------------------------------------------------------------------------------------

    def view(self, host: RaftGroup) -> tuple[StoresSnapshot, int]:
        """All rows as they are now, and the last entry that those of a group imply (apply thread)."""
        self.applier.write()
        return self.stores.snapshot(), host.replica.applied_index

    def check_runs(self, host: RaftGroup) -> None:
        """Raises Unavailable for a group that was closed."""
        if self.hosts.get(host.number) is not host:
            raise Unavailable(f"group {host.number} runs here no more")

    def load(self, number: int, store: int) -> tuple[Replica, Any]:
        """The replica that a store holds, and its status (apply thread)."""
        load = self._loads.get(number)
        if load is None:
            raise Unavailable(f"group {number} runs here no more")
        replica = load(store)
        return replica, loaded_status(replica)

    def suspend(self, host: RaftGroup, index: int) -> None:
        """Stop a group whose state is to be replaced by that of `index` (between passes). Raises Unavailable when
        there is no reason to any more."""
        if self.hosts.get(host.number) is not host or host.group.is_leader or host.status.applied_index >= index:
            raise Unavailable(f"group {host.number} needs no snapshot of {index} (any more)")
        self.group_commit.remove(host.group)

    def suspend_shut(self, host: RaftGroup) -> None:
        """Stop a group whose replica is shut, to open that again from its rows (between passes). Raises Unavailable
        if it has been opened or closed meanwhile."""
        if self.hosts.get(host.number) is not host or host.shut is None:
            raise Unavailable(f"group {host.number} is not shut (any more)")
        self.group_commit.remove(host.group, keeps_log=True)

    def reopen(self, host: RaftGroup, replica: Replica, status: Any) -> None:
        """Go on with a suspended group from this state, which its pointer names (between passes)."""
        pointer = self.pointers.get(host.number)
        if self.hosts.get(host.number) is not host or pointer is None:
            return  # its topic was deleted meanwhile
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
        """Drop the pointers of closed groups, durably: their rows and log are garbage from now on. Blocks.
        `metadata_index`: what metadata had applied that does not place them here."""
        self.pointers.update(drop=groups, metadata_index=metadata_index)

    def forget(self, groups: Sequence[int]) -> None:
        """Let the log state these groups no more. For the thread that commits."""
        for group in groups:
            self.wal.forget(group)

    SWEEP_START = store_prefix(1)

    def sweep(self, start: bytes) -> tuple[bytes | None, tuple[bytes, bytes] | None]:
        """Delete rows, from `start` on, of stores that no pointer names: a bounded number (apply thread, which alone
        writes rows). Returns where to go on (None: that was all), and the range of a store that is empty now."""
        kept = {pointer.store for pointer in self.pointers.all()} | self.filling
        while True:
            found = self.stores.scan(start, LAST_KEY, limit=1, max_bytes=1)
            if not found:
                return None, None
            store = store_of(found[0][0])
            first, stop = store_range(store)
            if store not in kept:
                # Not from the store's start again: that would walk over every row deleted so far.
                rows = self.stores.scan(found[0][0], stop, limit=SWEEP_ROWS, max_bytes=SWEEP_BYTES)
                self.stores.write([(key, None) for key, _ in rows])
                last = rows[-1][0] + b"\x00"
                return (last, None) if self.stores.scan(last, stop, limit=1, max_bytes=1) else (stop, (first, stop))
            start = stop

    # -- a pass ---------------------------------------------------------------------------------------------------

    def tick(self) -> tuple[list[Record], list[Apply]]:
        """A tick in one go."""
        records, committed = self.group_commit.tick()
        return records, self._tasks(committed)

    def end_tick(self) -> tuple[list[Record], list[Apply]]:
        """The end of one that was done in parts, see `GroupCommit`."""
        records, committed = self.group_commit.end_tick()
        return records, self._tasks(committed)

    def commit(self, records: Sequence[Record]) -> None:
        """Durable when it returns. Raises StorageFailed; then `fail` must be called, and no further pass run."""
        self.wal.commit(records)

    def synced(self) -> list[Apply]:
        """After it, what `group_commit.take_outgoing` gives may be sent."""
        tasks = self._tasks(self.group_commit.synced())
        changed, self.group_commit.changed = self.group_commit.changed, {}
        for group in changed:
            host = self.hosts.get(group.number)
            if host is not None:
                if group.is_leader:
                    self._hooks.on_leads(host)
                host.look()
        return tasks

    def _tasks(self, committed: Sequence[Committed]) -> list[Apply]:
        hosts = [(self.hosts[c.group], c) for c in committed if c.group in self.hosts]
        tasks = [host.task(c.index, c.command, c.skip) for host, c in hosts if host.shut is None]
        for host, entry in hosts:
            if host.shut is not None:
                host.discard(entry.index, entry.skip)
        self._applying += sum([len(task.command) for task in tasks])
        return tasks

    def _takes_entries(self, group: int) -> bool:
        """Whether a follower's replica is to be sent more: what it has is applied, and written, fast enough."""
        host = self.hosts.get(group)
        if host is not None and host.shut is not None:
            return host.taken_while_shut < SHUT_LOG_BYTES
        fits = host is None or self.stores.takes(store_prefix(host.replica.store))
        return fits and self._applying < self.limits.apply_backlog_bytes

    def _has_room(self, host: RaftGroup) -> bool:
        """Whether a group may propose more: not much that it proposed is yet to be applied, and not much of its rows,
        and of what they will be, waits to be written. It is ticked again once there is room."""
        prefix = store_prefix(host.replica.store)
        has_work = host.requests.unapplied_work < UNAPPLIED_WORK
        if has_work and self.stores.takes(prefix, host.requests.unapplied_bytes):
            return True
        self._held.add(host.number)
        if not has_work:
            return False
        # Again: whoever wrote rows just now did not know that somebody waits.
        if not self.stores.takes(prefix, host.requests.unapplied_bytes):
            return False
        self._held.discard(host.number)
        return True

    @property
    def has_held(self) -> bool:
        """Whether groups wait for room among the rows that are to be written. For any thread."""
        return bool(self._held)

    def propose_again(self) -> None:
        """Rows were written, or entries applied: tick the groups that waited for that."""
        held, self._held = self._held, set()
        for number in held:
            if number in self.hosts:
                self.group_commit.mark(self.hosts[number].group)

    def fail(self, error: StorageFailed) -> None:
        """The log takes nothing any more: everything not committed fails, with its outcome unknown."""
        self.failed = error
        for host in self.hosts.values():
            host.fail(error)
            host.look()

    def expire(self, timeout_s: float) -> None:
        """To be called each time that time has passed: end what was proposed before the last call, and is not done."""
        if self.backlog.bytes:
            for host in self.hosts.values():
                host.expire(timeout_s)

    def stall(self, why: str) -> None:
        """The log or the state stands still: end what waits for it. To be called again for groups that came since."""
        self.stalled = why
        for host in self.hosts.values():
            if host.stalled != why:
                host.stall(why)

    def resume(self) -> None:
        """They go on."""
        if self.stalled is not None:
            self.stalled = None
            for host in self.hosts.values():
                host.resume()

    def published(self, published: Published) -> None:
        """Hand results to who waits for them (on the loop)."""
        self._applying -= published.applied_bytes
        for number, status in published.statuses.items():
            if number in self.hosts:
                self.hosts[number].status = status
        # Before the results: whoever gets one may ask what is next, and must not be told what was next before it.
        for number in published.statuses:
            if number in self.hosts:
                self.hosts[number].look()
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
        return self.wal.bytes_since(self._checkpoint_mark)

    @property
    def entries_kept(self) -> int:
        """Log entries in memory."""
        return sum([len(host.group.journal) for host in self.hosts.values()])

    def applied_indices(self) -> dict[int, int]:
        """Hand over what is applied, to be written, and say up to where (apply thread)."""
        self._applied_mark = self.wal.mark
        self.applier.write()
        return {number: host.replica.applied_index for number, host in list(self.hosts.items())}

    def truncate(self, flushed: dict[int, int]) -> None:
        """The stores hold, durably, everything up to these indices: the log need not."""
        # What came while they were flushed is for the next checkpoint: nobody would think of it if nothing came after.
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
        """Cut the longest logs, whoever needs them yet, while all together are too long: first what is kept for members
        that lag behind, then what snapshots pin, but for one."""
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
        return sum([_log_size(host) for host in list(self.hosts.values())])

    def _producer_bytes(self) -> int:
        return PRODUCER_BYTES * sum([getattr(host.status, "producers", 0) for host in list(self.hosts.values())])

    def group_count(self) -> int:
        """How many groups there are here, each counted in every partition that this node holds."""
        return sum([len(getattr(host.status, "groups", ())) for host in list(self.hosts.values())])

    def release(self) -> dict[int, int]:
        """Remove WAL segments that nobody needs. For the thread that commits. Groups whose tail keeps old segments, and
        how many of them."""
        self.wal.release({n: host.group.journal.first_index for n, host in list(self.hosts.items())})
        return {number: segments for number, segments in self.wal.pinned_by().items() if segments > PINNED_SEGMENTS}

    def copy_tails(self, pinning: Mapping[int, int]) -> bool:
        """Append the short tails of these groups again. True when there was something: run a pass, then `release`.

        A long tail is of a group under load: the next checkpoint cuts it. One that keeps more than `LAG_WAL_BYTES` is
        cut by the next checkpoint whoever needs it, and then copied however long its last entries are.
        """
        journals = {number: self.hosts[number].group.journal for number in pinning if number in self.hosts}
        copied = [n for n, journal in journals.items() if n in self._overdue or journal.size_bytes <= COPY_BYTES]
        for number in copied:
            journals[number].copy_tail()
        self._overdue = {n for n, segments in pinning.items() if segments * self._segment_bytes > LAG_WAL_BYTES}
        self._overdue.difference_update(copied)
        return bool(copied)


def _check_known(replica: MetadataReplica, command: bytes) -> None:
    """Raise StartupError if a newer version wrote an entry of the metadata. One that cannot be decoded for any other
    reason shuts the metadata when it is applied (ADR 46), and is no reason not to start."""
    try:
        entry = metadata_commands.Entry.decode(command)
    except Exception as error:
        if type(error) is StartupError:
            raise
        return
    replica.check(entry)


def _log_size(host: RaftGroup) -> int:
    journal = host.group.journal
    return journal.size_bytes + ENTRY_BYTES * len(journal)


def _kept_of(host: RaftGroup, kept_bytes: int) -> int:
    """What is kept of a log for other members: nothing, if there are none and more than that had to be kept for who
    comes later. With others one entry at least: the one before the first that they have yet to get."""
    voters, learners = host.members
    return 0 if len(voters) + len(learners) == 1 and host.group.journal.size_bytes > kept_bytes else max(kept_bytes, 1)


def _cut(host: RaftGroup, index: int, kept_bytes: int) -> int:
    """Cut a log below an index. By how much it grew: not above 0."""
    before = _log_size(host)
    host.group.journal.truncate_below(index, kept_bytes)
    return _log_size(host) - before
