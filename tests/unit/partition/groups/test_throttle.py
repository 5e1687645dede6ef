"""Tests of `dedup_from: first_send`: a unique key is taken for a window that begins with its first message."""

from __future__ import annotations

import pytest

from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.groups.unique_keys import DELIVERED, HELD
from sandq.partition.log.appends import Stored
from tests.support.partition.bench import Bench, T
from tests.unit.partition.test_clock_reset import YEAR, set_back

WINDOW_MS = 60_000
BY_NAME = (c.TARGET_KEY, b"k")


@pytest.fixture(params=[False, True], ids=["in memory", "from rows"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A partition with a group. `from rows`: it is loaded again before every entry."""
    bench = throttling()
    bench.open()
    if request.param:
        apply = bench.apply

        def restart_and_apply(at: int, *commands: c.Command) -> list[object]:
            bench.restart()
            return apply(at, *commands)

        monkeypatch.setattr(bench, "apply", restart_and_apply)
    return bench


def throttling(window: str = "1m") -> Bench:
    return Bench(dedup_window=window, dedup_from="first_send")


def send(bench: Bench, value: str, at: int, on_conflict: int = c.IGNORE, delay: int = 0) -> Stored:
    return bench.send(value, unique=["k"], due=[at + delay], at=at, on_conflict=on_conflict)


def key_row(bench: Bench) -> list[object] | None:
    row = bench.view.get(rows.UNIQUE + b"k")
    return None if row is None else rows.unpack(row)


@pytest.mark.parametrize("leased_at", [None, 1, WINDOW_MS - 1, 3 * WINDOW_MS])
def test_one_message_is_stored_in_each_window_whenever_it_is_leased(bench: Bench, leased_at: int | None) -> None:
    first = send(bench, "a", 0)
    leased: list[str] = []
    for at in (1, 2, WINDOW_MS - 1, WINDOW_MS, WINDOW_MS + 1, 2 * WINDOW_MS - 1):
        if leased_at is not None and leased_at <= at:
            leased += bench.values(bench.lease(at=at))
        stored = send(bench, str(at), at)
        assert (stored.offsets == first.offsets) == (at < WINDOW_MS)
    assert sorted(leased + bench.values(bench.lease(at=3 * WINDOW_MS))) == ["60000", "a"]


def test_rejected_message_names_the_state_of_the_first(bench: Bench) -> None:
    first = send(bench, "a", 0, delay=500)
    assert send(bench, "b", 10, c.REJECT).refused == [(0, "delayed")]
    bench.ack(bench.one(at=500).token, at=501)
    refused = send(bench, "b", 600, c.REJECT)
    assert (refused.refused, refused.offsets) == ([(0, "delivered")], first.offsets)
    assert send(bench, "b", WINDOW_MS, c.REJECT).refused == []


def test_key_names_the_newest_message_after_the_window_and_the_older_one_stays(bench: Bench) -> None:
    first = send(bench, "a", 0, delay=5 * WINDOW_MS)
    second = send(bench, "b", WINDOW_MS, delay=5 * WINDOW_MS)
    assert second.offsets != first.offsets
    assert bench.cancel(BY_NAME, at=WINDOW_MS + 1)[0] == "cancelled"
    assert bench.values(bench.lease(at=10 * WINDOW_MS)) == ["a"]


def test_lease_of_an_older_message_leaves_the_key_to_the_newest(bench: Bench) -> None:
    send(bench, "a", 0)
    second = send(bench, "b", WINDOW_MS, delay=WINDOW_MS)
    bench.ack(bench.one(at=WINDOW_MS + 1).token, at=WINDOW_MS + 2)
    assert send(bench, "c", WINDOW_MS + 3).offsets == second.offsets
    assert bench.cancel(BY_NAME, at=WINDOW_MS + 4)[0] == "cancelled"


@pytest.mark.parametrize("on_conflict", [c.REPLACE, c.REPLACE_PENDING, c.DEBOUNCE])
def test_replacing_message_keeps_the_window_of_the_first(bench: Bench, on_conflict: int) -> None:
    send(bench, "a", 0, delay=5 * WINDOW_MS)
    send(bench, "b", WINDOW_MS - 1, on_conflict, delay=5 * WINDOW_MS)
    assert send(bench, "c", WINDOW_MS, delay=5 * WINDOW_MS).outcomes == []
    assert sorted(bench.values(bench.lease(at=20 * WINDOW_MS))) == ["b", "c"]


def test_cancel_frees_the_key_within_the_window(bench: Bench) -> None:
    send(bench, "a", 0, delay=500)
    bench.cancel(BY_NAME, at=1)
    send(bench, "b", 2)
    assert bench.values(bench.lease(at=1000)) == ["b"]


def test_key_is_taken_for_its_window_if_no_group_receives_the_message() -> None:
    bench = throttling()
    bench.open(start="latest", at=1)
    first = send(bench, "a", 1)
    bench.apply(2, c.Seek("g", "latest"))
    assert send(bench, "b", 3).offsets == first.offsets
    assert send(bench, "b", WINDOW_MS + 1).offsets != first.offsets


def test_row_of_a_delivered_key_expires_with_its_window(bench: Bench) -> None:
    first = send(bench, "a", 0)
    assert key_row(bench) == [HELD, first.offsets, None, T, None]
    bench.ack(bench.one(at=1000).token, at=1001)
    assert key_row(bench) == [DELIVERED, first.offsets, None, T + WINDOW_MS]
    bench.apply(WINDOW_MS + 1, c.Upkeep())
    assert key_row(bench) is None


def test_lease_after_the_window_leaves_no_row(bench: Bench) -> None:
    send(bench, "a", 0)
    bench.ack(bench.one(at=2 * WINDOW_MS).token, at=2 * WINDOW_MS)
    assert key_row(bench) is None


def test_two_groups_leave_the_window_as_it_is(bench: Bench) -> None:
    bench.open("h")
    first = send(bench, "a", 0)
    bench.ack(bench.one(at=100).token, at=101)
    assert send(bench, "b", 102).offsets == first.offsets
    bench.ack(bench.one(at=30_000, group="h").token, at=30_001)
    assert send(bench, "b", WINDOW_MS - 1).offsets == first.offsets
    assert send(bench, "b", WINDOW_MS).offsets != first.offsets


def test_window_of_zero_leaves_each_message(bench: Bench) -> None:
    bench = throttling("0s")
    bench.open()
    for value in "abc":
        send(bench, value, 0)
    assert bench.values(bench.lease(at=1)) == ["a", "b", "c"]


def test_window_that_began_by_a_wrong_clock_is_over_in_time_after_the_reset() -> None:
    bench = throttling()
    bench.open()
    bench.send("a", unique=["k"], due=[9 * WINDOW_MS], relative=True, at=YEAR)
    set_back(bench, 3000)
    assert send(bench, "b", 4000).outcomes == [(0, "ignored", "delayed")]
    assert send(bench, "b", 4000 + WINDOW_MS - 1).outcomes == [(0, "ignored", "delayed")]
    assert send(bench, "b", 4000 + WINDOW_MS).outcomes == []


def test_changed_setting_applies_to_keys_that_are_taken() -> None:
    bench = Bench(dedup_window="1m")
    bench.open()
    first = send(bench, "a", 0, delay=9 * WINDOW_MS)
    bench.apply(1, c.Configure(bench.machine.settings | {"dedup_from": "first_send"}))
    # The row has no time of a first message, so the key is taken while the message is pending, as before.
    assert send(bench, "b", 2 * WINDOW_MS).offsets == first.offsets
