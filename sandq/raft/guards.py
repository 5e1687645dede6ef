"""The guards: each closes one fault of PySyncObj 0.3.17 from outside. docs/architecture.md has the table.

Small functions of plain values, so that each can be read, tested, and taken out by a test that shows its fault. Those
that replace a method of the library whole are in `core.py` (S6, S10, L4), those of the log on the disk in `journal.py`
and `group_commit.py` (S7), the types of messages in `wire.py` (S10).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sandq.raft.journal import GroupJournal, LogEntry
from sandq.raft.members import Members

MIN_ELECTION_S, MAX_ELECTION_S = 0.7, 2.0


def known_prefix(journal: GroupJournal, previous: int, previous_term: int, entries: Sequence[LogEntry]) -> int:
    """S1: how many of the entries stand in the log already. The library would truncate behind `previous` even where
    the log agrees, and acknowledged entries vanish."""
    if journal.term_at(previous) != previous_term:
        return 0
    known = 0
    for _, index, term in entries:
        if journal.term_at(index) != term:
            break
        known += 1
    return known


@contextmanager
def hidden_suffix(journal: GroupJournal, last: int) -> Iterator[None]:
    """S1: what lies behind `last` is neither confirmed nor refuted by a message that ends there: it is out of the
    library's sight meanwhile, so that it is not truncated."""
    place = last + 1 - journal.first_index
    suffix = journal[place:]
    list.__delitem__(journal, slice(place, None))
    try:
        yield
    finally:
        list.extend(journal, suffix)


def is_new_vote(votes: set[tuple[int, str]], term: int, voter: str, members: Members) -> bool:
    """S2: a vote counts once, and only a voter's does."""
    if voter not in members.voters or (term, voter) in votes:
        return False
    votes.add((term, voter))
    return True


def may_change(
    old: Members, new: Members, *, changed_at: int, committed: int, term_start: int, member: str, caught_up: set[str]
) -> bool:
    """S3: one member at a time, after the change before and the no-op of this term are committed; a voter was a
    learner that has caught up; the leader does not remove itself."""
    if changed_at > committed or term_start > committed:
        return False
    if member not in new.voters or set(new.voters) & set(new.learners):
        return False
    joined = set(new.voters) - set(old.voters)
    if not joined <= set(old.learners) & caught_up:
        return False
    before = {(m, m in old.voters) for m in (*old.voters, *old.learners)}
    after = {(m, m in new.voters) for m in (*new.voters, *new.learners)}
    return len({m for m, _ in before ^ after}) == 1


def is_of_term(term: int, current: int) -> bool:
    """S4: an answer of an older term says nothing about this one's log."""
    return term == current


def within_log(next_index: int, last: int) -> int:
    """S4: nobody has more of this leader's log than the leader."""
    return max(1, min(next_index, last + 1))


def never_back(commit_before: int, commit: int) -> int:
    """S8: what is committed stays so."""
    return max(commit_before, commit)


def is_fresh_reset(barriers: dict[str, int], peer: str, seq: int, sent: int) -> bool:
    """L2: after a reset was honoured, those that answer messages sent before it are old news: a follower that is more
    than one batch behind would set its leader back again and again."""
    if seq < barriers.get(peer, 0):
        return False
    barriers[peer] = sent + 1
    return True


def conflict_start(journal: GroupJournal, index: int, committed: int) -> int:
    """L3: the first index of the term that conflicts at `index`: the leader goes back over it at once, instead of by
    one entry a heartbeat."""
    term = journal.term_at(index)
    while term is not None and index > committed + 1 and journal.term_at(index - 1) == term:
        index -= 1
    return index


def kept_start(tried: set[str], peer: str, next_index: int, first: int) -> int:
    """L3: whoever goes back over a whole term may pass entries that both have, and get to what the leader has
    truncated: a snapshot for a few entries. So the first entry that the leader has is tried before, once."""
    if next_index > first or peer in tried:
        return next_index
    tried.add(peer)
    return first + 1


def leader_is_fresh(is_leader: bool, heard_s: float, now_s: float) -> bool:
    """L5: who leads, or heard from its leader within the least election time-out, helps nobody to depose it."""
    return is_leader or now_s - heard_s < MIN_ELECTION_S


def is_up_to_date(journal: GroupJournal, last: int, last_term: int) -> bool:
    """Raft's rule for a candidate's log, for the votes that are asked before an election (L5)."""
    return (last_term, last) >= (journal[-1][2], journal.last_index)
