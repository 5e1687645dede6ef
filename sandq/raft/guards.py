"""The guards: each prevents one fault of PySyncObj 0.3.17 without changing the library.

docs/replication.md has a table of the faults.

The guards in this module are small functions of plain values. Each can be read and tested separately, and a test can
remove a guard to show the fault. Guards that replace a whole method of the library are in `core.py` (S6, S10, L4).
Guards of the log on the disk are in `journal.py` and `group_commit.py` (S7), guards of message types in `wire.py`
(S10).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sandq.raft.journal import GroupJournal, LogEntry
from sandq.raft.members import Members

MIN_ELECTION_S, MAX_ELECTION_S = 0.7, 2.0


def known_prefix(journal: GroupJournal, previous: int, previous_term: int, entries: Sequence[LogEntry]) -> int:
    """S1: return how many of the entries are in the log already.

    The library would truncate the log after `previous` even if the log agrees with the message, and lose acknowledged
    entries."""
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
    """S1: hide the entries after index `last` from the library, so that it does not truncate them.

    A message that ends at `last` says nothing about these entries."""
    start = last + 1 - journal.first_index
    suffix = journal[start:]
    list.__delitem__(journal, slice(start, None))
    try:
        yield
    finally:
        list.extend(journal, suffix)


def is_new_vote(votes: set[tuple[int, str]], term: int, voter: str, members: Members) -> bool:
    """S2: return whether a vote counts; if so, remember it. Only votes of voters count, one per voter and term."""
    if voter not in members.voters or (term, voter) in votes:
        return False
    votes.add((term, voter))
    return True


def may_change(
    old: Members, new: Members, *, changed_at: int, committed: int, term_start: int, member: str, caught_up: set[str]
) -> bool:
    """S3: return whether the leader `member` may change the group's members from `old` to `new`.

    The previous change (at index `changed_at`) and the no-op of this term must be committed. Only one member may
    change. A new voter must be a learner that has caught up. The leader must not remove itself."""
    if changed_at > committed or term_start > committed:
        return False
    if member not in new.voters or set(new.voters) & set(new.learners):
        return False
    joined = set(new.voters) - set(old.voters)
    if not joined <= set(old.learners) & caught_up:
        return False
    # A promoted learner differs in two pairs, but is only one member.
    before = {(m, m in old.voters) for m in (*old.voters, *old.learners)}
    after = {(m, m in new.voters) for m in (*new.voters, *new.learners)}
    return len({m for m, _ in before ^ after}) == 1


def is_of_term(term: int, current: int) -> bool:
    """S4: return whether a reply counts: a reply of an older term says nothing about this term's log."""
    return term == current


def within_log(next_index: int, last: int) -> int:
    """S4: limit a member's next index to the leader's own log, because no member can have more of the log."""
    return max(1, min(next_index, last + 1))


def never_back(commit_before: int, commit: int) -> int:
    """S8: return the new commit index, which never goes back: committed entries stay committed."""
    return max(commit_before, commit)


def is_fresh_reset(barriers: dict[str, int], peer: str, seq: int, sent: int) -> bool:
    """L2: return whether to honour a reset of a member's next index. If so, set the barrier for later resets.

    After a reset, resets in replies to earlier messages are ignored. Otherwise a follower that is more than one batch
    behind would reset its leader's position repeatedly. `sent`: number of the last message sent."""
    if seq < barriers.get(peer, 0):
        return False
    barriers[peer] = sent + 1
    return True


def conflict_start(journal: GroupJournal, index: int, committed: int) -> int:
    """L3: return the first index of the term that conflicts at `index`, at least the index after `committed`.

    The leader then skips back over the whole term at once, instead of by one entry per heartbeat (Raft paper, section
    5.3)."""
    term = journal.term_at(index)
    while term is not None and index > committed + 1 and journal.term_at(index - 1) == term:
        index -= 1
    return index


def kept_start(tried: set[str], peer: str, next_index: int, first: int) -> int:
    """L3: return the next index to try for a member, so that a snapshot is not sent for a few entries.

    Skipping back over a whole term may pass entries that both members have, and reach an index that the leader has
    truncated. So try the leader's first kept entry (`first`) once before sending a snapshot."""
    if next_index > first or peer in tried:
        return next_index
    tried.add(peer)
    return first + 1


def leader_is_fresh(is_leader: bool, heard_s: float, now_s: float) -> bool:
    """L5: return whether to deny votes: this member leads, or heard its leader within the shortest election timeout."""
    return is_leader or now_s - heard_s < MIN_ELECTION_S


def is_up_to_date(journal: GroupJournal, last: int, last_term: int) -> bool:
    """L5: return whether a candidate's log is not behind this member's log (Raft paper, section 5.4.1).

    Used for pre-votes; the library checks it for votes."""
    return (last_term, last) >= (journal[-1][2], journal.last_index)
