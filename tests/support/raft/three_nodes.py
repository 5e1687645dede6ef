"""Run three nodes with thirty Raft groups in memory. The test moves the time."""

from __future__ import annotations

import random
from typing import Any

import msgpack

from sandq.raft import Group, GroupCommit, GroupJournal, Members
from tests.support.raft.library_time import replace_time

NAMES = ("a", "b", "c")
GROUPS = range(1, 31)
MEMBERS = Members(("a#1", "b#1", "c#1"))


class Nodes:
    """Three nodes with thirty groups, whose frames are passed by hand. Use it as a context."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.group_commit = {name: GroupCommit() for name in NAMES}
        self.committed: dict[str, list[tuple[int, bytes]]] = {name: [] for name in NAMES}
        self.frames: list[tuple[str, str, Any]] = []
        self.cut: set[tuple[str, str]] = set()
        """Pairs (from, to) whose messages are lost."""
        self.ticked = 0
        """Number of ticks of all groups."""

    def __enter__(self) -> Nodes:
        self._undo = replace_time(lambda: self.now_s, random.Random(1))
        for name in NAMES:
            for number in GROUPS:
                self.open(name, number)
            for other in NAMES:
                if other != name:
                    self.group_commit[name].connected(other)
        for number in GROUPS:
            self.group(NAMES[number % 3], number).campaign_soon()
        self.run(2.0)
        assert len(self.leaders()) == len(GROUPS)
        return self

    def __exit__(self, *error: object) -> None:
        self._undo()

    def open(self, name: str, number: int) -> Group:
        journal = GroupJournal.create(self.group_commit[name].records, number, MEMBERS)
        return self.group_commit[name].add(number, f"{name}#1", journal, applied=0, before_tick=self._tick)

    def _tick(self) -> None:
        self.ticked += 1

    def group(self, name: str, number: int) -> Group:
        return self.group_commit[name].groups[number]

    def leaders(self) -> dict[int, str]:
        return {number: name for number in GROUPS for name in NAMES if self.group(name, number).is_leader}

    def commit_batch(self, name: str) -> None:
        """Run one commit batch of a node, and deliver its messages to the nodes that it reaches."""
        group_commit = self.group_commit[name]
        group_commit.on_time()
        _, ready = group_commit.tick()
        self.committed[name] += [
            (entry.group, entry.command) for entry in [*ready, *group_commit.synced()] if entry.command
        ]
        for node, messages in group_commit.take_outgoing().items():
            body = msgpack.unpackb(msgpack.packb(messages), use_list=False)
            self.frames += [(name, node, message) for message in body]
            if (name, node) not in self.cut:
                self.group_commit[node].receive(name, body)

    def settle(self) -> None:
        for _ in range(100):
            busy = [name for name in NAMES if self.group_commit[name].has_work]
            if not busy:
                return
            for name in busy:
                self.commit_batch(name)

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.05
            for name in NAMES:
                self.commit_batch(name)
            self.settle()
