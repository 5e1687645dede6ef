"""One member of a Raft group: PySyncObj's core behind a small port, with the guards on everything that goes in."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from contextlib import nullcontext

from pysyncobj.config import FAIL_REASON
from pysyncobj.node import Node

from sandq.model.errors import Corruption
from sandq.model.members import member_id, node_of
from sandq.raft import guards, hooks, wire
from sandq.raft.core import LEADER, NEVER, Core
from sandq.raft.elections import Election
from sandq.raft.group_heartbeats import Beat, GroupHeartbeats
from sandq.raft.journal import GroupJournal
from sandq.raft.members import Members
from sandq.raft.message_filter import MessageFilter
from sandq.raft.read_index import ReadDone, ReadIndex
from sandq.raft.skip import Skip
from sandq.raft.transport import GroupTransport

ROUND_S = 0.5
"""Who has what was committed so long ago has caught up: while entries come all the time, nobody has quite all of it.
Less than the shortest election time-out: what a new voter still lacks must not cost the group its leader."""
_REGULAR = bytes([wire.REGULAR])
_MEMBERSHIP = bytes([wire.MEMBERSHIP])
_SKIP = bytes([wire.SKIP])


class ProposalFailed(enum.Enum):
    NOT_LEADER = "not_leader"
    """It was not appended."""
    REFUSED = "refused"
    """A change of members that may not be made now; it was not appended."""
    UNKNOWN = "unknown"
    """Leadership was lost: it may or may not be committed later."""
    LOST = "lost"
    """Another entry was committed where it stood, or in a later term below it: it never will be."""


Proposed = Callable[[int | None, ProposalFailed | None], None]
"""With its index once it is committed, or with why it is not. Must not raise (guard S9): the library would apply the
entry twice."""


class _Waiter:
    """Who waits for a proposal. `settles`: also when this member leads no more."""

    __slots__ = ("_done", "settles")

    def __init__(self, done: Proposed, settles: bool) -> None:
        self._done = done
        self.settles = settles

    def __call__(self, index: int | None, error: int | ProposalFailed) -> None:
        """Called by the library, with its own reasons, and here."""
        if isinstance(error, ProposalFailed):
            self._done(None, error)
        elif error == FAIL_REASON.SUCCESS and index is not None:
            self._done(index, None)
        elif error == FAIL_REASON.REQUEST_DENIED:
            self._done(None, ProposalFailed.REFUSED)
        elif error == FAIL_REASON.DISCARDED:
            self._done(None, ProposalFailed.LOST)
        else:
            self._done(None, ProposalFailed.NOT_LEADER)


class Group:
    """`tick` counts, commits and appends; what it appended counts only in a later tick, so the caller syncs the WAL in
    between (`GroupCommit` does), and only then sends what `send(node, message)` was given. Nothing here pickles, and
    nothing reads a socket or a file.
    """

    def __init__(
        self,
        number: int,
        member: str,
        journal: GroupJournal,
        applied: int,
        *,
        committed: Callable[[int, bytes], None],
        send: Callable[[str, wire.Message], None] = lambda node, message: None,
        room: Callable[[str], bool] = lambda node: True,
        takes_entries: Callable[[], bool] = lambda: True,
        on_leadership: Callable[[Group], None] = lambda group: None,
        settles: bool = False,
    ) -> None:
        """`committed(index, command)` is called inside a tick and must not raise; the command is empty for the
        library's own entries. `room(node)`: whether the queue to a node takes more. `takes_entries`: whether this
        replica applies fast enough to be sent more. `on_leadership(self)`: this member begins or ceases to lead.
        `settles`: what it has proposed when it ceases to waits until it is certain what became of it, for as long as
        that takes, rather than be answered at once. Raises Corruption."""
        if max(applied, journal.first_index) > journal.last_index:
            raise Corruption(
                f"raft group {number}: its state machine has applied entry {applied}, its log ends at "
                f"{journal.last_index}: the WAL has lost entries"
            )
        if applied < journal.first_index and journal.first_index > 1:
            raise Corruption(
                f"raft group {number}: its log begins at entry {journal.first_index}, its state machine has applied "
                f"{applied}: the store has lost rows"
            )
        self.number = number
        self.member = member
        self.journal = journal
        self.reads = ReadIndex()
        self._on_leadership = on_leadership
        self._settles = settles
        self._transport = GroupTransport(number, member, send, lambda: self.term, room)
        self._transport.reset_at = lambda index: guards.conflict_start(journal, index, self.commit_index)
        self._core = core = Core(
            member,
            journal,
            self._transport,
            committed=committed,
            state_changed=self._state_changed,
            may_change=self._may_change,
        )
        # Entries up to `applied` are in the state machine already; without this the group would stall for ever.
        core._SyncObj__raftLastApplied = max(applied, journal.first_index)
        core._SyncObj__raftCommitIndex = core._SyncObj__raftLastApplied
        self._members = Members(())
        self._up: set[str] = set()
        self._round_s, self._round_commit = -math.inf, 0
        """When it was noted last what is committed; and what was, then."""
        self._election = Election(core, self._transport, journal, member)
        parts = (core, self._transport, journal, self._election, self.reads)
        self._message_filter = MessageFilter(member, *parts, members=lambda: self._members, takes_entries=takes_entries)
        self._heartbeats = GroupHeartbeats(
            number, member, core, self._transport, journal, self._message_filter, self.reads
        )
        self._reconcile()
        if self.is_only_voter:
            # It need not wait for anybody.
            core._SyncObj__raftElectionDeadline = 0

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return bool(self._core._SyncObj__raftState == LEADER)

    @property
    def is_only_voter(self) -> bool:
        return self._members.voters == (self.member,)

    @property
    def is_alone(self) -> bool:
        """There is nobody to send anything to."""
        return self.is_only_voter and not self._members.learners

    @property
    def leader(self) -> str | None:
        """The node that leads, as far as is known here."""
        leader = self._core._SyncObj__raftLeader
        return node_of(leader.id) if leader is not None else None

    @property
    def term(self) -> int:
        return int(self._core._SyncObj__raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self._core._SyncObj__raftCommitIndex)

    @property
    def members(self) -> Members:
        return self._members

    @property
    def is_changing(self) -> bool:
        """The latest configuration is not committed, as far as is known here."""
        return self.journal.members_index > self.commit_index

    @property
    def term_start(self) -> int:
        """Index of the no-op that opened this leader's term: once it is applied, everything that was ever
        acknowledged is applied too."""
        return int(self._core._SyncObj__noopIDx or NEVER)

    @property
    def lagging(self) -> set[str]:
        """Members that need a snapshot; of a leader."""
        return self._transport.lagging if self.is_leader else set()

    @property
    def deadline_s(self) -> float:
        """When it wants a tick although nothing has happened; leaders have the node's heartbeat."""
        return NEVER if self.is_leader else float(self._core._SyncObj__raftElectionDeadline)

    @property
    def has_more(self) -> bool:
        """Whether there is something for a tick to do: proposals, entries to count, send or apply, an election."""
        core = self._core
        return bool(
            self._message_filter.advanced
            or self._message_filter.resend
            or core._SyncObj__commandsQueue._FastQueue__queue
            or core._SyncObj__raftCommitIndex > core._SyncObj__raftLastApplied
            or self._election.called
            or (self.is_leader and self._can_read)
        )

    @property
    def _can_read(self) -> bool:
        return self.reads.has_work(self.commit_index >= self.term_start, self.member, self._members.voters)

    def match_index(self, member: str) -> int:
        """Up to where a member is known to have the leader's log, durably."""
        return int(self._core._SyncObj__raftMatchIndex.get(hooks.member_node(member), 0))

    def has_caught_up(self, member: str) -> bool:
        """Whether a member has, durably, all that was committed `ROUND_S` ago, or later; of a leader."""
        is_fresh = hooks.now_s() - self._round_s < ROUND_S
        return self.match_index(member) >= (self._round_commit if is_fresh else self.commit_index)

    def age_s(self) -> float | None:
        """How long ago what is known here to be committed was certainly all that was; None: that was never known."""
        return self._message_filter.age_s() if not self.is_leader else self._led_age_s()

    def _led_age_s(self) -> float | None:
        """Since what a majority has answered was sent: nobody else can have led then."""
        voters = self._members.voters
        if self.commit_index < self.term_start:
            return None
        now_s = hooks.now_s()
        heard = [now_s if v == self.member else self.reads.heard_s(v) for v in voters]
        least_s = sorted(heard, reverse=True)[len(voters) // 2]
        return now_s - least_s if math.isfinite(least_s) else None

    def needed_from(self, most_bytes: int) -> int:
        """The first entry that some member has not got from this leader, if the log is no longer than that."""
        if not self.is_leader or self.journal.size_bytes > most_bytes:
            return NEVER
        return min([self.match_index(str(node.id)) for node in self._nodes()], default=NEVER - 1) + 1

    # -- what its owner wants -------------------------------------------------------------------------------------

    def propose(self, command: bytes, done: Proposed) -> None:
        """Append in the next tick."""
        self._core._applyCommand(_REGULAR + command, _Waiter(done, self._settles))

    def change_members(self, members: Members, done: Proposed) -> None:
        """One step: a learner comes, is promoted (once it has caught up) or goes; a voter goes, but not the leader. Who
        ceases to lead meanwhile is told at once."""
        self._core._applyCommand(_MEMBERSHIP + members.encode(), _Waiter(done, settles=False))

    def propose_skip(self, skip: Skip, done: Proposed) -> None:
        """Append in the next tick that an entry is replaced."""
        self._core._applyCommand(_SKIP + skip.encode(), _Waiter(done, settles=False))

    def read_index(self, done: ReadDone) -> None:
        """`done(index)` once it is certain that nothing was acknowledged above that index before this call;
        `done(None)` when this node does not lead."""
        if self.is_leader:
            self.reads.ask(done)
        else:
            done(None)

    def transfer(self, target: str) -> bool:
        """Ask a voter to take over. False: it has not all of the log, or is none."""
        outcome: list[int] = []
        self._core.transferLeadership(hooks.member_node(target), lambda result, error: outcome.append(error))
        return outcome == [FAIL_REASON.SUCCESS]

    def campaign_soon(self) -> None:
        """Do not wait for an election time-out: it is a new group, and this member is to lead it."""
        self._election.eager = True
        self._core._SyncObj__raftElectionDeadline = 0

    # -- time and connections -------------------------------------------------------------------------------------

    def tick(self) -> None:
        core, journal = self._core, self.journal
        last = journal.last_index
        self._message_filter.advanced = False
        self.reads.mark(self._transport.seq, hooks.now_s())
        with nullcontext() if self.is_leader else self._election.tick(self._members):
            core._onTick(0.0)
        self._reconcile()
        if self._settles:
            self._settle()
        if self.is_leader:
            # One round of messages confirms all reads of a pass: those that came before them.
            began = self.commit_index >= self.term_start and self.reads.begin(self.commit_index, self._transport.seq)
            if journal.last_index > last or self._message_filter.resend or began:
                self._message_filter.resend = False
                core._SyncObj__sendAppendEntries()
            self._finish_reads()
            self._note_round()

    def heartbeat(self) -> None:
        """A leader tells everybody with its next tick that it lives."""
        self._core._SyncObj__newAppendEntriesTime = 0
        for node in sorted(self._transport.paused, key=lambda node: str(node.id)):
            self._transport.resume(node)
            if node in self._transport.paused:
                self._transport.alive(node.id)

    def beats(self, now_s: float) -> list[tuple[str, Beat]] | None:
        """Of a leader: all that its heartbeat has to say, and to which node; None: it is to have a `heartbeat`, and a
        tick."""
        return self._heartbeats.beats(self._up, now_s)

    def beaten(self, node_id: str, beat: Beat, now_s: float, arrived_s: float) -> bool:
        """A leader's node sent this, and it came at `arrived_s`; False: it is to be asked for more, with ALIVE."""
        return self._heartbeats.heard(member_id(node_id, beat[1]), beat, now_s, arrived_s)

    def beat_answered(self, node_id: str, beat: Beat, now_s: float) -> bool:
        """The answer; False: it is to be looked at as ALIVE_ACK."""
        return self._heartbeats.answered(member_id(node_id, beat[1]), beat, now_s)

    def connected(self, node_id: str) -> None:
        self._up.add(node_id)
        for node in self._nodes():
            if node_of(node.id) == node_id:
                self._transport.connected(node)

    def disconnected(self, node_id: str) -> None:
        self._up.discard(node_id)
        for node in self._nodes():
            if node_of(node.id) == node_id:
                self._transport.disconnected(node)

    def receive(self, node_id: str, message: wire.Message, arrived_s: float | None = None) -> None:
        """What another member sent; `message` was checked (`wire.check`). `arrived_s`: when it came, if not now."""
        self._message_filter.receive(node_id, message, hooks.now_s() if arrived_s is None else arrived_s)
        self._reconcile()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _nodes(self) -> list[Node]:
        return [hooks.member_node(m) for m in (*self._members.voters, *self._members.learners) if m != self.member]

    def _may_change(self, new: Members) -> bool:
        caught_up = {m for m in self._members.learners if self.has_caught_up(m)}
        return guards.may_change(
            self.journal.members,
            new,
            changed_at=self.journal.members_index,
            committed=self.commit_index,
            term_start=self.term_start,
            member=self.member,
            caught_up=caught_up,
        )

    def _reconcile(self) -> None:
        """Let the library count whom the log's latest configuration names (guard S3b), and keep what it knows of
        those who stay."""
        members = self.journal.members
        if members == self._members:
            return
        core, before = self._core, set(self._nodes())
        self._members = members
        self._heartbeats.set_members(members)
        nodes = self._nodes()
        voters = {node for node in nodes if node.id in members.voters}
        core._SyncObj__otherNodes = voters
        core._SyncObj__readonlyNodes = set(nodes) - voters
        for gone in before - set(nodes):
            self._transport.disconnected(gone)
            for known in (core._SyncObj__raftNextIndex, core._SyncObj__raftMatchIndex):
                known.pop(gone, None)
            self._transport.lagging.discard(gone.id)
        for node in set(nodes) - before:
            core._SyncObj__raftNextIndex[node] = self.journal.last_index + 1
            core._SyncObj__raftMatchIndex[node] = 0
            core._SyncObj__lastResponseTime[node] = hooks.now_s()
            if node_of(node.id) in self._up:
                self._transport.connected(node)

    def _note_round(self) -> None:
        now_s = hooks.now_s()
        if now_s - self._round_s >= ROUND_S:
            self._round_s, self._round_commit = now_s, self.commit_index

    def _finish_reads(self) -> None:
        self.reads.finish(self.member, self._members.voters)

    def _state_changed(self, before: int, after: int) -> None:
        if before == LEADER:
            age_s = self._led_age_s()
            if age_s is not None:
                self._message_filter.complete_s = hooks.now_s() - age_s
            self._stepped_down()
        if after == LEADER:
            self._round_s = -math.inf
            self._message_filter.barriers.clear()
            self._message_filter.tried.clear()
            self._transport.flights.clear()
        if LEADER in (before, after):
            self._on_leadership(self)

    def _stepped_down(self) -> None:
        """Guards L5, L6: the library would leave a deposed leader's proposals waiting for ever, and its election
        deadline where it was, long past."""
        waiting = self._core._SyncObj__commandsWaitingCommit
        pending: list[_Waiter] = []
        for index, entries in list(waiting.items()):
            pending += [waiter for _, waiter in entries if not waiter.settles]
            waiting[index] = [(term, waiter) for term, waiter in entries if waiter.settles]
            if not waiting[index]:
                del waiting[index]
        self._message_filter.resend = False  # a tick of a follower would never do it, and be called for again and again
        self._transport.lagging.clear()
        for node in list(self._transport.paused):
            self._transport.connected(node)
        self._election.postpone()
        for waiter in pending:
            waiter(None, ProposalFailed.UNKNOWN)
        self.reads.fail()

    def _settle(self) -> None:
        """Tell who waits for what was proposed in an earlier term that it is lost: once an entry of a later term is
        committed below it, no leader can have it. What is committed, or another entry in its place, the library tells
        of, whoever leads."""
        waiting = self._core._SyncObj__commandsWaitingCommit
        term = self.journal.term_at(self.commit_index) or 0
        lost = [index for index, entries in waiting.items() if index > self.commit_index and entries[-1][0] < term]
        for index in sorted(lost):
            for _, waiter in waiting.pop(index):
                waiter(None, ProposalFailed.LOST)
