"""One member of a Raft group: PySyncObj's core behind a small interface, with guards on all its input."""

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
"""A member counts as caught up once it has everything that was committed this many seconds ago.

While entries arrive all the time, a member never has quite all of them. The time is below the shortest election
timeout, so that the group does not lose its leader because of the entries that a new voter still lacks."""
_REGULAR = bytes([wire.REGULAR])
_MEMBERSHIP = bytes([wire.MEMBERSHIP])
_SKIP = bytes([wire.SKIP])


class ProposalFailed(enum.Enum):
    """Why a proposal was not committed, as far as this member knows."""

    NOT_LEADER = "not_leader"
    """This member does not lead. The entry was not appended."""
    REFUSED = "refused"
    """A membership change that is not allowed now; the entry was not appended."""
    UNKNOWN = "unknown"
    """This member lost leadership. It is unknown whether the entry will be committed."""
    LOST = "lost"
    """The entry can never be committed: another entry is committed at its index, or an entry of a later term is
    committed below it."""


Proposed = Callable[[int | None, ProposalFailed | None], None]
"""Called with the entry's index once the entry is committed, or with the reason why it is not committed.

Must not raise (guard S9): the library would apply the entry twice."""


class _Waiter:
    """The callback of a pending proposal. `settles`: the proposal stays pending if this member stops leading."""

    __slots__ = ("_done", "settles")

    def __init__(self, done: Proposed, settles: bool) -> None:
        self._done = done
        self.settles = settles

    def __call__(self, index: int | None, error: int | ProposalFailed) -> None:
        """Report the outcome. The library passes its own failure reasons, this module a `ProposalFailed`."""
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
    """One member of a Raft group.

    `tick` counts the received acknowledgements, commits entries, and appends proposals. Entries that a tick appends
    count only in a later tick: the caller (`GroupCommit`) syncs the WAL in between, and only then sends the messages
    passed to `send(node, message)`. This class uses no pickle, socket or file.
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
        may_send: Callable[[str], bool] = lambda node: True,
        takes_entries: Callable[[], bool] = lambda: True,
        on_leadership: Callable[[Group], None] = lambda group: None,
        settles: bool = False,
    ) -> None:
        """Create the member from its log.

        `applied`: index of the last entry in the state machine. `committed(index, command)` is called inside a tick and
        must not raise; the command is empty for the library's own entries. `may_send(node)`: return whether the queue
        to a node accepts more. `takes_entries()`: return whether this replica applies fast enough to receive more
        entries. `on_leadership(self)` is called when this member starts or stops leading. `settles`: if this member
        stops leading, its pending proposals wait until their outcome is certain, instead of failing immediately with
        UNKNOWN. Raise Corruption if the log and the state machine do not fit together."""
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
        self._transport = GroupTransport(number, member, send, lambda: self.term, may_send)
        self._transport.reset_at = lambda index: guards.conflict_start(journal, index, self.commit_index)
        self._core = core = Core(
            member,
            journal,
            self._transport,
            committed=committed,
            state_changed=self._state_changed,
            may_change=self._may_change,
        )
        # The state machine has applied the entries up to `applied`. Without the next two lines, the library would apply
        # them again, or wait for ever for entries that are no longer in the log.
        core._SyncObj__raftLastApplied = max(applied, journal.first_index)
        core._SyncObj__raftCommitIndex = core._SyncObj__raftLastApplied
        self._members = Members(())
        self._up: set[str] = set()
        """Connected nodes."""
        self._round_s, self._round_commit = -math.inf, 0
        """Time and commit index of the last sample that `has_caught_up` compares with."""
        self._election = Election(core, self._transport, journal, member)
        parts = (core, self._transport, journal, self._election, self.reads)
        self._message_filter = MessageFilter(member, *parts, members=lambda: self._members, takes_entries=takes_entries)
        self._heartbeats = GroupHeartbeats(
            number, member, core, self._transport, journal, self._message_filter, self.reads
        )
        self._reconcile()
        if self.is_only_voter:
            # The only voter can elect itself immediately, without waiting for a leader.
            core._SyncObj__raftElectionDeadline = 0

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return bool(self._core._SyncObj__raftState == LEADER)

    @property
    def is_only_voter(self) -> bool:
        return self._members.voters == (self.member,)

    @property
    def is_alone(self) -> bool:
        """True if the group has no other member, so that there are no messages to send."""
        return self.is_only_voter and not self._members.learners

    @property
    def leader(self) -> str | None:
        """Name of the leading node, as far as this member knows. None if it knows no leader."""
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
        """True if the latest configuration is not committed yet, as far as this member knows."""
        return self.journal.members_index > self.commit_index

    @property
    def term_start(self) -> int:
        """Index of the no-op that opened this leader's term.

        Once this no-op is applied, all entries that were ever acknowledged are applied, too."""
        return int(self._core._SyncObj__noopIDx or NEVER)

    @property
    def lagging(self) -> set[str]:
        """Members that need a snapshot from this leader; empty on a follower."""
        return self._transport.lagging if self.is_leader else set()

    @property
    def deadline_s(self) -> float:
        """Time in s at which a follower needs a tick for an election. NEVER on a leader: its heartbeats tick it."""
        return NEVER if self.is_leader else float(self._core._SyncObj__raftElectionDeadline)

    @property
    def has_more(self) -> bool:
        """True if a tick has work: proposals, an election, or entries to count, send or apply."""
        core = self._core
        return bool(
            self._message_filter.advanced
            or self._message_filter.resend
            or core._SyncObj__commandsQueue._FastQueue__queue
            or core._SyncObj__raftCommitIndex > core._SyncObj__raftLastApplied
            or self._election.called
            or (self.is_leader and self._has_read_work)
        )

    @property
    def _has_read_work(self) -> bool:
        """Whether a tick can begin or finish a round of pending reads."""
        return self.reads.has_work(self.commit_index >= self.term_start, self.member, self._members.voters)

    def match_index(self, member: str) -> int:
        """Return the highest index up to which a member certainly has the leader's log on its disk."""
        return int(self._core._SyncObj__raftMatchIndex.get(hooks.member_node(member), 0))

    def has_caught_up(self, member: str) -> bool:
        """Return whether a member's disk has everything that was committed `ROUND_S` ago. Call on a leader only.

        If the last sample of the commit index is older, the member needs everything that is committed now."""
        is_fresh = hooks.now_s() - self._round_s < ROUND_S
        return self.match_index(member) >= (self._round_commit if is_fresh else self.commit_index)

    def age_s(self) -> float | None:
        """Return for how many seconds this member may have missed commits.

        This is the time since its commit index was certainly the group's commit index. None if this was never
        certain."""
        return self._message_filter.age_s() if not self.is_leader else self._led_age_s()

    def _led_age_s(self) -> float | None:
        """Return the seconds since this leader sent messages that a majority has answered by now.

        No other member can have been the leader at that time. None if there was no such majority in this term."""
        voters = self._members.voters
        if self.commit_index < self.term_start:
            return None
        now_s = hooks.now_s()
        heard = [now_s if v == self.member else self.reads.heard_s(v) for v in voters]
        # A majority, including the voter at this position, has answered messages of this time or later.
        majority_s = sorted(heard, reverse=True)[len(voters) // 2]
        return now_s - majority_s if math.isfinite(majority_s) else None

    def needed_from(self, most_bytes: int) -> int:
        """Return the first index that some member still needs from this leader.

        NEVER if this member does not lead, has no other members, or has a log of more than `most_bytes`."""
        if not self.is_leader or self.journal.size_bytes > most_bytes:
            return NEVER
        return min([self.match_index(str(node.id)) for node in self._nodes()], default=NEVER - 1) + 1

    # -- requests of the owner ------------------------------------------------------------------------------------

    def propose(self, command: bytes, done: Proposed) -> None:
        """Append a command in the next tick, and call `done` with the outcome."""
        self._core._applyCommand(_REGULAR + command, _Waiter(done, self._settles))

    def change_members(self, members: Members, done: Proposed) -> None:
        """Change the configuration by one step, and call `done` with the outcome.

        A step adds, removes or promotes a learner, or removes a voter other than the leader. A learner must have caught
        up to be promoted. If this member stops leading, `done` gets UNKNOWN immediately."""
        self._core._applyCommand(_MEMBERSHIP + members.encode(), _Waiter(done, settles=False))

    def propose_skip(self, skip: Skip, done: Proposed) -> None:
        """Append a SKIP entry in the next tick, and call `done` with the outcome."""
        self._core._applyCommand(_SKIP + skip.encode(), _Waiter(done, settles=False))

    def read_index(self, done: ReadDone) -> None:
        """Call `done(index)` once it is certain that no entry above this index was acknowledged before this call.

        Call `done(None)` if this node does not lead, or stops leading."""
        if self.is_leader:
            self.reads.ask(done)
        else:
            done(None)

    def transfer(self, target: str) -> bool:
        """Ask a voter to take over leadership. Return False if `target` lacks entries, or is no voter."""
        outcome: list[int] = []
        self._core.transferLeadership(hooks.member_node(target), lambda result, error: outcome.append(error))
        return outcome == [FAIL_REASON.SUCCESS]

    def campaign_soon(self) -> None:
        """Hold an election without waiting for a timeout, as the designated leader of a new group."""
        self._election.eager = True
        self._core._SyncObj__raftElectionDeadline = 0

    # -- time and connections -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Run the library once: commit, apply, append proposals, send, and answer reads."""
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
            # One round of messages confirms all reads that arrived before it: all reads of the commit batch.
            began = self.commit_index >= self.term_start and self.reads.begin(self.commit_index, self._transport.seq)
            if journal.last_index > last or self._message_filter.resend or began:
                self._message_filter.resend = False
                core._SyncObj__sendAppendEntries()
            self._finish_reads()
            self._note_round()

    @property
    def own_copy_counts(self) -> bool:
        """True if this leader's own copies may complete the majority of entries that are not committed yet.

        Otherwise, replies of followers complete the majority later, and cause a tick."""
        matches = sorted([self.match_index(voter) for voter in self._members.voters if voter != self.member])
        needed = len(self._members.voters) // 2
        return needed == 0 or matches[-needed] > self.commit_index

    def commit_alone(self) -> bool:
        """Commit the synced commands without a tick, if this leader is the only member. Return whether that was done.

        Without other members, an entry is committed as soon as it is on this disk. A tick commits all other entries:
        the no-op that opens a term, SKIPs, changes of the members, and commands that follow an uncommitted change."""
        core, journal = self._core, self.journal
        first, last = self.commit_index + 1, journal.durable
        # Once the no-op of this term is committed, all entries behind it are of this term.
        if not (self.is_alone and self.is_leader and last >= first > self.term_start and not self.is_changing):
            return False
        if self._settles or any([entry[0][0] != wire.REGULAR for entry in journal.between(first, last)]):
            return False
        core._SyncObj__raftCommitIndex = core._SyncObj__leaderCommitIndex = last
        journal.setRaftCommitIndex(last)
        core._SyncObj__applyLogEntries()
        self._note_round()
        return True

    def heartbeat(self) -> None:
        """Send a heartbeat to all members with the next tick. Call on a leader only."""
        self._core._SyncObj__newAppendEntriesTime = 0  # the library then sends in the next tick
        # The library sends nothing to paused members. Resume each member whose window has free space. Send an ALIVE to
        # the other members, so that they do not start an election.
        for node in sorted(self._transport.paused, key=lambda node: str(node.id)):
            self._transport.resume(node)
            if node in self._transport.paused:
                self._transport.alive(node.id)

    def beats(self, now_s: float) -> list[tuple[str, Beat]] | None:
        """Return (node, beat) pairs, the whole heartbeat of an idle group. Call on a leader only.

        None if the group is not idle: it needs `heartbeat` and a tick."""
        return self._heartbeats.beats(self._up, now_s)

    def beaten(self, node_id: str, beat: Beat, now_s: float, arrived_s: float) -> bool:
        """Handle a beat from the leader, which arrived at `arrived_s`. Return False if the group needs an ALIVE."""
        return self._heartbeats.heard(member_id(node_id, beat[1]), beat, now_s, arrived_s)

    def beat_answered(self, node_id: str, beat: Beat, now_s: float) -> bool:
        """Handle a member's reply to a beat. Return False if it must be handled as an ALIVE_ACK."""
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
        """Handle a message from another member, checked by `wire.check`. `arrived_s`: its arrival time; None is now."""
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
        """Give the library the members of the log's latest configuration (guard S3b).

        A configuration applies from its entry on, even before the entry is committed. The progress of members that stay
        is kept."""
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
        """Sample the commit index every `ROUND_S`, for `has_caught_up`."""
        now_s = hooks.now_s()
        if now_s - self._round_s >= ROUND_S:
            self._round_s, self._round_commit = now_s, self.commit_index

    def _finish_reads(self) -> None:
        self.reads.finish(self.member, self._members.voters)

    def _state_changed(self, before: int, after: int) -> None:
        """Clean up after a change of role. The library calls this within a tick or a message."""
        if before == LEADER:
            # As a follower, `age_s` continues from the last time that a majority confirmed this leader.
            age_s = self._led_age_s()
            if age_s is not None:
                self._message_filter.complete_s = hooks.now_s() - age_s
            self._clear_leadership()
        if after == LEADER:
            # Forget what is left of an earlier term as leader.
            self._round_s = -math.inf
            self._message_filter.barriers.clear()
            self._message_filter.tried.clear()
            self._transport.flights.clear()
        if LEADER in (before, after):
            self._on_leadership(self)

    def _clear_leadership(self) -> None:
        """Fail pending proposals and set an election deadline after this member stopped leading (guards L5, L6).

        The library would leave the proposals of a deposed leader pending for ever. It would also keep the old election
        deadline, which passed long ago."""
        waiting = self._core._SyncObj__commandsWaitingCommit
        pending: list[_Waiter] = []
        # Proposals with `settles` stay: `_settle` reports later whether they were committed or lost.
        for index, entries in list(waiting.items()):
            pending += [waiter for _, waiter in entries if not waiter.settles]
            waiting[index] = [(term, waiter) for term, waiter in entries if waiter.settles]
            if not waiting[index]:
                del waiting[index]
        # A follower's ticks never clear `resend`, so `has_more` would request ticks for ever.
        self._message_filter.resend = False
        self._transport.lagging.clear()
        for node in list(self._transport.paused):
            self._transport.connected(node)
        self._election.postpone()
        for waiter in pending:
            waiter(None, ProposalFailed.UNKNOWN)
        self.reads.fail()

    def _settle(self) -> None:
        """Fail the pending proposals that can never be committed, with LOST.

        Once an entry of a later term is committed below a proposal, no later leader can have the proposal (Raft's
        leader completeness). If the proposal or another entry is committed at its index, the library reports the
        outcome itself."""
        waiting = self._core._SyncObj__commandsWaitingCommit
        term = self.journal.term_at(self.commit_index) or 0
        # `waiting` has (term, waiter) pairs for each index.
        lost = [index for index, entries in waiting.items() if index > self.commit_index and entries[-1][0] < term]
        for index in sorted(lost):
            for _, waiter in waiting.pop(index):
                waiter(None, ProposalFailed.LOST)
