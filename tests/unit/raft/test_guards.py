"""Tests of each guard: the fault that it prevents, and the return of the fault without the guard."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from sandq.model.errors import Corruption
from sandq.raft import Group, Members, ProposalFailed, guards, wire
from sandq.raft import transport as transport_module
from sandq.raft.core import LEADER_FALLBACK_S, MAX_APPEND_BYTES
from tests.support.raft.library_time import replace_time
from tests.support.raft.table import GROUP, NO_OP, Table, entry

ABC = ("a", "b", "c")


@pytest.fixture
def table() -> Iterator[Table]:
    with Table(*ABC) as table:
        yield table


def log(table: Table, name: str) -> list[tuple[int, int]]:
    return [(index, term) for _, index, term in table.groups[name].journal]


def filled(table: Table) -> None:
    """The leader a of term 1 has sent entries 2..10 to b."""
    entries = tuple(entry(index, 1) for index in range(2, 11))
    table.send("a", "b", wire.APPEND, 1, 1, 1, 0, entries, 1)
    assert log(table, "b")[-1] == (10, 1)


# -- S1 ---------------------------------------------------------------------------------------------------------------


def short_append(table: Table) -> int:
    """A delayed message arrives after a longer message. Return the last index of b's log."""
    filled(table)
    table.send("a", "b", wire.APPEND, 1, 1, 1, 0, tuple(entry(index, 1) for index in range(2, 5)), 2)
    return table.groups["b"].journal.last_index


def late_heartbeat(table: Table) -> int:
    filled(table)
    table.send("a", "b", wire.APPEND, 1, 1, 2, 1, (), 2)
    return table.groups["b"].journal.last_index


def test_s1_a_known_prefix_is_not_truncated(table: Table) -> None:
    assert short_append(table) == 10


def test_s1_a_known_prefix_without_the_guard(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "known_prefix", lambda *args: 0)
    assert short_append(table) == 4, "acknowledged entries are gone"


def test_s1_entries_after_an_append_are_not_truncated(table: Table) -> None:
    assert late_heartbeat(table) == 10


def test_s1_entries_after_an_append_are_truncated_without_the_guard(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "hidden_suffix", lambda *args: nullcontext())
    assert late_heartbeat(table) == 2


def test_s1_conflicting_entries_are_replaced(table: Table) -> None:
    filled(table)
    table.send("c", "b", wire.APPEND, 2, 1, 4, 1, (entry(5, 1), entry(6, 2)), 1)
    assert log(table, "b")[-2:] == [(5, 1), (6, 2)]


# -- S2 ---------------------------------------------------------------------------------------------------------------


def votes(table: Table, *voters: str) -> bool:
    """Whether member a leads with its own vote and these votes."""
    group = table.groups["a"]
    group._election._call(transfer=False)
    group.tick()
    for voter in voters:
        table.send(voter, "a", wire.VOTE, 1)
    return group.is_leader


@pytest.mark.parametrize("voters", [("b", "b"), ("z", "y")])
def test_s2_a_vote_counts_once_and_only_a_voters(voters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with Table("a", "b", "c", "d", "e") as table:
        assert not votes(table, *voters)
    with Table("a", "b", "c", "d", "e") as table:
        assert votes(table, "b", "c")
    monkeypatch.setattr(guards, "is_new_vote", lambda *args: True)
    with Table("a", "b", "c", "d", "e") as table:
        assert votes(table, *voters), "without the guard a minority elects"


# -- S3 ---------------------------------------------------------------------------------------------------------------


def change(table: Table, *steps: Members) -> list[Any]:
    """Return the outcomes of changes that are requested at once."""
    outcomes: list[Any] = []
    for members in steps:
        table.groups["a"].change_members(members, lambda index, failure: outcomes.append(failure))
    table.settle()
    return outcomes


D, E = "d#1", "e#1"
OLD = Members(("a#1", "b#1", "c#1"))
WITH_D, WITH_D_AND_E = Members(OLD.voters, (D,)), Members(OLD.voters, (D, E))


def test_s3_one_change_at_a_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.elect("a")
    assert change(table, WITH_D, WITH_D_AND_E) == [ProposalFailed.REFUSED, None]
    assert change(table, WITH_D_AND_E) == [None]
    monkeypatch.setattr(guards, "may_change", lambda *args, **more: True)
    assert change(table, WITH_D, OLD) == [None, None], "without the guard both changes run at once"


@pytest.mark.parametrize(
    "new",
    [
        Members((*OLD.voters, D)),  # a voter that was not a learner before
        Members(OLD.voters, (D, E)),  # two
        Members(OLD.voters[:1]),  # two
        Members(OLD.voters[1:]),  # the leader removes itself
        Members(OLD.voters, OLD.voters[:1]),  # both
        OLD,  # nothing
    ],
)
def test_s3_steps_that_are_none(table: Table, new: Members) -> None:
    table.elect("a")
    assert change(table, new) == [ProposalFailed.REFUSED]


def test_s3_not_before_the_no_op_of_the_term(table: Table) -> None:
    group = table.groups["a"]
    assert votes(table, "b")
    outcomes: list[Any] = []
    group.change_members(WITH_D, lambda index, failure: outcomes.append(failure))
    group.tick()
    assert outcomes == [ProposalFailed.REFUSED]


def test_s3_a_learner_is_promoted_once_it_has_caught_up() -> None:
    with Table(*ABC, learners=("d",)) as table:
        table.elect("a")
        promoted = Members((*OLD.voters, D))
        match = table.groups["a"]._core._SyncObj__raftMatchIndex
        for node in match:
            match[node] = 0
        assert change(table, promoted) == [ProposalFailed.REFUSED]
        table.heartbeat("a")
        table.settle()
        assert change(table, promoted) == [None]
        assert table.groups["d"].members == promoted


def test_s3b_the_configuration_is_rebuilt_from_the_log(table: Table) -> None:
    table.elect("a")
    assert change(table, WITH_D) == [None]
    journal = table.groups["b"].journal
    again = table.start("b", list(journal), term=1)
    assert again.members == WITH_D


def test_s3b_a_truncated_change_is_undone(table: Table) -> None:
    table.send("a", "b", wire.APPEND, 1, 1, 1, 0, (entry(2, 1, b"\2" + WITH_D.encode()),), 1)
    assert table.groups["b"].members == WITH_D
    table.send("c", "b", wire.APPEND, 2, 1, 1, 0, (entry(2, 2, NO_OP),), 1)
    assert table.groups["b"].members == OLD


# -- S4 ---------------------------------------------------------------------------------------------------------------


def stale_ack(table: Table) -> int:
    """The answer of b to the leader of an older term comes late. Return the commit index of the leader."""
    group = table.elect("a")
    table.elect("c")
    group = table.elect("a")
    for _ in range(5):
        group.propose(b"x", lambda index, failure: None)
    group.tick()
    table.queue.clear()
    table.send("b", "a", wire.ACK, 1, group.journal.last_index + 1, False, True, 1)
    group.tick()
    return group.commit_index - group.term_start


def test_s4_an_answer_of_an_older_term_counts_for_nothing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stale_ack(table) == 0
    monkeypatch.setattr(guards, "is_of_term", lambda *args: True)
    with Table(*ABC) as other:
        assert stale_ack(other) > 0, "without the guard the leader commits entries that no other member has"


def test_s4_match_index_is_at_most_the_last_index(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    group = table.elect("a")
    table.send("b", "a", wire.ACK, 1, 999, False, True, 99)
    assert group.match_index("b#1") == group.journal.last_index
    monkeypatch.setattr(guards, "within_log", lambda next_index, last: next_index)
    table.send("b", "a", wire.ACK, 1, 999, False, True, 99)
    assert group.match_index("b#1") == 998


# -- S5, S8 -----------------------------------------------------------------------------------------------------------


def test_s5_a_sign_of_life_commits_nothing(table: Table) -> None:
    filled(table)
    table.send("c", "b", wire.ALIVE, 5, 1, False)
    table.tick("b")
    assert table.groups["b"].commit_index == 1
    assert table.groups["b"].term == 5
    # The library's own message, which `ALIVE` replaces:
    message = {"type": "append_entries", "term": 5, "commit_index": 9, "serialized": None}
    table.groups["b"]._message_filter._deliver("c#1", message)
    assert table.groups["b"].commit_index == 9, "an unverified tail is committed"


def going_back(table: Table) -> int:
    """A late heartbeat whose commit index is below the committed entries."""
    filled(table)
    table.send("a", "b", wire.APPEND, 1, 10, 10, 1, (), 2)
    table.tick("b")
    table.send("a", "b", wire.APPEND, 1, 3, 3, 1, (), 3)
    return table.groups["b"].commit_index


def test_s8_commit_index_never_decreases(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert going_back(table) == 10
    monkeypatch.setattr(guards, "never_back", lambda before, commit: commit)
    with Table(*ABC) as other:
        assert going_back(other) < 10


# -- S6, S7, S9, S10 --------------------------------------------------------------------------------------------------


def test_s6_the_librarys_snapshots_are_out_of_reach(table: Table) -> None:
    core = table.groups["b"]._core
    table.groups["b"]._message_filter._deliver(
        "a#1", {"type": "append_entries", "term": 1, "commit_index": 0, "serialized": (b"junk", True, True)}
    )
    assert not table.messages(wire.ACK), "a snapshot that cannot be loaded must not be answered like a loaded snapshot"
    assert core._SyncObj__serializer.setTransmissionData(b"") is False


def test_s7_term_and_vote_are_records_before_the_vote_is_sent(table: Table) -> None:
    table.send("a", "b", wire.VOTE_REQUEST, 3, 1, 0, False)
    assert table.messages(wire.VOTE)
    records = table.groups["b"].journal._records
    assert [(record[3], record[4]) for record in records if record[0] == 4][-1] == (3, b"\xa3a#1")


@pytest.mark.parametrize(
    "message",
    [
        {"type": "apply_command", "command": b""},
        (9, GROUP, 1, 1, 1),
        (wire.APPEND, GROUP, 1, 1, 1, 1, 1, 0, ((b"\3pickle", 2, 1),), 1),
        (wire.APPEND, GROUP, 1, 1, 1, 1, 1, 0, ((b"", 2, 1),), 1),
        (wire.APPEND, GROUP, 1, 1, 1, 1, 1, 0, ((b"\0x", 3, 1),), 1),
        (wire.APPEND, GROUP, 1, 1, 1, 1, 1, 0, ((b"\2junk", 2, 1),), 1),
        (wire.APPEND, GROUP, 1, 1, 1, 1, 1, 0, ((b"\0x", 2),), 1),
        (wire.APPEND, GROUP, 1, 1, -1, 1, 1, 0, (), 1),
        (wire.APPEND, GROUP, 1, 1, True, 1, 1, 0, (), 1),
        (wire.ACK, GROUP, 1, 1, 1, 1, 0, True, 1),
        (wire.ACK, GROUP, 1, 1, 1 << 63, 1, False, True, 1),
        (wire.VOTE, GROUP, 1, 1),
        (wire.VOTE,),
        None,
    ],
)
def test_s10_nothing_else_goes_on_to_the_library(message: Any) -> None:
    with pytest.raises((ValueError, TypeError, Corruption)):
        wire.check(message)


# -- L1, L2, L3, L4 ---------------------------------------------------------------------------------------------------


def lagging(table: Table) -> int:
    """The leader's log no longer reaches back to a follower. Return the number of messages that one tick sends."""
    group = table.elect("a")
    for _ in range(20):
        group.propose(b"x", lambda index, failure: None)
    table.settle()
    group.journal.truncate_below(15)
    table.queue.clear()
    group._core._SyncObj__raftNextIndex = dict.fromkeys(group._core._SyncObj__raftNextIndex, 5)
    table.heartbeat("a")
    return len([message for _, to, message in table.queue if to == "b"])


def test_l1_without_data_a_snapshot_is_one_message(table: Table) -> None:
    assert lagging(table) <= 2
    assert table.groups["a"].lagging == {"b#1", "c#1"}
    assert {message[0] for _, _, message in table.queue} == {wire.ALIVE}


def test_l1_it_is_not_sent_to_and_fro(table: Table) -> None:
    lagging(table)
    table.settle()  # answers of lagging members cause no message before the next heartbeat


def resets(table: Table) -> int:
    """Three messages were in flight when the follower lost its place, so three resets arrive. Return the number of
    counted resets."""
    group = table.elect("a")
    for _ in range(6):
        group.propose(b"x", lambda index, failure: None)
        group.tick()
    sent = [m[-1] for _, to, m in table.messages(wire.APPEND) if to == "b"][-3:]
    table.queue.clear()
    counted = 0
    for seq in sent:
        table.send("b", "a", wire.ACK, 1, 2, True, False, seq)
        group.tick()
        counted += bool(table.messages(wire.APPEND))
        table.queue.clear()
    return counted


def test_l2_replies_from_before_a_reset_are_ignored(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resets(table) == 1
    monkeypatch.setattr(guards, "is_fresh_reset", lambda *args: True)
    with Table(*ABC) as other:
        assert resets(other) == 3, "without the guard the log is sent again and again"


def rounds(table: Table) -> int:
    """Return the number of heartbeats until a follower with 40 entries of another term has the leader's log."""
    group = table.elect("a")
    for _ in range(60):
        group.propose(b"x", lambda index, failure: None)
    table.settle(only_to=("a", "c"))
    table.queue.clear()
    table.start("b", [entry(1, 0, NO_OP), *[entry(index, 0) for index in range(2, 42)]])
    group.disconnected("b")
    group.connected("b")
    for beats in range(1, 60):
        table.heartbeat("a")
        table.settle()
        if log(table, "b") == log(table, "a"):
            return beats
    return 60


def test_l3_the_leader_goes_back_over_a_whole_term_at_once(table: Table) -> None:
    assert rounds(table) <= 2


def test_l3_the_index_that_is_asked_for(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = table.start("b", [entry(1, 0), entry(2, 1), entry(3, 1), entry(4, 2), entry(5, 2)]).journal
    assert guards.conflict_start(journal, 5, 1) == 4
    assert guards.conflict_start(journal, 3, 1) == 2
    assert guards.conflict_start(journal, 3, 2) == 3, "never below the committed entries"
    assert guards.conflict_start(journal, 9, 1) == 9


def needs_snapshot(table: Table) -> bool:
    """The leader a has truncated its log up to 10. b has the same log up to 12, and then a lost tail of the same
    term."""
    kept = [entry(index, 1) for index in range(10, 13)]
    table.start("a", [*kept, entry(13, 2)], term=2, applied=10)
    table.start("c", [*kept, entry(13, 2)], term=2, applied=10)
    own = [entry(1, 0), *[entry(index, 1) for index in range(2, 16)]]
    table.start("b", own, term=1, applied=4)
    group = table.elect("a")
    for _ in range(4):
        table.heartbeat("a")
        table.settle()
    assert group.lagging or log(table, "b")[-1] == log(table, "a")[-1]
    return bool(group.lagging)


def test_l3_kept_entries_are_tried_before_a_snapshot(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not needs_snapshot(table)
    monkeypatch.setattr(guards, "kept_start", lambda tried, peer, next_index, first: next_index)
    with Table(*ABC) as other:
        assert needs_snapshot(other)


@pytest.mark.parametrize("last", [4, 30])
def test_l3_a_snapshot_after_one_try(table: Table, last: int) -> None:
    """b's log ends below the first entry that the leader kept, or has different entries there.

    The leader tries once, not again.
    """
    kept = [entry(index, 2) for index in range(10, 13)]
    table.start("a", kept, term=2, applied=10)
    table.start("c", kept, term=2, applied=10)
    table.start("b", [entry(1, 0), *[entry(index, 1) for index in range(2, last)]], term=1, applied=2)
    group = table.elect("a")
    for _ in range(4):
        table.heartbeat("a")
        table.settle()
    assert group.lagging == {"b#1"}


def test_l4_batches_are_bounded_by_whole_entries(table: Table) -> None:
    group = table.elect("a")
    big = bytes(MAX_APPEND_BYTES // 2 + 1)
    for _ in range(4):
        group.propose(big, lambda index, failure: None)
    group.tick()
    sizes = [[len(e[0]) for e in m[8]] for _, to, m in table.messages(wire.APPEND) if to == "b"]
    assert [len(size) for size in sizes if size] == [2, 2]
    assert all(e[0][1:] == big for _, to, m in table.messages(wire.APPEND) for e in m[8] if len(e[0]) > 9)


# -- L5 ---------------------------------------------------------------------------------------------------------------


def back_from_an_island(table: Table) -> tuple[int, bool]:
    """Cut c off for a minute. Return the rise of the term, and whether a still leads."""
    group = table.elect("a")
    term = group.term
    for _ in range(60):
        table.now_s += 1
        table.tick("c")
        table.queue.clear()
        table.heartbeat("a")
        table.deliver(only_to=("b",))
        table.deliver(only_to=("a",))
    for _ in range(5):
        table.now_s += 0.2
        table.heartbeat("a")
        table.settle()
    return group.term - term, group.is_leader


def test_l5_isolated_member_does_not_depose_the_leader(table: Table) -> None:
    assert back_from_an_island(table) == (0, True)


def test_l5_without_the_votes_before(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandq.raft.elections import Election

    monkeypatch.setattr(Election, "_ask", lambda self, members: True)
    monkeypatch.setattr(guards, "leader_is_fresh", lambda *args: False)
    risen, _ = back_from_an_island(table)
    assert risen > 0, "without the guard a healthy leader is deposed"


def test_l5_deadline_within_a_tick_starts_no_election_without_earlier_votes(table: Table) -> None:
    """The library reads the clock once more than the guard does."""
    table.elect("a")
    table.heartbeat("a")
    table.settle()
    group = table.groups["c"]
    term, now_s = group.term, [table.now_s]

    def later() -> float:
        now_s[0] += 1.0
        return now_s[0]

    undo = replace_time(later, random.Random(1))
    try:
        for within_s in range(20):
            group._core._SyncObj__raftElectionDeadline = now_s[0] + within_s + 0.5
            group.tick()
    finally:
        undo()
    assert group.term == term
    assert table.messages(wire.VOTE_REQUEST) == []
    assert table.messages(wire.PRE_VOTE_REQUEST) != []


def test_votes_of_other_terms_are_not_remembered(table: Table) -> None:
    group = table.elect("a")
    for term in range(2, 200):
        table.send("b", "a", wire.VOTE, term + group.term)
        table.send("b", "a", wire.PRE_VOTE, term + 1 + group.term, True, 0)
    assert len(group._message_filter._votes) <= 3
    assert len(group._election.pre_votes) <= 3


def test_l5_member_with_a_leader_refuses_votes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.elect("a")
    table.heartbeat("a")
    table.settle()
    table.send("c", "b", wire.VOTE_REQUEST, 9, 99, 9, False)
    assert not table.messages(wire.VOTE)
    table.send("c", "b", wire.VOTE_REQUEST, 9, 99, 9, True)
    assert table.messages(wire.VOTE), "unless the leader requests it"
    monkeypatch.setattr(guards, "leader_is_fresh", lambda *args: False)
    table.queue.clear()
    table.send("a", "c", wire.VOTE_REQUEST, 10, 99, 9, False)
    assert table.messages(wire.VOTE)


def test_l5_deposed_leader_waits_before_the_next_candidacy(table: Table) -> None:
    group = table.elect("a")
    group._core._SyncObj__raftElectionDeadline = 0
    table.send("b", "a", wire.ALIVE, 7, 1, False)
    assert not group.is_leader
    assert group.deadline_s > table.now_s


def test_l5_a_leader_that_is_deposed_before_it_sends_again_wants_no_ticks(table: Table) -> None:
    """Once the member ran passes without a pause, with a whole core, until it led again."""
    group = table.elect("a")
    group.propose(b"x", lambda index, failure: None)
    group.tick()
    seq = next(m[-1] for _, to, m in table.messages(wire.APPEND) if to == "b")
    table.send("b", "a", wire.ACK, 1, 2, True, False, seq)
    assert group.has_more, "a message must be sent again"
    table.send("b", "a", wire.ALIVE, 7, 1, False)
    group.tick()
    assert not group.is_leader and not group.has_more


def test_a_member_of_a_higher_term_is_followed(table: Table) -> None:
    """A member with a raised term that was not elected would ignore all members, and all members would ignore it."""
    group = table.elect("a")
    table.groups["c"]._election.follow(9)
    table.heartbeat("a")
    table.settle()
    assert group.term == 9
    assert not group.is_leader
    table.elect("c")
    assert {g.term for g in table.groups.values()} == {10}


# -- L6, M1 -----------------------------------------------------------------------------------------------------------


def test_l6_pending_proposals_are_notified_when_leadership_is_lost(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = table.elect("a")
    outcomes: list[Any] = []
    group.propose(b"x", lambda index, failure: outcomes.append(failure))
    group.tick()
    table.now_s += LEADER_FALLBACK_S + 1
    group.tick()
    assert not group.is_leader
    assert outcomes == [ProposalFailed.UNKNOWN]


@pytest.fixture
def settling() -> Iterator[Table]:
    """Yield members that report the outcome of their proposals, also after they lost leadership."""
    with Table(*ABC, settles=True) as table:
        yield table


def proposed(group: Group, count: int) -> list[tuple[int | None, ProposalFailed | None]]:
    """Propose `count` commands on a leader. Return the list that gets the outcomes."""
    outcomes: list[tuple[int | None, ProposalFailed | None]] = []
    for number in range(count):
        group.propose(b"%d" % number, lambda index, failure: outcomes.append((index, failure)))
    group.tick()
    return outcomes


def test_l6_proposals_in_the_next_leaders_log_are_committed(settling: Table) -> None:
    group = settling.elect("a")
    outcomes = proposed(group, 2)
    settling.deliver(only_to=("b",))
    settling.queue.clear()  # no message reports that b has the entry
    settling.elect("b")
    settling.settle()
    assert not group.is_leader
    assert outcomes == [(3, None), (4, None)]


def test_l6_proposals_missing_at_the_next_leader_are_lost(settling: Table) -> None:
    group = settling.elect("a")
    outcomes = proposed(group, 3)
    settling.queue.clear()
    settling.groups["a"].disconnected("b")
    settling.groups["a"].disconnected("c")
    settling.elect("b")
    for name in "bc":
        settling.groups["a"].connected(name)
        settling.groups[name].connected("a")
    settling.heartbeat("b")
    settling.settle()
    assert not group.is_leader
    assert outcomes == [(None, ProposalFailed.LOST)] * 3, "also entries at indexes that are still empty"
    for name in ABC:
        assert b"\x000" not in [command for command, _, _ in settling.groups[name].journal]


def test_l6_change_of_members_is_reported_at_once(settling: Table) -> None:
    """The request comes from the cluster itself, which retries. It must not wait for a leader that may never come."""
    group = settling.elect("a")
    outcomes: list[ProposalFailed | None] = []
    group.change_members(Members(settling.members.voters, ("d#1",)), lambda index, failure: outcomes.append(failure))
    group.tick()
    settling.queue.clear()
    settling.send("b", "a", wire.ALIVE, 7, 1, False)
    assert outcomes == [ProposalFailed.UNKNOWN]


def test_l6_proposals_stay_open_without_a_leader(settling: Table) -> None:
    group = settling.elect("a")
    outcomes = proposed(group, 1)
    settling.queue.clear()
    settling.send("b", "a", wire.ALIVE, 7, 1, False)
    assert not group.is_leader and outcomes == []
    settling.elect("a")
    settling.settle()
    assert outcomes == [(3, None)], "the member leads again and still has the entry"


def test_m1_a_peer_that_does_not_answer_gets_a_window_and_signs_of_life(table: Table) -> None:
    group = table.elect("a")
    for _ in range(40):
        group.propose(bytes(MAX_APPEND_BYTES // 2), lambda index, failure: None)
        group.tick()
    on_the_way = sum(len(e[0]) for _, to, m in table.messages(wire.APPEND) if to == "b" for e in m[8])
    assert on_the_way <= transport_module.WINDOW_BYTES + MAX_APPEND_BYTES
    table.queue.clear()
    table.heartbeat("a")
    assert {m[0] for _, to, m in table.queue if to == "b"} == {wire.ALIVE}


def test_m1_the_window_opens_again(table: Table) -> None:
    group = table.elect("a")
    for _ in range(40):
        group.propose(bytes(MAX_APPEND_BYTES // 2), lambda index, failure: None)
        group.tick()
    table.settle()
    assert log(table, "b") == log(table, "a")
    assert group.commit_index == group.journal.last_index


def test_m1_without_the_window(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "WINDOW_BYTES", 1 << 40)
    with pytest.raises(AssertionError):
        test_m1_a_peer_that_does_not_answer_gets_a_window_and_signs_of_life(table)


def test_m1_member_that_cannot_apply_accepts_no_entries_and_stays_follower(table: Table) -> None:
    group = table.elect("a")
    table.takes["b"] = False
    for _ in range(4):
        group.propose(b"x", lambda index, failure: None)
        table.settle()
    assert table.groups["b"].journal.last_index < group.journal.last_index
    assert group.commit_index == group.journal.last_index
    table.takes["b"] = True
    table.heartbeat("a")
    table.settle()
    assert log(table, "b") == log(table, "a")
