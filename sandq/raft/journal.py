"""A Raft group's log in memory, whose every change is also a WAL record of the current pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgpack
from pysyncobj.journal import Journal

from sandq.storage.wal import Kind, Record

LogEntry = tuple[bytes, int, int]
"""(command, index, term), in the order that PySyncObj uses."""


class GroupJournal(list[LogEntry], Journal):  # type: ignore[misc]
    """PySyncObj's journal port over the node's WAL.

    A list, so that the library indexes it at C speed. Records gather in `records` (shared by all groups of the
    node) until the pass that wrote them is synced; the library's counting of them must wait for that.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(
        self,
        records: list[Record],
        group: int,
        *,
        entries: Iterable[LogEntry] = (),
        term: int = 0,
        voted_for: str | None = None,
        voters: Sequence[str] = (),
        learners: Sequence[str] = (),
    ) -> None:
        super().__init__(entries)
        self._records = records
        self._group = group
        self._term = term
        self._voted_for = voted_for
        self._membership: bytes = msgpack.packb([list(voters), list(learners)])
        self._commit_index = 1

    @classmethod
    def create(cls, records: list[Record], group: int, voters: Sequence[str]) -> GroupJournal:
        """The journal of a new group: its base, and the no-op that PySyncObj's logs begin with."""
        journal = cls(records, group, voters=voters)
        journal._base(1, 0)
        journal.add(b"\x01", 1, 0)
        return journal

    @property
    def first_index(self) -> int:
        return self[0][1]

    @property
    def last_index(self) -> int:
        return self[-1][1]

    @property
    def size_bytes(self) -> int:
        """Of the commands kept."""
        return sum([len(command) for command, _, _ in self])

    def truncate_below(self, index: int) -> None:
        """Forget entries below `index`; the last two are always kept (PySyncObj looks one back)."""
        at = min(index - self.first_index, len(self) - 2)
        if at > 0:
            self.deleteEntriesTo(at)

    def copy_tail(self) -> None:
        """Append everything kept again as COPY records, so that old segments are no longer needed."""
        self._records += [(Kind.COPY, self._group, index, term, command) for command, index, term in self]

    def _base(self, index: int, term: int) -> None:
        self._records.append((Kind.BASE, self._group, index, term, self._membership))

    # -- PySyncObj's port -----------------------------------------------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        self.append((command, idx, term))
        self._records.append((Kind.ENTRY, self._group, idx, term, command))

    def clear(self) -> None:
        raise RuntimeError("a journal is replaced through a snapshot, never cleared")

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        if entryFrom < len(self):
            self._records.append((Kind.TRUNCATE, self._group, self[entryFrom][1], 0, b""))
            del self[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:
        del self[:entryTo]
        self._base(self.first_index, self[0][2])

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
