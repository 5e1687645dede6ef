"""Tests of a log that starts over at a snapshot: the result of recovery for any torn part of its batch."""

from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.raft import GroupJournal, Members
from sandq.storage.memory_files import Crashed, MemoryFiles
from sandq.storage.wal import Kind, Record, RecoveredGroup, Wal
from sandq.storage.wal_restart import is_behind, restart_at

SEGMENT = 4096
GROUP = 7
TERM, VOTE = 9, "n2#1"
S, S_TERM = 40, 8
MEMBERS = ["n1#1", "n2#1"], ["n3#4"]
OLD_MEMBERS = ["n1#1"], []
COMMAND = b"\1"
START_OVER = restart_at(GROUP, TERM, msgpack.packb(VOTE), S, S_TERM, msgpack.packb(MEMBERS), COMMAND)
AT_THE_SNAPSHOT = RecoveredGroup(TERM, VOTE, S, S_TERM, *MEMBERS, [(COMMAND, S, S_TERM)])


def opened(files: MemoryFiles) -> tuple[Wal, RecoveredGroup]:
    wal, groups = Wal.open(files, segment_bytes=SEGMENT, known_groups=lambda group: True)
    return wal, groups.get(GROUP, RecoveredGroup())


def old_log(base: int, terms: list[int]) -> list[Record]:
    """Return the records of a log with a base and entries of these terms. Term and vote are set."""
    hard_state: Record = (Kind.HARD_STATE, GROUP, 0, TERM, msgpack.packb(VOTE))
    entries: list[Record] = [(Kind.ENTRY, GROUP, base + at, term, b"old") for at, term in enumerate(terms)]
    return [hard_state, (Kind.BASE, GROUP, base, 1, msgpack.packb(OLD_MEMBERS)), *entries]


def written(*batches: list[Record]) -> MemoryFiles:
    files = MemoryFiles()
    wal, _ = opened(files)
    for records in batches:
        wal.commit(records)
    return files


LOGS = {
    "shorter": old_log(3, [1, 1, 2]),
    "of another leader": old_log(30, [2] * 20),
    "empty": old_log(1, []),
}


@pytest.mark.parametrize("name", LOGS)
def test_whole_commit_batch_is_recovered_as_written(name: str) -> None:
    wal, found = opened(written(LOGS[name], START_OVER).kill())
    assert found == AT_THE_SNAPSHOT
    assert not is_behind(found, S, S_TERM, S)
    wal.commit([(Kind.ENTRY, GROUP, S + 1, TERM, b"new")])


def test_a_group_that_is_new_here() -> None:
    files = written([(Kind.ENTRY, 8, 1, 1, b"of another group")], START_OVER)
    assert opened(files.kill())[1] == AT_THE_SNAPSHOT


@pytest.mark.parametrize("name", LOGS)
def test_torn_restart_keeps_the_old_log_or_uses_the_pointer(name: str) -> None:
    files = written(LOGS[name])
    old = opened(files.kill())[1]
    path = "wal/0000000001.wal"
    before = files.read(path)
    after = written(LOGS[name], START_OVER).read(path)
    end = len(after.rstrip(b"\0"))
    start = next(at for at in range(end) if after[at] != before[at])
    seen: list[RecoveredGroup] = []
    for cut in range(start, end):
        torn = MemoryFiles()
        torn.make_dir("wal")
        torn.replace(path, after[:cut].ljust(SEGMENT, b"\0"))
        _, found = opened(torn)
        assert (found.term, found.voted_for) == (TERM, VOTE)
        if not seen or found != seen[-1]:
            seen.append(found)
        assert is_behind(found, S, S_TERM, S)
    empty = RecoveredGroup(TERM, VOTE)
    begun = RecoveredGroup(TERM, VOTE, S, S_TERM, *MEMBERS)
    assert seen == [old, empty, begun]


def test_power_loss_within_a_commit_batch() -> None:
    """Each sector of the batch may be torn. The next start commits the records again, and they stay."""
    seen = set()
    for seed in range(40):
        files = written(LOGS["of another leader"])
        wal, _ = opened(files)
        files.crash_after(2)  # the sync
        with pytest.raises(Crashed):
            wal.commit(START_OVER)
        after = files.crash(random.Random(seed))
        wal, found = opened(after)
        seen.add(len(found.entries))
        assert (found.term, found.voted_for) == (TERM, VOTE), seed
        if is_behind(found, S, S_TERM, S):
            wal.commit(START_OVER)
        assert opened(after.crash(random.Random(seed)))[1] == AT_THE_SNAPSHOT, seed
    assert seen == {0, 1, 20}, "the old log, the begun log, and the complete new log"


def test_restarted_log_continues_over_removed_segments() -> None:
    files = written([(Kind.ENTRY, 8, 1, 1, b"")], LOGS["of another leader"], START_OVER)
    wal, _ = opened(files.kill())
    for index in range(S + 1, S + 80):
        wal.commit([(Kind.ENTRY, GROUP, index, TERM, bytes(100))])
    assert wal.segments > 2
    assert wal.release({GROUP: S, 8: 1}) == 0
    files = files.kill()
    wal, _ = opened(files)
    for index in range(S + 1, S + 80):
        wal.commit([(Kind.ENTRY, GROUP, index, TERM, bytes(100))])
    wal.commit([(Kind.BASE, GROUP, S + 78, TERM, msgpack.packb(MEMBERS))])
    wal.forget(8)
    assert wal.release({GROUP: S + 78}) > 0
    found = opened(files.kill())[1]
    assert [index for _, index, _ in found.entries] == [S + 78, S + 79]
    assert not is_behind(found, S, S_TERM, S + 78)


@settings(max_examples=150)
@given(
    base=st.integers(1, 12),
    terms=st.lists(st.integers(1, 4), max_size=12).map(sorted),
    index=st.integers(1, 14),
    term=st.integers(1, 4),
    records=st.integers(0, 4),
)
def test_restart_works_with_any_earlier_log(base: int, terms: list[int], index: int, term: int, records: int) -> None:
    """After any number of the records, the log continues at the snapshot, or a second commit of the records makes it
    so."""
    again = restart_at(GROUP, TERM, msgpack.packb(VOTE), index, term, msgpack.packb(MEMBERS), COMMAND)
    files = written(old_log(base, terms), again[:records]).kill()
    wal, found = opened(files)
    assert (found.term, found.voted_for) == (TERM, VOTE)
    if not is_behind(found, index, term, index):
        assert {at: of for _, at, of in found.entries}[index] == term, "a log that continues there has the entry"
        return
    assert records < len(again)
    wal.commit(again)
    assert opened(files.kill())[1] == RecoveredGroup(TERM, VOTE, index, term, *MEMBERS, [(COMMAND, index, term)])


def test_a_replicas_log_starts_over_like_this() -> None:
    records: list[Record] = []
    members = Members(*map(tuple, MEMBERS))
    GroupJournal.restart(records, GROUP, members, index=S, index_term=S_TERM, term=TERM, voted_for=VOTE)
    assert records == START_OVER


def test_a_log_that_holds_the_entry_goes_on() -> None:
    """The entry came from the leader or a snapshot. The log may have been cut above it, which only a flushed store
    allows."""
    _, found = opened(written(old_log(38, [8, 8, 8, 9])).kill())
    assert not is_behind(found, 40, 8, 40)
    assert is_behind(found, 40, 9, 40), "a different entry from another leader"
    assert is_behind(found, 42, 9, 42), "the log ends before the position"
    assert not is_behind(found, 37, 8, 41), "the store has applied more, and the log was cut"
    assert is_behind(found, 37, 8, 37), "a log of an earlier life has no connection to the store"
    assert is_behind(RecoveredGroup(base_index=40, base_term=8), 40, 8, 40), "the log has a base without its entry"


@pytest.mark.parametrize(("index", "term"), [(0, 9), (S, 7)])
def test_invalid_restart_positions_are_refused(index: int, term: int) -> None:
    with pytest.raises(ValueError, match="cannot start"):
        restart_at(GROUP, term, b"\xc0", index, S_TERM, b"", COMMAND)
