"""Tests of the ledger: bounds decrease only after partitions confirm, and increase before they are sent."""

from __future__ import annotations

from sandq.model.group_limits import GroupLimit
from sandq.model.limits import FIXED
from sandq.partition.limits.allowance import fresh
from sandq.partition.limits.ledger import Confirmed, Ledger, Member, Share

NOW_US = 1_000_000_000


def ledger_of(partitions: int = 1, most: int | None = 10, burst: int | None = None) -> Ledger:
    interval_us = None if burst is None else 1000
    return Ledger(fresh(GroupLimit(1, partitions, most, interval_us, burst), True))


def test_single_partition_has_the_whole_limit() -> None:
    ledger = ledger_of(1)
    assert (ledger.own.in_flight, ledger.own.available(4, NOW_US, 100)) == (10, 6)


def test_nothing_is_available_before_every_partition_confirmed() -> None:
    ledger = ledger_of(3)
    assert (ledger.own.available(0, NOW_US, 100), ledger.unheard()) == (0, [1, 2])
    assert ledger.confirm([Confirmed(1, 0, 4, 0)], NOW_US) == {1}
    assert ledger.share_out([(1, 6, 0)], 0, 7, NOW_US) == {1}
    assert ledger.shares[1].in_flight == ledger.own.available(0, NOW_US, 100) == 0
    ledger.confirm([Confirmed(2, 0, 0, 0)], NOW_US)
    # The first partition had four messages in flight before. So six may be there and four here.
    assert ledger.own.available(0, NOW_US, 100) == 4
    ledger.share_out([], 0, 8, NOW_US)
    assert (ledger.shares[1].in_flight, ledger.shares[1].version) == (6, 8)


def test_slots_in_use_are_shared_out_when_they_become_free() -> None:
    ledger = ledger_of()
    ledger.share_out([(1, 8, 0)], 5, 7, NOW_US)
    share = ledger.shares[1]
    assert (share.target, share.in_flight, share.held, share.version, share.confirmed) == (8, 5, 5, 7, False)
    assert ledger.own.in_flight == 2, "slots for the other partition stay reserved"
    assert ledger.share_out([(1, 8, 0)], 2, 8, NOW_US) == set(), "the partition has not confirmed the five slots yet"
    ledger.confirm([Confirmed(1, 7, 5, 0)], NOW_US)
    ledger.share_out([], 2, 9, NOW_US)
    assert (ledger.shares[1].in_flight, ledger.shares[1].held) == (8, 8)


def test_revoked_slots_count_until_the_partition_confirms() -> None:
    ledger = ledger_of()
    ledger.share_out([(1, 8, 0)], 0, 7, NOW_US)
    ledger.confirm([Confirmed(1, 7, 8, 0)], NOW_US)
    ledger.share_out([(1, 2, 0)], 0, 8, NOW_US)
    assert (ledger.shares[1].in_flight, ledger.shares[1].held, ledger.own.in_flight) == (2, 8, 2)
    assert ledger.confirm([Confirmed(1, 7, 0, 0)], NOW_US) == set(), "this report is older than the new share"
    ledger.confirm([Confirmed(1, 8, 5, 0)], NOW_US)
    assert (ledger.shares[1].held, ledger.own.in_flight) == (5, 5)
    ledger.confirm([Confirmed(1, 8, 1, 0)], NOW_US)
    assert (ledger.shares[1].held, ledger.own.in_flight) == (2, 8)


def test_units_of_a_rate_are_shared_with_their_debt() -> None:
    ledger = ledger_of(most=None, burst=4)
    ledger.own.serve(2, NOW_US)
    ledger.share_out([(1, 0, 2)], 0, 7, NOW_US)
    share = ledger.shares[1]
    assert (share.units, share.held_units, share.given_us) == (2, 2, 2000)
    assert ledger.own.available(0, NOW_US, 100) == 1
    ledger.confirm([Confirmed(1, 7, 0, 0)], NOW_US)
    ledger.share_out([(1, 0, 0)], 0, 8, NOW_US)
    assert (ledger.shares[1].held_units, ledger.own.part.units) == (2, 2)
    ledger.confirm([Confirmed(1, 8, 0, 4000)], NOW_US)
    assert ledger.own.part.units == 4
    assert ledger.own.available(0, NOW_US, 100) == 1, "the two returned units had been used meanwhile"


def test_units_owe_the_same_where_the_clock_is_another() -> None:
    """The clock of the other node is ahead or behind."""
    for there_us in (NOW_US + 3_600_000_000, NOW_US - 900_000_000):
        ledger = ledger_of(most=None, burst=4)
        ledger.own.serve(4, NOW_US)
        ledger.share_out([(1, 0, 4)], 0, 7, NOW_US)
        share, other = ledger.shares[1], fresh(ledger.limit, False)
        other.allow(7, 0, share.units, share.given_us, there_us)
        assert other.available(0, there_us, 100) == 0
        assert other.available(0, there_us + 1000, 100) == 1
        other.serve(1, there_us + 1000)
        other.allow(8, 0, 0, 0, there_us + 1000)
        ledger.confirm([Confirmed(1, 7, 0, 0)], NOW_US)
        ledger.share_out([(1, 0, 0)], 0, 8, NOW_US)
        ledger.confirm([Confirmed(1, 8, 0, other.returned_us)], NOW_US + 1000)
        assert [ledger.own.available(0, NOW_US + at, 100) for at in (1000, 1999, 2000, 5000)] == [0, 0, 1, 4]


def test_members_of_a_named_limit_get_shares_after_their_first_report() -> None:
    ledger = ledger_of(0)
    assert ledger.own.available(0, NOW_US, 100) == 10, "without members, the home keeps the limit"
    one, other = Member(5, 1, "g"), Member(6, 1, "g")
    assert ledger.join([one, other, one], 100) == [100, 101]
    assert ledger.join([other], 200) == []
    ledger.distribute()
    assert ledger.unheard() == [100, 101] and ledger.own.available(0, NOW_US, 100) == 0
    assert ledger.confirm([Confirmed(100, 0, 2, 0), Confirmed(101, 0, 0, 0), Confirmed(7, 0, 9, 0)], NOW_US) == {
        100,
        101,
    }
    assert ledger.share_out([(101, 10, 0), (7, 5, 0)], 0, 8, NOW_US) == {101}
    assert (ledger.shares[101].in_flight, ledger.status().given) == (8, (10, 0)), "the first member has two in flight"


def test_members_that_leave_return_their_units_with_a_debt() -> None:
    ledger = ledger_of(0, most=4, burst=4)
    ledger.join([Member(5, 1, "g")], 100)
    ledger.confirm([Confirmed(100, 0, 0, 0)], NOW_US)
    ledger.share_out([(100, 4, 3)], 0, 7, NOW_US)
    assert ledger.leave([100, 55], NOW_US) == [100]
    ledger.distribute()
    assert (ledger.own.in_flight, ledger.own.part.units, ledger.shares, ledger.members) == (4, 4, {}, {})
    assert ledger.own.available_units(NOW_US) == 1, "the three units may be used up"
    assert ledger.own.available_units(NOW_US + 4000) == 4


def test_number_of_members_is_limited() -> None:
    ledger = ledger_of(0)
    assert len(ledger.join([Member(at, 1, "g") for at in range(FIXED.limit_members + 9)], 100)) == FIXED.limit_members
    assert ledger_of(2).join([Member(5, 1, "g")], 100) == [], "the limits of a group have no members"


def test_free_messages_in_flight_are_shared_out_in_the_order_of_numbers() -> None:
    """A replica that has loaded its rows has the shares in another order than one that has applied all entries."""
    found = []
    for order in ((1, 2), (2, 1)):
        ledger = ledger_of(3, most=3)
        for partition in order:
            ledger.put(partition, Share(target=2))
        ledger.distribute()
        ledger.share_out([], 0, 7, NOW_US)
        found.append({partition: share.in_flight for partition, share in ledger.shares.items()})
    assert found == [{1: 2, 2: 1}, {1: 2, 2: 1}]


def test_lowered_limit_gives_nothing_until_enough_messages_are_settled() -> None:
    """Otherwise a partition could replace its settled messages, while more than the limit are in flight."""
    ledger = ledger_of(3, most=3)
    ledger.confirm([Confirmed(1, 0, 4, 0), Confirmed(2, 0, 1, 0)], NOW_US)
    ledger.share_out([(1, 2, 0), (2, 1, 0)], 0, 7, NOW_US)
    assert [ledger.shares[at].in_flight for at in (1, 2)] == [0, 0]
    ledger.confirm([Confirmed(1, 0, 2, 0)], NOW_US)
    ledger.share_out([], 0, 8, NOW_US)
    assert [ledger.shares[at].in_flight for at in (1, 2)] == [2, 1]
