"""Tests of Raft groups and commit batches: the time at which entries count, step-downs, and no unpickling."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pysyncobj import syncobj

from sandq.model.errors import Corruption, StartupError
from sandq.raft import Group, GroupCommit, GroupJournal, Members, ProposalFailed, hooks
from sandq.raft import group_commit as passes_module
from sandq.storage.wal import Kind
from tests.support.raft.three_nodes import NAMES, Nodes

MEMBER = "n1#1"
ALONE = Members((MEMBER,))


def new_group(commits: GroupCommit, number: int = 7, before_tick: Any = lambda: None) -> Group:
    journal = GroupJournal.create(commits.records, number, ALONE)
    return commits.add(number, MEMBER, journal, applied=0, before_tick=before_tick)


def commit_batch(commits: GroupCommit) -> list[tuple[int, bytes]]:
    """Run a whole pass. Return the entries that became ready."""
    _, early = commits.tick()
    return [(entry.index, entry.command) for entry in early + commits.synced()]


def elected(commits: GroupCommit, **options: Any) -> Group:
    group = new_group(commits, **options)
    while commits.has_work:
        commit_batch(commits)
    assert group.is_leader
    return group


def test_only_voter_leads_after_one_commit_batch() -> None:
    commits = GroupCommit()
    group = new_group(commits)
    records, ready = commits.tick()
    assert group.is_leader
    assert [record[0] for record in records] == [Kind.BASE, Kind.ENTRY, Kind.HARD_STATE, Kind.ENTRY]
    assert ready == [], "the no-op is committed within the tick but not on disk yet"
    assert [(entry.index, entry.command) for entry in commits.synced()] == [(2, b"")]
    assert group.term_start == 2


def test_entry_is_applied_only_after_its_commit_batch_is_synced() -> None:
    commits = GroupCommit()
    group = elected(commits)
    done: list[Any] = []
    group.propose(b"command", lambda index, failure: done.append((index, failure)))
    commits.mark(group)
    records, ready = commits.tick()
    assert [(kind, index, command) for kind, _, index, _, command in records] == [(Kind.ENTRY, 3, b"\0command")]
    assert (ready, done) == ([], [])
    assert [(entry.index, entry.command) for entry in commits.synced()] == [(3, b"command")]
    assert done == [(3, None)]


def test_command_of_the_only_member_is_committed_by_its_sync() -> None:
    commits = GroupCommit()
    group = elected(commits)
    for command in (b"one", b"two"):
        group.propose(command, lambda index, failure: None)
        commits.mark(group)
        assert [command for _, command in commit_batch(commits)] == [command]
        assert not commits.has_work


@pytest.mark.parametrize("is_first", [True, False])
def test_command_beside_a_change_of_members_is_committed_by_a_tick(is_first: bool) -> None:
    """The learner is a member from its entry on, whether that entry precedes or follows the command."""
    commits = GroupCommit()
    group = elected(commits)
    steps: list[Any] = [
        lambda: group.propose(b"x", lambda index, failure: None),
        lambda: group.change_members(Members((MEMBER,), ("n2#2",)), lambda index, failure: None),
    ]
    for step in steps if is_first else reversed(steps):
        step()
    commits.mark(group)
    assert commit_batch(commits) == []
    assert [command for _, command in commit_batch(commits)] == ([b"x", b""] if is_first else [b"", b"x"])
    group.propose(b"y", lambda index, failure: None)
    commits.mark(group)
    assert commit_batch(commits) == []
    assert [command for _, command in commit_batch(commits)] == [b"y"]


def test_only_member_commits_by_its_sync_again_after_the_learner_left() -> None:
    commits = GroupCommit()
    group = elected(commits)
    for members in (Members((MEMBER,), ("n2#2",)), ALONE):
        group.change_members(members, lambda index, failure: None)
        commits.mark(group)
        while commits.has_work:
            commit_batch(commits)
    group.propose(b"x", lambda index, failure: None)
    commits.mark(group)
    assert [command for _, command in commit_batch(commits)] == [b"x"]


def test_leader_with_followers_needs_no_tick_after_its_sync() -> None:
    """One tick appends and sends the entry, and one for each reply of a follower commits it."""
    with Nodes() as nodes:
        name = nodes.leaders()[7]
        leader, commits = nodes.group(name, 7), nodes.group_commit[name]
        leader.propose(b"x", lambda index, failure: None)
        commits.mark(leader)
        nodes.commit_batch(name)
        assert not commits.has_work
        nodes.settle()
        nodes.run(1)
        assert all((7, b"x") in nodes.committed[other] for other in NAMES)


def test_leader_whose_followers_are_ahead_is_ticked_after_its_sync() -> None:
    """No reply may follow that causes a tick."""
    with Nodes() as nodes:
        name = nodes.leaders()[7]
        leader = nodes.group(name, 7)
        assert not leader.own_copy_counts
        for other in NAMES:
            if other != name:
                leader._core._SyncObj__raftMatchIndex[hooks.member_node(f"{other}#1")] = leader.journal.last_index + 1
        assert leader.own_copy_counts


def test_all_groups_share_one_commit_batch() -> None:
    commits = GroupCommit()
    groups = [elected(commits, number=number) for number in (1, 2, 3)]
    for group in groups:
        group.propose(b"x", lambda index, failure: None)
        commits.mark(group)
    records, _ = commits.tick()
    assert sorted(record[1] for record in records) == [1, 2, 3]


def test_entries_that_arrive_while_a_sync_hangs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "ARRIVED_BYTES", 1000)
    monkeypatch.setattr(passes_module, "ARRIVED_FRAMES", 8)
    commits = GroupCommit()
    commits.receive("n2", (), 999)
    assert commits.takes_more
    commits.receive("n3", (), 1)
    assert not commits.takes_more
    commits.disconnected("n2")
    assert commits.takes_more, "messages of the disconnected node are forgotten"
    for _ in range(7):
        commits.receive("n3", (), 1)
    assert not commits.takes_more
    commits.tick()
    assert commits.takes_more


def test_restart_continues_after_the_applied_entries() -> None:
    commits = GroupCommit()
    entries = [(b"\x01", 1, 0), (b"\x01", 2, 1), (b"\0a", 3, 1), (b"\0b", 4, 1)]
    journal = GroupJournal(commits.records, 7, ALONE, entries=entries, term=1, voted_for=MEMBER)
    group = commits.add(7, MEMBER, journal, applied=3, before_tick=lambda: None)
    ready: list[tuple[int, bytes]] = []
    while commits.has_work:
        ready += commit_batch(commits)
    assert (group.term, ready) == (2, [(4, b"b"), (5, b"")])


def test_log_shorter_than_applied_index_is_refused() -> None:
    commits = GroupCommit()
    journal = GroupJournal(commits.records, 7, ALONE, entries=[(b"\x01", 1, 0)])
    with pytest.raises(Corruption, match="the WAL has lost entries"):
        commits.add(7, MEMBER, journal, applied=3, before_tick=lambda: None)


def test_step_down_fails_proposals_with_unknown_outcome() -> None:
    commits = GroupCommit()
    group = elected(commits)
    done: list[Any] = []
    group.propose(b"command", lambda index, failure: done.append((index, failure)))
    commits.mark(group)
    commits.tick()
    group._core._SyncObj__setState(0)
    assert done == [(None, ProposalFailed.UNKNOWN)]


def test_a_follower_refuses_and_never_forwards() -> None:
    commits = GroupCommit()
    journal = GroupJournal.create(commits.records, 7, Members((MEMBER, "n2#2")))
    group = commits.add(7, MEMBER, journal, applied=0, before_tick=lambda: None)
    done: list[Any] = []
    group.propose(b"command", lambda index, failure: done.append((index, failure)))
    commits.tick()
    assert not group.is_leader
    assert done == [(None, ProposalFailed.NOT_LEADER)]


def test_truncation_keeps_an_entry_without_its_command_and_states_the_base() -> None:
    commits = GroupCommit()
    group = elected(commits)
    for _ in range(4):
        group.propose(b"x", lambda index, failure: None)
    commits.mark(group)
    commit_batch(commits)
    group.journal.truncate_below(5)
    assert group.journal.first_index == 5
    assert [(kind, index) for kind, _, index, _, _ in commits.records] == [(Kind.BASE, 5)]
    assert [(command, index) for command, index, _ in group.journal] == [(b"\x01", 5), (b"\x00x", 6)]
    group.journal.truncate_below(100)
    assert (group.journal.first_index, len(group.journal), group.journal.size_bytes) == (6, 1, 1)
    group.propose(b"y", lambda index, failure: None)
    commits.mark(group)
    for _ in range(2):
        commit_batch(commits)
    assert group.journal.last_index == group.commit_index == 7, "the group continues after its last entry"


def test_a_short_tail_is_appended_again() -> None:
    commits = GroupCommit()
    group = elected(commits)
    group.journal.copy_tail()
    assert [(kind, index) for kind, _, index, _, _ in commits.records] == [(Kind.COPY, 1), (Kind.COPY, 2)]


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_entries_are_never_unpickled(kind: int) -> None:
    """A regular command is bytes. Membership entries are refused, and version entries do nothing."""
    commits = GroupCommit()
    group = elected(commits)
    bomb = bytes([kind]) + pickle.dumps(_Bomb())
    if kind == 2:
        with pytest.raises(Corruption):
            group._core._SyncObj__parseChangeClusterRequest(bomb)
    else:
        group._core._SyncObj__doApplyCommand(bomb)
    assert not _Bomb.exploded


class _Bomb:
    exploded = False

    def __reduce__(self) -> Any:
        return (_explode, ())


def _explode() -> None:
    _Bomb.exploded = True


def test_other_library_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "VERSION", "0.3.18")
    with pytest.raises(StartupError, match=r"0\.3\.17"):
        hooks.install()


@pytest.mark.parametrize("name", hooks.METHODS)
def test_a_missing_hook_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(syncobj.SyncObj, hooks.PREFIX + name)
    with pytest.raises(StartupError, match=name):
        hooks.install()


def test_group_removed_while_its_batch_is_written_is_not_ticked_again() -> None:
    commits = GroupCommit()
    group, other = elected(commits, number=1), elected(commits, number=2)
    for each in (group, other):
        each.propose(b"x", lambda index, failure: None)
        commits.mark(each)
    commits.tick()
    commits.remove(group)
    commits.mark(group)
    ready = commits.synced()
    assert [entry.group for entry in ready] == [2]
    assert not commits.has_work
