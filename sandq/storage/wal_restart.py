"""How the log of a group starts over when its state was installed from a snapshot.

The order of steps, each durable before the next: the rows in a new store, the pointer to it (pointers.py), then one
pass with `restart_at`. The end of a pass may be torn off, at any record. So a stop may leave the old log (whole), or
a log that the pass has begun: empty, or without the entry at the snapshot's index; term and vote are there in each
case. `is_behind` tells them from a log that goes on at the pointer; where it does, the pointer wins: `restart_at` is
to be committed again, with the term and the vote that were recovered, before anything else of the group.
"""

from __future__ import annotations

from sandq.storage.wal_format import Kind, Record
from sandq.storage.wal_groups import RecoveredGroup


def restart_at(
    group: int, term: int, vote_payload: bytes, index: int, index_term: int, members_payload: bytes, command: bytes
) -> list[Record]:
    """The records, for one pass: the log holds the entry at `index` and nothing else. A snapshot does not bring what
    was commanded there: `command` stands in its place, and nobody may be sent it.

    `term` and `vote_payload` are those of the group now: they are stated once more, and not lost whatever is torn.
    ValueError for a term below that of the entry.
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
    """Whether a log does not go on at a snapshot of `index`, whose entry is of `term`, in a store that holds everything
    up to `applied` (`index`, or later).

    It does when it has that entry: two logs that agree in index and term agree in all before. Or when it has left the
    entry behind, as it may once more is applied; a base above `applied` is one of an earlier life of the group."""
    if found.base_index > index:
        return found.base_index > applied
    place = index - found.base_index
    return place >= len(found.entries) or found.entries[place][2] != term
