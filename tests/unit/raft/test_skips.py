"""Tests of SKIP entries: the journal's knowledge of them, and entries that wait for a decision (ADR 46)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.broker.replication.journals import open_journal
from sandq.model.errors import Corruption
from sandq.raft import GroupJournal, Members, wire
from sandq.raft.group_commit import GroupCommit
from sandq.raft.skip import Skip
from sandq.storage.pointers import StorePointer

ID, OTHER_ID = b"1" * 16, b"2" * 16
ONLY = Members(("n1#1",))
THREE = Members(("n1#1", "n2#1", "n3#1"))
ENTRY = bytes([wire.REGULAR]) + b"poison"


def skip_of(index: int, skip_id: bytes = ID, term: int = 1) -> Skip:
    return Skip(index, term, skip_id, b"replacement by " + skip_id[:1])


def skip_entry(skip: Skip) -> bytes:
    return bytes([wire.SKIP]) + skip.encode()


def journal_of(*commands: bytes, members: Members = ONLY) -> GroupJournal:
    """Return a log with these entries from index 2 on, all of term 1."""
    journal = GroupJournal.create([], 7, members)
    for at, command in enumerate(commands, 2):
        journal.add(command, at, 1)
    return journal


def test_last_committed_skip_of_an_entry_counts() -> None:
    journal = journal_of(ENTRY, ENTRY, skip_entry(skip_of(2)), skip_entry(skip_of(2, OTHER_ID)))
    assert [journal.replacement(2, committed) for committed in (3, 4, 5)] == [
        None,
        b"replacement by 1",
        b"replacement by 2",
    ]
    assert journal.replacement(3, 5) is None
    assert [journal.undecided(committed) for committed in (3, 4, 5)] == [2, 2, None]


def test_skip_of_another_term_replaces_nothing() -> None:
    journal = journal_of(ENTRY, skip_entry(skip_of(2, term=5)))
    assert journal.replacement(2, 3) is None


def test_truncation_takes_skips_with_it() -> None:
    journal = journal_of(ENTRY, skip_entry(skip_of(2)), ENTRY, skip_entry(skip_of(2, OTHER_ID)))
    journal.deleteEntriesFrom(4)
    assert list(journal.skips) == [3] and journal.replacement(2, 9) == b"replacement by 1"
    journal.deleteEntriesFrom(2)
    assert not journal.skips and journal.undecided(0) is None


def test_cut_below_an_entry_keeps_the_skips_above_it() -> None:
    journal = journal_of(ENTRY, ENTRY, skip_entry(skip_of(2)), ENTRY, skip_entry(skip_of(3, OTHER_ID)))
    journal.truncate_below(3)
    assert sorted(journal.skips) == [4, 6] and journal.replacement(3, 6) == b"replacement by 2"
    journal.truncate_below(4)
    assert sorted(journal.skips) == [6], "the first entry is kept for its term alone"
    assert journal.size_bytes == sum([len(command) for command, _, _ in journal])


def test_log_that_goes_on_knows_its_skips() -> None:
    journal = journal_of(ENTRY, skip_entry(skip_of(2)))
    pointer = StorePointer(7, 1, 1, 0, 0, ONLY.voters, ())
    again = open_journal([], pointer, journal.recovered(), 1)
    assert again.skips == journal.skips == {3: skip_of(2)}


def test_entries_wait_while_a_skip_of_one_before_them_is_not_committed() -> None:
    """One of three members has a log with a SKIP. A later leader commits it or truncates it."""
    for is_committed in (True, False):
        commits = GroupCommit()
        journal = GroupJournal.create(commits.records, 7, THREE)
        for at, command in enumerate([ENTRY, ENTRY, ENTRY, skip_entry(skip_of(3))], 2):
            journal.add(command, at, 1)
        journal.setCurrentTerm(1, None)
        group = commits.add(7, "n1#1", journal, applied=1, before_tick=lambda: None)
        commits.connected("n2")
        found: list[Any] = []

        def tick(commits: GroupCommit = commits, found: list[Any] = found) -> None:
            while commits.has_work:
                found += [*commits.tick()[1], *commits.synced()]
                commits.take_outgoing()

        def append(
            commits: GroupCommit = commits, *, term: int, previous: int, commit: int, entries: tuple[Any, ...] = ()
        ) -> None:
            before = (previous, 1)
            commits.receive("n2", [wire.check(append_of(term, before, commit, entries))])

        append(term=1, previous=5, commit=4)
        tick()
        assert [(one.index, one.command) for one in found] == [(2, b"poison")], "entry 3 and later entries wait"
        if is_committed:
            append(term=1, previous=5, commit=5)
        else:
            append(term=2, previous=4, commit=5, entries=((bytes([wire.NO_OP]), 5, 2),))
        tick()
        instead = b"replacement by 1" if is_committed else b"poison"
        assert [(one.index, one.command) for one in found[1:4]] == [(3, instead), (4, b"poison"), (5, b"")]
        assert found[3].skip == (skip_of(3) if is_committed else None)
        assert group.commit_index == 5


def append_of(term: int, before: tuple[int, int], commit: int, entries: tuple[Any, ...]) -> wire.Message:
    """Return an APPEND of a leader on n2."""
    previous, previous_term = before
    return wire.APPEND, 7, 1, 1, term, commit, previous, previous_term, entries, 1


@pytest.mark.parametrize(
    "fields",
    [
        (2, 1, ID, b""),
        (2, 1, ID[:-1], b"r"),
        (True, 1, ID, b"r"),
        (2, None, ID, b"r"),
        (-1, 1, ID, b"r"),
        (2, -1, ID, b"r"),
        (2, 1, "text" * 4, b"r"),
    ],
)
def test_skip_with_fields_that_none_has_is_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(Corruption, match="a SKIP entry has invalid fields"):
        Skip.decode(Skip(*fields).encode())


@given(
    st.binary(max_size=64) | st.builds(lambda cut, flip: mutated(cut, flip), st.integers(0, 60), st.integers(0, 255))
)
def test_garbage_is_no_skip_and_raises_nothing_else(data: bytes) -> None:
    try:
        skip = Skip.decode(data)
    except Corruption:
        return
    assert Skip.decode(skip.encode()) == skip


def mutated(cut: int, flip: int) -> bytes:
    """Return a SKIP with one changed byte."""
    data = bytearray(skip_of(2).encode())
    data[cut % len(data)] ^= flip
    return bytes(data)


def test_skip_in_an_append_names_an_entry_before_it() -> None:
    wire._check_entries(4, ((skip_entry(skip_of(4)), 5, 1),))
    for wrong in (skip_entry(skip_of(5)), skip_entry(skip_of(9)), bytes([wire.SKIP]) + b"\xc1"):
        with pytest.raises((ValueError, Corruption)):
            wire._check_entries(4, ((wrong, 5, 1),))
