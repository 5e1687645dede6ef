"""A Raft group's log in memory. Every change of the log is also a WAL record of the current commit batch."""

from __future__ import annotations

from collections.abc import Iterable

import msgpack
from pysyncobj.journal import Journal

from sandq.raft.members import Members
from sandq.raft.skip import Skip
from sandq.raft.wire import MEMBERSHIP, NO_OP, SKIP
from sandq.storage.wal import Kind, Record, RecoveredGroup
from sandq.storage.wal_restart import restart_at

LogEntry = tuple[bytes, int, int]
"""(command, index, term), in the order that PySyncObj uses."""
_NO_OP = bytes([NO_OP])
KEPT = 1
"""Minimum number of entries that truncation keeps. PySyncObj reads the last entry, so the log is never empty."""


class GroupJournal(list[LogEntry], Journal):  # type: ignore[misc]
    """PySyncObj's journal interface on top of the node's WAL.

    The class is a list, so that the library indexes it at C speed. Records are collected in `records`, which all groups
    of the node share. Entries may count for a majority only after their commit batch is synced (`durable`).
    """

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(
        self,
        records: list[Record],
        group: int,
        members: Members,
        *,
        entries: Iterable[LogEntry] = (),
        term: int = 0,
        voted_for: str | None = None,
    ) -> None:
        """Create the log from `entries`, which are on the disk already.

        `members`: the configuration at the first entry. Later configurations are rebuilt from the entries (guard
        S3b)."""
        super().__init__(entries)
        self._records = records
        self._group = group
        self._term = term
        self._voted_for = voted_for
        self._commit_index = 1
        self._changes: list[tuple[int, Members]] = [(0, members)]
        """(index, configuration from this index on), in order of index. The first configuration applies at the first
        entry."""
        self.skips: dict[int, Skip] = {}
        """The SKIPs in the log, by the index of the SKIP entry itself, in ascending order."""
        self.size_bytes = 0
        """Bytes of the commands in the log."""
        for command, index, _ in self:
            self._note(command, index)
        self.durable = self.last_index if self else 0
        """Index up to which the entries are on the disk, with the same content as in memory."""

    @classmethod
    def create(cls, records: list[Record], group: int, members: Members) -> GroupJournal:
        """Return the journal of a new group. It contains the no-op with which every log of PySyncObj begins."""
        journal = cls(records, group, members)
        journal._base(1, 0)
        journal.add(_NO_OP, 1, 0)
        return journal

    @classmethod
    def restart(
        cls,
        records: list[Record],
        group: int,
        members: Members,
        *,
        index: int,
        index_term: int,
        term: int,
        voted_for: str | None,
    ) -> GroupJournal:
        """Return the journal of a replica that was installed from a snapshot of everything up to `index`.

        Its records restart the group. Term and vote stay as they were, unless the snapshot's term is higher.

        The entry at `index` is a placeholder, not a copy. No member ever receives it: a leader sends only entries above
        its first entry, and uses only the term of the first entry."""
        if index_term > term:
            term, voted_for = index_term, None
        vote = msgpack.packb(voted_for)
        records += restart_at(group, term, vote, index, index_term, members.encode(), _NO_OP)
        entries = [(_NO_OP, index, index_term)]
        journal = cls(records, group, members, entries=entries, term=term, voted_for=voted_for)
        journal.durable = 0  # the records are not written yet
        return journal

    def recovered(self) -> RecoveredGroup:
        """Return the state that recovery from the WAL would find."""
        voters, learners = self._changes[0][1]
        return RecoveredGroup(
            term=self._term,
            voted_for=self._voted_for,
            base_index=self.first_index,
            base_term=self[0][2],
            voters=list(voters),
            learners=list(learners),
            entries=list(self),
        )

    @property
    def first_index(self) -> int:
        return self[0][1]

    @property
    def last_index(self) -> int:
        return self[-1][1]

    @property
    def members(self) -> Members:
        """The latest configuration. It applies from its entry on, even if the entry is not committed."""
        return self._changes[-1][1]

    @property
    def members_index(self) -> int:
        """Index of the entry that set `members`. 0 if the log began with this configuration."""
        return self._changes[-1][0]

    @property
    def is_new(self) -> bool:
        """True if some entries are not on the disk yet."""
        return self.durable < self.last_index

    def synced(self, index: int) -> None:
        """Note that the entries up to `index`, with the same content as in memory, are on the disk."""
        self.durable = index

    def between(self, first: int, last: int) -> list[LogEntry]:
        """Return the entries from index `first` to `last`, which must be in the log."""
        start = self[0][1]
        return self[first - start : last + 1 - start]

    def members_at(self, index: int) -> Members:
        """Return the configuration that applies at `index`, which must be in the log."""
        # The first configuration is stored at index 0, and applies if there is no later one.
        return next(members for at, members in reversed(self._changes) if at <= index or not at)

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`; None if the log does not have it."""
        position = index - self[0][1]
        return self[position][2] if 0 <= position < len(self) else None

    def replacement(self, index: int, committed: int) -> bytes | None:
        """Return the command to apply instead of the entry at `index`. None if no committed SKIP replaces this entry.

        `committed`: the commit index. If several committed SKIPs replace the entry, the last SKIP counts."""
        found = [skip.replacement for at, skip in self.skips.items() if at <= committed and self._replaces(skip, index)]
        return found[-1] if found else None

    def undecided(self, committed: int) -> int | None:
        """Return the lowest index of an entry that an uncommitted SKIP would replace. None if there is no such SKIP.

        This entry and later ones must not be applied until the SKIP is committed or truncated. Otherwise a node whose
        version of sandq can apply the entry would apply it, and other nodes would apply the replacement."""
        return min([skip.index for at, skip in self.skips.items() if at > committed], default=None)

    def _replaces(self, skip: Skip, index: int) -> bool:
        # The term is None if the entry is not in the log any more: then only the index can be compared.
        return skip.index == index and self.term_at(index) in (skip.term, None)

    def bytes_above(self, index: int) -> int:
        """Return the bytes of the commands above `index`. Takes time proportional to their number."""
        return sum([len(command) for command, _, _ in self[max(0, index + 1 - self.first_index) :]])

    def truncate_below(self, index: int, keep_bytes: int = 0) -> None:
        """Delete entries below `index`, but keep about the last `keep_bytes` of them, and always the last entry."""
        at = min(index - self.first_index, len(self))
        while at > 0 and keep_bytes > 0:
            at -= 1
            keep_bytes -= len(self[at][0])
        at = min(at, len(self) - KEPT)
        if at > 0:
            self.deleteEntriesTo(at)

    def copy_tail(self) -> None:
        """Write all entries again as COPY records, so that old WAL segments are no longer needed."""
        self._records += [(Kind.COPY, self._group, index, term, command) for command, index, term in self]

    def _base(self, index: int, term: int) -> None:
        """Write a record that the log begins at `index`."""
        self._records.append((Kind.BASE, self._group, index, term, self.members_at(index).encode()))

    def _note(self, command: bytes, index: int) -> None:
        """Count the bytes of a command. Remember its configuration or SKIP, if it has one."""
        self.size_bytes += len(command)
        if command[0] == MEMBERSHIP:
            self._changes.append((index, Members.decode(command[1:])))
        elif command[0] == SKIP:
            self.skips[index] = Skip.decode(command[1:])

    # -- PySyncObj's interface ------------------------------------------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        self.append((command, idx, term))
        self._records.append((Kind.ENTRY, self._group, idx, term, command))
        self._note(command, idx)

    def clear(self) -> None:
        raise RuntimeError("a journal is replaced through a snapshot, never cleared")

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Delete the entries from list position `entryFrom` on, because they conflict with the leader's log."""
        if entryFrom < len(self):
            first = self[entryFrom][1]
            self._records.append((Kind.TRUNCATE, self._group, first, 0, b""))
            self.size_bytes -= sum([len(command) for command, _, _ in self[entryFrom:]])
            del self[entryFrom:]
            # Configurations and SKIPs of deleted entries no longer apply (guard S3b).
            while self._changes[-1][0] >= first:
                self._changes.pop()
            self.skips = {at: skip for at, skip in self.skips.items() if at < first}
            self.durable = min(self.durable, first - 1)

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Delete the entries before list position `entryTo`. The entry there becomes the base of the log."""
        self.size_bytes -= sum([len(command) for command, _, _ in self[:entryTo]])
        del self[:entryTo]
        # The first entry is applied, and no member receives it (see `restart`), so only its term is needed.
        command, first, term = self[0]
        self.size_bytes -= len(command) - len(_NO_OP)
        self[0] = _NO_OP, first, term
        self._changes = [(0, self.members_at(first)), *[change for change in self._changes if change[0] > first]]
        self.skips = {at: skip for at, skip in self.skips.items() if at > first}
        self._base(first, self[0][2])

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self._term, self._voted_for = term, votedForNodeId
        self._records.append((Kind.HARD_STATE, self._group, 0, term, msgpack.packb(votedForNodeId)))

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        self._commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self._commit_index

    def _destroy(self) -> None:
        pass
