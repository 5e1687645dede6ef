"""Passes: all dirty groups of a node are ticked, then one WAL pass is written for all, then what it holds counts.

Pure of I/O: `tick` returns the records of the pass; the owner writes and syncs them (on the WAL thread) and calls
`synced`. A group is never ticked between the two: its leader would count entries that are not on disk yet. Nor is a
committed entry handed out before the pass that wrote it is synced (an only voter commits its first no-op within
the tick that elects it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandq.storage.wal import Record

from .group import Group
from .journal import GroupJournal


@dataclass(frozen=True, slots=True)
class Committed:
    group: int
    index: int
    command: bytes
    """Empty for Raft's own entries."""


class Passes:
    def __init__(self) -> None:
        self.records: list[Record] = []
        """Where the journals of all groups write; taken by `tick`."""
        self.groups: dict[int, Group] = {}
        self.wake: Callable[[], None] = lambda: None
        """Called when there is work; the owner sets it."""
        self._before_tick: dict[int, Callable[[], None]] = {}
        self._dirty: dict[Group, None] = {}
        self._ticked: list[Group] = []
        self._durable: dict[int, int] = {}
        """Group -> its last index that is on disk."""
        self._committed: list[Committed] = []

    @property
    def has_work(self) -> bool:
        return bool(self._dirty or self.records)

    def add(
        self,
        number: int,
        member: str,
        voters: Sequence[str],
        journal: GroupJournal,
        *,
        applied: int,
        durable: bool,
        before_tick: Callable[[], None],
    ) -> Group:
        """Run a group from now on.

        `applied`: the last index its state machine holds. `durable`: the journal came from the WAL. `before_tick`:
        where the group's owner proposes what has gathered since the last pass. Raises Corruption.
        """

        def committed(index: int, command: bytes) -> None:
            self._committed.append(Committed(number, index, command))

        group = Group(number, member, voters, journal, applied, committed)
        self.groups[number] = group
        self._before_tick[number] = before_tick
        self._durable[number] = journal.last_index if durable else 0
        self.mark(group)
        return group

    def remove(self, group: Group) -> None:
        self.groups.pop(group.number, None)
        self._before_tick.pop(group.number, None)
        self._dirty.pop(group, None)
        self._ticked = [ticked for ticked in self._ticked if ticked is not group]

    def mark(self, group: Group) -> None:
        """There is something to do for a group; nothing happens for one that was removed."""
        if group.number in self.groups:
            self._dirty[group] = None
            self.wake()

    def tick(self) -> tuple[list[Record], list[Committed]]:
        """Tick every dirty group once.

        Returns the records to be synced before anything else happens, and the entries that are committed and on
        disk already: they may be applied while the records are written.
        """
        dirty, self._dirty = self._dirty, {}
        for group in dirty:
            self._before_tick[group.number]()
            group.tick()
            if group.has_queued:
                self._dirty[group] = None
        self._ticked = list(dirty)
        records = self.records[:]
        self.records.clear()  # in place: the journals hold on to this list
        return records, self._take_committed()

    def synced(self) -> list[Committed]:
        """The records of the last tick are on disk. Returns the committed entries that waited for it."""
        for group in self._ticked:
            last = group.journal.last_index
            if last > self._durable[group.number]:
                self._durable[group.number] = last
                if group.is_leader:
                    self._dirty[group] = None
        self._ticked = []
        return self._take_committed()

    def _take_committed(self) -> list[Committed]:
        held = [entry for entry in self._committed if entry.index > self._durable[entry.group]]
        if not held:
            ready, self._committed = self._committed, []
            return ready
        ready = [entry for entry in self._committed if entry.index <= self._durable[entry.group]]
        self._committed = held
        return ready
