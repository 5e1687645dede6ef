"""Nodes that run Raft groups over the real WAL on memory disks, a network that loses, delays and cuts, virtual time.

Everything is driven by one `random.Random(seed)`, so a seed replays. The state machine is a list of commands in rows;
what was acknowledged is kept outside of the nodes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack

from sandq.broker.journals import open_journal
from sandq.raft import Committed, Group, Members, Passes, core, hooks, member_id, node_of
from sandq.storage.faulty_files import FaultyFiles, Plan
from sandq.storage.memory_files import Crashed, MemoryFiles
from sandq.storage.pointers import Pointers, StorePointer
from sandq.storage.stores import MemoryStores
from sandq.storage.wal import RecoveredGroup, Wal

GROUP = 7
STEP_S = 0.01
SEGMENT_BYTES = 16_384
KEEP_BYTES = 60
"""Of the log behind what a checkpoint has flushed: little, so that snapshots are needed."""


ANSWERS_BEFORE_SYNC = False
"""A fault to be found: what a pass has written is answered for before it is on the disk."""


class WorldClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class StateMachine:
    """A list of commands, in rows, with the index that they imply."""

    def __init__(self, stores: MemoryStores, store: int) -> None:
        self._stores = stores
        self._prefix = store.to_bytes(4, "big")
        applied = stores.get(self._prefix + b"applied")
        self.applied = int(applied) if applied else 1  # the no-op that every log begins with

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


class RaftNode:
    """One life of a node."""

    def __init__(self, world: RaftWorld, name: str) -> None:
        self.world, self.name = world, name
        disk = world.disks[name]
        self.disk = disk
        self.passes = Passes()
        self.pointers = Pointers.open(disk.files)
        self.wal, recovered = Wal.open(
            disk.files, segment_bytes=SEGMENT_BYTES, known_groups=lambda group: self.pointers.get(group) is not None
        )
        self.inbox: list[tuple[str, Any]] = []
        self.records: list[Any] | None = None
        self.ready: deque[Committed] = deque()
        self.machine: StateMachine | None = None
        self.group: Group | None = None
        self.up: set[str] = set()
        if self.pointers.get(GROUP) is not None:
            self.open(recovered.get(GROUP))

    def join(self, members: Members) -> None:
        """Make a replica here, new or in the place of one that was wiped."""
        own = next(m for m in (*members.voters, *members.learners) if node_of(m) == self.name)
        store = self.pointers.mint(1)[0]
        incarnation = int(own.rpartition("#")[2])
        self.pointers.update(
            put=[StorePointer(GROUP, incarnation, store, voters=members.voters, learners=members.learners)]
        )
        self.open(None)

    def leave(self) -> None:
        """An earlier life of the replica ends: first its pointer goes, then the log forgets it."""
        if self.group is not None:
            self.passes.remove(self.group)
            self.group = self.machine = None
            self.ready.clear()
            self.pointers.update(drop=[GROUP])
            self.wal.forget(GROUP)

    def open(self, found: RecoveredGroup | None) -> None:
        pointer = self.pointers.get(GROUP)
        assert pointer is not None
        self.machine = StateMachine(self.disk.stores, pointer.store)
        member = member_id(self.name, pointer.incarnation)
        journal = open_journal(self.passes.records, pointer, found, self.machine.applied)
        self.group = self.passes.add(GROUP, member, journal, applied=self.machine.applied, before_tick=lambda: None)
        for node in self.up:
            self.group.connected(node)

    # -- a pass ---------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.records is None:
            self.passes.on_time()
            self.records, ready = self.passes.tick()
            self.ready.extend(ready)
            if ANSWERS_BEFORE_SYNC:
                self.release()

    def sync(self) -> None:
        if self.records is not None:
            self.wal.commit(self.records)
            self.ready.extend(self.passes.synced())
            self.release()
            self.records = None

    def release(self) -> None:
        for node, messages in self.passes.take_outgoing().items():
            self.world.network.send(self.name, node, messages)

    def apply(self) -> None:
        for _ in range(self.world.rng.randint(0, len(self.ready))):
            entry = self.ready.popleft()
            self.world.applied(self, entry)
            assert self.machine is not None
            self.machine.apply(entry)

    def checkpoint(self) -> None:
        """Flush, forget the log below, let go of segments."""
        if self.group is None or self.machine is None or self.records is not None:
            return
        applied = self.machine.applied
        self.disk.stores.flush()
        self.group.journal.truncate_below(applied, KEEP_BYTES)
        self.wal.release({GROUP: self.group.journal.first_index})
        if self.wal.pinned_by():
            self.group.journal.copy_tail()

    def install(self, rows: dict[int, bytes], index: int, term: int, members: Members) -> None:
        """A snapshot, as the engine installs it: a new store, its pointer, then the log starts over at it."""
        if self.group is None or self.machine is None or self.records is not None or self.machine.applied >= index:
            return
        old = self.group
        incarnation = int(old.member.rpartition("#")[2])
        store = self.pointers.mint(1)[0]
        StateMachine(self.disk.stores, store).install(rows, index)
        self.disk.stores.flush()
        self.pointers.update(
            put=[StorePointer(GROUP, incarnation, store, index, term, 0, members.voters, members.learners)]
        )
        self.passes.remove(old)
        self.ready.clear()
        self.open(old.journal.recovered())


@dataclass
class Disk:
    memory: MemoryFiles = field(default_factory=MemoryFiles)
    stores: MemoryStores = field(default_factory=MemoryStores)
    files: Any = None
    incarnation: int = 1


class Network:
    """One connection for each pair; what is sent over it arrives in order, or the connection is lost with all of it."""

    def __init__(self, world: RaftWorld) -> None:
        self.world = world
        self.links: dict[tuple[str, str], deque[Any]] = {}
        self.stalled: set[tuple[str, str]] = set()

    def send(self, sender: str, receiver: str, messages: list[Any]) -> None:
        queue = self.links.get((sender, receiver))
        if queue is not None:
            # As over the wire: nothing is shared.
            queue.append(msgpack.unpackb(msgpack.packb(messages), use_list=False))

    def deliver(self, sender: str, receiver: str) -> None:
        queue = self.links.get((sender, receiver))
        node = self.world.nodes.get(receiver)
        if queue and node is not None and (sender, receiver) not in self.stalled:
            for _ in range(self.world.rng.randint(1, len(queue))):
                node.passes.receive(sender, queue.popleft())

    def link(self, a: str, b: str) -> None:
        nodes = self.world.nodes
        if (a, b) in self.links or a not in nodes or b not in nodes:
            return
        for x, y in ((a, b), (b, a)):
            self.links[x, y] = deque()
            nodes[x].up.add(y)
            nodes[x].passes.connected(y)

    def cut(self, a: str, b: str) -> None:
        for x, y in ((a, b), (b, a)):
            self.stalled.discard((x, y))
            if self.links.pop((x, y), None) is not None and x in self.world.nodes:
                self.world.nodes[x].up.discard(y)
                self.world.nodes[x].passes.disconnected(y)

    def isolate(self, name: str) -> None:
        for other in self.world.names:
            self.cut(name, other)


class RaftWorld:
    def __init__(self, seed: int, names: tuple[str, ...] = ("n1", "n2", "n3")) -> None:
        self.rng = random.Random(seed)
        self.clock = WorldClock()
        self._undo = hooks.replace_time(self.clock, self.rng)
        # Small batches: a follower that is behind gets many of them.
        core.MAX_APPEND_BYTES, self._append_bytes = self.rng.choice((10, 30, 1 << 20)), core.MAX_APPEND_BYTES
        self.pace = self.rng.choice((0.1, 0.3, 0.7))
        """How likely a step delivers over a connection: at a low one much is on its way at once."""
        self.names = names
        self.spare = f"n{len(names) + 1}"
        self.disks = {name: Disk() for name in (*names, self.spare)}
        self.network = Network(self)
        self.nodes: dict[str, RaftNode] = {}
        self.canon: dict[int, bytes] = {}
        """What was applied at each index, by whoever was first."""
        self.acked: dict[int, bytes] = {}
        self.leaders: dict[int, str] = {}
        self.terms: dict[str, int] = {}
        self.incarnations = 1
        self.placed: set[str] = set()
        self.sent = self.reads = self.changes = self.snapshots = self.elections = self.crashes = 0
        founding = Members(tuple(member_id(name, 1) for name in names))
        for name in names:
            self.start(name)
            self.nodes[name].join(founding)
        self.start(self.spare)
        self.names = (*names, self.spare)
        for a in self.names:
            for b in self.names:
                if a < b:
                    self.network.link(a, b)

    def close(self) -> None:
        self._undo()
        core.MAX_APPEND_BYTES = self._append_bytes

    # -- checks ---------------------------------------------------------------------------------------------------

    def applied(self, node: RaftNode, entry: Committed) -> None:
        known = self.canon.setdefault(entry.index, entry.command)
        assert known == entry.command, f"{node.name} applies {entry.command!r} at {entry.index}, others {known!r}"

    def look(self) -> None:
        """One leader a term; terms never fall, not over a crash either."""
        for name, node in self.nodes.items():
            group = node.group
            if group is None:
                continue
            if group.is_leader:
                first = self.leaders.setdefault(group.term, group.member)
                if first == group.member and group.term > self.elections:
                    self.elections = group.term
                assert first == group.member, f"{first} and {group.member} lead term {group.term}"
            if node.records is None and not node.passes.records:
                assert group.term >= self.terms.get(group.member, 0), f"the term of {name} fell"
                self.terms[group.member] = group.term

    # -- what happens ---------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        disk = self.disks[name]
        disk.files = FaultyFiles(disk.memory, Plan())
        try:
            self.nodes[name] = RaftNode(self, name)
        except Crashed:
            self._dead(name)

    def _dead(self, name: str) -> None:
        """What a crash leaves of a node."""
        self.crashes += 1
        self.nodes.pop(name, None)
        self.network.isolate(name)
        disk = self.disks[name]
        disk.memory = disk.memory.crash(self.rng) if self.rng.random() < 0.7 else disk.memory.kill()
        disk.stores = disk.stores.crash(self.rng)

    def guarded(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Crashed:
            self._dead(name)

    def crash(self) -> None:
        name = self.rng.choice(self.names)
        if name in self.nodes:
            if self.rng.random() < 0.5:
                self._dead(name)
            else:
                self.disks[name].memory.crash_after(self.rng.randint(1, 10), inside=self.rng.random() < 0.5)

    def restart(self) -> None:
        for name in self.names:
            if name not in self.nodes and self.rng.random() < 0.3:
                self.start(name)

    def wipe(self) -> None:
        """A node loses its disk, if the others can do without what was on it."""
        name = self.rng.choice(self.names)
        if len(self.nodes) < len(self.names):
            return
        for voters, learners in {node.group.members for node in self.nodes.values() if node.group is not None}:
            healthy = [m for m in voters if node_of(m) != name]
            if 2 * len(healthy) <= len(voters) or any(self._is_gone(m) for m in (*voters, *learners)):
                return
        if name in self.nodes:
            self._dead(name)
            self.disks[name] = Disk()
            self.start(name)

    def _voters(self) -> tuple[str, ...]:
        groups = [node.group for node in self.nodes.values() if node.group is not None]
        return max(groups, key=lambda g: (g.commit_index, g.term)).members.voters if groups else ()

    def leader(self) -> RaftNode | None:
        leading = [n for n in self.nodes.values() if n.group is not None and n.group.is_leader]
        return max(leading, key=lambda n: n.group.term, default=None)  # type: ignore[union-attr]

    def produce(self) -> None:
        for node in list(self.nodes.values()):
            if node.group is not None and node.group.is_leader:
                for _ in range(self.rng.randint(1, 4)):
                    self.sent += 1
                    self._propose(node, b"c%d" % self.sent)

    def _propose(self, node: RaftNode, command: bytes) -> None:
        def done(index: int | None, failure: Any) -> None:
            if index is not None:
                self.acked[index] = command

        assert node.group is not None
        node.group.propose(command, done)
        node.passes.mark(node.group)

    def read(self) -> None:
        """A linearizable read sees everything that was acknowledged before it was asked for."""
        for node in list(self.nodes.values()):
            if node.group is not None and node.group.is_leader:
                least = max(self.acked, default=0)

                def done(index: int | None, least: int = least) -> None:
                    if index is not None:
                        self.reads += 1
                        assert index >= least, f"a read at {index}, and {least} was acknowledged before it"

                node.group.read_index(done)
                node.passes.mark(node.group)

    def transfer(self) -> None:
        node = self.leader()
        if node is not None and node.group is not None:
            node.group.transfer(self.rng.choice(node.group.members.voters))

    def change(self) -> None:
        """Whoever runs the cluster: replaces members that are gone, promotes learners, removes what is too much."""
        node = self.leader()
        if node is None or node.group is None:
            return
        group, members = node.group, node.group.members
        new = self._next_members(group, members)
        if new is None:
            return

        def done(index: int | None, failure: Any) -> None:
            if index is not None:
                self.changes += 1

        group.change_members(new, done)
        node.passes.mark(group)

    def _next_members(self, group: Group, members: Members) -> Members | None:
        voters, learners = members
        gone = [m for m in (*voters, *learners) if self._is_gone(m)]
        for member in gone:
            if member != group.member and (len(voters) > 2 or member in learners):
                kept = tuple(m for m in voters if m != member)
                return Members(kept, tuple(m for m in learners if m != member))
        if learners and self.rng.random() < 0.6:
            return Members((*voters, learners[0]), learners[1:])
        absent = [n for n in self.names if n in self.nodes and all(node_of(m) != n for m in (*voters, *learners))]
        if len(voters) < 4 and absent and self.rng.random() < 0.5:
            self.incarnations += 1
            return Members(voters, (*learners, member_id(self.rng.choice(absent), self.incarnations)))
        others = [m for m in voters if m != group.member]
        if len(voters) > 3 and others:
            leaving = self.rng.choice(others)
            return Members(tuple(m for m in voters if m != leaving), learners)
        return None

    def _is_gone(self, member: str) -> bool:
        node = self.nodes.get(node_of(member))
        return node is not None and (node.group is None or node.group.member != member)

    def place(self) -> None:
        """Nodes learn that they are to hold a replica."""
        node = self.leader()
        if node is None or node.group is None or node.group.journal.members_index > node.group.commit_index:
            return
        members = node.group.members
        for member in (*members.voters, *members.learners):
            there = self.nodes.get(node_of(member))
            if there is None or there.records is not None or member not in members.learners:
                continue
            if there.group is None or there.group.member != member:
                if member in self.placed:
                    continue  # it was wiped since: it comes back as somebody else
                self.placed.add(member)
                self.guarded(there.name, there.leave)
                if there is self.nodes.get(there.name):
                    self.guarded(there.name, partial(there.join, members))

    def snapshot(self) -> None:
        """Send one to whoever needs it."""
        for node in list(self.nodes.values()):
            group, machine = node.group, node.machine
            if group is None or machine is None:
                continue
            for member in sorted(group.lagging):
                there = self.nodes.get(node_of(member))
                index = machine.applied
                term = group.journal.term_at(index)
                if there is None or term is None or there.group is None or there.group.member != member:
                    continue
                self.snapshots += 1
                rows, at = machine.rows(), group.journal.members_at(index)
                self.guarded(there.name, partial(there.install, rows, index, term, at))

    def step(self, *, calm: bool = False) -> None:
        rng, network = self.rng, self.network
        self.clock.now_s += STEP_S
        if not calm:
            self._disturb()
        for pair in list(network.links):
            if calm or rng.random() < self.pace:
                network.deliver(*pair)
        for name in list(self.nodes):
            node = self.nodes.get(name)
            if node is None:
                continue
            for action in (node.tick, node.sync, node.apply):
                if (calm or rng.random() < 0.8) and name in self.nodes:
                    self.guarded(name, action)
        self.snapshot()
        self.place()
        self.look()

    def _disturb(self) -> None:
        rng, network = self.rng, self.network
        for chance, action in (
            (0.30, self.produce),
            (0.10, self.read),
            (0.008, self.crash),
            (0.05, self.restart),
            (0.004, self.transfer),
            (0.03, self.change),
            (0.002, self.wipe),
        ):
            if rng.random() < chance:
                action()
        if rng.random() < 0.05 and self.nodes:
            name = rng.choice(sorted(self.nodes))
            self.guarded(name, self.nodes[name].checkpoint)
        a, b = rng.sample(self.names, 2)
        chance = rng.random()
        if chance < 0.02:
            network.cut(a, b)
        elif chance < 0.03:
            network.stalled.add((a, b))
        elif chance < 0.04:
            network.isolate(a)
        elif chance < 0.12:
            network.stalled.discard((a, b))
            network.link(a, b)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def heal(self) -> None:
        """No more faults: a leader, one state everywhere, new commands are acknowledged."""
        for disk in self.disks.values():
            disk.memory.crash_after(1 << 60)
        for name in self.names:
            if name not in self.nodes:
                self.start(name)
        for a in self.names:
            for b in self.names:
                if a < b:
                    self.network.cut(a, b)
                    self.network.link(a, b)
        before = len(self.acked)
        for turn in range(3000):
            self.step(calm=True)
            if turn % 50 == 0:
                self.produce()
                self.change()
            if turn > 300 and len(self.acked) > before and self._is_even():
                return
        raise AssertionError(f"no progress after healing: {self._tell()}")

    def _is_even(self) -> bool:
        members = self._voters()
        states = [self.nodes[node_of(m)] for m in members]
        return all(
            node.group is not None and node.machine is not None and node.machine.applied == max(self.canon, default=0)
            for node in states
        )

    def _tell(self) -> list[Any]:
        return [
            (
                n.name,
                g.member,
                "leads" if g.is_leader else g.leader,
                g.term,
                g.commit_index,
                g.journal.last_index,
                g.members,
            )
            for n in self.nodes.values()
            if (g := n.group) is not None
        ]

    def check(self) -> None:
        lost = {index: command for index, command in self.acked.items() if self.canon.get(index) != command}
        assert not lost, f"acknowledged commands are lost: {lost}"
        members = self._voters()
        for member in members:
            machine = self.nodes[node_of(member)].machine
            assert machine is not None
            rows = machine.rows()
            assert rows == {index: self.canon[index] for index in rows if index in self.canon} | {
                index: rows[index] for index in rows if index not in self.canon
            }
