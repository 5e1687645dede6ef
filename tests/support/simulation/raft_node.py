"""Run one life of a node with a Raft group over the real WAL on a memory disk.

The state machine of the group is a list of commands in rows."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandq.broker.replication.journals import open_journal
from sandq.model.members import member_id, node_of
from sandq.raft import Committed, Group, GroupCommit, Members
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.pointers import Pointers, StorePointer
from sandq.storage.stores import MemoryStores
from sandq.storage.wal import RecoveredGroup, Wal
from tests.support.simulation.fake_links import Network

GROUP = 7
SEGMENT_BYTES = 16_384
KEEP_BYTES = 60
"""Bytes of the log that a checkpoint keeps below the flushed index. The value is low, so that snapshots are needed."""


ANSWERS_BEFORE_SYNC = False
"""Whether to simulate a bug: a commit batch is acknowledged before it is synced to the disk."""


class StateMachine:
    """A list of commands in rows, and the index of the last command."""

    def __init__(self, stores: MemoryStores, store: int) -> None:
        self._stores = stores
        self._prefix = store.to_bytes(4, "big")
        applied = stores.get(self._prefix + b"applied")
        self.applied = int(applied) if applied else 1  # the no-op with which every log begins

    def apply(self, entry: Committed) -> None:
        assert entry.index == self.applied + 1, f"entry {entry.index} is applied behind {self.applied}"
        self.applied = entry.index
        changes = [(self._prefix + b"applied", b"%d" % entry.index)]
        self._stores.write([*changes, (self._prefix + b"e%010d" % entry.index, entry.command)])

    def rows(self) -> dict[int, bytes]:
        found = self._stores.scan(self._prefix + b"e", self._prefix + b"f")
        return {int(key[5:]): value for key, value in found}

    def install(self, rows: dict[int, bytes], applied: int) -> None:
        changes = [(self._prefix + b"e%010d" % index, command) for index, command in rows.items()]
        self._stores.write([*changes, (self._prefix + b"applied", b"%d" % applied)])


class WorldClock:
    """The library's time, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Disk:
    """The disk, which outlives a node."""

    memory: MemoryFiles = field(default_factory=MemoryFiles)
    stores: MemoryStores = field(default_factory=MemoryStores)

    def crash(self, rng: random.Random, *, power_loss: bool) -> None:
        self.memory = self.memory.crash(rng) if power_loss else self.memory.kill()
        self.stores = self.stores.crash(rng)


class World(Protocol):
    """The part of a world that a node uses."""

    rng: random.Random
    network: Network
    disks: dict[str, Disk]

    def applied(self, node: RaftNode, entry: Committed) -> None: ...


def check_matches(leader: Group, group_of: Callable[[str], Group | None]) -> None:
    """Check that members have the entries that the leader counts. `group_of(member)`: its group, if its node runs."""
    for member in (*leader.members.voters, *leader.members.learners):
        match, there = leader.match_index(member), group_of(member)
        if match and there is not None and there.term == leader.term and match >= there.journal.first_index:
            ours, theirs = leader.journal.term_at(match), there.journal.term_at(match)
            assert theirs is not None and ours in (None, theirs), f"{member} lacks entry {match}"


class RaftNode:
    """One life of a node."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        disk = world.disks[name]
        self.disk = disk
        self.group_commit = GroupCommit()
        self.pointers = Pointers.open(disk.memory)
        self.wal, recovered = Wal.open(
            disk.memory, segment_bytes=SEGMENT_BYTES, known_groups=lambda group: self.pointers.get(group) is not None
        )
        self.records: list[Any] | None = None
        self.ready: deque[Committed] = deque()
        self.machine: StateMachine | None = None
        self.group: Group | None = None
        if self.pointers.get(GROUP) is not None:
            self.open(recovered.get(GROUP))

    def join(self, members: Members) -> None:
        """Create a replica on this node: a new replica, or the replacement of a wiped replica."""
        own = next(m for m in (*members.voters, *members.learners) if node_of(m) == self.name)
        store = self.pointers.mint(1)[0]
        incarnation = int(own.rpartition("#")[2])
        self.pointers.update(
            put=[StorePointer(GROUP, incarnation, store, voters=members.voters, learners=members.learners)]
        )
        self.open(None)

    def leave(self) -> None:
        """Remove an earlier incarnation of the replica: first its pointer, then its log."""
        if self.group is not None:
            self.group_commit.remove(self.group)
            self.group = self.machine = None
            self.ready.clear()
            self.pointers.update(drop=[GROUP])
            self.wal.forget(GROUP)

    def open(self, found: RecoveredGroup | None) -> None:
        pointer = self.pointers.get(GROUP)
        assert pointer is not None
        self.machine = StateMachine(self.disk.stores, pointer.store)
        member = member_id(self.name, pointer.incarnation)
        journal = open_journal(self.group_commit.records, pointer, found, self.machine.applied)
        self.group = self.group_commit.add(
            GROUP, member, journal, applied=self.machine.applied, before_tick=lambda: None
        )

    # -- connections ----------------------------------------------------------------------------------------------

    def connected(self, node: str) -> None:
        self.group_commit.connected(node)

    def disconnected(self, node: str) -> None:
        self.group_commit.disconnected(node)

    def receive(self, node: str, frame: Any) -> None:
        self.group_commit.receive(node, frame)

    # -- a commit batch -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.records is None:
            self.group_commit.on_time()
            self.records, ready = self.group_commit.tick()
            self.ready.extend(ready)
            if ANSWERS_BEFORE_SYNC:
                self.release()

    def sync(self) -> None:
        if self.records is not None:
            self.wal.commit(self.records)
            self.ready.extend(self.group_commit.synced())
            self.release()
            self.records = None

    def release(self) -> None:
        for node, messages in self.group_commit.take_outgoing().items():
            self.world.network.send(self.name, node, messages)

    def apply(self) -> None:
        for _ in range(self.world.rng.randint(0, len(self.ready))):
            entry = self.ready.popleft()
            self.world.applied(self, entry)
            assert self.machine is not None
            self.machine.apply(entry)

    def checkpoint(self) -> None:
        """Flush, truncate the log below, and release segments."""
        if self.group is None or self.machine is None or self.records is not None:
            return
        applied = self.machine.applied
        self.disk.stores.flush()
        self.group.journal.truncate_below(applied, KEEP_BYTES)
        self.wal.release({GROUP: self.group.journal.first_index})
        if self.wal.pinned_by():
            self.group.journal.copy_tail()

    def install(self, rows: dict[int, bytes], index: int, term: int, members: Members) -> None:
        """Install a snapshot as the engine does: a new store, its pointer, then a log that begins at the snapshot."""
        if self.group is None or self.machine is None or self.records is not None or self.machine.applied >= index:
            return
        old = self.group
        incarnation = int(old.member.rpartition("#")[2])
        store = self.pointers.mint(1)[0]
        StateMachine(self.disk.stores, store).install(rows, index)
        self.disk.stores.flush()
        self.pointers.update(
            put=[StorePointer(GROUP, incarnation, store, index, term, members.voters, members.learners)]
        )
        self.group_commit.remove(old)
        self.ready.clear()
        self.open(old.journal.recovered())
