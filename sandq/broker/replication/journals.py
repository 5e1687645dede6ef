"""Choose the log with which a replica starts: the log in the WAL, or an empty log from the index of its snapshot on."""

from __future__ import annotations

from sandq.raft import GroupJournal, Members
from sandq.storage.pointers import StorePointer
from sandq.storage.wal import Record, RecoveredGroup
from sandq.storage.wal_restart import is_behind


def open_journal(
    records: list[Record], pointer: StorePointer, found: RecoveredGroup | None, applied: int
) -> GroupJournal:
    """Return the log of a group.

    `records`: list to which the log appends its new WAL records. `found`: the group as recovered from the WAL; None if
    the WAL has no record of it. `applied`: index of the last entry applied in the group's store. If the WAL is behind
    the snapshot that the pointer names, the log starts after that snapshot. This is the case right after a snapshot was
    installed, and if the node crashed between writing the pointer and writing the WAL. Term and vote are kept in either
    case."""
    group, members = pointer.group, Members(pointer.voters, pointer.learners)
    found = found or RecoveredGroup()
    index, index_term = pointer.snapshot_index, pointer.snapshot_term
    if index and is_behind(found, index, index_term, applied):
        return GroupJournal.restart(
            records, group, members, index=index, index_term=index_term, term=found.term, voted_for=found.voted_for
        )
    if not found.entries:
        # The WAL contains nothing of the group, or only its base record.
        return GroupJournal.create(records, group, members)
    members = Members(tuple(found.voters), tuple(found.learners))
    return GroupJournal(records, group, members, entries=found.entries, term=found.term, voted_for=found.voted_for)
