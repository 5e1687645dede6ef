"""Send the heartbeats of all idle groups of a node to a peer as one message, and answer them as one.

`HeartbeatCoalescing` does so for a node; `GroupHeartbeats` says of a group whether it is idle, and takes in its share.

A group is quiet for its leader while every member that can be reached has all of the log and knows that it is
committed. Then a heartbeat has to say but one thing: that the leader of this term lives, and the answer but that a
member of this term has heard it. That is what ALIVE and ALIVE_ACK say (guard S5: they confirm nothing and commit
nothing). A beat is one of those as five numbers `(group, from, to, term, seq)`; whatever is not as it was goes through
them and the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Generic, NamedTuple, Protocol, TypeVar

from pysyncobj.node import Node

from sandq.model.members import incarnation_of, node_of
from sandq.raft import hooks, wire
from sandq.raft.core import FOLLOWER, HEARTBEAT_S, LEADER, Core
from sandq.raft.journal import GroupJournal
from sandq.raft.members import Members
from sandq.raft.message_filter import MessageFilter
from sandq.raft.read_index import ReadIndex
from sandq.raft.transport import GroupTransport

FRESH_S = 1.0
"""When a majority has not answered for so long, the library looks whether the leader still is one."""

Beat = tuple[int, int, int, int, int]


class _Other(NamedTuple):
    member: str
    node: Node
    node_id: str
    incarnation: int
    votes: bool


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
        """Who takes part from now on."""
        self._voters = len(members.voters)
        self._others = {
            member: _Other(
                member, hooks.member_node(member), node_of(member), incarnation_of(member), member in members.voters
            )
            for member in (*members.voters, *members.learners)
            if member != self._member
        }

    def beats(self, up: Set[str], now_s: float) -> list[tuple[str, Beat]] | None:
        """Of a leader: what goes to which node; None when there is more to say, or to be looked at."""
        core, transport = self._core, self._transport
        last = self._journal.last_index
        if core._SyncObj__raftCommitIndex != last or self._reads.pending or transport.paused:
            return None
        match, answered_s = core._SyncObj__raftMatchIndex, core._SyncObj__lastResponseTime
        term, seq, live = core._SyncObj__raftCurrentTerm, transport.seq + 1, 1
        found = []
        for other in self._others.values():
            if other.node_id not in up:
                continue
            flight = transport.flights.get(other.member)
            if flight is None or not flight.has_told(last) or match[other.node] != last:
                return None
            live += other.votes and answered_s[other.node] > now_s - FRESH_S
            found.append((other.node_id, (self._number, self._incarnation, other.incarnation, term, seq)))
        if 2 * live <= self._voters:
            return None
        self._reads.mark(transport.seq, now_s)
        transport.seq = seq
        core._SyncObj__newAppendEntriesTime = now_s + HEARTBEAT_S
        return found

    def heard(self, leader: str, beat: Beat, now_s: float, arrived_s: float) -> bool:
        """Of a follower, who got it at `arrived_s`. False: it is not all as it was; nothing has happened."""
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
        """Of the leader, as `heard`."""
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


class _BeatingGroup(Protocol):
    """What is asked here of a group (`raft.group.Group`, which stands above)."""

    @property
    def is_leader(self) -> bool: ...
    @property
    def is_alone(self) -> bool: ...
    @property
    def deadline_s(self) -> float: ...
    def heartbeat(self) -> None: ...
    def beats(self, now_s: float) -> list[tuple[str, Beat]] | None: ...
    def beaten(self, node_id: str, beat: Beat, now_s: float, arrived_s: float) -> bool: ...
    def beat_answered(self, node_id: str, beat: Beat, now_s: float) -> bool: ...


G = TypeVar("G", bound=_BeatingGroup)


class HeartbeatCoalescing(Generic[G]):
    """The heartbeats of all groups of a node: those of idle ones share a message to each peer."""

    def __init__(
        self,
        groups: Mapping[int, G],
        send: Callable[[str, wire.Message], None],
        take: Callable[[str, wire.Message, float], None],
        mark: Callable[[G], None],
        look_at: Callable[[float], None],
    ) -> None:
        """`groups`: of the node, by number; as they are at any time. `send(node, message)`. `take(node, message,
        arrived_s)`: have a group take a message of its own in. `mark(group)`: it wants a tick. `look_at(deadline_s)`:
        some group wants a tick then."""
        self._groups = groups
        self._send = send
        self._take = take
        self._mark = mark
        self._look_at = look_at

    def beat(self, now_s: float) -> None:
        """Send the heartbeat of all groups that this node leads: one message to each peer for those that are idle; the
        others send theirs in a tick."""
        numbers: dict[str, list[int]] = {}
        for group in self._groups.values():
            if group.is_leader and not group.is_alone:
                beats = group.beats(now_s)
                if beats is None:
                    group.heartbeat()
                    self._mark(group)
                else:
                    for node, beat in beats:
                        numbers.setdefault(node, []).extend(beat)
        for node, beaten in numbers.items():
            self._send(node, (wire.BEATS, tuple(beaten)))

    def take_beats(self, node: str, numbers: tuple[int, ...], arrived_s: float) -> None:
        """Take in the heartbeats of the groups that a peer leads, which came at `arrived_s`, and answer them with one
        message."""
        now_s = hooks.now_s()
        answers: list[int] = []
        for beat in _beats_of(numbers):
            number, sender, to, term, seq = beat
            group = self._groups.get(number)
            if group is None:
                continue
            if group.beaten(node, beat, now_s, arrived_s):
                self._look_at(group.deadline_s)
                answers += (number, to, sender, term, seq)
            else:
                # It is asked what it knows to be committed, and then gets the rest.
                self._take(node, (wire.ALIVE, *beat, True), arrived_s)
        if answers:
            self._send(node, (wire.BEAT_ACKS, tuple(answers)))

    def take_beat_acks(self, node: str, numbers: tuple[int, ...]) -> None:
        """Take in a peer's answers to the heartbeats of groups that this node leads."""
        now_s = hooks.now_s()
        for beat in _beats_of(numbers):
            group = self._groups.get(beat[0])
            if group is not None and not group.beat_answered(node, beat, now_s):
                self._take(node, (wire.ALIVE_ACK, *beat), now_s)


def _beats_of(numbers: tuple[int, ...]) -> Iterator[Beat]:
    each = iter(numbers)
    return zip(each, each, each, each, each, strict=True)
