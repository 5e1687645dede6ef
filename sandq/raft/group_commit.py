"""Run all groups of a node in commit batches (group commit): one WAL write and one fsync for many groups.

This module does no I/O. A tick handles messages, ticks the dirty groups and returns the records of the batch. The owner
writes and syncs them on the WAL thread, calls `synced`, and only then sends the messages from `take_outgoing`. Between
a tick and `synced`, groups must not be ticked: a leader would count entries that are not on disk yet, and a follower
would acknowledge them. A committed entry is also handed out only after its batch is synced, because a single voter
commits its first no-op within the tick that elects it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sandq.model.errors import Corruption
from sandq.model.logger import get_logger
from sandq.raft import hooks, wire
from sandq.raft.core import HEARTBEAT_S
from sandq.raft.group import Group
from sandq.raft.heartbeat_coalescing import HeartbeatCoalescing
from sandq.raft.journal import GroupJournal
from sandq.raft.skip import Skip
from sandq.storage.wal import Record

log = get_logger("sandq.raft")

SCAN_S, SCAN_MOST_S = 0.05, 1.0
"""Shortest and longest interval, in s, between two scans of the election deadlines.

In between, the next scan runs when the earliest deadline passes."""

TICKED_AT_ONCE = 64
"""Maximum number of groups ticked before other tasks on the event loop get a time slice."""
ARRIVED_BYTES, ARRIVED_FRAMES = 64 << 20, 1024
"""Maximum bytes and number of frames that were received from peers, but not handled. At either limit, reading from
peers pauses."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed entry for the caller to apply. `GroupCommit` returns it once the entry is on this node's disk."""

    group: int
    index: int
    command: bytes
    """The command to apply. Empty for Raft's own entries; the replacement if a SKIP replaces the entry."""
    skip: Skip | None = None
    """The decoded SKIP, if the entry is a SKIP. Otherwise None."""


class GroupCommit:
    """All Raft groups of a node, ticked and made durable together."""

    def __init__(
        self,
        *,
        wake: Callable[[], None] = lambda: None,
        may_send: Callable[[str], bool] = lambda node: True,
        takes_entries: Callable[[int], bool] = lambda group: True,
    ) -> None:
        """Create the object without groups.

        `wake` is called when there is work. `may_send(node)`: return whether the queue to a node accepts more.
        `takes_entries(group)`: return whether this node applies a group's entries fast enough to receive more."""
        self.records: list[Record] = []
        """Records written by the journals of all groups since the last `end_tick`."""
        self.groups: dict[int, Group] = {}
        self._wake = wake
        self.before_proposals: Callable[[], None] = lambda: None
        """Called before the ticks of a commit batch in which groups propose requests. It may add requests."""
        self._has_requests = False
        """True if groups have requests to propose in the next tick."""
        self._queue_accepts = may_send
        self._takes_entries = takes_entries
        self._accompanied: set[Group] = set()
        """Groups that have other members. Only they need heartbeats and election deadlines."""
        self._before_tick: dict[int, Callable[[], None]] = {}
        self._dirty: dict[Group, None] = {}
        """Groups that the next tick must include."""
        self._ticking: deque[Group] = deque()
        """Groups of this commit batch that are not ticked yet."""
        self._touched: dict[Group, None] = {}
        """Groups ticked or changed by a message in this commit batch. Only they can have written records."""
        self._ticked: list[tuple[Group, int]] = []
        """Groups with entries that are being synced: (group, last index of these entries)."""
        self._committed: list[Committed] = []
        """Committed entries that were not returned yet."""
        self._arrived: list[tuple[str, Sequence[Any], int, float]] = []
        """Frames not handled yet: (node that sent it, messages, bytes, arrival time in s)."""
        self._arrived_bytes = 0
        self._outgoing: dict[str, list[wire.Message]] = {}
        self._up: dict[str, None] = {}
        """Connected nodes."""
        self._heartbeat_s = self._scan_s = self._not_before_s = 0.0
        """Times, in s: the next heartbeat, the next scan of election deadlines, and the earliest time for a scan."""
        self.heartbeats = HeartbeatCoalescing(self.groups, self._send, self._take, self._add_dirty, self._scan_at)
        self.changed: dict[Group, None] = {}
        """Groups that this node started or stopped leading. The owner of this object clears the dict."""

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
        """Add a group, and return it.

        `applied`: index of the last entry in its state machine. `before_tick` is called before each tick, so that the
        group's owner can propose queued commands. `settles`: see `Group`. Raise Corruption if the log does not fit the
        state machine.
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
            may_send=self._queue_accepts,
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
        """Stop running a group.

        Drop the group's records since the last tick. With `keeps_log`, keep the records: a checkpoint may have
        truncated the log, and needs the records about the truncation."""
        if not keeps_log:
            self.records[:] = [record for record in self.records if record[1] != group.number]
        self.groups.pop(group.number, None)
        self._accompanied.discard(group)
        self._before_tick.pop(group.number, None)
        self._dirty.pop(group, None)
        self._touched.pop(group, None)
        self._ticked = [ticked for ticked in self._ticked if ticked[0] is not group]
        self._committed = [entry for entry in self._committed if entry.group != group.number]

    def mark_requests(self, group: Group) -> None:
        """Mark a group that has requests to propose."""
        self._has_requests = True
        self.mark(group)

    def mark(self, group: Group) -> None:
        """Mark a group dirty, so that the next tick includes it. Do nothing if the group was removed."""
        if self.groups.get(group.number) is group:
            self._dirty[group] = None
            self._wake()

    # -- peers and time -------------------------------------------------------------------------------------------

    def connected(self, node: str) -> None:
        self._up[node] = None
        for group in self.groups.values():
            group.connected(node)

    def disconnected(self, node: str) -> None:
        """Drop everything queued for a node, and everything received from it but not handled yet.

        A message of a lost connection must not be handled after a message of the next connection."""
        self._up.pop(node, None)
        self._outgoing.pop(node, None)
        self._arrived = [arrived for arrived in self._arrived if arrived[0] != node]
        self._arrived_bytes = sum([size for _, _, size, _ in self._arrived])
        for group in self.groups.values():
            group.disconnected(node)

    def receive(self, node: str, messages: Sequence[Any], size: int = 0) -> None:
        """Queue the messages of a frame of `size` bytes from a peer for the next tick."""
        self._arrived.append((node, messages, size, hooks.now_s()))
        self._arrived_bytes += size
        self._wake()

    @property
    def takes_more(self) -> bool:
        """True if the queue of received messages accepts more.

        The limit is needed because peers keep sending while a sync hangs on this node."""
        return self._arrived_bytes < ARRIVED_BYTES and len(self._arrived) < ARRIVED_FRAMES

    def pause_s(self) -> float:
        """Return the seconds until `on_time` must be called; infinity if no group has other members."""
        if not self._accompanied:
            return math.inf
        return max(0.0, min(self._heartbeat_s, self._scan_s) - hooks.now_s())

    def on_time(self) -> None:
        """Mark the groups whose heartbeat or election deadline is due.

        All leaders of the node send their heartbeats at the same time, so that their messages share frames."""
        now = hooks.now_s()
        if now >= self._heartbeat_s:
            self._heartbeat_s = now + HEARTBEAT_S
            self.heartbeats.beat(now)
        if now >= self._scan_s:
            # Until the scan below finds an earlier deadline, the next scan is due after the longest interval.
            self._scan_s = now + SCAN_MOST_S
            self._not_before_s = now + SCAN_S
            for group in self.groups.values():
                if group.deadline_s < now:
                    self._dirty[group] = None
                else:
                    self._scan_at(group.deadline_s)

    def _note_company(self, group: Group) -> None:
        """Add a group to `_accompanied` if it has other members, otherwise remove it."""
        if group.is_alone:
            self._accompanied.discard(group)
        else:
            self._accompanied.add(group)

    def _add_dirty(self, group: Group) -> None:
        self._dirty[group] = None

    def _scan_at(self, deadline_s: float) -> None:
        """Scan the election deadlines at `deadline_s` at the latest, but at most once per `SCAN_S`."""
        if deadline_s < self._scan_s:
            self._scan_s = max(deadline_s, self._not_before_s)

    # -- a commit batch -------------------------------------------------------------------------------------------

    def tick(self) -> tuple[list[Record], list[Committed]]:
        """Run a whole tick: `begin_tick`, `tick_some` until no group is left, `end_tick`."""
        self.begin_tick()
        while self.tick_some():
            pass
        return self.end_tick()

    @property
    def is_short(self) -> bool:
        """True if one time slice is enough for a whole tick: few groups are dirty, and no messages have arrived."""
        return 0 < len(self._dirty) <= TICKED_AT_ONCE and not self._arrived

    @property
    def is_long(self) -> bool:
        """True if more groups wait for a tick than fit into one time slice. Tasks that mark groups should wait."""
        return len(self._dirty) + len(self._ticking) > TICKED_AT_ONCE

    def begin_tick(self) -> None:
        """Handle the received messages, then queue every dirty group to be ticked once."""
        self._handle_arrived()
        if self._has_requests:
            self.before_proposals()
            self._has_requests = False
        self._ticking.extend(self._dirty)
        self._dirty = {}

    def tick_some(self) -> bool:
        """Tick up to `TICKED_AT_ONCE` queued groups. Return whether more are queued.

        Other tasks may run between two calls: their work belongs to the next commit batch."""
        for _ in range(min(TICKED_AT_ONCE, len(self._ticking))):
            group = self._ticking.popleft()
            if self.groups.get(group.number) is not group:
                continue  # the group was removed in the meantime
            self._before_tick[group.number]()
            group.tick()
            self._note_company(group)
            self._touched[group] = None
            self._scan_at(group.deadline_s)
            if group.has_more:
                self._dirty[group] = None
        return bool(self._ticking)

    def end_tick(self) -> tuple[list[Record], list[Committed]]:
        """Return the batch's records, and the committed entries that are on disk already.

        The records must be synced before the next tick. The entries may be applied while the records are written."""
        touched, self._touched = self._touched, {}
        self._ticked = [(group, group.journal.last_index) for group in touched if group.journal.is_new]
        records = self.records[:]
        self.records.clear()  # in place: the journals append to this list
        return records, self._take_committed()

    def _handle_arrived(self) -> None:
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
            self._scan_at(group.deadline_s)
            self._touched[group] = None
            if group.has_more:
                self._dirty[group] = None

    def synced(self) -> list[Committed]:
        """Note that the last tick's records are on disk. Return the committed entries that waited for the sync."""
        for group, last in self._ticked:
            group.journal.synced(last)
            if group.is_leader and ((not group.commit_alone() and group.own_copy_counts) or group.has_more):
                self._dirty[group] = None  # the next tick counts the leader's own copy of the new entries
        self._ticked = []
        return self._take_committed()

    def take_outgoing(self) -> dict[str, list[wire.Message]]:
        """Return the messages to send, by node. Call it after `synced`, because the messages acknowledge entries of the
        commit batch."""
        outgoing, self._outgoing = self._outgoing, {}
        return outgoing

    def _send(self, node: str, message: wire.Message) -> None:
        if node in self._up:
            self._outgoing.setdefault(node, []).append(message)

    def _take_committed(self) -> list[Committed]:
        """Return the committed entries that can be applied now. Keep all other entries for a later call."""
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
        """Append an entry to `ready`, with the replacement as its command if a SKIP replaces it.

        Append it to `held` instead while a SKIP of this entry or of an earlier entry is not committed."""
        journal, committed = group.journal, group.commit_index
        undecided = journal.undecided(committed)
        if undecided is not None and undecided <= entry.index:
            held.append(entry)
            return
        command = journal.replacement(entry.index, committed)
        skip = journal.skips.get(entry.index)
        ready.append(Committed(entry.group, entry.index, entry.command if command is None else command, skip))
