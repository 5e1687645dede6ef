"""Under steady load no member has all committed entries. A member that is half a second behind has caught up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandq.raft.group import ROUND_S
from tests.support.raft.table import Table


@pytest.fixture
def table() -> Iterator[Table]:
    with Table("a", "b", "c", learners=("d",)) as table:
        table.elect("a")
        yield table


def write(table: Table, *only_to: str) -> None:
    """Commit one more entry. Only these members get it."""
    table.groups["a"].propose(b"x", lambda index, failure: None)
    table.settle(only_to=("a", *only_to))


def test_member_with_all_entries_has_caught_up(table: Table) -> None:
    assert table.groups["a"].has_caught_up("d#1")


def test_member_without_the_newest_commits_has_caught_up(table: Table) -> None:
    leader = table.groups["a"]
    table.now_s += ROUND_S
    table.tick("a")  # a round begins, up to the current commit index
    table.settle()
    write(table, "b", "c")
    assert leader.match_index("d#1") < leader.commit_index and leader.has_caught_up("d#1")


def test_member_that_stays_behind_has_not_caught_up(table: Table) -> None:
    leader = table.groups["a"]
    write(table, "b", "c")
    table.now_s += ROUND_S
    table.tick("a")
    assert not leader.has_caught_up("d#1")
    table.queue.clear()
    table.heartbeat("a")
    table.settle()
    assert leader.has_caught_up("d#1")


def test_old_round_requires_all_entries(table: Table) -> None:
    leader = table.groups["a"]
    write(table, "b", "c")
    table.now_s += ROUND_S
    assert not leader.has_caught_up("d#1"), "the last round is too old"
