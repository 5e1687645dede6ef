"""PySyncObj's Raft implementation without its own files, network, pickles and thread.

`hooks.py` lists the private names of the library that sandq uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.transport import Transport

from sandq.raft import guards, hooks
from sandq.raft.journal import GroupJournal, LogEntry
from sandq.raft.members import Members
from sandq.raft.wire import MEMBERSHIP, REGULAR

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
NEVER = 1 << 62
"""A time in s that never comes, or an index that no log reaches."""
HEARTBEAT_S = 0.2
LEADER_FALLBACK_S = 2.0
"""A leader steps down if no majority has replied for this time, in s."""
MAX_APPEND_BYTES = 1 << 20
"""Maximum bytes of the commands in one message. The last command may exceed this limit."""
MAX_APPLIED_ENTRIES = 4096
"""Maximum number of entries applied in one tick. After a restart, many more entries may have to be applied."""


def _conf(journal: GroupJournal, on_state_changed: Callable[[int, int], None]) -> SyncObjConf:
    """Return settings with which the library uses no thread, snapshots or limits of its own."""
    return SyncObjConf(
        autoTick=False,
        journalFile=journal,
        dynamicMembershipChange=True,
        appendEntriesUseBatch=True,
        appendEntriesBatchSizeBytes=NEVER,
        appendEntriesPeriod=HEARTBEAT_S,
        raftMinTimeout=guards.MIN_ELECTION_S,
        raftMaxTimeout=guards.MAX_ELECTION_S,
        leaderFallbackTimeout=LEADER_FALLBACK_S,
        connectionTimeout=4.0,
        logCompactionMinEntries=NEVER,
        logCompactionMinTime=NEVER,
        commandsWaitLeader=False,
        commandsQueueSize=0,
        useFork=False,
        onStateChanged=on_state_changed,
    )


class Core(SyncObj):  # type: ignore[misc]
    """PySyncObj's Raft implementation, with methods replaced where its behaviour is unsafe or needs I/O.

    Define no properties here: the library's constructor evaluates every property that it finds."""

    def __init__(
        self,
        member: str,
        journal: GroupJournal,
        transport: Transport,
        *,
        committed: Callable[[int, bytes], None],
        state_changed: Callable[[int, int], None],
        may_change: Callable[[Members], bool],
    ) -> None:
        self._journal = journal
        self._committed = committed
        self._may_change = may_change
        hooks.install()
        others = [hooks.member_node(voter) for voter in journal.members.voters if voter != member]
        conf = _conf(journal, state_changed)
        super().__init__(hooks.member_node(member), others, conf, nodeClass=hooks.Member, transport=transport)
        hooks.check_attributes(self)
        # Guard S6: disable the library's snapshots, because they can fail and still report success.
        self._SyncObj__serializer = hooks.NoSerializer()
        self._poller = hooks.NoPoller()

    def _SyncObj__doApplyCommand(self, command: bytes) -> int:
        """Guard S10: pass the index and command of a committed entry to `committed`.

        The library would unpickle the command, and call the method that it names."""
        index: int = self._SyncObj__raftLastApplied + 1
        self._committed(index, command[1:] if command[0] == REGULAR else b"")
        return index

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> Members | None:
        """Guard S10: decode a change of members without unpickling. None for other entries."""
        return Members.decode(command[1:]) if command[0] == MEMBERSHIP else None

    def _SyncObj__changeCluster(self, request: Members) -> bool:
        """Guard S3: return whether a change is allowed. The log sets the configuration, see `Group._reconcile`."""
        return self._may_change(request)

    def _SyncObj__doChangeCluster(self, request: Members, reverse: bool = False) -> bool:
        """Guard S3: do nothing, and report success. The log sets the configuration, see `Group._reconcile`."""
        return True

    def _SyncObj__getEntries(
        self,
        fromIDx: int | None,
        count: int | None = None,
        maxSizeBytes: int | None = None,
    ) -> Sequence[LogEntry]:
        """Guard L4: return entries from index `fromIDx` on; none if the log no longer has this index.

        The library gives `count` to apply or count entries. It gives `maxSizeBytes` to send entries: return whole
        entries of about `MAX_APPEND_BYTES`. It gives neither to look for entries that conflict with a leader: return
        all."""
        journal = self._journal
        if fromIDx is None or fromIDx < journal.first_index:
            return []
        start = fromIDx - journal.first_index
        if count is not None:
            return journal[start : start + min(count, MAX_APPLIED_ENTRIES)]
        if maxSizeBytes is None:
            return journal[start:]
        stop, size = start, 0
        while stop < len(journal) and size < MAX_APPEND_BYTES:
            size += len(journal[stop][0])
            stop += 1
        return journal[start:stop]
