"""Tests that cancels and moves of many absent messages read them from the store together."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.partition import commands as c
from sandq.partition.base.view import View
from sandq.partition.log.message_log import LARGE_ROW_BYTES
from sandq.partition.pending import pending
from tests.support.partition.bench import Bench, CountedStores, T, by_id

ABSENT = 1000


def partition() -> tuple[Bench, CountedStores]:
    """Return a partition with acked, dead, waiting, cancelled and moved messages. A group keeps some in its own
    rows."""
    bench = Bench(max_attempts=2)
    bench.open("g")
    bench.open("other", "latest")
    ids = [bench.put("x", due=number // 2) for number in range(40)]
    bench.append("a", "b", "c")
    for number in (3, 4, 30):
        bench.move(ids[number], 100)
    for number in (5, 31):
        bench.cancel(ids[number])
    bench.ack(bench.one(at=10).token, at=10)
    bench.trim(at=10)
    stores = bench.stores = CountedStores(bench.stores.scan(b"", b"\xff"))
    bench.view = View(stores)
    return bench, stores


def absent(bench: Bench, count: int, from_ms: int = 200) -> list[bytes]:
    """Return ids of entries without messages at their times. From 0 ms on, some entries may have messages."""
    return [
        offsets.pack(T + from_ms + number % 50, 1 + number % bench.index, number, 0) for number in range(7, 7 + count)
    ]


@pytest.mark.parametrize("how", ["cancel", "move", "one each"])
def test_many_absent_ids_are_a_few_reads(how: str) -> None:
    bench, stores = partition()
    ids = absent(bench, ABSENT)
    random.Random(1).shuffle(ids)
    if how == "move":
        outcomes = bench.apply(20, c.Move([(by_id(one), T + 500, False) for one in ids]))[0]
    elif how == "cancel":
        outcomes = bench.apply(20, c.Cancel([by_id(one) for one in ids]))[0]
    else:
        outcomes = [each[0] for each in bench.apply(20, *[c.Cancel([by_id(one)]) for one in ids])]
    assert {outcome[0] for outcome in outcomes} <= {"not_found", "too_late"}
    assert stores.reads < 40


def test_cancel_of_existing_messages_reads_only_their_rows() -> None:
    """One read checks all messages for earlier moves and cancels."""
    bench, stores = partition()
    ids = [bench.put("x", due=100 + number) for number in range(ABSENT)]
    stores.reads = 0
    outcomes = bench.apply(20, c.Cancel([by_id(one) for one in ids]))[0]
    assert {outcome[0] for outcome in outcomes} == {"cancelled"}
    assert stores.reads < ABSENT + 40


@pytest.mark.parametrize("how", ["rising", "falling", "mixed"])
def test_absent_ids_behind_a_large_batch_are_a_few_reads(how: str) -> None:
    """The absent ids belong to the entry of the batch. Only the row of the batch shows that they are absent."""
    bench, stores = partition()
    row = b"x" * LARGE_ROW_BYTES
    (stored,) = bench.apply(5, c.Append(encode({Column.VALUE: [row, row]})))
    base = stored[0]
    ids = [offsets.shift(base, 2 + number) for number in range(ABSENT)]
    if how == "mixed":
        random.Random(2).shuffle(ids)
    elif how == "falling":
        ids.reverse()
    stores.reads = 0
    outcomes = bench.apply(20, c.Cancel([by_id(one) for one in [*ids, base]]))[0]
    assert {outcome[0] for outcome in outcomes[:-1]} <= {"not_found", "too_late"}
    assert outcomes[-1][0] == "cancelled" and stores.reads < 60
    # Messages that the same entry stores at these times are found.
    made = bench.index + 1
    new = [offsets.pack(T + 40, made, number, 0) for number in range(4)]
    many = [by_id(offsets.pack(T + 40, made, number, 0)) for number in range(4, 20)]
    first, *rest = bench.apply(
        40,
        c.Append(encode({Column.VALUE: [row, row]})),
        c.Cancel([*map(by_id, new[2:]), *many]),
        c.Append(encode({Column.VALUE: [b"a", b"b"]})),
        c.Cancel([*map(by_id, new), *many]),
    )
    assert first[0] == new[0] and rest[1][0] == new[2]
    assert [outcome[0] for outcome in rest[2][:4]] == ["cancelled"] * 4


@pytest.mark.parametrize("seed", range(5))
def test_answers_and_rows_are_those_of_one_look_up_each(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of messages in all states and absent ones, some repeated, some stored by an earlier command of the entry."""
    rng = random.Random(seed)
    results: list[Any] = []
    one, _ = partition()
    known = [key[1:] for tag in (b"m", b"i", b"t") for key, _ in one.rows(tag)]
    names = [rng.choice(known + absent(one, 10) + absent(one, 10, 0)) for _ in range(60)]
    made = offsets.pack(T + 30, one.index + 1, 0, 0)
    commands: list[c.Command] = []
    for start in range(0, len(names), 12):
        part = [by_id(name) for name in [*names[start : start + 12], made]]
        commands += [c.Cancel(part[:5]), c.Move([(target, T + 600, False) for target in part[5:]])]
    for ahead_from in (1, 1 << 30):
        monkeypatch.setattr(pending, "AHEAD_FROM", ahead_from)
        bench, stores = partition()
        answers = [bench.apply(20, *commands), bench.apply(21, *commands)]
        results.append((answers, stores.scan(b"", b"\xff")))
    assert results[0] == results[1]


def test_look_up_of_many_ids_yields(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = partition()
    bench.checks_loading = False
    looked: list[int] = []
    yielded: list[int] = []
    note_vacant = View.note_vacant

    def noted(view: View, ranges: Any) -> Any:
        looked.append(len(ranges))
        return note_vacant(view, ranges)

    monkeypatch.setattr(View, "note_vacant", noted)
    bench.machine.shared.yield_now = lambda: yielded.append(len(looked))
    bench.apply(20, c.Cancel([by_id(one) for one in absent(bench, 4096)]))
    assert sum(looked) > 4 * 4096 and max(looked) <= pending.LOOK_RANGES
    assert {*range(1, len(looked) + 1)} <= {*yielded}


def test_more_ids_than_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "AHEAD_IDS", 10)
    monkeypatch.setattr(pending, "AHEAD_RANGES", 20)
    bench, _ = partition()
    outcomes = bench.apply(20, c.Cancel([by_id(one) for one in absent(bench, 100)]))[0]
    assert {outcome[0] for outcome in outcomes} <= {"not_found", "too_late"}
    assert len(outcomes) == 100


def test_dead_ones_are_looked_for_in_groups_alone_that_have_any() -> None:
    """With 60 groups the reads are few, too."""
    bench, stores = partition()
    for number in range(58):
        bench.open(f"group{number}")
    stores.reads = 0
    outcomes = bench.apply(20, c.Cancel([by_id(one) for one in absent(bench, ABSENT)]))[0]
    assert {outcome[0] for outcome in outcomes} == {"not_found"}
    assert stores.reads < 100
