"""Tests of leases over many messages: ranges, bitmaps, partial acks, order, limits, and groups."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.model.errors import UnknownGroup
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base.rows import Range
from sandq.partition.groups.lease_table import ENDED_LEASES
from sandq.partition.log import trim
from tests.support.lease_tokens import token_parts
from tests.support.partition.bench import Bench, T


def test_messages_come_in_the_order_of_their_times(bench: Bench) -> None:
    bench.open()
    bench.append("c", "a", "b", due=[300, 100, 200])
    bench.append("now")
    assert bench.values(bench.lease(at=0)) == ["now"]
    assert bench.values(bench.lease(at=500)) == ["a", "b", "c"]


def test_a_batch_is_leased_in_slices(bench: Bench) -> None:
    bench.open()
    base, _ = bench.append(*"abcdefg")
    first, second = bench.one(limit=3), bench.one(limit=2, consumer="d")
    assert (first.ranges, second.ranges) == ([Range(base, 3)], [Range(offsets.shift(base, 3), 2)])
    bench.restart()
    assert bench.values(bench.lease()) == ["f", "g"]


def test_grants_of_one_command_get_tokens_that_rise(bench: Bench) -> None:
    bench.open()
    bench.append(*"abcd")
    leases = bench.apply(1, c.Lease("g", T + 1, (c.Grant("x", 1, 1000), c.Grant("y", 2, 1000), c.Grant("x", 1, 1000))))[
        0
    ]
    assert [(lease.consumer, bench.values([lease])) for lease in leases] == [
        ("x", ["a"]),
        ("y", ["b", "c"]),
        ("x", ["d"]),
    ]
    assert [token_parts(lease.token) for lease in leases] == [(bench.index, place) for place in range(3)]


def test_positions_run_across_the_batches_of_one_entry(bench: Bench) -> None:
    from sandq.model.batch import encode

    bench.open()
    one, two = bench.apply(0, c.Append(encode({1: [b"a", b"b"]})), c.Append(encode({1: [b"c"]})))
    assert offsets.distance(one[0], two[0]) == 2
    assert bench.values(bench.lease()) == ["a", "b", "c"]


def test_acks_by_range_offset_and_bitmap(bench: Bench) -> None:
    bench.open()
    base, _ = bench.append(*"abcdefgh")
    lease = bench.one()
    assert bench.ack(lease.token, [[base, 2], [offsets.shift(base, 7), 1]]) is None
    assert bench.ack(lease.token, [[offsets.shift(base, 2), bytes([0b101])]]) is None
    assert bench.values([lease]) == list("abcdefgh")
    bench.expire(at=30_001)
    again = bench.one(at=40_000)
    assert bench.values([again]) == ["d", "f", "g"]
    assert [r.length for r in again.ranges] == [1, 2]


def test_ack_range_with_foreign_messages_reports_only_these_as_lost(bench: Bench) -> None:
    bench.open()
    base, _ = bench.append(*"abcdefgh")
    for place in (0, 3, 6):
        bench.cancel(offsets.shift(base, place))
    lease = bench.one()
    assert bench.ack(lease.token, [[base, 9]]) == [[offsets.shift(base, place), 1] for place in (0, 3, 6, 8)]
    assert not lease.live


def test_ack_reports_foreign_ranges_as_lost_and_does_the_rest(bench: Bench) -> None:
    bench.open()
    base, _ = bench.append(*"ab")
    lease = bench.one()
    foreign = offsets.shift(base, 2)
    assert bench.ack(lease.token, [[foreign, 1], [base, 1], [offsets.shift(base, 1), 2]]) == [
        [foreign, 1],
        [foreign, 1],
    ]
    assert bench.state_of(base) == "acked"
    assert bench.state_of(offsets.shift(base, 1)) == "acked"


def test_ack_of_whole_lease_covers_messages_that_were_not_nacked(bench: Bench) -> None:
    bench.open()
    base, _ = bench.append(*"abc")
    lease = bench.one()
    bench.nack(lease.token, [[base, 1]], delay=5000)
    assert bench.ack(lease.token) is None
    assert [bench.state_of(offsets.shift(base, n)) for n in range(3)] == ["waiting", "acked", "acked"]
    assert bench.ack(lease.token) is None, "a repeated ack gets the same answer"


def test_messages_not_begun_are_ready_without_counting_an_attempt(bench: Bench) -> None:
    bench.open()
    base, _ = bench.append(*"abc")
    lease = bench.one()
    rest = [[offsets.shift(base, 1), 2]]
    assert bench.apply(1, c.Nack([(lease.token, rest, None, None, False)]))[0] == [None]
    again = bench.one(at=1)
    assert (bench.values([again]), again.attempt) == (["b", "c"], 1)
    assert bench.apply(2, c.Nack([(lease.token, rest, None, None, False)]))[0] == [rest], (
        "the messages belong to another lease now"
    )
    assert bench.ack(lease.token, [[base, 1]], at=2) is None, "the begun message is still held"
    bench.nack(again.token, delay=0, at=2)
    assert bench.one(at=2).attempt == 2, "and a nack counts as an attempt"
    assert bench.status().groups[0].waiting == 0


def test_repeated_acks_are_remembered_for_a_bounded_number_of_leases(bench: Bench) -> None:
    bench.open()
    tokens = []
    for _ in range(ENDED_LEASES + 1):
        bench.append("m")
        tokens.append(bench.one().token)
        bench.ack(tokens[-1])
    assert bench.ack(tokens[0]) == []
    assert bench.ack(tokens[1]) is None
    assert len(bench.rows(b"l")) == len(bench.rows(b"a")) == ENDED_LEASES


def test_messages_with_one_number_of_attempts_share_a_lease(bench: Bench) -> None:
    bench.open()
    bench.append(*"abc")
    first = bench.one(limit=2)
    for offset in (first.ranges[0].base, offsets.shift(first.ranges[0].base, 1)):
        bench.nack(first.token, [[offset, 1]], delay=0)
    second, third = bench.lease()
    assert (second.attempt, bench.values([second])) == (2, ["a", "b"])
    assert (third.attempt, bench.values([third])) == (1, ["c"])


def test_a_waiting_entry_is_split_by_the_limit(bench: Bench) -> None:
    bench.open()
    bench.append(*"abcd")
    bench.nack(bench.one().token, delay=0)
    assert bench.values([bench.one(limit=1)]) == ["a"]
    bench.restart()
    assert bench.values([bench.one(limit=2)]) == ["b", "c"]
    assert bench.values([bench.one()]) == ["d"]


def test_backoff_counts_from_the_settings() -> None:
    bench = Bench(max_attempts=None, backoff={"kind": "exponential", "first": "1s", "cap": "3s", "jitter_percent": 0})
    bench.open()
    bench.append("m")
    at = 0
    for delay in (1000, 2000, 3000, 3000):
        bench.nack(bench.one(at=at).token, at=at)
        assert bench.lease(at=at + delay - 1) == []
        at += delay


def test_groups_are_independent(bench: Bench) -> None:
    bench.open("g")
    bench.open("h")
    bench.append("m")
    bench.ack(bench.one(group="g").token)
    bench.trim()
    assert bench.status().messages == 1
    assert bench.values(bench.lease(group="h")) == ["m"]


def test_latest_starts_after_ready_and_before_delayed_messages(bench: Bench) -> None:
    bench.append("old", "later", due=[0, 500])
    bench.append("older")
    bench.open("late", start="latest", at=10)
    bench.append("new", at=10)
    assert bench.values(bench.lease(group="late", at=10)) == ["new"]
    assert bench.values(bench.lease(group="late", at=500)) == ["later"]


def test_opening_a_group_again_changes_nothing(bench: Bench) -> None:
    bench.append("m")
    assert bench.open("g") == bench.open("g", start="latest")
    assert bench.values(bench.lease()) == ["m"]


def test_an_unknown_group_is_refused_and_the_rest_of_the_entry_is_applied(bench: Bench) -> None:
    from sandq.model.batch import encode

    refused, stored = bench.apply(0, c.Lease("nobody", T, (c.Grant("c", 1, 1000),)), c.Append(encode({1: [b"m"]})))
    assert isinstance(refused, UnknownGroup)
    assert stored[1] == 1


def test_without_groups_messages_stay(bench: Bench) -> None:
    bench.append("m")
    assert bench.status().upkeep_ms is None
    bench.upkeep(at=10_000_000)
    assert bench.status().messages == 1


def test_acked_message_is_kept_without_delete_on_ack() -> None:
    bench = Bench(delete_on_ack=False)
    bench.open()
    bench.append("m")
    bench.ack(bench.one().token)
    assert bench.machine.trim_schedule.due_ms is None
    bench.upkeep(at=10_000_000)
    assert bench.status().messages == 1


def test_trimming_is_bounded_and_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "TRIM_ROWS", 2)
    bench.open()
    for _ in range(5):
        bench.append("m")
    bench.ack(bench.one().token)
    assert bench.machine.trim_schedule.due_ms == T
    bench.upkeep()
    assert bench.status().messages == 3
    bench.restart()
    assert bench.machine.trim_schedule.due_ms == T
    bench.trim()
    assert bench.status().messages == 0
    due_ms = bench.machine.trim_schedule.due_ms
    assert due_ms is None


def test_a_large_delayed_message_is_kept_apart_and_leaves_with_its_row(bench: Bench) -> None:
    bench.open()
    bench.append("x" * 10_000, due=[100])
    assert len(bench.rows(b"p")) == 1
    assert len(bench.rows(b"m")[0][1]) < 64
    lease = bench.one(at=100)
    assert bench.values([lease]) == ["x" * 10_000]
    bench.ack(lease.token, at=101)
    bench.trim(at=101)
    assert bench.rows(b"p") == bench.rows(b"m") == []
    assert bench.status().bytes == 0


def test_a_group_with_too_many_gaps_stops_and_says_why() -> None:
    bench = Bench(ordering="key")  # with key order, all waiting messages are in memory
    bench.open()
    count = FIXED.max_gaps + 2
    for start in range(0, count, 1000):
        bench.append(*(["m"] * min(1000, count - start)))
    while leases := bench.lease(limit=1000):
        for lease in leases:
            what = [[offset, 1] for base, length in lease.ranges for offset in offsets.run(base, length)]
            bench.apply(0, c.Nack([(lease.token, [one], 60_000, None) for one in what]))
    bench.append("new")
    assert bench.lease() == []
    reason = bench.status().groups[0].paused
    assert reason is not None and "wait for another attempt" in reason
    retried = bench.lease(at=60_000, limit=1000)
    assert retried[0].attempt == 2, "waiting messages are still leased"


def test_a_consumer_holds_a_bounded_number_of_leases(bench: Bench) -> None:
    bench.open()
    granted = 0
    for _ in range(11):
        bench.append(*(["m"] * 1000))
        grants = (c.Grant("c", 1, 30_000),) * 1000
        granted += len(bench.apply(0, c.Lease("g", T, grants))[0])
    assert granted == FIXED.leases_per_consumer
    assert bench.lease(consumer="other") != []


def test_an_index_that_was_applied_changes_nothing(bench: Bench) -> None:
    bench.open()
    bench.append("m")
    before = bench.stores.scan(b"\x00", b"\xff")
    bench.index -= 1
    entry = c.Entry(T + 99, [c.Expire()])
    assert bench.machine.apply(bench.index, entry, bench.view) == []
    assert bench.view.drain() == []
    assert bench.stores.scan(b"\x00", b"\xff") == before


def test_a_stamp_that_goes_back_is_not_followed(bench: Bench) -> None:
    bench.open()
    bench.append("a", at=1000)
    base, _ = bench.append("b", at=10)
    assert offsets.deliver_ms(base) == T + 1000
    assert bench.lease(at=10) == [], "by the leader's clock the message is not due"
    assert bench.values(bench.lease(at=1000)) == ["a", "b"]


def test_relative_delays_count_from_the_stamp(bench: Bench) -> None:
    column = bench.append("now", "later", at=500, due=[0, 250], relative=True)
    assert [offsets.deliver_ms(column[at : at + 16]) for at in (0, 16)] == [T + 500, T + 750]


@pytest.mark.parametrize("at_ms", [offsets.U48_MAX, 253_402_300_799_000])
def test_latest_delivery_times_are_accepted(bench: Bench, at_ms: int) -> None:
    column = bench.append("m", due=[at_ms - T])
    assert offsets.deliver_ms(column) == at_ms


def test_part_may_cross_consecutive_ranges(bench: Bench) -> None:
    """Scheduled messages of one millisecond have separate rows and ranges, but their offsets are consecutive."""
    bench.open()
    column = bench.append(*"abcdef", due=[5, 5, 9, 5, 5, 5])
    lease = bench.one(at=10)
    assert [r.length for r in lease.ranges] == [1] * 6
    a, d = column[:16], column[48:64]
    assert bench.ack(lease.token, [[a, 2], [d, bytes([0b101])]], at=10) is None
    assert [bench.state_of(column[at : at + 16]) for at in range(0, 96, 16)] == [
        "acked", "acked", "leased", "acked", "leased", "acked"
    ]  # fmt: skip
    # Places 0 to 5 of that millisecond. Place 2 is not part of this range.
    lost = bench.ack(lease.token, [[a, 6]], at=10)
    assert lost == [[offsets.shift(a, 2), 1]]
    assert bench.state_of(column[64:80]) == "acked"
    assert bench.state_of(column[32:48]) == "leased"
