"""Start the log of a group over after its state was installed from a snapshot.

Each step is durable before the next: the rows in a new store, the pointer to the store (pointers.py), then one commit
batch with `restart_at`. A crash can tear off the end of the batch at any record. Afterwards, the log is the whole old
log, or a new log that is empty or lacks the entry at the snapshot's index. Term and vote survive in each case.
`is_behind` recognizes such a log. If so, the pointer takes precedence: commit `restart_at` again, with the recovered
term and vote, before any other record of the group.
"""

from __future__ import annotations

from sandq.storage.wal_format import Kind, Record
from sandq.storage.wal_groups import RecoveredGroup


def restart_at(
    group: int, term: int, vote_payload: bytes, index: int, index_term: int, members_payload: bytes, command: bytes
) -> list[Record]:
    """Return the records, for one commit batch, after which the log has only the entry at `index`.

    A snapshot does not contain the command of this entry. `command` is a placeholder, and must never be sent to a
    member. `term` and `vote_payload`: the group's current term and vote. They are written again, so that no torn batch
    loses them. Raise ValueError if `term` is below the entry's term.
    """
    if index < 1 or index_term > term:
        raise ValueError(f"a log cannot start at entry {index} of term {index_term} in term {term}")
    return [
        (Kind.TRUNCATE, group, 0, 0, b""),
        (Kind.HARD_STATE, group, 0, term, vote_payload),
        (Kind.BASE, group, index, index_term, members_payload),
        (Kind.ENTRY, group, index, index_term, command),
    ]


def is_behind(found: RecoveredGroup, index: int, term: int, applied: int) -> bool:
    """Return whether a log does not continue from a snapshot at `index`, whose entry has `term`.

    `applied`: index up to which the store has all entries; `index` or higher. The log continues from the snapshot if it
    has this entry: two logs with the same term at an index agree up to this index (Raft's log matching). It also
    continues if it has already truncated the entry, which is allowed once later entries are applied. A base above
    `applied` belongs to an earlier incarnation of the group."""
    if found.base_index > index:
        return found.base_index > applied
    position = index - found.base_index
    return position >= len(found.entries) or found.entries[position][2] != term
