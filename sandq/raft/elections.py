"""When a member stands for election (guard L5).

The library raises its term with every election time-out: a member that was cut off comes back with a high term and
deposes a leader that everybody else hears. So before an election it asks whether a majority would vote for it, and
raises its term only then.
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
"""How often the member that is to lead a new group asks, until the others have opened it."""


class Election:
    def __init__(self, core: Core, transport: GroupTransport, journal: GroupJournal, member: str) -> None:
        self.pre_votes: set[tuple[int, str]] = set()
        """(term, voter) that would vote for this member."""
        self.eager = False
        self._core = core
        self._transport = transport
        self._journal = journal
        self._member = member
        self.called = False
        """An election may be held now."""

    @contextmanager
    def tick(self, members: Members) -> Iterator[None]:
        """Around each tick of the library, of a member that does not lead. Without the votes before, the library's
        deadline is hidden from it: it reads the clock once more, and the deadline may have passed meanwhile."""
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
        """Whether an election may be held in this tick; asks for votes when it is time."""
        core, called = self._core, self.called
        self.called = False
        if self._member not in members.voters:
            core._SyncObj__raftElectionDeadline = NEVER
        elif core._SyncObj__raftElectionDeadline == NEVER:
            self.postpone()
        elif called:
            return True
        elif core._SyncObj__raftElectionDeadline < hooks.now_s():
            return self._ask(members)
        return False

    def _ask(self, members: Members) -> bool:
        """Ask the voters whether they would vote for this member. Whether it need ask nobody."""
        core, journal = self._core, self._journal
        wanted = core._SyncObj__raftCurrentTerm + 1
        self.eager = self.eager and not core._SyncObj__raftCurrentTerm
        self.pre_votes = {(wanted, self._member)}
        if self._has_majority(wanted, members):
            return True  # it is alone: the library holds its election now
        if self.eager:
            core._SyncObj__raftElectionDeadline = hooks.now_s() + EAGER_PAUSE_S
        else:
            self.postpone()
        core._SyncObj__raftLeader = None
        for voter in members.voters:
            if voter != self._member:
                last, last_term = journal.last_index, journal[-1][2]
                self._transport.post(voter, wire.PRE_VOTE_REQUEST, wanted, last, last_term)
        return False

    def pre_voted(self, wanted: int, members: Members) -> None:
        """Somebody would vote for this member."""
        core = self._core
        is_now = wanted == core._SyncObj__raftCurrentTerm + 1 and core._SyncObj__raftLeader is None
        if is_now and self._has_majority(wanted, members):
            self.pre_votes.clear()
            self._call(transfer=False)

    def asked_to_lead(self) -> None:
        """The leader wants this member to take over; the library has looked whether it was the leader."""
        if self._core._SyncObj__transferInProgress:
            self._call(transfer=True)

    def _call(self, *, transfer: bool) -> None:
        self._core._SyncObj__raftElectionDeadline = 0
        self._transport.transfer = transfer
        self.called = True

    def follow(self, term: int) -> None:
        """There is a higher term: this member, whatever it was, belongs to it."""
        core = self._core
        core._SyncObj__setCurrentTerm(term, None)
        core._SyncObj__setState(FOLLOWER)
        core._SyncObj__raftLeader = None

    def postpone(self) -> None:
        """Wait for another election time-out."""
        self._core._SyncObj__raftElectionDeadline = hooks.now_s() + self._core._SyncObj__generateRaftTimeout()

    def _has_majority(self, wanted: int, members: Members) -> bool:
        return 2 * len([1 for term, _ in self.pre_votes if term == wanted]) > len(members.voters)
