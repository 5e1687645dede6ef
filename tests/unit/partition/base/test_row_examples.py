"""Tests that decode and encode the examples of batches, rows and entries in docs/storage-format.md."""

from __future__ import annotations

from collections import Counter

import pytest

from sandq.metadata.records import Partition, Topic
from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.errors import OutOfSequence
from sandq.model.group_limits import parse_limit, with_limit
from sandq.model.limits import FIXED
from sandq.model.names import schedule_id
from sandq.model.outbox import Target
from sandq.model.partitioning import ordering_hash
from sandq.model.sequence import RESENT
from sandq.model.settings import parse_group_settings
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS, ExpiringRows
from sandq.partition.base.rows import Extra, Fields, LogEntry, Range
from sandq.partition.base.view import View
from sandq.partition.command_types import CommandType
from sandq.partition.groups.dead_letters import Death, put_rows
from sandq.partition.groups.dead_letters import load as load_dead
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.spilled import SpilledMessages
from sandq.partition.groups.unique_keys import DELIVERED, HELD, Named, UniqueKeys
from sandq.partition.jobs.job import Job
from sandq.partition.kv import key_table
from sandq.partition.kv.compacted import COMPACTION, CompactedPartition
from sandq.partition.log.counts import Counts
from sandq.partition.log.holds import Hold
from sandq.partition.log.trim import PIN_MS
from sandq.partition.producers.producers import Producers
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.pieces import AS_PLACED, Message, Wanted, kept_messages, load_kept, load_message
from sandq.partition.ready import queue_keys
from sandq.partition.records.leases import Lease, Made, Waiting
from sandq.partition.records.lives import Life
from sandq.partition.records.packed_ranges import PackedRanges
from sandq.partition.restore.restoring import STATE_OF_BACKUP
from sandq.partition.schedules.schedule import Schedule, fire_key, fire_of, key_of
from sandq.partition.shared_state import SharedState
from sandq.partition.state_machine import TimerPartition
from sandq.storage.stores import MemoryStores
from tests.support.partition.bench import Bench, T, batch_of, by_id, by_key
from tests.support.partition.outbox_bench import OutboxBench
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.steps import step_at
from tests.unit.storage.test_storage_format import PAGE, example

OFFSET = offsets.pack(T, 7, 2, 3)
MOVED_TO = offsets.pack(T + 60_000, 9, 0, 3)
JOB_ID = bytes(range(16))
SENDER = (77, 1, 3, 0)
HI: Fields = {Column.VALUE: b"hi"}
NAMED: Fields = HI | {Column.KEY: b"k", Column.TTL_MS: 60_000, Column.UNIQUE_KEY: b"k"}
EXTRA = Extra(OFFSET, 60_000, b"k", ordering_hash(b"k"))
HISTORY = ((1, "w1", T, T + 500, "nacked", "boom"),)


def view_of(*stored: tuple[bytes, bytes]) -> View:
    view = View(MemoryStores())
    for key, value in stored:
        view.put(key, value)
    return view


def test_offset() -> None:
    assert example("offset") == OFFSET
    assert offsets.unpack(OFFSET) == (T, 7, 2, 3)
    assert offsets.from_text("01MCC5RM00000000000W000803") == OFFSET


def test_batch() -> None:
    batch = Batch.parse(example("batch"))
    assert batch.values() == [b"hi", b"later"]
    assert batch.int_column(Column.DELIVER_MS) == [None, T + 1000]
    assert encode({Column.VALUE: [b"hi", b"later"], Column.DELIVER_MS: [None, T + 1000]}) == batch.raw


def test_log_rows() -> None:
    row = example("batch-row")
    assert row == rows.batch_row(2, T, encode({Column.VALUE: [b"a", b"b"]}))
    assert rows.log_entry(rows.log_key(OFFSET), row) == LogEntry(OFFSET, 2, len(row), None, len(row) // 2)
    stored, entry = rows.message_rows(OFFSET, T, HI | {Column.KEY: b"k"}, None, {})
    assert stored == [(example("message-key"), example("message-row"))]
    assert entry == rows.log_entry(*stored[0]) == LogEntry(OFFSET, 1, len(stored[0][1]))


@pytest.mark.parametrize("is_delay", [False, True])
@pytest.mark.parametrize("longest", [0, 31, 255, 256, rows.INLINE_BYTES - 7, rows.INLINE_BYTES - 6, 1 << 17])
def test_rows_of_values_alone_are_those_of_any_message(longest: int, is_delay: bool) -> None:
    values = [b"v" * length for length in (longest, 0, 1, longest, longest // 2)]
    column = offsets.run(OFFSET, len(values))
    messages = [{int(Column.VALUE): value} for value in values]
    found = rows.value_rows(column, T, values, is_delay=is_delay)
    assert found == rows.plain_rows(column, T, messages, is_delay=is_delay)
    assert (found is None) == (longest > rows.INLINE_BYTES - 7)


def test_a_message_that_has_everything() -> None:
    stored, entry = rows.message_rows(OFFSET, T, NAMED, None, rows.needed_of(NAMED, True))
    assert stored == [(example("message-key"), example("extra-row"))]
    assert entry == rows.log_entry(*stored[0]) == LogEntry(OFFSET, 1, len(stored[0][1]), EXTRA)
    assert load_message(view_of(), OFFSET, stored[0][1]) == Message(OFFSET, OFFSET, T, NAMED, AS_PLACED)


def test_a_payload_that_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = example("payload-key"), example("payload-row")
    moved = rows.log_key(MOVED_TO), example("apart-row")
    assert rows.log_entry(*moved) == LogEntry(MOVED_TO, 1, len(payload[1]), EXTRA)
    assert load_message(view_of(payload, moved), MOVED_TO, moved[1]) == Message(MOVED_TO, OFFSET, T, NAMED, AS_PLACED)
    monkeypatch.setattr(rows, "INLINE_BYTES", 0)
    stored, _ = rows.message_rows(OFFSET, T, NAMED, None, rows.needed_of(NAMED, True))
    assert stored[0] == payload
    assert rows.moved_row(stored[1][1], OFFSET) == moved[1]


def test_cancelled_and_forgotten() -> None:
    bench = Bench()
    bench.open()
    bench.cancel(bench.append("m", due=[60_000]))
    assert bench.rows(rows.TOMBSTONE) == [(example("forget-key")[7:], example("cancelled-row"))]
    assert bench.rows(rows.FORGET) == [(example("forget-key"), b"")]
    bench.trim(at=CANCEL_MEMORY_MS)
    assert bench.rows(rows.TOMBSTONE) == bench.rows(rows.FORGET) == []


def test_moved() -> None:
    assert rows.unpack(example("tombstone-row")) == ["moved", T + 5, None]
    assert rows.unpack(example("moved-row")) == [MOVED_TO, 1, T + 5, None]
    view = view_of(
        (rows.MOVED + OFFSET, example("moved-row")),
        (rows.log_key(MOVED_TO), example("apart-row")),
        (rows.TOMBSTONE + OFFSET, example("tombstone-row")),
    )
    found = TimerPartition(3, {"ordering": "none"}).log.find(OFFSET, view)
    assert found is not None and (found.offset, found.id, found.moves, found.moved_ms) == (MOVED_TO, OFFSET, 1, T + 5)
    bench = Bench()
    offset, _ = bench.append("m")
    _, there = bench.move(offset, 60_000, at=5)
    assert bench.rows(rows.TOMBSTONE) == [(rows.TOMBSTONE + offset, example("tombstone-row"))]
    assert bench.rows(rows.MOVED) == [(rows.MOVED + offset, rows.pack(there, 1, T + 5, None))]


def test_unique_keys() -> None:
    assert rows.scoped_unique_key(b"acme", b"k") == example("scoped-unique-key")
    assert rows.keyed_unique_key(rows.key_digest(b"ada"), b"i") == example("keyed-unique-key")
    shared = SharedState({"dedup_window_ms": 600_000, "ordering": "none"})
    groups = GroupTable(shared, LookAheads())
    unique, view = UniqueKeys(shared, groups, ExpiringRows()), view_of()
    first, second = groups.create("g", offsets.FIRST), groups.create("h", offsets.FIRST)
    entry, step = LogEntry(OFFSET, 1, 100, EXTRA), step_at(T, view)
    unique.hold(step, b"k", None, OFFSET, SENDER)
    assert view.get(rows.UNIQUE + b"k") == example("unique-row")
    assert unique.find(b"k", None, T, view) == Named(HELD, OFFSET, SENDER, b"uk")
    unique.hold(step, b"k", None, OFFSET, None)
    unique.mark_delivered(step, first, entry)
    assert view.get(rows.UNIQUE + b"k") == example("unique-attempted-row")
    first.reader.seek(OFFSET)
    unique.mark_delivered(step, second, entry)
    assert view.get(rows.UNIQUE + b"k") == example("unique-delivered-row")
    assert unique.find(b"k", None, T + 599_999, view) == Named(DELIVERED, OFFSET, None, b"uk")
    assert unique.find(b"k", None, T + 600_000, view) is None


def test_lease_and_progress() -> None:
    token = offsets.token(9, 0)
    lease = Lease.load(token, example("lease-row"), example("progress-row"))
    assert (lease.group_id, lease.consumer, lease.attempt) == (1, "w1", 1)
    assert (lease.deadline_ms, lease.due_ms, lease.ranges) == (T + 30_000, T, [Range(OFFSET, 2)])
    assert (lease.leased_ms, lease.since_ms, lease.kept, lease.past) == (T, T, False, [])
    assert (lease.acked, lease.left, lease.ended, lease.revoked) == (1, 0, 0, False)
    assert (lease.row(), lease.progress_row()) == (example("lease-row"), example("progress-row"))


def test_waiting() -> None:
    waiting = Waiting(T + 1000, 5, 1, "boom", PackedRanges([Range(OFFSET, 1)]), T, history=HISTORY)
    assert waiting.row() == example("waiting-row")
    assert rows.waiting_key(1, T + 1000, 5) == example("waiting-key")
    loaded = Waiting.load(example("waiting-key"), example("waiting-row"))
    assert (loaded.due_ms, loaded.seq, loaded.since_ms) == (T + 1000, 5, T)
    assert (loaded.kept, loaded.expires_ms, loaded.history) == (False, None, HISTORY)


def test_spilled() -> None:
    spilled, step = SpilledMessages(1), step_at(T, view_of())
    ranges = PackedRanges([Range(OFFSET, 1)])
    waiting = Waiting(T + 1000, 5, 1, "boom", ranges, T, kept=True, history=HISTORY, made=Made(T, 1000))
    spilled.put(step, waiting, [(OFFSET, None)])
    assert step.view.get(example("spilled-key")) == example("spilled-row")
    assert step.view.get(example("spilled-time-key")) == example("spilled-time-row")
    loaded = spilled.find(OFFSET, step.view)
    assert loaded is not None and loaded.row() == waiting.row()


def test_rows_of_ranked_topics() -> None:
    queue = queue_keys.pack("acme.mail", 5)
    assert rows.of_group(rows.QUEUE, 1, queue) == example("queue-key")
    assert rows.of_group(rows.READY, 1, queue + OFFSET) == example("ready-key")
    assert rows.of_group(rows.TURNS, 1, b"acme") == example("turns-key")
    bench = RankedBench("fair")
    bench.open()
    for tenant in ("a", "b"):
        bench.add("1", "2", "3", tenant=tenant)
    bench.take(3)
    view = bench.view
    first, second = rows.all_of_group(view, rows.READY, 1)
    assert rows.unpack(example("queue-row"))[1] == OFFSET
    assert [rows.unpack(value)[0] for _, value in rows.all_of_group(view, rows.QUEUE, 1)] == [1, 2]
    assert [len(rows.unpack(one[1])) for one in (first, second)] == [len(rows.unpack(example("ready-row")))] * 2
    turns = {key[5:]: rows.unpack(value) for key, value in rows.all_of_group(view, rows.TURNS, 1)}
    assert turns[b"a"] == [2 << 20, 0] and turns[b""] == [0, 1 << 20]
    assert rows.of_group(rows.PACE, 1, b"acme") == example("pace-key")
    assert rows.pack(T * 1000) == example("pace-row")
    assert rows.unpack(example("turns-row")) == [3 << 20, 2 << 20]


def test_rows_of_a_changed_priority_in_a_batch() -> None:
    bench = RankedBench()
    bench.open()
    _, one = bench.add("1", "2", priority=5)
    bench.apply(0, c.Move([(by_id(one), None, False, -5)]))
    assert example("priority-key") == rows.OVERLAY + OFFSET
    assert bench.rows(rows.OVERLAY) == [(rows.OVERLAY + one, example("priority-row"))]


def test_rows_of_updated_fields_in_a_batch() -> None:
    bench = RankedBench()
    bench.open()
    _, one = bench.add("1", "2", priority=5)
    bench.update(one, "v")
    assert example("updated-key") == rows.UPDATED + OFFSET
    assert bench.rows(rows.UPDATED) == [(rows.UPDATED + one, example("updated-row"))]
    assert bench.rows(rows.OVERLAY) == [(rows.OVERLAY + one, example("updated-overlay-row"))]


def test_ranked_leases_and_waiting_entries() -> None:
    queue = queue_keys.pack("acme.mail", 5)
    lease = Lease.load(9 << 16, example("ranked-lease-row"), None)
    assert lease.queues == [(queue, 2)] and lease.row() == example("ranked-lease-row")
    waiting = Waiting.load(example("waiting-key"), example("ranked-waiting-row"))
    assert (waiting.queue, waiting.made) == (queue, Made(T, 1000)) and waiting.row() == example("ranked-waiting-row")


def test_dead_and_kept() -> None:
    view = view_of()
    group = Group(1, "g", OFFSET, LookAheads())
    put_rows(step_at(T + 500, view), group, [Message(OFFSET, OFFSET, T, HI)], Death("nacked", 1, "boom", HISTORY))
    key = rows.of_group(rows.DEAD, 1, OFFSET)
    assert view.get(key) == example("dead-row")
    assert view.get(example("death-key")) == b"" and rows.death_key(1, T + 500, OFFSET) == example("death-key")
    dead = load_dead(key, example("dead-row"))
    assert (dead.attempts, dead.reason, dead.error, dead.dead_ms) == (1, "nacked", "boom", T + 500)
    assert (dead.id, dead.created_ms, dead.fields, dead.history) == (OFFSET, T, HI, HISTORY)
    assert dead.kept_row() == example("kept-row")
    view.put(rows.of_group(rows.KEPT, 1, OFFSET), example("kept-row"))
    assert list(kept_messages(view, [Range(OFFSET, 1)], 1)) == [Message(OFFSET, OFFSET, T, HI)]


def test_redriven_and_dead_again() -> None:
    view, key = view_of(), rows.of_group(rows.DEAD, 1, OFFSET)
    redriven = load_dead(key, example("dead-row")).kept_row(T + 2000)
    assert redriven == example("kept-again-row")
    view.put(rows.of_group(rows.KEPT, 1, OFFSET), redriven)
    messages = kept_messages(view, [Range(OFFSET, 1)], 1)
    group = Group(1, "g", OFFSET, LookAheads())
    put_rows(step_at(T + 500, view), group, messages, Death("nacked", 1, "boom", HISTORY))
    row = view.get(key)
    assert row is not None and row == bytes([0x99]) + example("dead-row")[1:] + example("lives")
    assert load_dead(key, row).lives == (Life(1, 1, "nacked", "boom", T + 500, T + 2000, HISTORY),)


def test_rows_of_kept_messages() -> None:
    row = rows.kept_row(OFFSET, T, HI, wanted_ms=T + 1000, is_delay=True)
    assert row == example("copied-row")
    assert load_kept(OFFSET, row) == Message(OFFSET, OFFSET, T, HI, Wanted(T + 1000, True))
    assert rows.kept_entry(OFFSET, row) == rows.kept_entry(OFFSET, rows.kept_row(OFFSET, T, HI))._replace(size=len(row))


def test_blocked() -> None:
    bench = Bench(ordering="key")
    bench.open()
    bench.put("a", key="k")
    bench.put("b", key="k")
    bench.lease()
    assert [row for _, row in bench.rows(rows.BLOCKED)] == [example("blocked-row")]
    assert rows.of_group(rows.BLOCKED, 1, OFFSET) == example("blocked-key")
    bench.apply(PIN_MS, c.Ack([]))
    bench.trim(PIN_MS)
    assert [row for _, row in bench.rows(rows.BLOCKED)] == [example("blocked-kept-row")]


def test_group() -> None:
    group = Group.load(rows.group_key(1), example("group-row"), LookAheads())
    assert (group.group_id, group.name, group.cursor, group.dead) == (1, "g", OFFSET, Counter(nacked=2))
    assert (group.touched_ms, group.settings) == (T, parse_group_settings({"max_attempts": 3}))
    assert group.reader.taken == (T // 1000, 4)
    assert group.row() == example("group-row")


def test_counts() -> None:
    view = view_of((example("counts-key"), example("counts-row")))
    counts = Counts()
    counts.load((0, 0, 0, 4))
    assert counts.seconds(T // 1000, T // 1000 + 61, view) == [(T // 1000, 2), (T // 1000 + 60, -1)]
    written, counts = view_of(), Counts()
    counts.load((0, 0, 0, 3))
    counts.add(T, 2)
    counts.add(T + 60_000, -1)
    counts.write(written)
    assert written.drain() == [(example("counts-key"), example("counts-row"))]


def test_job() -> None:
    job = Job.load(example("job-row"))
    assert (job.job_id, job.kind, job.index, job.seq, job.started_ms) == (JOB_ID, "cancel", 41, 12, T)
    assert job.state == "running"
    assert job.arguments == {"from_ms": 0, "until_ms": offsets.U48_MAX, "dry_run": False, "key_prefix": None}
    assert (job.position, job.matched, job.done, job.too_late) == (OFFSET, 1000, 990, 10)
    assert (job.finished_ms, job.next_ms) == (None, T + 100)
    assert job.row() == example("job-row")


def test_state() -> None:
    loaded = TimerPartition.load(3, {}, view_of((rows.STATE_KEY, example("state-row"))))
    assert (loaded.applied_index, loaded.now_ms, loaded.floor_ms, loaded.clock_epoch) == (41, T + 5000, T + 5000, 0)
    log = loaded.log.state
    assert (log.messages, log.trimmed, log.bytes, log.gone) == (3, OFFSET, 123, (T // 1000, 2))
    assert loaded.log.counts.state() == (T // 1000 + 5, 1, 500_000, 4)
    assert loaded.expiring_rows.state() == (T + 600_000, 0)
    assert (loaded.groups.next_id, loaded.shared.next_seq, loaded.ttl.any_own) == (2, 6, True)
    assert loaded.settings == {"ordering": "none"}
    again = view_of()
    loaded.write_state(again)
    assert again.drain() == [(rows.STATE_KEY, example("state-row"))]


def test_keys() -> None:
    row = example("value-row")
    value = key_table.Value(OFFSET, b"on", b"\x80", T + 60_000)
    assert key_table.Value.load(row) == value and value.row() == row
    view = view_of()
    table = key_table.KeyTable()
    table.put(step_at(T, view), b"lamp", value)
    assert dict(view.drain()) == {b"vlamp": row, example("expiry-key"): b""}
    partition = CompactedPartition.load(
        3,
        {},
        view_of(
            (rows.STATE_KEY, example("state-row")),
            (key_table.STATE, example("keys-row")),
            (COMPACTION, example("compaction-row")),
        ),
    )
    table = partition.keys
    assert (table.live, table.bytes, table.next_expiry_ms, table.deletions) == (3, 120, T + 60_000, 2)
    assert partition.compactor.state() == (
        T + 5000,
        offsets.FIRST,
        offsets.FIRST,
        T,
        None,
        T // 1000 - 60,
        3,
        False,
        None,
        5,
        T,
        (T // 1000 - 60, T),
        0,
        None,
    )
    again = view_of()
    partition.write_state(again)
    written = dict(again.drain())
    assert (written[key_table.STATE], written[COMPACTION]) == (example("keys-row"), example("compaction-row"))


def test_producers() -> None:
    bench = Bench()
    bench.open()
    named = batch_of(["m"], due=[500], unique=["k"])
    bench.apply(5, c.Append(batch_of(["a", "b"]), 77, 1, 1))
    bench.apply(5, c.Append(named, 77, 1, 2, split=True))
    bench.apply(6, c.Append(named, 77, 1, 3, split=True))
    assert bench.rows(rows.PRODUCER) == [(example("producer-key"), example("producer-row"))]
    assert bench.rows(rows.ANSWER) == [(example("answer-key"), example("answer-row"))]
    dropped = view_of((rows.PRODUCER, example("dropped-row")), *bench.rows(rows.PRODUCER))
    producers = Producers(0)
    producers.load(dropped)
    assert (len(producers), producers.next_ms) == (1, T + 6 + FIXED.producer_ttl_ms)
    again = c.Append(named, 78, 1, RESENT | 1, split=True)
    with pytest.raises(OutOfSequence):
        producers.answered(again, T + FIXED.producer_retry_ms, dropped)
    assert producers.answered(again, T + FIXED.producer_retry_ms + 1, dropped) is None


def test_outbox() -> None:
    bench = OutboxBench()
    bench.apply(0, c.Clock())
    bench.kill("hi")
    bench.kill("yo", at=1)
    (first, _), (_, waiting) = (one, other) = bench.rows(rows.OUTBOX)
    assert (first, one[1], waiting) == (example("outbox-key"), example("outbox-row"), example("outbox-waiting-row"))
    assert bench.rows(rows.OUTBOX_BATCH) == [(example("outbox-batch-key"), example("outbox-batch-row"))]
    assert other[0] == example("outbox-key")[:-1] + b"\x02"
    (key, dead), _ = bench.rows(rows.DEAD)
    assert dead.endswith(bytes.fromhex("90 93 09 00 01")) and load_dead(key, dead).forward == (Target(9, 0), 1)


def test_hold() -> None:
    bench = Bench()
    bench.apply(0, c.Hold("spark", OFFSET, 3_600_000))
    assert bench.rows(rows.HOLD) == [(example("hold-key"), example("hold-row"))]
    assert Hold.load(example("hold-key"), example("hold-row")) == ("spark", OFFSET, T + 3_600_000)


def test_limits_of_groups() -> None:
    bench = Bench()
    bench.open()
    given = parse_limit({"max_in_flight": 10, "rate": 50, "burst": 4})
    bench.apply(0, c.Configure(with_limit(bench.settings, "g", 2, given)))
    bench.append("a")
    bench.apply(0, c.ShareLimit("g", 1, [(1, 0, 2, 0)], []))
    bench.lease()
    bench.apply(0, c.ShareLimit("g", 1, [], [(1, 6, 1)]))
    assert bench.rows(rows.LIMIT) == [(example("limit-key"), example("limit-row"))]
    assert bench.rows(rows.SHARE) == [(example("share-key"), example("share-row"))]
    before = bench.status().limits
    bench.restart()
    assert bench.status().limits == before


def test_member_of_a_named_limit() -> None:
    bench = Bench()
    limit = with_limit(bench.settings, "llm", 0, parse_limit({"max_in_flight": 10}))
    bench.apply(0, c.Configure(limit))
    bench.apply(0, c.ShareLimit("llm", 1, [], [], [(12, 3, "g", 2)], []), c.PauseLimit("llm", T + 5, "ada", False))
    assert bench.rows(rows.LIMIT_MEMBER) == [(example("member-key"), example("member-row"))]
    ((key, _),) = bench.rows(rows.SHARE)
    assert key == b"O" + example("member-key")[1:]
    before = bench.status().limits
    bench.restart()
    assert bench.status().limits == before


def test_entry_of_limits() -> None:
    commands = (
        c.ShareLimit("g", 1, [(1, 0, 2, 0)], [(1, 6, 1)]),
        c.AllowLimit([("g", 1, 1, 4, 6, 1, T * 1000, None, None)]),
    )
    assert c.Entry(T, commands).encode() == example("entry-limits")
    decoded = c.Entry.decode(example("entry-limits"))
    assert [type(command) for command in decoded.commands] == [c.ShareLimit, c.AllowLimit]
    assert decoded.encode() == example("entry-limits")


def test_entry_of_a_level() -> None:
    assert c.Entry(T, (c.RaiseLevel(19),)).encode() == example("entry-level")
    assert tuple(c.Entry.decode(example("entry-level")).commands) == (c.RaiseLevel(19),)


def test_entry_that_asks_for_a_digest() -> None:
    assert c.Entry(T, (c.TakeDigest(524),)).encode() == example("entry-digest")
    assert tuple(c.Entry.decode(example("entry-digest")).commands) == (c.TakeDigest(524),)


def test_entry_that_sets_a_clock_back() -> None:
    assert c.Entry(T, (c.ClockReset(T),)).encode() == example("entry-clock-reset")
    assert tuple(c.Entry.decode(example("entry-clock-reset")).commands) == (c.ClockReset(T),)


def test_entry_of_pauses() -> None:
    until_ms = T + 600_000
    parts = c.PausePart("g", "acme", until_ms), c.PausePart("g", b"k", None)
    by_lease = c.PauseByLease([[65536, OFFSET, "key", until_ms, "g"]])
    of_limit = c.PauseLimit("llm", until_ms, "o", is_longer=True)
    commands = (*parts, by_lease, c.PauseLonger("g", None, until_ms), of_limit)
    assert c.Entry(T, commands).encode() == example("entry-pauses")
    assert tuple(c.Entry.decode(example("entry-pauses")).commands) == commands


def test_entry_of_holds() -> None:
    commands = (c.Hold("spark", OFFSET, 3_600_000), c.Hold("old", None))
    assert c.Entry(T, commands).encode() == example("entry-holds")
    assert tuple(c.Entry.decode(example("entry-holds")).commands) == commands


def test_entry() -> None:
    entry = c.Entry.decode(example("entry"))
    assert (entry.now_ms, entry.clock_epoch) == (T, 0)
    ack, expire = entry.commands
    assert isinstance(ack, c.Ack) and isinstance(expire, c.Expire)
    assert [list(item) for item in ack.items] == [[offsets.token(9, 0), None]]
    assert entry.encode() == example("entry")


def test_entry_of_other_commands() -> None:
    commands = (
        c.Cancel([(c.TARGET_ID, OFFSET)]),
        c.Move([(by_key("k"), 60_000, True)]),
        c.Seek("g", "earliest"),
        c.Touch(["g"]),
        c.StopJob(JOB_ID),
        c.Upkeep(),
    )
    assert c.Entry(T, commands).encode() == example("entry-commands")
    decoded = c.Entry.decode(example("entry-commands"))
    assert [type(command) for command in decoded.commands] == [type(command) for command in commands]
    assert decoded.encode() == example("entry-commands")


def test_schedules() -> None:
    settings = {"every_ms": 60_000, "anchor_ms": T, "misfire": "skip"}
    fields: Fields = HI | {Column.TENANT: b"acme"}
    history, triggers = [[T, T + 2, "sent", OFFSET]], [[JOB_ID, OFFSET]]
    next_ms, fire_ms = T + 60_000, T + 60_500
    name = schedule_id("daily", "acme")
    schedule = Schedule(
        name=name,
        version=9,
        settings=settings,
        fields=fields,
        expected_ms=next_ms,
        fire_ms=fire_ms,
        made=None,
        fired=3,
        missed=1,
        paused=False,
        created_ms=T,
        changed_ms=T + 5,
        last_ms=T,
        gap=None,
        done=[],
        history=history,
        triggers=triggers,
    )
    assert (key_of(name), schedule.row()) == (example("schedule-key"), example("schedule-row"))
    assert Schedule.load(name, example("schedule-row")) == schedule
    assert fire_key(fire_ms, name) == example("fire-key")
    assert fire_of(example("fire-key")) == (fire_ms, name)


def test_page_lists_every_row_tag_and_command() -> None:
    """The page lists each tag and number of the code."""
    tags = {value for value in vars(rows).values() if isinstance(value, bytes) and len(value) == 1}
    tags |= {key_table.VALUE, key_table.EXPIRY, key_table.STATE, COMPACTION, STATE_OF_BACKUP}
    assert len(tags) == 44
    for tag in tags:
        assert f"\n| `{tag.decode()}` |" in PAGE
    for number in CommandType:
        assert f"\n| {number.value} | {number.name} |" in PAGE


def test_topic() -> None:
    settings, first = {"lease_ms": 30_000}, {"lease_ms": 1000}
    partition = Partition(1, ("node1#1",), ("node1#1",))
    topic = Topic(
        name="t",
        number=1,
        kind="timer",
        initial_partitions=1,
        replicas=1,
        settings=settings,
        created_ms=T,
        partitions=(partition,),
        first_settings=first,
    )
    assert topic.row() == example("topic-row")
    assert Topic.load("t", example("topic-row"), {0: partition}) == topic


def test_partition() -> None:
    partition = Partition(1, ("n1#1",), ("n2#3",), ("n1#1",), 2, 1)
    assert partition.row("t", 0) == example("partition-row")
    assert Partition.load(1, example("partition-row")) == ("t", 0, partition)


def test_optional_fields_have_defaults_and_unknown_ones_are_ignored() -> None:
    assert rows.with_defaults([], "a", 0) == ("a", 0)
    assert rows.with_defaults([None], "a", 0) == (None, 0)
    assert rows.with_defaults([1, 2, 3], "a", 0) == (1, 2)
