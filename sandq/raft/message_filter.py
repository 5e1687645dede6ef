"""Apply the guards to every message from another member before the library sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from sandq.model.members import incarnation_of, member_id
from sandq.raft import guards, hooks, wire
from sandq.raft.core import LEADER, Core
from sandq.raft.elections import Election
from sandq.raft.journal import GroupJournal
from sandq.raft.members import Members
from sandq.raft.read_index import ReadIndex
from sandq.raft.transport import GroupTransport


class MessageFilter:
    """Handles the messages that one member receives, and passes on the messages that the library may see."""

    def __init__(
        self,
        member: str,
        core: Core,
        transport: GroupTransport,
        journal: GroupJournal,
        election: Election,
        reads: ReadIndex,
        *,
        members: Callable[[], Members],
        takes_entries: Callable[[], bool],
    ) -> None:
        self.barriers: dict[str, int] = {}
        """By member: a reset counts only in a reply to a message with this number or a higher number (guard L2)."""
        self.tried: set[str] = set()
        """Members for which this leader has tried its first kept entry (guard L3)."""
        self.heard_s = -guards.MAX_ELECTION_S
        """Time at which this member last heard the leader, in s."""
        self.complete_s: float | None = None
        """Last time, in s, at which this member certainly knew all committed entries. None if there was no such
        time."""
        self.resend = False
        """True if a follower requested entries from a different index. The next tick sends them."""
        self.advanced = False
        """True if the match index of some member rose since the last tick."""
        self._member = member
        self._core = core
        self._transport = transport
        self._journal = journal
        self._election = election
        self._reads = reads
        self._members = members
        self._takes_entries = takes_entries
        self._votes: set[tuple[int, str]] = set()
        self._arrived_s = 0.0
        """Arrival time of the current message, in s. This node may have stalled since then."""

    @property
    def _term(self) -> int:
        return int(self._core._SyncObj__raftCurrentTerm)

    @property
    def _is_leader(self) -> bool:
        return bool(self._core._SyncObj__raftState == LEADER)

    @property
    def _commit_index(self) -> int:
        return int(self._core._SyncObj__raftCommitIndex)

    def receive(self, node_id: str, message: wire.Message, arrived_s: float) -> None:
        """Handle a message from another member, checked by `wire.check`. `arrived_s`: its arrival time."""
        self._arrived_s = arrived_s
        kind, _, sender_incarnation, incarnation, *fields = message
        if incarnation != incarnation_of(self._member):
            return  # the message is for a different incarnation of this replica
        sender = member_id(node_id, sender_incarnation)
        commit = self._commit_index
        _HANDLERS[kind](self, sender, *fields)
        self._core._SyncObj__raftCommitIndex = guards.never_back(commit, self._commit_index)

    def age_s(self) -> float | None:
        """Return the seconds for which this follower may have missed commits, see `Group.age_s`."""
        return hooks.now_s() - self.complete_s if self.complete_s is not None else None

    def _deliver(self, sender: str, message: dict[str, Any]) -> None:
        """Let the library handle a message, in the library's format."""
        self._transport._onMessageReceived(hooks.member_node(sender), message)

    def _append(
        self, sender: str, term: int, commit: int, previous: int, previous_term: int, entries: Any, seq: int
    ) -> None:
        """Handle entries from a leader: skip the entries that the log already has, and let the library append the
        rest."""
        if term < self._term:
            # The sender no longer leads: a reply with the current term makes it step down.
            self._answer(sender, wire.ALIVE_ACK, seq)
            return
        # Under overload, accept no commands: handle the message as an ALIVE. Raft's own entries are accepted even then,
        # because a new leader's no-op and a SKIP unblock the group.
        if any([command[0] == wire.REGULAR for command, *_ in entries or ()]) and not self._takes_entries():
            self._alive(sender, term, seq, False)
            return
        self.heard_s = hooks.now_s()
        journal = self._journal
        known = guards.known_prefix(journal, previous, previous_term, entries)
        if known:
            # Skip the entries that the log has already: the library would truncate them first (guard S1).
            _, previous, previous_term = entries[known - 1]
            entries = entries[known:]
        # If nothing is left to append, the library must not truncate the entries after `previous` (guard S1).
        agrees = not entries and journal.term_at(previous) == previous_term
        message = {"type": "append_entries", "term": term, "commit_index": commit, "entries": entries}
        message |= {"prevLogIdx": previous, "prevLogTerm": previous_term}
        self._transport.answering = seq
        with guards.hidden_suffix(journal, previous) if agrees else nullcontext():
            self._deliver(sender, message)
        # Until a leader commits an entry of its own term, its commit index may be lower than the true one.
        if self._commit_index >= commit and journal.term_at(commit) == term:
            self.complete_s = self._arrived_s

    def _ack(self, sender: str, term: int, next_index: int, reset: bool, success: bool, seq: int) -> None:
        """Handle a follower's reply to entries: update its next index within the bounds of guards S4, L2 and L3."""
        node = hooks.member_node(sender)
        core = self._core
        if not self._is_answer(sender, term, seq):
            return
        if reset and not guards.is_fresh_reset(self.barriers, sender, seq, self._transport.seq):
            # An outdated reset: the follower is alive, but its next index does not change.
            core._SyncObj__lastResponseTime[node] = hooks.now_s()
            return
        if success:
            self.tried.discard(sender)
            if sender in self._transport.flights:
                self._transport.flights[sender].taken(seq)
        elif reset and sender not in self._transport.lagging:
            next_index = guards.kept_start(self.tried, sender, next_index, self._journal.first_index)
        next_index = guards.within_log(next_index, self._journal.last_index)
        message = {"type": "next_node_idx", "next_node_idx": next_index, "reset": reset, "success": success}
        matched_before = core._SyncObj__raftMatchIndex[node]
        self._deliver(sender, message)
        self.advanced = self.advanced or core._SyncObj__raftMatchIndex[node] > matched_before
        if sender in self._transport.lagging and next_index <= self._journal.first_index:
            return  # the member needs a snapshot; the next heartbeat checks again
        if reset or node in self._transport.paused:
            # The follower asked for a different index, or was sent nothing while it was paused.
            self.resend = True
            self._transport.resume(node)

    def _alive(self, sender: str, term: int, seq: int, lagging: bool) -> None:
        """Handle an ALIVE from a leader. With `lagging`, reply with the index from which entries are needed."""
        if term >= self._term:
            self.heard_s = hooks.now_s()
            # Without entries and with commit index 0, this message confirms and commits no entry (guard S5).
            self._deliver(sender, {"type": "append_entries", "term": term, "commit_index": 0})
        if lagging and term >= self._term:
            # Request the entries after the commit index. Up to there, this log certainly agrees with the leader's log.
            # The entries after it could conflict several times.
            self._transport.answering = seq
            node, known = hooks.member_node(sender), self._commit_index + 1
            self._core._SyncObj__sendNextNodeIdx(node, reset=True, nextNodeIdx=known, success=False)
        else:
            self._answer(sender, wire.ALIVE_ACK, seq)

    def _alive_ack(self, sender: str, term: int, seq: int) -> None:
        """Note that a follower is alive."""
        if self._is_answer(sender, term, seq):
            self._core._SyncObj__lastResponseTime[hooks.member_node(sender)] = hooks.now_s()

    def _is_answer(self, sender: str, term: int, seq: int) -> bool:
        """Return whether a reply counts: it must be for this leader, of this term, and from a member.

        If so, also note the reply for the flow control and for pending reads."""
        if sender not in self._members().voters and sender not in self._members().learners:
            return False
        if term > self._term:
            self._election.follow(term)
        if not guards.is_of_term(term, self._term) or not self._is_leader:
            return False
        flight = self._transport.flights.get(sender)
        if flight is not None:
            flight.answered(seq)
        self._reads.heard(sender, seq)
        return True

    def _answer(self, sender: str, kind: int, seq: int) -> None:
        self._transport.post(sender, kind, self._term, seq)

    def _vote_request(self, sender: str, term: int, last: int, last_term: int, transfer: bool) -> None:
        """Pass a vote request to the library, unless this member has heard its leader recently (guard L5).

        A member votes even if its own configuration does not list it (yet): only the candidate's configuration
        counts."""
        if transfer or not guards.leader_is_fresh(self._is_leader, self.heard_s, hooks.now_s()):
            message = {"type": "request_vote", "term": term, "last_log_index": last, "last_log_term": last_term}
            self._deliver(sender, message)

    def _vote(self, sender: str, term: int) -> None:
        """Pass on a vote, at most once per voter and term (guard S2)."""
        if term != self._term:
            return  # the library counts only votes of its current term, so remember no other votes
        self._votes = {vote for vote in self._votes if vote[0] == term}
        if guards.is_new_vote(self._votes, term, sender, self._members()):
            self._deliver(sender, {"type": "response_vote", "term": term})

    def _pre_vote_request(self, sender: str, term: int, last: int, last_term: int) -> None:
        """Reply whether this member would vote for the sender in `term`. This changes no state (guard L5)."""
        granted = (
            term > self._term
            and guards.is_up_to_date(self._journal, last, last_term)
            and not guards.leader_is_fresh(self._is_leader, self.heard_s, hooks.now_s())
        )
        self._transport.post(sender, wire.PRE_VOTE, term, granted, self._term)

    def _pre_vote(self, sender: str, wanted: int, granted: bool, term: int) -> None:
        """Count a pre-vote. A reply with a higher term makes this member follow that term."""
        if sender in self._members().voters and term > self._term:
            self._election.follow(term)
        elif (
            granted
            and wanted == self._term + 1
            and guards.is_new_vote(self._election.pre_votes, wanted, sender, self._members())
        ):
            self._election.pre_voted(wanted, self._members())

    def _timeout_now(self, sender: str, term: int) -> None:
        """Hold an election immediately, because the leader transfers its leadership to this member."""
        self._deliver(sender, {"type": "timeout_now", "term": term})
        self._election.asked_to_lead()


_HANDLERS: dict[int, Callable[..., None]] = {
    wire.APPEND: MessageFilter._append,
    wire.ACK: MessageFilter._ack,
    wire.ALIVE: MessageFilter._alive,
    wire.ALIVE_ACK: MessageFilter._alive_ack,
    wire.VOTE_REQUEST: MessageFilter._vote_request,
    wire.VOTE: MessageFilter._vote,
    wire.PRE_VOTE_REQUEST: MessageFilter._pre_vote_request,
    wire.PRE_VOTE: MessageFilter._pre_vote,
    wire.TIMEOUT_NOW: MessageFilter._timeout_now,
}
