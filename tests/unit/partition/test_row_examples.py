"""The examples of docs/storage-format.md that are about batches, rows and entries, decoded and encoded again."""

from __future__ import annotations

from sandq.metadata.state import Partition, Topic
from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.partition import commands as c
from sandq.partition import rows
from sandq.partition.groups import Group, Lease, Waiting
from sandq.partition.rows import Range
from tests.unit.partition.bench import T
from tests.unit.storage.test_storage_format import example

OFFSET = offsets.pack(T, 7, 2, 3)


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
    assert rows.log_entry(rows.log_key(OFFSET), row) == (OFFSET, 2, len(row), None)
    stored, entry = rows.message_rows(OFFSET, T, {Column.VALUE: b"hi", Column.KEY: b"k"}, None, False)
    assert stored == [(example("message-key"), example("message-row"))]
    assert entry == rows.log_entry(*stored[0]) == (OFFSET, 1, len(stored[0][1]), None)


def test_lease_and_progress() -> None:
    token = offsets.token(9, 0)
    lease = Lease.load(token, example("lease-row"), example("progress-row"))
    assert (lease.group_id, lease.consumer, lease.attempt) == (1, "w1", 1)
    assert (lease.deadline_ms, lease.due_ms, lease.ranges) == (T + 30_000, T, [Range(OFFSET, 2)])
    assert (lease.leased_ms, lease.since_ms, lease.kept, lease.past) == (T, T, False, [])
    assert (lease.acked, lease.left, lease.ended, lease.revoked) == (1, 0, 0, False)
    assert (lease.row(), lease.progress_row()) == (example("lease-row"), example("progress-row"))


def test_waiting_and_group() -> None:
    history = ((1, "w1", T, T + 500, "nacked", "boom"),)
    assert Waiting(T + 1000, 5, 1, "boom", [Range(OFFSET, 1)], T, history=history).row() == example("waiting-row")
    assert Group(1, "g", OFFSET).row() == example("group-row")


def test_entry() -> None:
    entry = c.Entry.decode(example("entry"))
    assert (entry.now_ms, entry.clock_epoch) == (T, 0)
    ack, expire = entry.commands
    assert isinstance(ack, c.Ack) and isinstance(expire, c.Expire)
    assert [list(item) for item in ack.items] == [[offsets.token(9, 0), None]]
    assert entry.encode() == example("entry")


def test_topic() -> None:
    topic = Topic("t", 1, "timer", 1, {"lease_ms": 30_000}, T, (Partition(1, ("node1#1",)),))
    assert topic.row() == example("topic-row")
    assert Topic.load("t", example("topic-row")) == topic
