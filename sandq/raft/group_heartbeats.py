"""The heartbeats of one idle group. The heartbeats of all idle groups of a node share one message per peer.

For its leader, a group is idle while every reachable member has the whole log and knows that it is committed. A
heartbeat then only says that the leader of this term is alive, and the reply only says that a member of this term heard
it. ALIVE and ALIVE_ACK have the same meaning (guard S5: they confirm no entry and commit none). A beat is an ALIVE or
ALIVE_ACK as five numbers `(group, from, to, term, seq)`. As soon as the state of the group changes, the group uses
ALIVE, ALIVE_ACK and the library again.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from pysyncobj.node import Node

from sandq.model.members import incarnation_of, node_of
from sandq.raft import hooks
from sandq.raft.core import FOLLOWER, HEARTBEAT_S, LEADER, Core
from sandq.raft.journal import GroupJournal
from sandq.raft.members import Members
from sandq.raft.message_filter import MessageFilter
from sandq.raft.read_index import ReadIndex
from sandq.raft.transport import GroupTransport

FRESH_S = 1.0
"""If no majority has replied for this time, in seconds, the group is not idle.

The library then checks whether this member can still lead."""

Beat = tuple[int, int, int, int, int]
"""(group, from, to, term, seq), as in `wire`."""


class _Other(NamedTuple):
    member: str
    node: Node
    node_id: str
    incarnation: int
    votes: bool
    """True for a voter, False for a learner."""


class GroupHeartbeats:
    """The heartbeats of one group, while it is idle."""

    def __init__(
        self,
        number: int,
        member: str,
        core: Core,
        transport: GroupTransport,
        journal: GroupJournal,
        message_filter: MessageFilter,
        reads: ReadIndex,
    ) -> None:
        self._number = number
        self._member = member
        self._incarnation = incarnation_of(member)
        self._core = core
        self._transport = transport
        self._journal = journal
        self._message_filter = message_filter
        self._reads = reads
        self._others: dict[str, _Other] = {}
        self._voters = 0

    def set_members(self, members: Members) -> None:
        """Set the group's members."""
        self._voters = len(members.voters)
        self._others = {
            member: _Other(
                member, hooks.member_node(member), node_of(member), incarnation_of(member), member in members.voters
            )
            for member in (*members.voters, *members.learners)
            if member != self._member
        }

    def beats(self, up: Set[str], now_s: float) -> list[tuple[str, Beat]] | None:
        """Return (node, beat) pairs if the group is idle, else None. Call on a leader only.

        The group does not count as idle if no majority has replied for `FRESH_S`."""
        core, transport = self._core, self._transport
        last = self._journal.last_index
        if core._SyncObj__raftCommitIndex != last or self._reads.pending or transport.paused:
            return None
        # A beat contains no index, so it suffices only if every reachable member has the log and knows that it is
        # committed.
        match, answered_s = core._SyncObj__raftMatchIndex, core._SyncObj__lastResponseTime
        term, seq = core._SyncObj__raftCurrentTerm, transport.seq + 1
        live = 1  # this member, and the voters that replied recently
        found = []
        for other in self._others.values():
            if other.node_id not in up:
                continue
            flight = transport.flights.get(other.member)
            if flight is None or not flight.has_acknowledged(last) or match[other.node] != last:
                return None
            live += other.votes and answered_s[other.node] > now_s - FRESH_S
            found.append((other.node_id, (self._number, self._incarnation, other.incarnation, term, seq)))
        if 2 * live <= self._voters:
            return None
        # One message number serves all members. A reply to it proves that this member led at `now_s`.
        self._reads.mark(transport.seq, now_s)
        transport.seq = seq
        # The beats replace the heartbeat of the library: postpone it.
        core._SyncObj__newAppendEntriesTime = now_s + HEARTBEAT_S
        return found

    def heard(self, leader: str, beat: Beat, now_s: float, arrived_s: float) -> bool:
        """Handle a beat from `leader` that arrived at `arrived_s`, on a follower.

        Return False, and change nothing, if term, leader or this member's state do not match the beat."""
        _, _, to, term, _ = beat
        core = self._core
        known = core._SyncObj__raftLeader
        if (
            to != self._incarnation
            or term != core._SyncObj__raftCurrentTerm
            or core._SyncObj__raftState != FOLLOWER
            or core._SyncObj__transferInProgress
            or known is None
            or known.id != leader
        ):
            return False
        self._message_filter.heard_s, self._message_filter.complete_s = now_s, arrived_s
        core._SyncObj__raftElectionDeadline = now_s + core._SyncObj__generateRaftTimeout()
        return True

    def answered(self, member: str, beat: Beat, now_s: float) -> bool:
        """Handle a member's reply to a beat, on the leader. Return False, and change nothing, if the reply is
        outdated."""
        _, _, to, term, seq = beat
        core, other = self._core, self._others.get(member)
        if (
            to != self._incarnation
            or term != core._SyncObj__raftCurrentTerm
            or core._SyncObj__raftState != LEADER
            or other is None
        ):
            return False
        core._SyncObj__lastResponseTime[other.node] = now_s
        self._reads.heard(member, seq)
        return True
