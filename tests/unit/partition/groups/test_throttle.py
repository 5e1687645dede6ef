"""Tests of throttled messages: at most one message of a key in a window, and with both edges the newest at its end."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.limits import FIXED
from sandq.model.row_kinds import COMMON
from sandq.model.sequence import RESENT, sequence_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.groups.unique_keys import (
    ATTEMPTED,
    DELIVERED,
    HELD,
    IGNORED,
    REPLACES,
    STORED,
    Window,
    resolve_throttled,
)
from sandq.partition.log.appends import Stored
from tests.support.partition.bench import Bench, T, batch_of
from tests.support.partition.ranked_bench import RankedBench
from tests.unit.partition.test_clock_reset import YEAR, set_back

WINDOW_MS = 1000
BY_NAME = (c.TARGET_KEY, b"k")


@pytest.fixture(params=[False, True], ids=["in memory", "from rows"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """A partition with a group. `from rows`: it is loaded again before every entry."""
    bench = Bench(dedup_window="0s")
    bench.open()
    bench.restarts = request.param
    return bench


def leading(bench: Bench, value: str, at: int, window: int = WINDOW_MS, **columns: Any) -> Stored:
    return bench.send(value, unique=["k"], at=at, on_conflict=c.THROTTLE, span=window, **columns)


def both(bench: Bench, value: str, at: int, window: int = WINDOW_MS, **columns: Any) -> Stored:
    return bench.send(value, unique=["k"], at=at, on_conflict=c.THROTTLE_BOTH, span=window, **columns)


def due(stored: Stored) -> int:
    """Return the delivery time of the only message, in ms after T."""
    return offsets.deliver_ms(stored.offsets) - T


def outcome_of(stored: Stored) -> Any:
    """Return the outcome of the only message."""
    assert stored.refused == [] and stored.outcomes is not None and len(stored.outcomes) <= 1
    return stored.outcomes[0][1:] if stored.outcomes else None


def key_row(bench: Bench) -> Any:
    row = bench.view.get(rows.UNIQUE + b"k")
    return None if row is None else rows.unpack(row)


@pytest.mark.parametrize(
    ("rule", "start", "now", "is_free", "resolution", "new_start"),
    [
        (c.THROTTLE, 5000, 5000, True, IGNORED, 5000),
        (c.THROTTLE, 5000, 5999, True, IGNORED, 5000),
        (c.THROTTLE, 5000, 6000, True, STORED, 6000),
        (c.THROTTLE, 5000, 4000, True, IGNORED, 5000),  # a message of THROTTLE_BOTH waits for the end of a window
        (c.THROTTLE, 5000, 3999, True, IGNORED, 3999),  # a wrong clock has set the start
        (c.THROTTLE_BOTH, 5000, 5000, True, STORED, 6000),
        (c.THROTTLE_BOTH, 5000, 5999, False, STORED, 6000),
        (c.THROTTLE_BOTH, 5000, 6000, True, STORED, 6000),
        (c.THROTTLE_BOTH, 5000, 4999, True, REPLACES, 5000),
        (c.THROTTLE_BOTH, 5000, 3000, True, REPLACES, 4000),
        (c.THROTTLE_BOTH, 5000, 4999, False, STORED, 5999),
        (c.THROTTLE_BOTH, offsets.U48_MAX, offsets.U48_MAX, True, STORED, offsets.U48_MAX),
    ],
)
def test_throttled_message_is_resolved_by_its_window(
    rule: int, start: int, now: int, is_free: bool, resolution: int, new_start: int
) -> None:
    command = c.Append(b"", on_conflict=rule, span_ms=WINDOW_MS)
    found = resolve_throttled(Window(start, WINDOW_MS), command, now, is_free=is_free)
    assert found == (resolution, new_start)


# -- the leading edge ---------------------------------------------------------------------------------------------


def test_one_message_in_a_window_is_stored(bench: Bench) -> None:
    first = leading(bench, "a", 0)
    assert outcome_of(first) is None
    ignored = leading(bench, "b", 400)
    assert (ignored.offsets, outcome_of(ignored)) == (first.offsets, ("ignored", "ready"))
    assert bench.values(bench.lease(at=500)) == ["a"]
    assert outcome_of(leading(bench, "c", 999)) == ("ignored", "leased")
    late = leading(bench, "d", 1000)
    assert (due(late), outcome_of(late)) == (1000, None)  # dedup_window is zero, so the key is free
    assert bench.values(bench.lease(at=1000)) == ["d"]


def test_pending_message_of_an_earlier_window_stays_by_its_id(bench: Bench) -> None:
    first = leading(bench, "a", 0)
    second = leading(bench, "b", 5000)
    assert outcome_of(second) == ("stored", "ready")
    assert bench.cancel(BY_NAME, at=5001) == ("cancelled", second.offsets)
    assert bench.state_of(first.offsets) == "ready"
    assert bench.values(bench.lease(at=5002)) == ["a"]


def test_window_counts_from_the_send_and_not_from_the_delivery(bench: Bench) -> None:
    leading(bench, "a", 0, due=[800], relative=True)
    assert outcome_of(leading(bench, "b", 999)) == ("ignored", "ready")
    assert due(leading(bench, "c", 1000, due=[800], relative=True)) == 1800


def test_each_call_has_its_own_window(bench: Bench) -> None:
    leading(bench, "a", 0, window=10_000)
    assert outcome_of(leading(bench, "b", 500)) == ("ignored", "ready")
    assert outcome_of(leading(bench, "c", 1000)) == ("stored", "ready")
    assert outcome_of(leading(bench, "d", 2500, window=10_000)) == ("ignored", "ready")


@pytest.mark.parametrize("window", ["0s", "1m"])
def test_row_of_a_delivered_message_stays_until_both_windows_end(window: str) -> None:
    bench = Bench(dedup_window=window)
    bench.open()
    first = leading(bench, "a", 0)
    assert key_row(bench) == [HELD, first.offsets, None, T, WINDOW_MS, None]
    bench.ack(bench.one(at=600).token, at=601)
    until_ms = T + (WINDOW_MS if window == "0s" else 60_600)
    assert key_row(bench) == [DELIVERED, first.offsets, None, T, WINDOW_MS, until_ms]
    bench.apply(700, c.Upkeep())
    ignored = leading(bench, "b", 999)
    assert (ignored.offsets, outcome_of(ignored)) == (first.offsets, ("ignored", "delivered"))
    bench.apply(until_ms - T, c.Upkeep())
    assert key_row(bench) is None


def test_lease_after_the_window_leaves_no_row(bench: Bench) -> None:
    leading(bench, "a", 0)
    bench.one(at=1000)
    assert key_row(bench) is None
    assert outcome_of(leading(bench, "b", 1001)) is None


def test_second_group_leaves_the_window_as_it_is(bench: Bench) -> None:
    bench.open("h")
    first = leading(bench, "a", 0)
    bench.one(at=100)
    assert key_row(bench) == [ATTEMPTED, first.offsets, None, T, WINDOW_MS, None]
    assert outcome_of(leading(bench, "b", 200)) == ("ignored", "leased")
    bench.one(at=300, group="h")
    assert key_row(bench) == [DELIVERED, first.offsets, None, T, WINDOW_MS, T + WINDOW_MS]
    assert outcome_of(leading(bench, "b", 999)) == ("ignored", "leased")
    assert outcome_of(leading(bench, "b", 1000)) is None  # the row has expired


@pytest.mark.parametrize("is_attempted", [False, True])
def test_window_of_a_message_that_seeks_skip_stays(bench: Bench, is_attempted: bool) -> None:
    bench.open("h")
    first = leading(bench, "a", 0)
    if is_attempted:
        bench.ack(bench.one(at=1).token, at=2)
    for group in ("g", "h"):
        bench.apply(100, c.Seek(group, "latest"))
    bench.trim(101)
    assert leading(bench, "b", 999).offsets == first.offsets
    assert leading(bench, "b", 1000).offsets != first.offsets


def test_cancel_frees_the_key_within_the_window(bench: Bench) -> None:
    leading(bench, "a", 0)
    bench.cancel(BY_NAME, at=1)
    assert outcome_of(leading(bench, "b", 2)) is None
    assert outcome_of(leading(bench, "c", 1001)) == ("ignored", "ready")
    assert bench.values(bench.lease(at=1001)) == ["b"]


@pytest.mark.parametrize("rule", [c.THROTTLE, c.THROTTLE_BOTH])
def test_key_of_another_rule_is_ignored_as_by_ignore(bench: Bench, rule: int) -> None:
    bench.apply(0, c.Configure(bench.machine.settings | {"dedup_window_ms": 5000}))
    first = bench.send("a", unique=["k"])
    for at in (0, 1500):
        stored = bench.send("b", unique=["k"], at=at, on_conflict=rule, span=WINDOW_MS)
        assert (stored.offsets, outcome_of(stored)) == (first.offsets, ("ignored", "ready"))
    bench.one(at=2000)
    assert outcome_of(bench.send("b", unique=["k"], at=6999, on_conflict=rule, span=WINDOW_MS)) == ("ignored", "leased")
    assert outcome_of(bench.send("b", unique=["k"], at=7000, on_conflict=rule, span=WINDOW_MS)) is None


def test_rule_without_its_window_ignores(bench: Bench) -> None:
    first = leading(bench, "a", 0)
    assert bench.send("b", unique=["k"], at=5000, on_conflict=c.THROTTLE).offsets == first.offsets


@pytest.mark.parametrize("rule", [c.REJECT, c.IGNORE, c.REPLACE, c.REPLACE_PENDING, c.DEBOUNCE])
def test_other_rules_treat_a_throttled_message_as_any_other(rule: int) -> None:
    found = []
    for first in (c.REJECT, c.THROTTLE):
        bench = Bench(dedup_window="1m")
        bench.open()
        bench.send("a", unique=["k"], on_conflict=first, span=WINDOW_MS if first == c.THROTTLE else None)
        found.append([bench.send("b", unique=["k"], at=2000, on_conflict=rule)])
        bench.lease(at=2001)
        found[-1].append(bench.send("c", unique=["k"], at=3000, on_conflict=rule))
    assert found[0] == found[1]


@pytest.mark.parametrize(("kind", "column"), [("timer", Column.KEY), ("fair", Column.TENANT)])
def test_windows_of_different_keys_or_tenants_are_apart(kind: str, column: int) -> None:
    bench = Bench() if kind == "timer" else RankedBench(kind)
    bench.open()
    for value, scope in ((b"a", b"ada"), (b"b", b"bob"), (b"c", b"ada")):
        cells = {Column.VALUE: [value], Column.UNIQUE_KEY: [b"k"], column: [scope]}
        bench.apply(0, c.Append(encode(cells), on_conflict=c.THROTTLE, split=True, span_ms=WINDOW_MS))
    assert sorted(bench.values(bench.lease(at=1))) == ["a", "b"]


# -- both edges ---------------------------------------------------------------------------------------------------


def test_newest_message_of_a_window_is_delivered_at_its_end(bench: Bench) -> None:
    first = both(bench, "a", 0)
    assert (due(first), outcome_of(first)) == (0, None)
    assert bench.values(bench.lease(at=1)) == ["a"]
    second = both(bench, "b", 100)
    assert (due(second), outcome_of(second)) == (1000, ("stored", "leased"))
    third = both(bench, "c", 999)
    assert (due(third), outcome_of(third)) == (1000, ("replaced", second.offsets))
    assert bench.lease(at=999) == []
    assert bench.values(bench.lease(at=1000)) == ["c"]
    # The delivery at 1000 began the next window.
    assert due(both(bench, "d", 1500)) == 2000
    assert bench.values(bench.lease(at=9999)) == ["d"]
    late = both(bench, "e", 9999)
    assert (due(late), outcome_of(late)) == (9999, None)


def test_window_with_a_single_message_is_followed_by_nothing(bench: Bench) -> None:
    both(bench, "a", 0)
    assert bench.values(bench.lease(at=0)) == ["a"]
    assert bench.lease(at=99_999) == []


def test_first_message_that_no_worker_took_stays(bench: Bench) -> None:
    both(bench, "a", 0)
    assert (due(both(bench, "b", 10)), due(both(bench, "c", 20))) == (1000, 1000)
    assert bench.values(bench.lease(at=1000)) == ["a", "c"]


def test_message_of_the_end_that_no_worker_took_stays(bench: Bench) -> None:
    for value, at in (("a", 0), ("b", 10), ("c", 1000), ("d", 1001), ("e", 2500)):
        both(bench, value, at)
    assert bench.values(bench.lease(at=9999)) == ["a", "b", "d", "e"]


def test_message_of_the_end_that_was_moved_and_leased_begins_its_window_then(bench: Bench) -> None:
    both(bench, "a", 0)
    second = both(bench, "b", 10)
    bench.move(second.offsets, 20, at=15)
    assert bench.values(bench.lease(at=20)) == ["a", "b"]
    third = both(bench, "c", 30)
    assert (due(third), outcome_of(third)) == (1030, ("stored", "leased"))
    assert due(both(bench, "d", 40)) == 1030
    assert bench.values(bench.lease(at=1030)) == ["d"]


def test_message_of_the_end_that_waits_for_another_attempt_is_replaced_before_the_end(bench: Bench) -> None:
    both(bench, "a", 0)
    bench.ack(bench.one(at=1).token, at=2)
    second = both(bench, "b", 10)
    bench.move(second.offsets, 20, at=15)
    bench.nack(bench.one(at=20).token, at=21, delay=60_000)
    third = both(bench, "c", 30)
    assert (due(third), outcome_of(third)) == (1000, ("replaced", second.offsets))
    assert bench.values(bench.lease(at=99_999)) == ["c"]


def test_cancelled_message_of_the_end_frees_the_key(bench: Bench) -> None:
    both(bench, "a", 0)
    both(bench, "b", 10)
    bench.cancel(BY_NAME, at=20)
    stored = both(bench, "c", 30)
    assert (due(stored), outcome_of(stored)) == (30, None)


def test_delay_of_another_client_never_ends_before_the_window(bench: Bench) -> None:
    both(bench, "a", 0)
    assert due(both(bench, "b", 10, due=[5], relative=True)) == 1000
    assert due(both(bench, "c", 10, due=[5000], relative=True)) == 5010


def test_shorter_window_limits_how_far_a_message_is_put_off(bench: Bench) -> None:
    both(bench, "a", 0, window=60_000)
    assert due(both(bench, "b", 10, window=60_000)) == 60_000
    assert due(both(bench, "c", 20)) == 1020
    assert due(both(bench, "d", 30, window=60_000)) == 1020


def test_leading_rule_respects_a_message_of_the_end(bench: Bench) -> None:
    both(bench, "a", 0)
    both(bench, "b", 10)
    for at in (20, 999, 1000, 1999):
        assert outcome_of(leading(bench, "c", at))[0] == "ignored"
    assert outcome_of(leading(bench, "c", 2000)) == ("stored", "ready")
    assert bench.values(bench.lease(at=2000)) == ["a", "b", "c"]


def test_messages_of_one_batch_replace_each_other() -> None:
    bench = Bench()
    bench.open()
    stored = bench.send("a", "b", "c", unique=["k"] * 3, on_conflict=c.THROTTLE_BOTH, span=WINDOW_MS)
    assert stored.outcomes == [(1, "stored", "ready"), (2, "replaced", stored.offsets[16:32])]
    assert bench.values(bench.lease(at=WINDOW_MS)) == ["a", "c"]


# -- repeated batches, clocks, restored rows ----------------------------------------------------------------------


@pytest.mark.parametrize("rule", [c.THROTTLE, c.THROTTLE_BOTH])
def test_repeated_batch_gets_the_first_reply(bench: Bench, rule: int) -> None:
    both(bench, "a", 0)
    batch = batch_of(["b", "c"], unique=["k", "other"])

    def send(at: int, resent: int) -> Stored:
        (stored,) = bench.apply(at, c.Append(batch, 77, 1, sequence_of(1, 0) | resent, rule, True, WINDOW_MS))
        assert isinstance(stored, Stored)
        return stored

    first = send(800, 0)
    assert send(900, RESENT) == first
    assert send(90_000, RESENT) == first
    assert bench.values(bench.lease(at=90_000)) == (["a", "c", "b"] if rule == c.THROTTLE_BOTH else ["a", "c"])


@pytest.mark.parametrize("is_leased", [False, True])
@pytest.mark.parametrize("rule", [c.THROTTLE, c.THROTTLE_BOTH])
def test_batch_whose_reply_is_forgotten_meets_its_own_message(bench: Bench, rule: int, is_leased: bool) -> None:
    command = c.Append(batch_of(["a"], unique=["k"]), 77, 1, sequence_of(1, 0), rule, True, WINDOW_MS)
    (first,) = bench.apply(0, command)
    if is_leased:
        bench.one(at=1)
    for at in (2, 999):
        bench.stores.write([(rows.producer_key(77), None)])
        bench.restart()
        assert bench.apply(at, command) == [first]
    assert bench.values(bench.lease(at=1000)) == ([] if is_leased else ["a"])


@pytest.mark.parametrize("rule", [c.IGNORE, c.REPLACE, c.THROTTLE, c.THROTTLE_BOTH])
def test_repeated_batch_without_its_reply_stores_nothing_after_all_groups_skipped_its_message(rule: int) -> None:
    bench = Bench(dedup_window="0s", retention="1h")
    bench.open()
    bench.open("h")
    span = WINDOW_MS if rule in (c.THROTTLE, c.THROTTLE_BOTH) else None
    command = c.Append(batch_of(["a"], unique=["k"]), 77, 1, sequence_of(1, 0), rule, True, span)
    (first,) = bench.apply(0, command)
    bench.ack(bench.one(at=1).token, at=2)
    bench.seek("latest", at=3, group="h")
    bench.stores.write([(rows.producer_key(77), None)])
    bench.restart()
    assert bench.apply(5000, command) == [first]


def test_window_counts_by_the_time_of_the_partition_if_a_stamp_is_earlier(bench: Bench) -> None:
    bench.apply(5000, c.Clock())
    first = leading(bench, "a", 100)
    assert key_row(bench)[3] == T + 5000
    assert leading(bench, "b", 5999).offsets == first.offsets
    assert leading(bench, "c", 6000).offsets != first.offsets


def test_row_of_a_message_by_a_wrong_clock_expires_after_the_reset() -> None:
    bench = Bench(dedup_window="0s")
    bench.open()
    leading(bench, "a", YEAR)
    set_back(bench, 3000)
    bench.one(at=4000)
    assert key_row(bench)[-1] == T + 4000 + 2 * WINDOW_MS


def test_window_by_a_wrong_clock_ends_in_time_after_the_reset(bench: Bench) -> None:
    leading(bench, "a", YEAR, due=[9 * WINDOW_MS], relative=True)
    set_back(bench, 3000)
    assert outcome_of(leading(bench, "b", 4000)) == ("ignored", "delayed")
    assert outcome_of(leading(bench, "b", 4999)) == ("ignored", "delayed")
    assert outcome_of(leading(bench, "b", 5000)) == ("stored", "delayed")


def test_window_of_a_delivered_message_by_a_wrong_clock_ends_in_time_after_the_reset(bench: Bench) -> None:
    window_ms = 3_600_000
    leading(bench, "a", YEAR, window=window_ms)
    bench.ack(bench.one(at=YEAR).token, at=YEAR + 1)
    set_back(bench, 3000)
    assert outcome_of(leading(bench, "b", 4000, window=window_ms))[0] == "ignored"
    assert outcome_of(leading(bench, "b", 2999 + window_ms, window=window_ms))[0] == "ignored"
    assert outcome_of(leading(bench, "b", 3000 + window_ms, window=window_ms)) is None


def test_message_of_the_end_by_a_wrong_clock_waits_one_window_after_the_reset(bench: Bench) -> None:
    both(bench, "a", YEAR)
    both(bench, "b", YEAR + 400)
    set_back(bench, 3000)
    assert bench.values(bench.lease(at=3001)) == ["a"]
    assert bench.lease(at=3599) == []
    assert bench.values(bench.lease(at=3600)) == ["b"]


def test_message_of_the_end_that_a_right_clock_sent_under_a_wrong_floor_comes_in_time_after_the_reset(
    bench: Bench,
) -> None:
    bench.apply(YEAR, c.Clock())
    both(bench, "a", 1000)
    assert due(both(bench, "b", 1001)) == YEAR + WINDOW_MS
    set_back(bench, 1500)
    assert bench.values(bench.lease(at=1501)) == ["a"]
    assert bench.lease(at=2000) == []
    assert bench.values(bench.lease(at=2001)) == ["b"]


def test_message_of_the_end_by_a_wrong_clock_is_replaced_after_the_reset(bench: Bench) -> None:
    both(bench, "a", YEAR)
    both(bench, "b", YEAR + 400)
    set_back(bench, 3000)
    stored = both(bench, "c", 3100)
    assert (due(stored), outcome_of(stored)[0]) == (4100, "replaced")
    assert bench.values(bench.lease(at=4100)) == ["a", "c"]


LEAST, MOST = 1, FIXED.throttle_window_ms


@pytest.mark.parametrize(
    ("row", "is_valid"),
    [
        ([0, bytes(16), None, 5, LEAST, None], True),
        ([3, bytes(16), [7, 1, 1, 0], 5, MOST, None], True),
        ([1, bytes(16), None, 5, MOST, 6], True),
        ([2, bytes(16), None, 5, MOST, 6], False),
        ([4, bytes(16), None, 5, MOST, None], False),
        ([0, bytes(16), None, 5, MOST, 6], False),
        ([1, bytes(16), None, 5, MOST, None], False),
        ([0, bytes(16), None, 5, LEAST - 1, None], False),
        ([0, bytes(16), None, 5, MOST + 1, None], False),
        ([0, bytes(16), None, -1, MOST, None], False),
        ([0, bytes(16), None, None, MOST, None], False),
        ([0, bytes(16), None, True, MOST, None], False),
        ([0, bytes(16), None, offsets.U48_MAX + 1, MOST, None], False),
        ([0, bytes(16), None, 5, None, None], False),
        ([False, bytes(16), None, 5, MOST, None], False),
        ([0, bytes(16), None, 5, MOST, None, None], False),
    ],
)
def test_restored_row_of_a_throttled_key_is_checked(row: list[object], is_valid: bool) -> None:
    for tag in (rows.UNIQUE, rows.SCOPED_UNIQUE, rows.KEYED_UNIQUE):
        assert COMMON[tag].fields(row) is is_valid


@pytest.mark.parametrize("rule", [c.REJECT, c.REPLACE, c.DEBOUNCE, c.THROTTLE, c.THROTTLE_BOTH])
@pytest.mark.parametrize("state", [HELD, DELIVERED])
def test_restored_row_with_the_greatest_times_raises_nothing(rule: int, state: int) -> None:
    bench = Bench()
    bench.open()
    first = both(bench, "a", 0)
    most_ms = offsets.U48_MAX
    row = [state, first.offsets, None, most_ms, MOST, most_ms if state == DELIVERED else None]
    bench.stores.write([(rows.UNIQUE + b"k", rows.pack(*row))])
    bench.restart()
    for at in (1, 2):
        bench.send("b", unique=["k"], at=at, on_conflict=rule, span=MOST)
    bench.lease(at=3)
    bench.send("c", unique=["k"], at=4, on_conflict=rule, span=MOST)
