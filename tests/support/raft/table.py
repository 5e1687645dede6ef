"""Run members of one Raft group in memory. The test delivers the messages and moves the time."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgpack

from sandq.model.members import member_id
from sandq.raft import Group, GroupJournal, Members, wire
from sandq.raft.journal import LogEntry
from tests.support.raft.library_time import replace_time

NO_OP = bytes([wire.NO_OP])
GROUP = 7


def entry(index: int, term: int, command: bytes = b"\0x") -> LogEntry:
    return (command, index, term)


class Table:
    """All `members` of one group, connected. As a context manager, it replaces the library's clock during the block."""

    def __init__(self, *names: str, learners: tuple[str, ...] = (), settles: bool = False) -> None:
        self.settles = settles
        self.now_s = 100.0
        self.members = Members(tuple(member_id(n, 1) for n in names), tuple(member_id(n, 1) for n in learners))
        self.names = (*names, *learners)
        self.groups: dict[str, Group] = {}
        self.applied: dict[str, list[tuple[int, bytes]]] = {name: [] for name in self.names}
        self.queue: deque[tuple[str, str, wire.Message]] = deque()
        self.takes: dict[str, bool] = dict.fromkeys(self.names, True)

    def __enter__(self) -> Table:
        self._undo = replace_time(lambda: self.now_s, random.Random(1))
        for name in self.names:
            self.start(name)
        return self

    def __exit__(self, *error: object) -> None:
        self._undo()

    def start(self, name: str, entries: list[LogEntry] | None = None, *, term: int = 0, applied: int = 0) -> Group:
        """Start a member whose log holds these entries. None: start a new member."""
        if entries is None:
            journal = GroupJournal.create([], GROUP, self.members)
        else:
            journal = GroupJournal([], GROUP, self.members, entries=entries, term=term)
        group = self.groups[name] = Group(
            GROUP,
            member_id(name, 1),
            journal,
            applied,
            committed=lambda index, command: self.applied[name].append((index, command)),
            send=lambda to, message: self.queue.append((name, to, message)),
            takes_entries=lambda: self.takes[name],
            settles=self.settles,
        )
        for other in self.names:
            if other != name:
                group.connected(other)
        return group

    def messages(self, *kinds: int) -> list[tuple[str, str, wire.Message]]:
        """Return the queued messages of these kinds."""
        return [(sender, to, m) for sender, to, m in self.queue if m[0] in kinds]

    def deliver(self, *, drop: tuple[int, ...] = (), only_to: tuple[str, ...] | None = None) -> None:
        """Deliver all messages that are queued now."""
        for _ in range(len(self.queue)):
            sender, to, message = self.queue.popleft()
            if message[0] in drop or (only_to is not None and to not in only_to):
                continue
            whole = msgpack.unpackb(msgpack.packb(message), use_list=False)
            self.groups[to].receive(sender, wire.check(whole))

    def tick(self, *names: str) -> None:
        for name in names or self.names:
            self.groups[name].tick()

    def settle(self, *, only_to: tuple[str, ...] | None = None) -> None:
        """Tick and deliver until no message is queued."""
        for _ in range(50):
            self.tick()
            if not self.queue:
                return
            self.deliver(only_to=only_to)
        raise AssertionError("the members exchange messages without end")

    def elect(self, name: str) -> Group:
        """Make a member the leader of the next term."""
        group = self.groups[name]
        for other in self.groups.values():
            other._message_filter.heard_s = 0.0
        group._core._SyncObj__raftElectionDeadline = 0
        self.settle()
        assert group.is_leader
        return group

    def heartbeat(self, name: str) -> None:
        self.groups[name].heartbeat()
        self.groups[name].tick()

    def send(self, sender: str, to: str, kind: int, *fields: Any) -> None:
        """Deliver a message as if a member had sent it."""
        self.groups[to].receive(sender, wire.check((kind, GROUP, 1, 1, *fields)))
