"""Simulate nodes with a Raft group, a network that loses, delays and cuts, and an operator, in virtual time.

One `random.Random(seed)` determines everything, so a seed reproduces its world. The world keeps acknowledged commands
outside of the nodes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from sandq.model.members import member_id, node_of
from sandq.raft import Committed, Group, Members, core
from sandq.storage.memory_files import Crashed
from tests.support.raft.library_time import replace_time
from tests.support.simulation.fake_links import Network
from tests.support.simulation.raft_node import Disk, RaftNode, WorldClock, check_matches

STEP_S = 0.03


class RaftWorld:
    def __init__(self, seed: int, names: tuple[str, ...] = ("n1", "n2", "n3")) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = WorldClock()
        self._undo = replace_time(self.clock, rng)
        # Use small batches, so that a follower that lags behind receives many of them.
        core.MAX_APPEND_BYTES, self._append_bytes = rng.choice((10, 30, 1 << 20)), core.MAX_APPEND_BYTES
        self._pace = rng.choice((0.2, 0.5, 0.9))
        """Probability that a step delivers over a connection. If it is low, many frames are in flight at once."""
        self._sync_pace = rng.choice((0.2, 0.8))
        self._crash_probability = rng.choice((0.002, 0.01, 0.03))
        self._is_careless = rng.random() < 0.5
        """Whether the operator requests membership changes that are not allowed."""
        self._shrinks = len(names) == 1
        """Whether the operator may remove all voters but the leader."""
        self.names = (*names, f"n{len(names) + 1}")
        self.disks = {name: Disk() for name in self.names}
        self.nodes: dict[str, RaftNode] = {}
        self.network = Network(self.nodes, rng, repeats=rng.choice((0.0, 0.0, 0.2)))
        self.canon: dict[int, bytes] = {}
        """Command applied at each index, by the first replica that applied it."""
        self.acked: dict[int, bytes] = {}
        self._leaders: dict[int, str] = {}
        self._terms: dict[str, int] = {}
        self._incarnations = 1
        self._placed: set[str] = set()
        self.sent = self.reads = self.changes = self.snapshots = self.crashes = 0
        founding = Members(tuple(member_id(name, 1) for name in names))
        for name in self.names:
            self.start(name)
            if name in names:
                self.nodes[name].join(founding)
        self.network.renew()

    def close(self) -> None:
        self._undo()
        core.MAX_APPEND_BYTES = self._append_bytes

    @property
    def elections(self) -> int:
        return len(self._leaders)

    # -- checks ---------------------------------------------------------------------------------------------------

    def applied(self, node: RaftNode, entry: Committed) -> None:
        known = self.canon.setdefault(entry.index, entry.command)
        assert known == entry.command, f"{node.name} applies {entry.command!r} at {entry.index}, others {known!r}"

    def check_invariants(self) -> None:
        """Check the invariants that hold after each step."""
        for name, node in self.nodes.items():
            group = node.group
            if group is None:
                continue
            if group.is_leader:
                first = self._leaders.setdefault(group.term, group.member)
                assert first == group.member, f"{first} and {group.member} lead term {group.term}"
                check_matches(group, self._group_of)
            at, last = group.commit_index, group.journal.last_index
            assert at <= last, f"{name} has committed {at}, and its log ends at {last}"
            if node.records is None and not node.group_commit.records:
                assert group.term >= self._terms.get(group.member, 0), f"the term of {name} fell"
                self._terms[group.member] = group.term

    def _group_of(self, member: str) -> Group | None:
        node = self.nodes.get(node_of(member))
        group = node.group if node is not None else None
        return group if group is not None and group.member == member else None

    # -- faults and requests --------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        try:
            self.nodes[name] = RaftNode(self, name)
        except Crashed:
            self._dead(name)

    def _dead(self, name: str, *, power_loss: bool = False) -> None:
        """Crash a node."""
        self.crashes += 1
        self.network.isolate(name)
        self.nodes.pop(name, None)
        self.disks[name].crash(self.rng, power_loss=power_loss or self.rng.random() < 0.7)

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
        """Wipe the disk of a node, if the others do not need its data.

        Never wipe a disk while a promoted member has not learned of its promotion. The member counts in the log of the
        node that began the promotion, but its own log does not allow it to win an election. If it has more entries than
        all other members, they cannot elect a leader without it."""
        name = self.rng.choice(self.names)
        if len(self.nodes) < len(self.names):
            return
        groups = [node.group for node in self.nodes.values() if node.group is not None]
        if any(
            group.member in other.members.voters and group.member in group.members.learners
            for group in groups
            for other in groups
        ):
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
        node.group_commit.mark(node.group)

    def read(self) -> None:
        """Read linearizably. The index of the read must cover all commands acknowledged before the request."""
        for node in list(self.nodes.values()):
            if node.group is not None and node.group.is_leader:
                least = max(self.acked, default=0)

                def done(index: int | None, least: int = least) -> None:
                    if index is not None:
                        self.reads += 1
                        assert index >= least, f"a read at {index}, and {least} was acknowledged before it"

                node.group.read_index(done)
                node.group_commit.mark(node.group)

    def transfer(self) -> None:
        node = self.leader()
        if node is not None and node.group is not None:
            node.group.transfer(self.rng.choice(node.group.members.voters))

    def change(self) -> None:
        """Change the members as an operator: replace lost ones, promote learners, remove surplus ones."""
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
        node.group_commit.mark(group)

    def _next_members(self, group: Group, members: Members) -> Members | None:
        voters, learners = members
        if self._is_careless and self.rng.random() < 0.3 and (new := self._forbidden(group, members)) is not None:
            return new
        gone = [m for m in (*voters, *learners) if self._is_gone(m)]
        for member in gone:
            if member != group.member and (len(voters) > 2 or member in learners):
                kept = tuple(m for m in voters if m != member)
                return Members(kept, tuple(m for m in learners if m != member))
        if learners and self.rng.random() < 0.6:
            return Members((*voters, learners[0]), learners[1:])
        absent = [n for n in self.names if n in self.nodes and all(node_of(m) != n for m in (*voters, *learners))]
        if len(voters) < 4 and absent and self.rng.random() < 0.5:
            self._incarnations += 1
            return Members(voters, (*learners, member_id(self.rng.choice(absent), self._incarnations)))
        others = [m for m in voters if m != group.member]
        if (len(voters) > 3 and others) or (self._shrinks and len(voters) == 2):
            leaving = self.rng.choice(others)
            return Members(tuple(m for m in voters if m != leaving), learners)
        return None

    def _forbidden(self, group: Group, members: Members) -> Members | None:
        """Return a change that is not allowed, because it replaces or removes all voters but one at once."""
        voters, learners = members
        others = [m for m in voters if m != group.member]
        if not others or any(self._is_gone(m) for m in (*voters, *learners)):
            return None
        if learners:
            return Members((group.member, learners[0]))
        return Members((group.member, others[0])) if len(others) > 2 else None

    def _is_gone(self, member: str) -> bool:
        node = self.nodes.get(node_of(member))
        return node is not None and (node.group is None or node.group.member != member)

    def place(self) -> None:
        """Let nodes create the replicas that are assigned to them."""
        node = self.leader()
        if node is None or node.group is None or node.group.journal.members_index > node.group.commit_index:
            return
        members = node.group.members
        for member in (*members.voters, *members.learners):
            there = self.nodes.get(node_of(member))
            if there is None or there.records is not None or member not in members.learners:
                continue
            if there.group is None or there.group.member != member:
                if member in self._placed:
                    continue  # the node was wiped meanwhile: its replica gets a new incarnation
                self._placed.add(member)
                self.guarded(there.name, there.leave)
                if there is self.nodes.get(there.name):
                    self.guarded(there.name, partial(there.join, members))

    def snapshot(self) -> None:
        """Send a snapshot to each member that needs one."""
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
        rng = self.rng
        self.clock.now_s += STEP_S
        if not calm:
            self._disturb()
        self.network.deliver(1.0 if calm else self._pace)
        for name in list(self.nodes):
            node = self.nodes.get(name)
            if node is None:
                continue
            for action, pace in ((node.tick, 0.8), (node.sync, self._sync_pace), (node.apply, 0.8)):
                if (calm or rng.random() < pace) and name in self.nodes:
                    self.guarded(name, action)
        self.snapshot()
        self.place()
        self.check_invariants()

    def _disturb(self) -> None:
        for probability, action in (
            (0.30, self.produce),
            (0.10, self.read),
            (self._crash_probability, self.crash),
            (0.0007, self.lose_power),
            (0.1, self.restart),
            (0.004, self.transfer),
            (0.03, self.change),
            (0.002, self.wipe),
            (0.05, self.checkpoint),
            (0.002, self.suspend),
            (1.0, self.network.disturb),
        ):
            if self.rng.random() < probability:
                action()

    def lose_power(self) -> None:
        """Crash all nodes at once."""
        for name in list(self.nodes):
            self._dead(name, power_loss=True)

    def checkpoint(self) -> None:
        if self.nodes:
            name = self.rng.choice(sorted(self.nodes))
            self.guarded(name, self.nodes[name].checkpoint)

    def suspend(self) -> None:
        """Suspend the machine of all nodes for some seconds."""
        self.clock.now_s += self.rng.choice((0.5, 1.5, 5.0))

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def heal(self) -> None:
        """Stop the faults. Then there must be a leader and one state on all nodes, and new commands must succeed."""
        for disk in self.disks.values():
            disk.memory.crash_after(1 << 60)
        for name in self.names:
            if name not in self.nodes:
                self.start(name)
        self.network.repeats = 0.0
        self.network.renew()
        before = len(self.acked)
        for turn in range(3000):
            self.step(calm=True)
            if turn % 50 == 0:
                self.produce()
                self.change()
            if turn > 300 and len(self.acked) > before and self._is_even():
                return
        raise AssertionError(f"no progress after healing: {self._describe_pending()}")

    def _is_even(self) -> bool:
        """Return whether all voters have applied everything that was committed."""
        last = max([*self.canon, *self.acked], default=0)
        return all(
            (machine := self.nodes[node_of(m)].machine) is not None and machine.applied == last for m in self._voters()
        )

    def _describe_pending(self) -> list[Any]:
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
        for member in self._voters():
            machine = self.nodes[node_of(member)].machine
            assert machine is not None and machine.rows() == self.canon, f"{member} holds another state"
