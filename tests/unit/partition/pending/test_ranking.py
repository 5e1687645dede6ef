"""Tests of priority changes: a pending message stays in its row and in its groups' queues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandq.model.batch import Batch, Column, encode
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.digest import comparable
from sandq.partition.base.rows import Range
from sandq.partition.jobs import jobs, waiting_ranks
from sandq.partition.log.trim import PIN_MS
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.ready import queue_entries, ready_queues
from sandq.partition.ready.ready_queue import ENTRY_BYTES
from tests.support.partition.bench import FOREVER_MS, T, by_id
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.scenes import DEFAULT, STATES, scene

LARGE = "x" * 5000


@pytest.fixture
def bench() -> RankedBench:
    bench = RankedBench()
    bench.open()
    return bench


def rank(bench: RankedBench, offset: bytes, priority: int, at: int = 0) -> bytes:
    """Change the priority. Return the new offset of the message."""
    ((outcome, where),) = bench.apply(at, c.Move([(by_id(offset), None, False, priority)]))[0]
    assert outcome == "moved"
    return bytes(where)


def add_alone(bench: RankedBench, value: str, priority: int | None) -> bytes:
    """Add the message as a separate log row instead of a batch of one."""
    return bench.add(value, priority=priority, unique=[None])[0]


def start(bench: RankedBench, priority: int, job_id: bytes = bytes(16), *, dry_run: bool = False) -> None:
    given = {"key_prefix": None, "from_ms": 0, "until_ms": FOREVER_MS, "dry_run": dry_run, "priority": priority}
    bench.apply(0, c.StartJob(job_id, "move", given))


def rank_all(
    bench: RankedBench, priority: int, job_id: bytes = bytes(16), *, dry_run: bool = False
) -> tuple[int, int, int]:
    """Run a priority job. Return its counts (matched, done, too late)."""
    start(bench, priority, job_id, dry_run=dry_run)
    bench.trim()
    job = bench.machine.jobs.find(job_id)
    assert job.state == "done"
    return job.matched, job.done, job.too_late


def read_priorities(bench: RankedBench, ranges: list[Range]) -> list[int | None]:
    """Return the priorities that consumers get with these messages."""
    found: list[int | None] = []
    for piece in MessageReader().pieces(bench.view, ranges):
        cells = Batch.parse(piece.batch).int_column(Column.PRIORITY) or [None] * piece.count
        live = [(0, len(cells))] if piece.live is None else piece.live
        found += [cell for first, count in live for cell in cells[first : first + count]]
    return found


def priorities(bench: RankedBench) -> list[bytes]:
    """Return the messages with an overlay row."""
    return [key[1:] for key, _ in bench.rows(rows.OVERLAY)]


# -- new position -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_message_keeps_its_age_within_the_new_priority(bench: RankedBench, promoted: bool, alone: bool) -> None:
    a, b, d = [add_alone(bench, name, 5) for name in "abd"] if alone else bench.add("a", "b", "d", priority=5)
    bench.add("x", "y", priority=1)
    if promoted:
        bench.take(0)
    assert [rank(bench, one, 1) for one in (d, a)] == [d, a], "the messages keep their offsets"
    assert rank(bench, b, 9) == b
    bench.restart()
    assert bench.take(9) == ["a", "d", "x", "y", "b"]


def test_delivery_time_stays_with_a_new_priority(bench: RankedBench) -> None:
    (a,) = bench.add("a", priority=5, due=[1000])
    bench.add("b", priority=3, due=[1000])
    assert rank(bench, a, 1) == a
    assert bench.take(5, at=999) == []
    assert bench.take(5, at=1000) == ["a", "b"]


@pytest.mark.parametrize("alone", [False, True])
def test_consumer_gets_the_new_priority(bench: RankedBench, alone: bool) -> None:
    offsets_ = [add_alone(bench, name, 5) for name in "abcd"] if alone else bench.add(*"abcd", priority=5)
    rank(bench, offsets_[1], 2)
    rank(bench, offsets_[3], 5)
    assert len(priorities(bench)) == (0 if alone else 1)
    ranges = [Range(one, 1) for one in offsets_] if alone else [Range(offsets_[0], 4)]
    assert read_priorities(bench, ranges) == [5, 2, 5, 5]
    (lease,) = bench.lease(1)
    assert bench.messages(lease)[0].fields == {Column.VALUE: b"b", Column.PRIORITY: 2}


@pytest.mark.parametrize("many", [3, 20])
def test_priority_change_affects_only_named_messages_of_a_batch(bench: RankedBench, many: int) -> None:
    column = bench.add(*[f"{number}" for number in range(60)], priority=5)
    for offset in column[10 : 10 + 2 * many : 2]:
        rank(bench, offset, 1)
    wanted = [1 if offset in column[10 : 10 + 2 * many : 2] else 5 for offset in column]
    assert read_priorities(bench, [Range(column[0], 60)]) == wanted
    assert read_priorities(bench, [Range(column[9], 3), Range(column[20], 1), Range(column[2], 2)]) == [
        5,
        1,
        5,
        wanted[20],
        5,
        5,
    ]
    pieces = MessageReader().pieces(bench.view, [Range(column[0], 60)])
    assert len(pieces) == (7 if many == 3 else 1)


def test_repeated_priority_changes_leave_no_rows(bench: RankedBench) -> None:
    a, b = bench.add("a", "b", priority=5)
    for priority in (1, 7, 5, 1):
        assert rank(bench, b, priority) == b
    assert bench.take(2) == ["b", "a"]
    bench.trim()
    assert priorities(bench) == [] and bench.rows(rows.LOG) == []
    assert bench.status().bytes == 0
    assert a < b


@pytest.mark.parametrize("of", [1, 3])
def test_moved_or_cancelled_message_takes_its_priority_with_it(bench: RankedBench, of: int) -> None:
    a, b, d = bench.add("a", "b", "d", priority=5)
    for one in (a, b, d)[:of]:
        rank(bench, one, 1)
    moved = bench.apply(0, c.Move([(by_id(a), T + 1000, False)]))[0][0][1]
    assert bench.apply(0, c.Cancel([by_id(b)]))[0] == [("cancelled", b)]
    assert priorities(bench) == [d][: max(of - 2, 0)]
    assert rank(bench, a, 0) == moved, "the message is named by its first id"
    assert bench.take(5) == ["d"]
    assert [m.fields[Column.PRIORITY] for lease in bench.lease(5, at=1000) for m in bench.messages(lease)] == [0]


def test_separate_payload_stays_separate() -> None:
    bench = RankedBench()
    bench.open()
    a, _ = [add_alone(bench, name + LARGE, 5) for name in "ab"]
    before, payloads = bench.status().bytes, bench.rows(rows.PAYLOAD)
    assert rank(bench, a, -2_000_000) == a
    assert (bench.status().bytes, bench.rows(rows.PAYLOAD)) == (before, payloads), "a large payload is written once"
    bench.restart()
    (lease,) = bench.lease(1)
    (message,) = bench.messages(lease)
    assert (message.fields[Column.PRIORITY], message.fields[Column.VALUE][:1]) == (-2_000_000, b"a")
    bench.ack(lease.token)
    assert len(bench.take(1)) == 1
    bench.trim()
    assert bench.rows(rows.PAYLOAD) == [] and bench.status().bytes == 0


@pytest.mark.parametrize("priority", [0, 7])
def test_priority_and_time_change_together(bench: RankedBench, priority: int) -> None:
    """At this size, the bytes of the number decide whether the payload is stored separately."""
    a = add_alone(bench, "x" * (rows.INLINE_BYTES - 11), 1_000_000)
    payloads = bench.rows(rows.PAYLOAD)
    assert len(payloads) == 1
    for to in (T + 5000, T + 9000):
        assert bench.apply(0, c.Move([(by_id(a), to, False, priority)]))[0][0][0] == "moved"
        assert bench.rows(rows.PAYLOAD) == payloads
    bench.restart()
    (lease,) = bench.lease(1, at=9000)
    assert (bench.messages(lease)[0].fields.get(Column.PRIORITY) or 0) == priority
    bench.nack(lease.token, at=9000, delay=0)
    assert bench.cancel(a, at=9000) == ("cancelled", a)
    bench.trim(9000)
    assert bench.rows(rows.PAYLOAD) == [] and bench.status().bytes == 0


def test_a_reset_may_have_put_it_behind_when_it_waits(bench: RankedBench) -> None:
    """The message gets a new time and a new priority at once, in its row."""
    day = 86_400_000
    (a,) = bench.add("x" * (rows.INLINE_BYTES - 20), priority=1_000_000, due=[day], ttl=[365 * day])
    assert len(bench.rows(rows.PAYLOAD)) == 1
    bench.nack(bench.one(at=100 * day).token, at=100 * day, delay=5 * day)
    bench.apply(0, c.ClockReset(T))
    bench.trim(0)
    before = bench.status().bytes
    assert bench.apply(1, c.Move([(by_id(a), T + 3_600_000, False, 0)]))[0][0][0] == "moved"
    assert bench.status().bytes == before
    bench.restart()
    lease = bench.one(at=3_600_000)
    assert bench.messages(lease)[0].fields.get(Column.PRIORITY) == 0
    bench.ack(lease.token, at=3_600_000)
    bench.trim(3_600_000)
    assert bench.rows(rows.PAYLOAD) == [] and bench.status().bytes == 0


# -- look-aheads in memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bulk", [False, True])
def test_rows_are_equal_with_and_without_restarts(bulk: bool) -> None:
    """Look-ahead entries have the current size of the row."""
    benches = [RankedBench() for _ in range(2)]
    for bench in benches:
        bench.open()
        ids = [add_alone(bench, name, None) for name in "abc"] + bench.add("d")
        bench.add("later", priority=9, due=[500])
    one, another = benches
    assert one.machine.groups.named("g").reader.head(one.view) is not None
    for bench in benches:
        if bulk:
            rank_all(bench, 3)
        else:
            for offset in ids:
                rank(bench, offset, 3)
        if bench is another:
            bench.restart()
        bench.take(0)
        bench.ack(bench.one(limit=1).token)
        bench.take(0, at=600)
    assert comparable(one.everything()) == comparable(another.everything())
    assert one.take(9, at=600) == another.take(9, at=600) == ["b", "c", "d", "later"]
    one.trim(600)
    assert one.status().messages == one.status().bytes == 0


@pytest.mark.parametrize("bulk", [False, True])
def test_a_group_with_as_many_queues_as_it_may_have_gets_no_other(
    bulk: bool, bench: RankedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_queues, "FIXED", replace(FIXED, ready_queues=2))
    a, b = [bench.add(name, priority=priority)[0] for name, priority in (("a", 5), ("b", 6))]
    bench.take(0)
    assert rank(bench, b, 5) == b, "the queue exists already"
    bench.add("d", priority=6)
    bench.take(0)
    if bulk:
        assert rank_all(bench, 1) == (3, 3, 0)
        assert bench.rows(rows.LOG)[0][0] > rows.LOG + a
    else:
        assert rank(bench, a, 1) > a, "the message goes to the end of the log and is ranked when there is room"
    assert sum(len(bench.take(9)) for _ in range(4)) == 3


# -- by a job ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promoted", [False, True])
def test_a_job_changes_all_that_are_pending(bench: RankedBench, promoted: bool) -> None:
    bench.add("a", "b", "c", priority=[4, 5, 6])
    bench.add("d", "e", priority=4)
    add_alone(bench, "f" + LARGE, 9)
    bench.add("g", priority=3)
    bench.add("h", priority=3, unique=["u"])
    bench.add("k", priority=8, due=[700])
    moved = bench.apply(0, c.Move([(by_id(bench.add("i", priority=2)[0]), T, False)]))[0][0]
    assert moved[0] == "moved"
    lease = bench.one(limit=1, consumer="x") if promoted else None
    before = {key for key, _ in bench.rows(rows.LOG)}
    assert rank_all(bench, 7, dry_run=True) == (9 if promoted else 10, 0, 1 if promoted else 0)
    assert rank_all(bench, 7, b"2" * 16) == (9 if promoted else 10, 9 if promoted else 10, 1 if promoted else 0)
    assert {key for key, _ in bench.rows(rows.LOG)} == before
    bench.restart()
    names = [name[0] for name in bench.take(20, at=700)]
    assert names == list("abcdefghik" if not promoted else "abcdefghk"), "by age"
    if lease is not None:
        assert bench.values([lease]) == ["i"]
        bench.ack(lease.token)
    bench.trim(700)
    assert bench.status().messages == bench.status().bytes == 0


def test_priority_job_skips_messages_that_arrive_later(bench: RankedBench) -> None:
    bench.add("a", priority=5)
    start(bench, 7)
    bench.add("b", priority=5)
    bench.trim()
    assert bench.take(2) == ["b", "a"]


def test_priority_change_affects_each_group(bench: RankedBench) -> None:
    bench.open("h")
    bench.add("a", "b", priority=[4, 5])
    assert bench.take(0) == [] and bench.take(0, group="h") == []
    bench.take(1, group="h")
    assert rank_all(bench, 1) == (1, 1, 1), "a message that one group holds cannot be changed"
    assert bench.take(2) == ["b", "a"]
    assert bench.take(2, group="h") == ["b"]


@pytest.mark.parametrize("alone", [False, True])
def test_priority_job_changes_messages_waiting_for_retry(alone: bool) -> None:
    bench = RankedBench(retention="1h")
    for group in "gh":
        bench.open(group)
    names = "abcd"
    if alone:
        for name in names:
            add_alone(bench, name, 5)
    else:
        bench.add(*names, priority=5)
    back = [bench.one(limit=3), bench.one(limit=3, group="h")]
    for lease in back:
        bench.nack(lease.token, delay=1000)
    held = bench.one(limit=1, at=1000, group="h")
    assert bench.values([held]) == ["a"]
    reached = 2
    given = {"key_prefix": None, "from_ms": 0, "until_ms": FOREVER_MS, "dry_run": True, "priority": 9}
    bench.apply(1000, c.StartJob(bytes(16), "move", given))
    bench.trim(1000)
    assert bench.machine.jobs.find(bytes(16)).matched == reached + 1, "d and the waiting messages"
    bench.apply(1000, c.StartJob(bytes(15) + b"1", "move", given | {"dry_run": False}))
    bench.trim(1000)
    job = bench.machine.jobs.find(bytes(15) + b"1")
    assert (job.done, job.too_late) == (reached + 1, 3 - reached), "a is held in one group"
    bench.add("e", priority=7)
    bench.restart()
    order = ["a", "e", "b", "c", "d"] if reached else ["a", "b", "c", "e", "d"]
    assert bench.take(9, at=1000) == order
    assert bench.take(9, at=1000, group="h") == order[1:]
    bench.open("later")
    assert bench.take(9, at=1000, group="later") == order, "a group that reaches the message later"


def test_priority_job_changes_messages_outside_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "STEP_MESSAGES", 2)
    bench = RankedBench()
    for group in "gh":
        bench.open(group)
    cells = {Column.VALUE: [b"a", b"b", b"c", b"d"], Column.KEY: [b"k1", b"k1", b"k2", b"k1"]}
    bench.apply(0, c.Append(encode(cells)))
    for group in "gh":
        bench.nack(bench.one(limit=4, group=group).token, delay=2 * PIN_MS)
    bench.trim(PIN_MS)
    assert bench.rows(rows.LOG) == [] and len(bench.rows(rows.KEPT)) == 8
    assert bench.take(1, at=2 * PIN_MS, group="h") == ["a"]
    given = {"from_ms": 0, "until_ms": T + 1, "key_prefix": b"k1", "dry_run": False, "priority": 9}
    for number, window in enumerate([{}, {"from_ms": T + 1, "until_ms": FOREVER_MS}, {"until_ms": T}]):
        bench.apply(2 * PIN_MS, c.StartJob(bytes([number] * 16), "move", given | window))
        bench.restart()
        bench.trim(2 * PIN_MS)
        job = bench.machine.jobs.find(bytes([number] * 16))
        assert (job.matched, job.done, job.too_late) == ((2, 2, 1) if number == 0 else (0, 0, 0))
    assert bench.take(9, at=2 * PIN_MS) == ["a", "c", "b", "d"], "a was acked in the other group"
    assert bench.take(9, at=2 * PIN_MS, group="h") == ["c", "b", "d"]


def test_priority_job_counts_messages_that_leave_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = RankedBench()
    bench.open()
    bench.add(*"abc", priority=5)
    bench.nack(bench.one(limit=3).token, delay=3 * PIN_MS)
    start(bench, 9)
    bench.upkeep(PIN_MS - 1)  # the log
    assert bench.machine.jobs.find(bytes(16)).done == 3 and bench.rows(rows.LOG)
    bench.trim(2 * PIN_MS)
    job = bench.machine.jobs.find(bytes(16))
    assert (job.state, job.matched, job.done, job.too_late) == ("done", 3, 3, 0)


def test_a_step_of_a_job_is_as_long_with_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_ranks, "CHECKS", 20)
    bench = RankedBench()
    for number in range(10):
        bench.open(f"g{number}")
    bench.add(*"abcdef", priority=5)
    start(bench, 9)
    for done in (2, 4, 6, 6):
        bench.upkeep()
        job = bench.machine.jobs.find(bytes(16))
        assert (job.state, job.done) == ("running", done)
    bench.upkeep()
    assert job.state == "done", "groups without kept messages need no step"


@pytest.mark.parametrize("state", STATES)
def test_priority_changes_in_all_states_but_leased_acked_and_dead(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFAULT, "is_ranked", True)
    one = scene(state)
    change = c.Move([(by_id(one.offset), None, False, -5)])
    refusal = ("too_late", state) if state in ("leased", "acked", "dead") else None
    assert one.bench.apply(3, change)[0] == [refusal or ("moved", one.offset)]
    one.bench.restart()
    assert one.state == state


@pytest.mark.parametrize("alone", [False, True])
def test_priority_of_waiting_message_applies_to_later_groups(alone: bool) -> None:
    bench = RankedBench(retention="1h")
    bench.open()
    a, *_ = [add_alone(bench, name, 5) for name in "abd"] if alone else bench.add("a", "b", "d", priority=5)
    lease = bench.one(limit=3)
    bench.nack(lease.token, delay=0)
    assert rank(bench, a, 9) == a
    later = ["b", "d", "a"]
    bench.restart()
    bench.open("h")
    assert bench.take(9, group="h") == later, "a group that begins at the earliest message"
    assert bench.take(9) == ["b", "d", "a"]
    bench.seek("earliest")
    assert bench.take(9) == later, "the group itself, after a seek to the earliest message"


@pytest.mark.parametrize("large", [False, True])
def test_priority_of_message_outside_the_log_is_stored_in_its_group(large: bool) -> None:
    bench = RankedBench()
    bench.open()
    (a,) = bench.add(LARGE if large else "a", priority=5)
    lease = bench.one(ms=10 * PIN_MS)
    later = 2 * PIN_MS
    bench.add("b", at=later - 1)
    assert bench.take(at=later) == ["b"]
    bench.trim(later)
    assert bench.machine.log.find(a, bench.view) is None, "only the group has the message"
    bench.nack(lease.token, delay=0, at=later)
    assert rank(bench, a, 9, later) == a
    bench.add("c", priority=7, at=later)
    bench.restart()
    assert [value[:1] for value in bench.take(9, at=later)] == ["c", LARGE[:1] if large else "a"]
    assert not priorities(bench)


def test_tenants_stay_apart() -> None:
    bench = RankedBench("fair")
    bench.open()
    bench.add("a", "b", "c", priority=[4, 5, 6], tenant=["x", "y", "x"])
    bench.take(0)
    assert rank_all(bench, 1) == (3, 3, 0)
    queues = [key[5:] for key, _ in rows.all_of_group(bench.view, rows.QUEUE, 1)]
    assert [key[:2] for key in queues] == [b"x\0", b"y\0"]
    assert sorted(bench.take(3)) == ["a", "b", "c"]


def test_a_job_makes_no_more_queues_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_queues, "FIXED", replace(FIXED, ready_queues=6))
    monkeypatch.setattr(jobs, "STEP_MESSAGES", 5)
    bench = RankedBench("fair")
    bench.open()
    names = [f"{tenant}{number}" for number in range(2) for tenant in "vwxyz"]
    for name in names:
        bench.add(name, priority=4, tenant=name[0])
    bench.take(0)
    start(bench, 1)
    bench.upkeep()
    queues = rows.all_of_group(bench.view, rows.QUEUE, 1)
    assert len(queues) == 6, "the new queue and the queues that are not empty"
    bench.trim()
    assert bench.machine.jobs.find(bytes(16)).done == 10
    assert sorted(name for _ in range(20) for name in bench.take(3)) == sorted(names)


def test_many_in_one_queue_take_bounded_memory(bench: RankedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_entries, "MOST_ENTRIES", 8)
    names = [f"{number:03}" for number in range(100)]
    for name in names:
        bench.add(name, priority=5)
    bench.add("last", priority=1)
    bench.take(0)
    assert rank_all(bench, 1) == (101, 101, 0)
    ready = bench.machine.groups.named("g").ready
    assert ready is not None and 0 < ready.held_bytes <= 16 * ENTRY_BYTES, "it is counted"
    assert bench.take(200) == [*names, "last"]


# -- with other features ----------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_takes_nothing_from_it(bench: RankedBench) -> None:
    """Messages of a batch row get separate rows."""
    _, b, _ = bench.add("a", "b", "d", priority=5, at=100_000)
    rank(bench, b, 1, at=100_000)
    bench.apply(0, c.ClockReset(T))
    bench.trim()
    assert priorities(bench) == []
    assert bench.take(9, at=1000) == ["b", "a", "d"]
