"""Tests of updates: pending messages get new values and headers in any kind of row and in any state."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.log import message_log
from sandq.partition.log.trim import PIN_MS
from sandq.partition.queries.fetch import fetch
from tests.support.partition.bench import ALL, FOREVER_MS, Bench, T, by_id, by_key
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.scenes import Scene, scene

LARGE = "x" * 5000
KINDS = ("alone", "one", "batch", "moment")
"""Kinds of rows: separate row, batch of one, batch that was due at once, and batch that is due at a future moment."""


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.open()
    return bench


def add(bench: Bench, kind: str) -> bytes:
    """Add a message "b" in a row of this kind, between other messages if the row is shared. It is due at 1000 in a row
    of a future moment, else at once."""
    if kind == "alone":
        return bench.put("b", unique="u")
    if kind == "one":
        base, _ = bench.append("b")
        return bytes(base)
    names = "abcdefghij"
    base, _ = bench.append(*names, due=[1000] * 10 if kind == "moment" else None)
    return offsets.shift(base, 1)


def values(bench: Bench, at: int = 5000, **lease: Any) -> list[str]:
    return bench.values(bench.lease(at=at, **lease))


def fetched(bench: Bench, at: int = 5000) -> list[str]:
    """Return the values of all messages in the log."""
    bench.apply(at, c.Clock())
    page = fetch(bench.machine, bench.view, offsets.FIRST, None, ALL, ALL, pending=True)
    found: list[str] = []
    for piece in page.pieces:
        cells = Batch.parse(piece.batch).values()
        live = [(0, len(cells))] if piece.live is None else piece.live
        found += [(cell or b"").decode() for first, count in live for cell in cells[first : first + count]]
    return found


def bytes_of_rows(bench: Bench) -> int:
    """Return the bytes of the messages: of log rows, separate payloads and overlay rows."""
    total = 0
    for key, value in bench.rows(rows.LOG):
        total += rows.log_entry(key, value).size
    return total + sum([len(value) for _, value in bench.rows(rows.UPDATED)])


@pytest.mark.parametrize("value", ["new", LARGE, ""])
@pytest.mark.parametrize("kind", KINDS)
def test_pending_message_has_its_new_value_at_its_offset(bench: Bench, kind: str, value: str) -> None:
    offset = add(bench, kind)
    before = fetched(bench)
    assert bench.update(offset, value) == ("updated", offset)
    wanted = [value if one == "b" else one for one in before]
    assert fetched(bench) == wanted
    assert bench.status().bytes == bytes_of_rows(bench)
    bench.restart()
    assert fetched(bench) == wanted
    assert values(bench) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_updates_leave_one_value(bench: Bench, kind: str) -> None:
    offset = add(bench, kind)
    for value in (LARGE, "short", LARGE + LARGE, "last"):
        assert bench.update(offset, value) == ("updated", offset)
        assert bench.status().bytes == bytes_of_rows(bench)
    assert (values(bench).count("last"), bench.rows(rows.PAYLOAD)) == (1, [])


def test_update_keeps_fields_that_are_not_given(bench: Bench) -> None:
    at = {"at": 5000}
    offset = bench.put("b", due=2000, ttl=60_000, unique="u")
    assert bench.update(by_key("u"), headers=b"\x81\xa1a\x01") == ("updated", offset)
    assert bench.update(by_key("u"), "new") == ("updated", offset)
    (message,) = bench.messages(bench.one(**at))
    assert (message.id, message.offset) == (offset, offset)
    kept = {Column.VALUE: b"new", Column.HEADERS: b"\x81\xa1a\x01", Column.TTL_MS: 60_000, Column.UNIQUE_KEY: b"u"}
    assert message.fields == kept


def test_headers_that_are_empty_are_none(bench: Bench) -> None:
    offset = add(bench, "batch")
    bench.update(offset, headers=b"\x81\xa1a\x01")
    bench.update(offset, headers=b"")
    assert {Column.HEADERS not in message.fields for message in bench.messages(bench.one(at=1))} == {True}


def test_ttl_is_not_restarted_by_an_update() -> None:
    bench = Bench(ttl="10s")
    bench.open()
    offset = add(bench, "batch")
    bench.update(offset, "new", at=9000)
    assert values(bench, at=10_001) == []
    assert {letter.reason for letter in bench.dead()} == {"expired"}
    assert "new" in {letter.fields[Column.VALUE].decode() for letter in bench.dead()}


def test_keys_keep_their_order() -> None:
    bench = Bench(ordering="key")
    bench.open()
    one, two, _ = [bench.put(name, key="k") for name in ("one", "two", "three")]
    bench.update(one, "ONE")
    (lease,) = bench.lease()
    assert bench.values([lease]) == ["ONE"]
    assert bench.update(two, "TWO", at=1) == ("updated", two), "the message is blocked by its key"
    bench.apply(PIN_MS + 2, c.Clock())
    bench.trim(at=PIN_MS + 2)
    bench.ack(lease.token, at=PIN_MS + 3)
    assert bench.update(two, LARGE, at=PIN_MS + 4) == ("updated", two)
    assert values(bench, at=PIN_MS + 5) == [LARGE]


# -- the groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "leased", "acked", "dead"])
def test_each_state(state: str) -> None:
    for held in (scene(state), scene(state, own_ttl=FOREVER_MS >> 1)):
        _check_state(held, state)


def _check_state(held: Scene, state: str) -> None:
    outcome = held.bench.update(held.offset, "new", at=held.at)
    assert outcome == (("too_late", state) if state in ("leased", "acked", "dead") else ("updated", held.offset))
    if state in ("delayed", "ready", "waiting"):
        assert held.bench.values(held.bench.lease(at=5000)) == ["new"]
        assert held.bench.state_of(held.offset) == "leased"


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_waiting_message_keeps_its_attempts_and_its_time(bench: Bench, kind: str, kept: bool) -> None:
    offset = add(bench, kind)
    lease = bench.one(at=1000)
    bench.nack(lease.token, at=1000, delay=2 * PIN_MS, error="no")
    if kept:
        bench.trim(at=1000 + PIN_MS)
        assert bench.rows(rows.KEPT) != []
    assert bench.update(offset, "new", at=1000 + PIN_MS) == ("updated", offset)
    bench.restart()
    assert bench.lease(at=999 + 2 * PIN_MS) == []
    again = bench.one(at=1000 + 2 * PIN_MS)
    assert (again.attempt, again.past_of(offset)[0][5]) == (2, "no")
    assert "new" in bench.values([again])
    assert "b" not in bench.values([again])


@pytest.mark.parametrize("kind", KINDS)
def test_update_of_message_waiting_in_one_group_reaches_both_groups(bench: Bench, kind: str) -> None:
    bench.open("other")
    offset = add(bench, kind)
    lease = bench.one(at=1000)
    bench.nack(lease.token, at=1000, delay=500)
    assert bench.move(offset, 9000, at=1001) == ("too_late", "waiting")
    assert bench.update(offset, "new", at=1001) == ("updated", offset)
    for group in ("g", "other"):
        found = values(bench, group=group)
        assert (found.count("new"), found.count("b")) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_old_value_is_delivered_to_no_group(bench: Bench, kind: str) -> None:
    offset = add(bench, kind)
    lease = bench.one(at=1000)
    bench.nack(lease.token, at=1000, delay=500)
    bench.update(offset, "new", at=1001)
    bench.open("later", at=1002)
    bench.seek("earliest", at=1003)
    for group in ("g", "later"):
        found = values(bench, group=group)
        assert (found.count("new"), found.count("b")) == (1, 0)


def test_a_nack_changed_it_for_one_group(bench: Bench) -> None:
    bench.open("other")
    offset = add(bench, "batch")
    lease = bench.one(at=1)
    bench.apply(1, c.Nack([(lease.token, [[offset, 1]], 100, None, True, {Column.HEADERS.value: b"\x81\xa1g\x01"})]))
    bench.update(offset, "new", at=2)
    bench.ack(lease.token, at=3)
    assert [one.fields for one in bench.messages(bench.one(at=200))] == [
        {Column.VALUE: b"new", Column.HEADERS: b"\x81\xa1g\x01"}
    ]
    assert Column.HEADERS not in bench.messages(bench.one(at=200, group="other"))[1].fields


def test_too_late_and_not_found(bench: Bench) -> None:
    offset = add(bench, "batch")
    bench.cancel(offset)
    assert bench.update(offset, "new") == ("too_late", "gone")
    assert bench.update(by_key("nobody"), "new") == ("not_found", None)
    assert bench.update(offsets.pack(T + 1, 77, 0, 0), "new") == ("not_found", None)


# -- leases are bounded -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
def test_lease_size_uses_the_updated_values(bench: Bench, waiting: bool, restarted: bool) -> None:
    base, _ = bench.append(*[f"{number}" for number in range(8)])
    if waiting:
        bench.nack(bench.one(at=1).token, at=1, delay=10)
    three_mib = "x" * (3 << 20)
    for place in range(1, 7):
        bench.update(offsets.shift(base, place), three_mib, at=2)
    if restarted:
        bench.restart()
    leases = bench.lease(at=100, limit=8)
    sizes = [sum([len(value) for value in bench.values([lease])]) for lease in leases]
    assert [lease.total for lease in leases] == [4] and sizes[0] == 1 + 3 * len(three_mib)
    bench.ack(leases[0].token, at=101)
    assert [lease.total for lease in bench.lease(at=101, limit=8)] == [3]


# -- with row changes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_acked_updated_message_leaves_no_rows(bench: Bench, kind: str) -> None:
    offset = add(bench, kind)
    bench.update(offset, LARGE)
    bench.ack(bench.one(at=1000).token, at=1000)
    bench.trim(at=3_600_000)
    left = [bench.rows(tag) for tag in (rows.LOG, rows.PAYLOAD, rows.OVERLAY, rows.UPDATED)]
    assert (left, bench.status().bytes, bench.status().messages) == ([[], [], [], []], 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_updated_message_can_be_cancelled(bench: Bench, kind: str) -> None:
    offset = add(bench, kind)
    bench.update(offset, LARGE)
    assert bench.cancel(offset) == ("cancelled", offset)
    assert [bench.rows(tag) for tag in (rows.PAYLOAD, rows.OVERLAY, rows.UPDATED)] == [[], [], []]
    assert bench.status().messages == len(fetched(bench))


@pytest.mark.parametrize("value", ["new", LARGE])
@pytest.mark.parametrize("kind", KINDS)
def test_updated_message_can_be_moved(bench: Bench, kind: str, value: str) -> None:
    offset = add(bench, kind)
    bench.update(offset, value)
    verdict, moved = bench.move(offset, 3000)
    assert verdict == "moved" and moved != offset
    assert [bench.rows(tag) for tag in (rows.OVERLAY, rows.UPDATED)] == [[], []]
    assert bench.update(offset, value + "er") == ("updated", moved), "by its id"
    found = values(bench)
    assert found[-1] == value + "er" and "b" not in found


def test_both_at_once(bench: Bench) -> None:
    offset = add(bench, "batch")
    change = {Column.VALUE.value: b"new"}
    ((verdict, moved),) = bench.apply(0, c.Move([(by_id(offset), T + 3000, False, None, change)]))[0]
    assert verdict == "updated" and offsets.deliver_ms(moved) == T + 3000
    assert "new" not in values(bench, at=2999)
    assert values(bench, at=3000) == ["new"]


def test_both_at_once_come_too_late_together(bench: Bench) -> None:
    bench.open("other")
    offset = add(bench, "batch")
    bench.nack(bench.one(at=1).token, at=1, delay=10)
    change = {Column.VALUE.value: b"new"}
    assert bench.apply(2, c.Move([(by_id(offset), T + 3000, False, None, change)]))[0] == [("too_late", "waiting")]
    assert "new" not in values(bench)


def test_a_row_that_is_thinned_out_keeps_new_values(bench: Bench) -> None:
    base, _ = bench.append(*[f"{number}" for number in range(64)], due=[1000] * 64)
    column = [offsets.shift(base, place) for place in range(64)]
    bench.update(column[3], "three")
    bench.update(column[5], LARGE)
    for offset in column[8:]:
        bench.cancel(offset)
    assert len(bench.rows(rows.LOG)) == 8, "the messages have separate rows"
    assert bench.status().bytes == bytes_of_rows(bench)
    assert values(bench) == ["0", "1", "2", "three", "4", LARGE, "6", "7"]


def test_batch_row_with_large_updates_is_not_split(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_log, "THIN_BYTES", len(LARGE) - 1)
    base, _ = bench.append(*[f"{number}" for number in range(64)], due=[1000] * 64)
    column = [offsets.shift(base, place) for place in range(64)]
    bench.update(column[5], LARGE)
    for offset in column[8:]:
        bench.cancel(offset)
    assert len(bench.rows(rows.LOG)) == 1
    assert values(bench) == ["0", "1", "2", "3", "4", LARGE, "6", "7"]


def test_a_clock_reset_takes_new_values_along(bench: Bench) -> None:
    kept = [add(bench, kind) for kind in ("batch", "alone", "moment")]
    for offset in kept:
        bench.update(offset, LARGE)
    ahead = 10 * 86_400_000
    bench.apply(ahead, c.Clock())
    bench.apply(10, c.ClockReset(T + 10))
    bench.trim(at=10)
    assert values(bench, at=2000).count(LARGE) == 3
    assert bench.status().bytes == bytes_of_rows(bench)


# -- ranked topics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
def test_message_that_waits_for_its_turn_keeps_it(alone: bool) -> None:
    bench = RankedBench()
    bench.open()
    column = (
        [bench.add(name, priority=5, unique=[None])[0] for name in "abd"] if alone else bench.add(*"abd", priority=5)
    )
    bench.add("first", priority=1)
    bench.take(0)
    assert bench.update(column[1], LARGE) == ("updated", column[1])
    ((verdict, _),) = bench.apply(0, c.Move([(by_id(column[2]), None, False, 0, {Column.VALUE.value: b"D"})]))[0]
    assert verdict == "updated"
    bench.restart()
    assert bench.take(9) == ["D", "first", "a", LARGE]


def test_priority_and_value_of_one_row_change_together() -> None:
    bench = RankedBench()
    bench.open()
    a, b, _ = bench.add("a", "b", "c", priority=5)
    bench.apply(0, c.Move([(by_id(b), None, False, 1)]))
    bench.update(b, "B")
    bench.apply(0, c.Move([(by_id(a), None, False, 2, {Column.VALUE.value: b"A"})]))
    bench.apply(0, c.Move([(by_id(a), None, False, 0)]))
    bench.restart()
    (lease,) = bench.lease(3)
    told = [(one.fields[Column.VALUE], one.fields[Column.PRIORITY]) for one in bench.messages(lease)]
    assert told == [(b"A", 0), (b"B", 1), (b"c", 5)]
