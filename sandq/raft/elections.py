"""Decide when a member stands for election, with Raft's pre-vote phase (guard L5).

The library raises its term at every election timeout, so a member that was disconnected rejoins with a high term and
deposes a leader that all other members still hear. Pre-vote prevents that: a member first asks whether a majority would
vote for it, and raises its term only then (Ongaro, Consensus: Bridging Theory and Practice, section 9.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sandq.raft import hooks, wire
from sandq.raft.core import FOLLOWER, NEVER, Core
from sandq.raft.journal import GroupJournal
from sandq.raft.members import Members
from sandq.raft.transport import GroupTransport

EAGER_PAUSE_S = 0.1
"""Interval, in s, at which the designated first leader of a new group repeats its pre-vote requests.

The other members answer once they have opened the group."""


class Election:
    """The elections of one member: its pre-votes and its election deadline."""

    def __init__(self, core: Core, transport: GroupTransport, journal: GroupJournal, member: str) -> None:
        self.pre_votes: set[tuple[int, str]] = set()
        """(term, voter) pairs: the voter would vote for this member in the term."""
        self.eager = False
        """True if this member is the designated first leader of a new group. It then repeats its requests quickly."""
        self._core = core
        self._transport = transport
        self._journal = journal
        self._member = member
        self.called = False
        """True if the next tick may hold an election."""

    @contextmanager
    def tick(self, members: Members) -> Iterator[None]:
        """Wrap a tick of the library on a member that does not lead.

        Hide the election deadline from the library unless an election may be held. The library reads the clock again,
        and the deadline may have passed since `_may_stand` checked it."""
        core = self._core
        if self._may_stand(members):
            yield
            return
        deadline_s = core._SyncObj__raftElectionDeadline
        core._SyncObj__raftElectionDeadline = NEVER
        try:
            yield
        finally:
            if core._SyncObj__raftElectionDeadline == NEVER:
                core._SyncObj__raftElectionDeadline = deadline_s

    def _may_stand(self, members: Members) -> bool:
        """Return whether this tick may hold an election. Send pre-vote requests if the election deadline has passed."""
        core, called = self._core, self.called
        self.called = False
        if self._member not in members.voters:
            core._SyncObj__raftElectionDeadline = NEVER
        elif core._SyncObj__raftElectionDeadline == NEVER:
            self.postpone()  # this member has just become a voter
        elif called:
            return True  # a majority would vote for this member, or the leader asked it to take over
        elif core._SyncObj__raftElectionDeadline < hooks.now_s():
            return self._ask(members)
        return False

    def _ask(self, members: Members) -> bool:
        """Ask the voters whether they would vote for this member. Return True if it is the only voter."""
        core, journal = self._core, self._journal
        wanted = core._SyncObj__raftCurrentTerm + 1
        # A group that has a term has had an election, so it is not new.
        self.eager = self.eager and not core._SyncObj__raftCurrentTerm
        self.pre_votes = {(wanted, self._member)}
        if self._has_majority(wanted, members):
            return True  # the only voter: the library holds the election now
        if self.eager:
            core._SyncObj__raftElectionDeadline = hooks.now_s() + EAGER_PAUSE_S
        else:
            self.postpone()
        # Forget the leader. If this member hears a leader from now on, `pre_voted` ignores the pre-votes.
        core._SyncObj__raftLeader = None
        for voter in members.voters:
            if voter != self._member:
                last, last_term = journal.last_index, journal[-1][2]
                self._transport.post(voter, wire.PRE_VOTE_REQUEST, wanted, last, last_term)
        return False

    def pre_voted(self, wanted: int, members: Members) -> None:
        """Hold an election for term `wanted` if a majority would vote for this member."""
        core = self._core
        is_current = wanted == core._SyncObj__raftCurrentTerm + 1 and core._SyncObj__raftLeader is None
        if is_current and self._has_majority(wanted, members):
            self.pre_votes.clear()
            self._call(transfer=False)

    def asked_to_lead(self) -> None:
        """Take over leadership at the leader's request. The library has checked that the leader sent it."""
        if self._core._SyncObj__transferInProgress:
            self._call(transfer=True)

    def _call(self, *, transfer: bool) -> None:
        """Let the next tick hold an election. `transfer`: the leader asked for it."""
        # The library stands for election once the deadline has passed.
        self._core._SyncObj__raftElectionDeadline = 0
        self._transport.transfer = transfer
        self.called = True

    def follow(self, term: int) -> None:
        """Become a follower in `term`, which is higher than the current term."""
        core = self._core
        core._SyncObj__setCurrentTerm(term, None)
        core._SyncObj__setState(FOLLOWER)
        core._SyncObj__raftLeader = None

    def postpone(self) -> None:
        """Move the election deadline to a random election timeout from now."""
        self._core._SyncObj__raftElectionDeadline = hooks.now_s() + self._core._SyncObj__generateRaftTimeout()

    def _has_majority(self, wanted: int, members: Members) -> bool:
        return 2 * len([1 for term, _ in self.pre_votes if term == wanted]) > len(members.voters)
