"""Tests of linearizable reads: a read is answered only after a majority has confirmed the leader since its request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandq.raft import wire
from sandq.raft.core import LEADER_FALLBACK_S
from tests.support.raft.table import Table


@pytest.fixture
def table() -> Iterator[Table]:
    with Table("a", "b", "c") as table:
        table.elect("a")
        yield table


def ask(table: Table, name: str = "a") -> list[int | None]:
    answers: list[int | None] = []
    table.groups[name].read_index(answers.append)
    return answers


def test_a_majority_confirms(table: Table) -> None:
    group = table.groups["a"]
    group.propose(b"x", lambda index, failure: None)
    table.settle()
    answers = ask(table)
    table.tick("a")
    assert answers == [], "no member has confirmed yet"
    table.deliver(only_to=("b",))
    table.deliver(only_to=("a",))
    table.tick("a")
    assert answers == [group.commit_index]


def test_replies_to_earlier_messages_do_not_confirm_a_read(table: Table) -> None:
    table.heartbeat("a")
    table.deliver()  # the answers are on the way
    answers = ask(table)
    table.tick("a")
    asked = table.messages(wire.APPEND)
    assert asked, "the leader asks at once"
    for sender, to, message in table.messages(wire.ACK):
        table.groups[to].receive(sender, message)
    table.groups["a"].tick()
    assert answers == []
    table.settle()
    assert len(answers) == 1


def test_one_round_confirms_all_pending_reads(table: Table) -> None:
    first, second = ask(table), ask(table)
    table.tick("a")
    sent = len(table.messages(wire.APPEND))
    assert sent == 2, "one message to each"
    table.settle()
    assert len(first) == len(second) == 1


def test_a_deposed_leader_answers_nothing(table: Table) -> None:
    answers = ask(table)
    table.tick("a")
    table.queue.clear()
    table.now_s += LEADER_FALLBACK_S + 1
    table.tick("a")
    assert answers == [None]
    assert ask(table, "b") == [None], "a follower does not answer either"


def test_read_waits_for_the_no_op_of_the_term(table: Table) -> None:
    """Before that, the leader may not know about entries that were acknowledged in the previous term."""
    table.queue.clear()
    other = table.groups["b"]
    for group in table.groups.values():
        group._message_filter.heard_s = 0.0
    other._core._SyncObj__raftElectionDeadline = 0
    while not other.is_leader:
        table.tick("b")
        table.deliver(drop=(wire.APPEND,))
    answers = ask(table, "b")
    for _ in range(3):
        table.tick("b")
        table.deliver(drop=(wire.APPEND,))
    assert answers == []
    other.disconnected("c")
    other.connected("c")
    table.heartbeat("b")
    table.settle()
    assert answers == [other.term_start]


def test_only_voter_answers_alone() -> None:
    with Table("a") as table:
        table.tick("a")
        table.tick("a")
        answers = ask(table)
        table.tick("a")
        assert answers == [table.groups["a"].commit_index]


def test_a_read_that_waits_for_answers_wants_no_ticks(table: Table) -> None:
    """Once a node with stalled peers ran passes without a pause until they answered."""
    leader = table.elect("a")
    table.heartbeat("a")
    table.settle()
    answers: list[int | None] = []
    leader.read_index(answers.append)
    assert leader.has_more, "a round must begin"
    leader.tick()
    assert not leader.has_more and not answers, "the peers must answer"
    table.deliver(only_to=("b", "c"))
    table.deliver(only_to=("a",))
    assert leader.has_more
    leader.tick()
    assert answers == [leader.commit_index] and not leader.has_more
