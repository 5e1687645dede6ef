"""Tests of the log entries that a running snapshot transfer keeps, and of their release."""

from __future__ import annotations

from sandq.broker.replication.log_pin import PIN_BYTES, PIN_BYTES_MOST, LogPin, pin_bytes
from sandq.raft import GroupJournal, Members

ENTRY_BYTES = 100


def journal(entries: int) -> GroupJournal:
    """Entries 2 to `entries` + 1 of 100 bytes each, after the first entry of the log."""
    found = GroupJournal.create([], 1, Members(("n1#1",)))
    for index in range(2, entries + 2):
        found.add(bytes(ENTRY_BYTES), index, 1)
    return found


def test_pin_keeps_entries_after_the_snapshot_within_its_budget() -> None:
    lost: list[bool] = []
    pin = LogPin(10, 5 * ENTRY_BYTES, lambda: lost.append(True))
    assert pin.needed_from(journal(14), 0) == 10, "five entries after entry 10"
    assert not lost
    assert pin.needed_from(journal(15), 0) is None
    assert pin.is_lost
    assert pin.needed_from(journal(11), 0) is None, "a lost pin must stay lost"
    assert lost == [True]


def test_pin_advances_with_the_entries_sent_to_its_member() -> None:
    pin = LogPin(10, 5 * ENTRY_BYTES, lambda: None)
    assert pin.needed_from(journal(30), 27) == 27
    assert pin.needed_from(journal(33), 27) is None


def test_bytes_above_an_index_are_those_that_the_log_still_keeps() -> None:
    found = journal(20)
    found.truncate_below(15)
    assert [found.bytes_above(index) for index in (3, 14, 20, 21, 99)] == [601, 601, 100, 0, 0], (
        "the first entry is not sent"
    )


def test_pin_budget_doubles_up_to_a_limit() -> None:
    assert [pin_bytes(outrun) // PIN_BYTES for outrun in (0, 1, 2, 3, 60)] == [1, 2, 4, 4, 4]
    assert pin_bytes(60) == PIN_BYTES_MOST
