"""Tests of the age of a member's knowledge: by the leader's last message, or by the members that the leader heard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandq.raft import wire
from tests.support.raft.table import Table


@pytest.fixture
def table() -> Iterator[Table]:
    with Table("a", "b", "c") as table:
        yield table


def ages(table: Table) -> list[float | None]:
    return [table.groups[name].age_s() for name in table.names]


def test_age_is_unknown_without_a_leader(table: Table) -> None:
    assert ages(table) == [None, None, None]


def test_informed_member_is_up_to_date_and_ages(table: Table) -> None:
    table.elect("a")
    table.heartbeat("a")
    table.settle()
    assert ages(table) == [0, 0, 0]
    table.now_s += 0.25
    assert ages(table) == [0.25, 0.25, 0.25]
    table.heartbeat("a")
    table.settle(only_to=("a", "b"))
    assert ages(table) == [0, 0, 0.25], "c got no message, but a majority answered"


def test_member_without_committed_entries_stays_old(table: Table) -> None:
    table.elect("a")
    table.heartbeat("a")
    table.settle()
    table.now_s += 1
    table.groups["a"].propose(b"x", lambda index, failure: None)
    table.settle(only_to=("a", "b"))
    assert table.groups["c"].age_s() == 1
    table.heartbeat("a")
    table.settle()
    assert table.groups["c"].age_s() == 0 and table.groups["c"].commit_index == table.groups["a"].commit_index


def test_age_at_new_leader_is_unknown_until_its_first_commit(table: Table) -> None:
    table.elect("a")
    table.heartbeat("a")
    table.settle()
    table.now_s += 0.25
    group = table.groups["b"]
    for other in table.groups.values():
        other._message_filter.heard_s = 0.0
    group._core._SyncObj__raftElectionDeadline = 0
    for _ in range(10):
        if not group.is_leader:
            table.deliver(drop=(wire.APPEND,), only_to=("b", "c"))
            table.tick("b", "c")
    assert group.is_leader
    table.queue.clear()
    assert group.age_s() is None, "the leader has committed nothing yet"
    table.heartbeat("b")
    table.deliver(only_to=("c",))
    assert table.groups["c"].age_s() == 0.25, "the commit index of a new leader may be too low"
    table.settle()
    table.heartbeat("b")
    table.settle()
    assert ages(table) == [0, 0, 0]


def test_deposed_leader_ages_from_its_last_contact(table: Table) -> None:
    leader = table.elect("a")
    table.heartbeat("a")
    table.settle()
    for _ in range(40):
        table.now_s += 0.25
        table.tick("a")
        table.queue.clear()
    assert not leader.is_leader
    assert leader.age_s() == 10, "not None, which means unknown"


def test_age_of_leader_counts_from_the_answered_request(table: Table) -> None:
    """The leader stood still and finds old answers. Meanwhile other leaders may have acknowledged writes."""
    leader = table.elect("a")
    table.heartbeat("a")
    table.settle()
    table.now_s += 1
    table.heartbeat("a")
    table.deliver(only_to=("b", "c"))
    table.now_s += 30
    table.deliver(only_to=("a",))
    assert leader.age_s() == 30
    leader.tick()
    assert (leader.age_s() or 0.0) >= 30


def test_age_of_follower_counts_from_the_arrival(table: Table) -> None:
    """Messages wait while a sync hangs."""
    table.elect("a")
    table.heartbeat("a")
    table.settle()
    came_s = table.now_s
    table.heartbeat("a")
    late = [(sender, message) for sender, to, message in table.messages(wire.APPEND, wire.ALIVE) if to == "c"]
    table.now_s += 60
    for sender, message in late:
        table.groups["c"].receive(sender, message, came_s)
    assert late and table.groups["c"].age_s() == 60
