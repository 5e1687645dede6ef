"""Tests of pending messages: separate payloads, the lifetime of unique keys, and the memory of cancels."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS
from tests.support.partition.bench import Bench, T, by_id, by_key

MIB = 1 << 20
WINDOW_MS = 60_000


@pytest.fixture
def windowed() -> Bench:
    bench = Bench(dedup_window="1m")
    bench.open()
    return bench


class TestPayloadApart:
    def test_moving_a_large_message_writes_little(self, bench: Bench) -> None:
        bench.open()
        message_id = bench.put("x" * (8 * MIB), due=10_000)
        for to in (20_000, 5000):
            assert bench.move(message_id, to)[0] == "moved"
            assert sum(len(row) for tag in b"mite" for _, row in bench.rows(bytes([tag]))) < 1024
            assert bench.written < 4096, "all rows of the entry, including the state of the partition"
        (message,) = bench.messages(bench.one(at=5000))
        assert (message.id, len(message.fields[Column.VALUE])) == (message_id, 8 * MIB)

    def test_payload_is_deleted_with_a_cancel(self, bench: Bench) -> None:
        bench.open()
        message_id = bench.put("x" * 10_000, due=10_000)
        bench.move(message_id, 20_000)
        assert len(bench.rows(b"p")) == 1
        bench.cancel(message_id)
        assert bench.rows(b"p") == bench.rows(b"m") == []
        assert bench.status().bytes == bench.status().messages == bench.status().later == 0

    def test_trimmed_after_a_move(self, bench: Bench) -> None:
        bench.open()
        message_id = bench.put("x" * 10_000, due=10_000)
        bench.move(message_id, 100)
        bench.ack(bench.one(at=100).token, at=101)
        bench.trim(at=101)
        assert bench.rows(b"p") == bench.rows(b"m") == []
        assert bench.status().bytes == 0
        assert bench.cancel(message_id, at=102) == ("too_late", "gone"), (
            "although the message was sent for a later time"
        )
        bench.trim(at=101 + CANCEL_MEMORY_MS)
        assert bench.rows(b"i") == bench.rows(b"e") == bench.rows(b"t") == []

    def test_out_of_a_batch_and_on(self, bench: Bench) -> None:
        """A batch message gets its own row by its first move, also if its payload is stored separately."""
        bench.open()
        base, _ = bench.append("a", "x" * 10_000)
        large = offsets.shift(base, 1)
        bench.move(large, 5000)
        bench.restart()
        bench.move(large, 6000)
        assert bench.values(bench.lease(at=0)) == ["a"]
        (message,) = bench.messages(bench.one(at=6000))
        assert (message.id, message.fields, message.created_ms) == (large, {Column.VALUE: b"x" * 10_000}, T)

    @pytest.mark.parametrize("size", [10, 5000])
    def test_bytes_come_out_even(self, bench: Bench, size: int) -> None:
        bench.open()
        message_id = bench.put("x" * size, due=1000)
        assert bench.status().bytes > size
        for to in (2000, 3000):
            bench.move(message_id, to)
        bench.ack(bench.one(at=3000).token, at=3000)
        bench.trim(at=3000)
        assert bench.status().bytes == 0


class TestUniqueKeys:
    def test_reject(self, windowed: Bench) -> None:
        first = windowed.put("a", due=1000, unique="k")
        second = windowed.send("b", "c", unique=["k", None])
        assert (second.offsets[:16], second.refused) == (first, [(0, "delayed")])
        assert windowed.status().messages == 2
        assert windowed.send("d", unique=["k"], at=1000).refused == [(0, "ready")]

    def test_ignore(self, windowed: Bench) -> None:
        first = windowed.put("a", due=1000, unique="k")
        again = windowed.send("b", unique=["k"], on_conflict=c.IGNORE)
        assert (again.offsets, again.refused, windowed.status().messages) == (first, [], 1)

    def test_replace(self, windowed: Bench) -> None:
        first = windowed.put("a", due=1000, unique="k")
        second = windowed.put("b", due=500, unique="k", on_conflict=c.REPLACE)
        assert second != first
        assert windowed.values(windowed.lease(at=2000)) == ["b"]
        assert windowed.status().messages == 1
        third = windowed.send("c", unique=["k"], on_conflict=c.REPLACE, at=2000)
        assert (third.offsets, third.refused) == (second, [(0, "leased")])

    def test_within_one_batch(self, windowed: Bench) -> None:
        made = windowed.send("a", "b", "c", unique=["k", "k", "k"], on_conflict=c.REPLACE)
        assert windowed.values(windowed.lease()) == ["c"]
        assert len({made.offsets[at : at + 16] for at in (0, 16, 32)}) == 3
        made = windowed.send("d", "e", unique=["l", "l"])
        assert made.offsets[:16] == made.offsets[16:] and made.refused == [(1, "ready")]

    def test_unique_key_moves_with_its_message(self, windowed: Bench) -> None:
        first = windowed.put("a", due=1000, unique="k")
        assert windowed.move(by_key("k"), 9000)[0] == "moved"
        assert windowed.send("b", unique=["k"]).offsets == first
        windowed.put("c", due=20, unique="k", on_conflict=c.REPLACE)
        assert windowed.values(windowed.lease(at=10_000)) == ["c"]

    def test_a_cancelled_one_is_free_and_named_for_a_while(self, windowed: Bench) -> None:
        first = windowed.put("a", due=1000, unique="k")
        assert windowed.cancel(by_key("k")) == windowed.cancel(by_key("k"), at=500) == ("cancelled", first)
        second = windowed.put("b", due=2000, unique="k", at=500)
        assert second != first
        assert windowed.cancel(by_key("k"), at=600) == ("cancelled", second)

    def test_skipped_message_frees_its_unique_key(self, windowed: Bench) -> None:
        """The group begins at the latest message, so the message is trimmed without a lease."""
        bench = Bench()
        bench.put("a", unique="k")
        bench.open("g", "latest", at=1)
        bench.append("b", at=2)
        bench.ack(bench.one(at=2).token, at=2)
        bench.trim(at=2)
        assert bench.rows(b"m") == bench.rows(b"u") == []
        assert bench.send("c", unique=["k"], at=3).refused == []

    def test_message_that_expires_behind_its_key_frees_its_unique_key(self) -> None:
        bench = Bench(ordering="key", ttl="1s", dedup_window=0)
        bench.open()
        bench.put("a", key="k")
        bench.put("b", key="k", unique="k", due=500)
        bench.lease(at=500)
        bench.expire(at=40_000)
        bench.lease(at=40_000)
        assert [m.reason for m in bench.dead()] == ["expired", "expired"]
        assert bench.send("c", unique=["k"], at=40_000).refused == []

    def test_rows_are_forgotten(self, windowed: Bench) -> None:
        for n in range(5):
            windowed.put(str(n), unique=f"k{n}", at=n)
            windowed.ack(windowed.one(at=n).token, at=n)
        windowed.trim(at=WINDOW_MS + 10)
        assert windowed.rows(b"u") == windowed.rows(b"e") == []


class TestCancelMemory:
    @pytest.mark.parametrize("alone", [True, False])
    def test_repeated_cancel_is_answered_after_the_log_is_trimmed(self, bench: Bench, alone: bool) -> None:
        """The answer was lost. Then the log around the message is acked and trimmed."""
        bench.open()
        if alone:
            made = bench.send("a", "b", due=[0, 0])
            first = made.offsets[:16]
        else:
            first, _ = bench.append("a", "b")
        assert bench.cancel(first) == ("cancelled", first)
        bench.ack(bench.one(at=1).token, at=1)
        bench.trim(at=1)
        assert bench.rows(b"m") == []
        assert bench.cancel(first, at=CANCEL_MEMORY_MS - 1) == ("cancelled", first)
        assert bench.move(first, 9000, at=CANCEL_MEMORY_MS - 1) == ("too_late", "gone")
        bench.trim(at=CANCEL_MEMORY_MS)
        assert bench.rows(b"t") == bench.rows(b"e") == []
        assert bench.cancel(first, at=CANCEL_MEMORY_MS) == ("too_late", "gone")

    def test_delayed_message_that_becomes_due_meanwhile(self, bench: Bench) -> None:
        bench.open()
        first = bench.put("a", due=1000)
        bench.cancel(first)
        bench.append("b", at=2000)
        bench.ack(bench.one(at=2000).token, at=2000)
        bench.trim(at=2000)
        assert bench.cancel(first, at=2001) == ("cancelled", first)

    def test_many_in_one_command_have_an_answer_each(self, bench: Bench) -> None:
        bench.open()
        leased, _ = bench.append("a")
        bench.lease()
        delayed = bench.put("b", due=1000)
        unknown = offsets.pack(T, 77, 0, 0)
        targets = [by_id(delayed), by_id(leased), by_id(unknown), by_id(delayed), by_key("x")]
        assert bench.apply(1, c.Cancel(targets))[0] == [
            ("cancelled", delayed),
            ("too_late", "leased"),
            ("not_found", None),
            ("cancelled", delayed),
            ("not_found", None),
        ]

    def test_an_offset_of_another_partition_is_not_found(self, bench: Bench) -> None:
        bench.open()
        bench.append("a")
        assert bench.cancel(offsets.pack(T, 1, 0, 1)) == ("not_found", None)

    def test_moved_and_trimmed_while_it_is_held(self, bench: Bench) -> None:
        """The message is found by its id as long as a group has it, even without its log row."""
        bench.open()
        first = bench.put("a", due=1000)
        _, offset = bench.move(first, 0)
        lease = bench.one(at=0, ms=3_600_000)
        bench.expire(at=61_000)
        bench.trim(at=61_000)
        assert bench.rows(b"m") == []
        assert bench.cancel(first, at=61_000) == bench.cancel(offset, at=61_000) == ("too_late", "leased")
        for at in (61_000, 61_001):
            bench.nack(lease.token, at=at, delay=0)
            lease = bench.one(at=at)
        bench.nack(lease.token, at=61_002)
        assert [m.id for m in bench.dead()] == [first]
        assert bench.cancel(first, at=62_000) == ("too_late", "dead")
        bench.job("purge_dead", at=62_000)
        assert bench.cancel(first, at=62_000) == ("too_late", "gone")
        bench.trim(at=62_000 + CANCEL_MEMORY_MS)
        assert {key[:1] for key, _ in bench.everything()} <= {rows.STATE_KEY, b"g", b"l", b"a", b"n", b"j"}


def test_message_that_a_deleted_group_had_as_dead_is_found_by_its_id_after_a_move(bench: Bench) -> None:
    bench.open()
    offset = bench.put("a")
    assert bench.move(offset, 1).word == "moved"
    bench.reject(bench.one(at=1).token, at=1)
    bench.apply(1, c.DropGroup("g"))
    assert bench.move(offset, 10_000_000, at=1).word == "moved"
    bench.trim(at=1)  # the job deletes the dead message of the group
    bench.trim(at=2 * CANCEL_MEMORY_MS)
    assert bench.cancel(offset, at=2 * CANCEL_MEMORY_MS).word == "cancelled"


def test_cancelled_message_that_was_passed_ahead_of_its_second_is_not_counted() -> None:
    bench = Bench(ordering="key")
    bench.open()
    bench.put("leased", key="k", due=1000)
    blocked = bench.put("blocked", key="k", due=1000)
    assert bench.values(bench.lease(at=999, ahead=5)) == ["leased"]
    assert bench.status().groups[0].ready == 1
    assert bench.cancel(blocked, at=999).word == "cancelled"
    bench.send("c", "d", at=999, due=[1000, 1000])
    bench.apply(1000, c.Clock())
    assert bench.status().groups[0].ready == 2
