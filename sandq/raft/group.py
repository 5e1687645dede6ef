"""One Raft group: PySyncObj's core with its inputs, outputs and storage replaced."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.config import FAIL_REASON
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from sandq.model.errors import Corruption

from . import hooks
from .journal import GroupJournal, LogEntry

REGULAR, NO_OP, MEMBERSHIP = 0, 1, 2
"""First byte of a command in the log. PERSISTED (PySyncObj's numbers)."""
_REGULAR = b"\x00"
LEADER = 2
NEVER = 1 << 62
MAX_APPEND_BYTES = 1 << 20


class ProposalFailed(enum.Enum):
    NOT_LEADER = "not_leader"
    """It was not appended."""
    UNKNOWN = "unknown"
    """Leadership was lost: it may or may not be committed later."""


class _NoPeers(Transport):  # type: ignore[misc]
    """The transport of a group with one voter: nobody to send to."""

    def __init__(self) -> None:
        super().__init__(None, None, None)

    def send(self, node: Any, message: Any) -> bool:
        return False


def _conf(journal: GroupJournal, on_state_changed: Callable[[int, int], None]) -> SyncObjConf:
    return SyncObjConf(
        autoTick=False,
        journalFile=journal,
        appendEntriesUseBatch=True,
        appendEntriesBatchSizeBytes=NEVER,
        appendEntriesPeriod=0.2,
        raftMinTimeout=0.7,
        raftMaxTimeout=2.0,
        leaderFallbackTimeout=2.0,
        connectionTimeout=4.0,
        logCompactionMinEntries=NEVER,
        logCompactionMinTime=NEVER,
        commandsWaitLeader=False,
        commandsQueueSize=0,
        useFork=False,
        onStateChanged=on_state_changed,
    )


class _Core(SyncObj):  # type: ignore[misc]
    """PySyncObj with its inside replaced. No properties here: its constructor evaluates every one it finds."""

    def __init__(
        self,
        member: str,
        voters: Sequence[str],
        journal: GroupJournal,
        committed: Callable[[int, bytes], None],
        stepped_down: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._committed = committed

        def state_changed(old: int, new: int) -> None:
            if old == LEADER:
                stepped_down()

        hooks.install()
        others = [Node(name) for name in voters if name != member]
        super().__init__(Node(member), others, _conf(journal, state_changed), nodeClass=Node, transport=_NoPeers())
        hooks.check_attributes(self)
        self._SyncObj__serializer = hooks.NoSerializer()
        self._poller = hooks.NoPoller()

    def _SyncObj__doApplyCommand(self, command: bytes) -> int:
        """The library would unpickle and call; here an entry is handed on, with its index."""
        index: int = self._SyncObj__raftLastApplied + 1
        self._committed(index, command[1:] if command[0] == REGULAR else b"")
        return index

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        """Guard S10: never unpickle. This version writes no membership entries."""
        if command[0] == MEMBERSHIP:
            raise Corruption("a membership entry in a Raft log, which this version never writes")

    def _SyncObj__getEntries(
        self,
        fromIDx: int | None,
        count: int | None = None,
        maxSizeBytes: int | None = None,
    ) -> list[LogEntry]:
        """Guard L4: bounds bytes without splitting entries."""
        journal = self._journal
        if fromIDx is None or fromIDx < journal.first_index:
            return []
        start = fromIDx - journal.first_index
        if count is not None:
            return journal[start : start + count]
        if maxSizeBytes is None:
            return journal[start:]
        stop, size = start, 0
        while stop < len(journal) and size < MAX_APPEND_BYTES:
            size += len(journal[stop][0])
            stop += 1
        return journal[start:stop]


class Group:
    """A member of one Raft group.

    `tick` counts, commits and appends; what it appended counts only in a later tick, so the caller syncs the WAL in
    between (`Passes` does). Nothing here pickles, and nothing reads a socket or a file.
    """

    def __init__(
        self,
        number: int,
        member: str,
        voters: Sequence[str],
        journal: GroupJournal,
        applied: int,
        committed: Callable[[int, bytes], None],
    ) -> None:
        """`committed(index, command)` is called inside a tick and must not raise (the library would apply the entry
        twice); the command is empty for the library's own entries. Raises Corruption."""
        if max(applied, journal.first_index) > journal.last_index:
            raise Corruption(
                f"raft group {number}: its state machine has applied entry {applied}, its log ends at "
                f"{journal.last_index}: the WAL has lost entries"
            )
        self.number = number
        self.member = member
        self.journal = journal
        self._core = core = _Core(member, voters, journal, committed, self._stepped_down)
        # Entries up to `applied` are in the state machine already; without this the group would stall for ever.
        core._SyncObj__raftLastApplied = max(applied, journal.first_index)
        core._SyncObj__raftCommitIndex = core._SyncObj__raftLastApplied
        if len(voters) == 1:
            # The only voter need not wait for anybody.
            core._SyncObj__raftElectionDeadline = 0

    @property
    def is_leader(self) -> bool:
        return bool(self._core._SyncObj__raftState == LEADER)

    @property
    def term(self) -> int:
        return int(self._core._SyncObj__raftCurrentTerm)

    @property
    def term_start(self) -> int:
        """Index of the no-op that opened this leader's term: once it is applied, everything that was ever
        acknowledged is applied too."""
        return int(self._core._SyncObj__noopIDx or NEVER)

    @property
    def has_queued(self) -> bool:
        """Proposals that the last tick left for the next one."""
        return len(self._core._SyncObj__commandsQueue._FastQueue__queue) > 0

    def propose(self, command: bytes, done: Callable[[int | None, ProposalFailed | None], None]) -> None:
        """Append in the next tick. `done(index, None)` once committed, or `done(None, why)`."""

        def finished(index: int | None, error: int | ProposalFailed) -> None:
            if isinstance(error, ProposalFailed):
                done(None, error)
            elif error == FAIL_REASON.SUCCESS and index is not None:
                done(index, None)
            else:
                done(None, ProposalFailed.NOT_LEADER)

        self._core._applyCommand(_REGULAR + command, finished)

    def tick(self) -> None:
        self._core._onTick(0.0)

    def _stepped_down(self) -> None:
        """Guard L6: the library would leave a deposed leader's proposals waiting for ever."""
        waiting = self._core._SyncObj__commandsWaitingCommit
        pending = [callback for entries in waiting.values() for _, callback in entries]
        waiting.clear()
        for callback in pending:
            callback(None, ProposalFailed.UNKNOWN)
