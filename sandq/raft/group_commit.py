"""Commit for all groups of a node in passes: take messages in, tick dirty groups, write one WAL pass, then count it.

Pure of I/O: a tick returns the records of the pass; the owner writes and syncs them (on the WAL thread), calls
`synced`, and only then sends what `take_outgoing` gives. A group is never ticked between the two: its leader would
count entries that are not on disk yet, and so would a follower's answer. Nor is a committed entry handed out before the
pass that wrote it is synced (an only voter commits its first no-op within the tick that elects it).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from sandq.model.errors import Corruption
from sandq.raft import hooks, wire
from sandq.raft.core import HEARTBEAT_S
from sandq.raft.group import Group
from sandq.raft.heartbeat_coalescing import HeartbeatCoalescing
from sandq.raft.journal import GroupJournal
from sandq.raft.skip import Skip
from sandq.storage.wal import Record

log = structlog.get_logger("sandq.raft")

SCAN_S, SCAN_MOST_S = 0.05, 1.0
"""The election deadlines are looked at when the first of them is over, at this interval at least and at most."""

TICKED_AT_ONCE = 64
"""Groups, before others on the loop may have a turn."""
ARRIVED_BYTES, ARRIVED_FRAMES = 64 << 20, 1024
"""What peers have sent and no pass has taken in yet: no more is read beyond either."""


@dataclass(frozen=True, slots=True)
class Committed:
    group: int
    index: int
    command: bytes
    """Empty for Raft's own entries. Of an entry that was skipped: its replacement."""
    skip: Skip | None = None
    """Set if the entry is a SKIP."""


class GroupCommit:
    def __init__(
        self,
        *,
        wake: Callable[[], None] = lambda: None,
        room: Callable[[str], bool] = lambda node: True,
        takes_entries: Callable[[int], bool] = lambda group: True,
    ) -> None:
        """`wake`: called when there is work. `room(node)`: whether the queue to a node takes more. `takes_entries`:
        whether this node applies what is of a group fast enough to be sent more."""
        self.records: list[Record] = []
        """Where the journals of all groups write; taken by `tick`."""
        self.groups: dict[int, Group] = {}
        self._wake = wake
        self._room = room
        self._takes_entries = takes_entries
        self._accompanied: set[Group] = set()
        """Those that have other members: only for them does time matter."""
        self._before_tick: dict[int, Callable[[], None]] = {}
        self._dirty: dict[Group, None] = {}
        self._ticking: deque[Group] = deque()
        """Those of this pass that are yet to be ticked."""
        self._touched: dict[Group, None] = {}
        """Groups of this pass: only they may have written something."""
        self._ticked: list[tuple[Group, int]] = []
        self._committed: list[Committed] = []
        self._arrived: list[tuple[str, Sequence[Any], int, float]] = []
        """Who sent it, what, of how many bytes, and when it came."""
        self._arrived_bytes = 0
        self._outgoing: dict[str, list[wire.Message]] = {}
        self._up: dict[str, None] = {}
        self._heartbeat_s = self._scan_s = self._not_before_s = 0.0
        self.heartbeats = HeartbeatCoalescing(self.groups, self._send, self._take, self._add_dirty, self._look_at)
        self.changed: dict[Group, None] = {}
        """Groups that this node began or ceased to lead; the owner empties it."""

    @property
    def has_work(self) -> bool:
        return bool(self._dirty or self.records or self._arrived or self._outgoing)

    def add(
        self,
        number: int,
        member: str,
        journal: GroupJournal,
        *,
        applied: int,
        before_tick: Callable[[], None],
        settles: bool = False,
    ) -> Group:
        """Run a group from now on.

        `applied`: the last index its state machine holds. `before_tick`: where the group's owner proposes what has
        gathered since the last pass. `settles`: as `Group` says. Raises Corruption.
        """

        def committed(index: int, command: bytes) -> None:
            self._committed.append(Committed(number, index, command))

        group = Group(
            number,
            member,
            journal,
            applied,
            committed=committed,
            send=self._send,
            room=self._room,
            takes_entries=partial(self._takes_entries, number),
            on_leadership=self._on_leadership,
            settles=settles,
        )
        self.groups[number] = group
        self._before_tick[number] = before_tick
        for node in self._up:
            group.connected(node)
        self._note_company(group)
        self.mark(group)
        return group

    def _on_leadership(self, group: Group) -> None:
        self.changed[group] = None

    def remove(self, group: Group, *, keeps_log: bool = False) -> None:
        """Run it no more. What it has written since the last tick never gets to the log, unless that goes on
        (`keeps_log`): a checkpoint may have cut it, and counts on the records that say so."""
        if not keeps_log:
            self.records[:] = [record for record in self.records if record[1] != group.number]
        self.groups.pop(group.number, None)
        self._accompanied.discard(group)
        self._before_tick.pop(group.number, None)
        self._dirty.pop(group, None)
        self._touched.pop(group, None)
        self._ticked = [ticked for ticked in self._ticked if ticked[0] is not group]
        self._committed = [entry for entry in self._committed if entry.group != group.number]

    def mark(self, group: Group) -> None:
        """There is something to do for a group; nothing happens for one that was removed."""
        if self.groups.get(group.number) is group:
            self._dirty[group] = None
            self._wake()

    # -- peers and time -------------------------------------------------------------------------------------------

    def connected(self, node: str) -> None:
        self._up[node] = None
        for group in self.groups.values():
            group.connected(node)

    def disconnected(self, node: str) -> None:
        """What was queued for it, and what it sent and was not looked at yet, is gone: after a connection is lost
        nothing of it may come behind what the next one brings."""
        self._up.pop(node, None)
        self._outgoing.pop(node, None)
        self._arrived = [arrived for arrived in self._arrived if arrived[0] != node]
        self._arrived_bytes = sum([size for _, _, size, _ in self._arrived])
        for group in self.groups.values():
            group.disconnected(node)

    def receive(self, node: str, messages: Sequence[Any], size: int = 0) -> None:
        """What a peer sent, for the next tick: a frame of so many bytes."""
        self._arrived.append((node, messages, size, hooks.now_s()))
        self._arrived_bytes += size
        self._wake()

    @property
    def takes_more(self) -> bool:
        """Whether there is room for what peers send: they do not know that a sync hangs here, and go on."""
        return self._arrived_bytes < ARRIVED_BYTES and len(self._arrived) < ARRIVED_FRAMES

    def pause_s(self) -> float:
        """How long nothing need be done unless something happens: then `on_time` is to be called."""
        if not self._accompanied:
            return math.inf
        return max(0.0, min(self._heartbeat_s, self._scan_s) - hooks.now_s())

    def on_time(self) -> None:
        """Mark whom the time calls. All leaders have one heartbeat, so that their messages share frames."""
        now = hooks.now_s()
        if now >= self._heartbeat_s:
            self._heartbeat_s = now + HEARTBEAT_S
            self.heartbeats.beat(now)
        if now >= self._scan_s:
            self._scan_s = now + SCAN_MOST_S
            self._not_before_s = now + SCAN_S
            for group in self.groups.values():
                if group.deadline_s < now:
                    self._dirty[group] = None
                else:
                    self._look_at(group.deadline_s)

    def _note_company(self, group: Group) -> None:
        """Its members may have changed."""
        if group.is_alone:
            self._accompanied.discard(group)
        else:
            self._accompanied.add(group)

    def _add_dirty(self, group: Group) -> None:
        self._dirty[group] = None

    def _look_at(self, deadline_s: float) -> None:
        """Some member wants a tick then."""
        if deadline_s < self._scan_s:
            self._scan_s = max(deadline_s, self._not_before_s)

    # -- a pass ---------------------------------------------------------------------------------------------------

    def tick(self) -> tuple[list[Record], list[Committed]]:
        """A tick in one go: `begin_tick`, `tick_some` as often as it wants, `end_tick`."""
        self.begin_tick()
        while self.tick_some():
            pass
        return self.end_tick()

    @property
    def is_short(self) -> bool:
        """Whether there is something to tick, and so little that nobody need have a turn meanwhile."""
        return 0 < len(self._dirty) <= TICKED_AT_ONCE and not self._arrived

    @property
    def is_long(self) -> bool:
        """Whether so much is to be ticked that whoever brings more for others should wait."""
        return len(self._dirty) + len(self._ticking) > TICKED_AT_ONCE

    def begin_tick(self) -> None:
        """Take in what arrived. Every group that is dirty by now is to be ticked once."""
        self._take_in()
        self._ticking.extend(self._dirty)
        self._dirty = {}

    def tick_some(self) -> bool:
        """Tick some of those; whether there are more. Others may have a turn in between: what they bring is for the
        next pass."""
        for _ in range(min(TICKED_AT_ONCE, len(self._ticking))):
            group = self._ticking.popleft()
            if self.groups.get(group.number) is not group:
                continue  # it was removed meanwhile
            self._before_tick[group.number]()
            group.tick()
            self._note_company(group)
            self._touched[group] = None
            self._look_at(group.deadline_s)
            if group.has_more:
                self._dirty[group] = None
        return bool(self._ticking)

    def end_tick(self) -> tuple[list[Record], list[Committed]]:
        """Return the records to be synced before anything else happens, and the entries that are committed and on
        disk already: they may be applied while the records are written."""
        touched, self._touched = self._touched, {}
        self._ticked = [(group, group.journal.last_index) for group in touched if group.journal.is_new]
        records = self.records[:]
        self.records.clear()  # in place: the journals hold on to this list
        return records, self._take_committed()

    def _take_in(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._arrived_bytes = 0
        for node, messages, _, arrived_s in arrived:
            for message in messages:
                try:
                    wire.check(message)
                except (ValueError, TypeError, Corruption) as error:
                    log.error("a peer sent what is no raft message; it is dropped", peer=node, error=str(error))
                    continue
                if message[0] == wire.BEATS:
                    self.heartbeats.take_beats(node, message[1], arrived_s)
                elif message[0] == wire.BEAT_ACKS:
                    self.heartbeats.take_beat_acks(node, message[1])
                else:
                    self._take(node, message, arrived_s)

    def _take(self, node: str, message: wire.Message, arrived_s: float) -> None:
        group = self.groups.get(message[1])
        if group is not None:
            group.receive(node, message, arrived_s)
            self._note_company(group)
            self._look_at(group.deadline_s)
            self._touched[group] = None
            if group.has_more:
                self._dirty[group] = None

    def synced(self) -> list[Committed]:
        """The records of the last tick are on disk. Returns the committed entries that waited for it."""
        for group, last in self._ticked:
            group.journal.synced(last)
            if group.is_leader:
                self._dirty[group] = None
        self._ticked = []
        return self._take_committed()

    def take_outgoing(self) -> dict[str, list[wire.Message]]:
        """What may be sent now, by node. For the end of a pass: what is in here promises what the pass wrote."""
        outgoing, self._outgoing = self._outgoing, {}
        return outgoing

    def _send(self, node: str, message: wire.Message) -> None:
        if node in self._up:
            self._outgoing.setdefault(node, []).append(message)

    def _take_committed(self) -> list[Committed]:
        groups = self.groups
        ready: list[Committed] = []
        held: list[Committed] = []
        for entry in self._committed:
            group = groups[entry.group]
            if entry.index > group.journal.durable:
                held.append(entry)
            elif not group.journal.skips:
                ready.append(entry)
            else:
                self._take_decided(group, entry, ready, held)
        self._committed = held
        return ready

    def _take_decided(self, group: Group, entry: Committed, ready: list[Committed], held: list[Committed]) -> None:
        """Hold an entry while it is undecided whether it, or one before it, is skipped; replace it if it is."""
        journal, committed = group.journal, group.commit_index
        undecided = journal.undecided(committed)
        if undecided is not None and undecided <= entry.index:
            held.append(entry)
            return
        command = journal.replacement(entry.index, committed)
        skip = journal.skips.get(entry.index)
        ready.append(Committed(entry.group, entry.index, entry.command if command is None else command, skip))
