"""Tests that a message that is blocked for long by its key is copied and does not keep the log."""

from __future__ import annotations

import pytest

from sandq.partition import commands as c
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS
from sandq.partition.log import trim
from sandq.partition.log.trim import PIN_MS
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench, T, by_id

LONG_MS = 12 * 3_600_000
AT = PIN_MS + 10


def held_up(*blocked: str, others: int = 3, **settings: object) -> tuple[Bench, Lease, list[bytes]]:
    """Lease the first message of key k for long. Blocked messages follow it, and other messages are acked."""
    bench = Bench(**{"ordering": "key"} | settings)
    bench.open()
    bench.put("first", key="k")
    lease = bench.one()
    ids = [
        bench.put(value, key="k", unique="k") if value == "unique" else bench.put(value, key="k") for value in blocked
    ]
    for n in range(others):
        bench.put(f"other {n}", key=f"o{n}")
    for other in bench.lease():
        bench.ack(other.token)
    bench.extend(lease.token, ms=LONG_MS)
    return bench, lease, ids


def settle(bench: Bench, at: int = AT) -> None:
    """Ack nothing, as idle consumers do, and trim the log."""
    bench.apply(at, c.Ack([]))
    bench.trim(at)


def test_blocked_message_does_not_keep_the_log() -> None:
    bench, _, _ = held_up("b")
    settle(bench, AT - 20)
    assert bench.status().messages == 5, "not before a minute has passed"
    settle(bench)
    assert bench.status().messages == 0


@pytest.mark.parametrize("restart", [True, False])
def test_blocked_message_is_leased_from_its_copy(restart: bool) -> None:
    bench, lease, (b, d) = held_up("b", "d")
    settle(bench)
    if restart:
        bench.restart()
    assert bench.status().groups[0].oldest_ms == T
    assert bench.status().groups[0].ready == 2
    assert bench.lease(at=AT) == []
    bench.ack(lease.token, at=AT)
    for value, offset in (("b", b), ("d", d)):
        following = bench.one(at=AT + 1)
        assert (bench.values([following]), following.ranges[0].base, following.kept) == ([value], offset, True)
        if restart:
            bench.restart()
        bench.nack(following.token, at=AT + 1, delay=0)
        following = bench.one(at=AT + 1)
        assert following.attempt == 2
        bench.ack(following.token, at=AT + 1)
    assert bench.rows(b"k") == bench.rows(b"b") == []


def test_copies_and_rows_of_the_log_are_leased_apart() -> None:
    """A lease holds either copies or log rows. Both kinds are leased in order."""
    bench, lease, _ = held_up("b")
    bench.put("x", key="l")
    second = bench.one()
    bench.extend(second.token, ms=LONG_MS)
    settle(bench)
    bench.put("y", key="l", at=AT)
    assert bench.lease(at=AT) == []
    for one in (lease, second):
        bench.ack(one.token, at=AT)
    leases = bench.lease(at=AT + 1)
    assert [(bench.values([one]), one.kept) for one in leases] == [(["b"], True), (["y"], False)]


def test_a_step_copies_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "UNPIN_MESSAGES", 2)
    bench, _, _ = held_up(*"bdefg")
    bench.apply(AT, c.Ack([]))
    kept: list[int] = []
    while (due_ms := bench.status().upkeep_ms) is not None and due_ms <= T + AT:
        bench.upkeep(AT)
        kept.append(len(bench.rows(b"k")))
    assert kept[-1] == 6, "the leased message is among the copies"
    assert all(after - before <= 2 for before, after in zip([0, *kept], kept, strict=False))


def test_cancel() -> None:
    bench, lease, (b, _) = held_up("b", "d")
    settle(bench)
    assert bench.cancel(b, at=AT) == bench.cancel(b, at=AT) == ("cancelled", b)
    assert len(bench.rows(b"b")) == 1
    bench.ack(lease.token, at=AT)
    assert bench.values(bench.lease(at=AT)) == ["d"]
    bench.trim(AT + CANCEL_MEMORY_MS)
    assert bench.rows(b"t") == bench.rows(b"e") == []


@pytest.mark.parametrize("times", [1, 2])
def test_move(times: int) -> None:
    bench, lease, (b, _) = held_up("b", "d")
    settle(bench)
    for n in range(times):
        word, offset = bench.move(b, AT + 5000 + n, at=AT)
        assert (word, offset == b) == ("moved", False)
    bench.restart()
    shown = PartitionQueries(bench.machine, bench.view).get(by_id(b))
    assert shown is not None
    assert (shown["offset"], shown["moves"], shown["state"], shown["key"]) == (offset, times, "delayed", b"k")
    bench.ack(lease.token, at=AT)
    following = bench.one(at=AT + 1)
    assert bench.values([following]) == ["d"]
    bench.ack(following.token, at=AT + 1)
    assert bench.lease(at=AT + 4999) == []
    moved = bench.one(at=AT + 5001)
    assert [(m.id, m.fields[1]) for m in bench.messages(moved)] == [(b, b"b")]
    bench.ack(moved.token, at=AT + 5002)
    for at in (AT + 5002, AT + 5002 + CANCEL_MEMORY_MS):
        bench.trim(at)
    assert bench.rows(b"i") == bench.rows(b"k") == bench.rows(b"m") == bench.rows(b"e") == []


@pytest.mark.parametrize("restart", [True, False])
def test_a_seek_back_keeps_it_behind_the_first(restart: bool) -> None:
    bench, _, _ = held_up("b", "d")
    settle(bench)
    bench.seek("earliest", at=AT)
    if restart:
        bench.restart()
    for value in ("first", "b", "d"):
        lease = bench.one(at=AT + 1)
        assert bench.values([lease]) == [value]
        bench.ack(lease.token, at=AT + 1)
    assert bench.lease(at=AT + 2) == bench.rows(b"k") == bench.rows(b"b") == []


def test_seek_forward_skips_a_blocked_message() -> None:
    bench, _, _ = held_up("unique")
    settle(bench)
    assert len(bench.rows(b"K")) == 1, "no group has leased the message, so its unique key is taken"
    assert bench.send("x", keys=["k"], unique=["k"], at=AT).refused == [(0, "ready")]
    bench.seek("latest", at=AT)
    assert bench.lease(at=AT) == bench.rows(b"k") == bench.rows(b"b") == bench.rows(b"K") == []


def test_unique_key_of_blocked_message_is_taken_until_its_lease() -> None:
    bench, lease, (b,) = held_up("unique", dedup_window="1m")
    settle(bench)
    assert bench.send("x", keys=["k"], unique=["k"], at=AT).offsets == b
    bench.ack(lease.token, at=AT)
    bench.ack(bench.one(at=AT).token, at=AT)
    assert bench.send("x", keys=["k"], unique=["k"], at=AT + 59_999).refused == [(0, "delivered")]
    assert bench.send("x", keys=["k"], unique=["k"], at=AT + 60_000).refused == []


def test_blocked_message_expires_at_its_ttl() -> None:
    bench, lease, (b,) = held_up("unique", ttl="2m")
    settle(bench)
    bench.ack(lease.token, at=119_999)
    assert bench.lease(at=120_000) == []
    assert [(m.offset, m.reason) for m in bench.dead()] == [(b, "expired")]
    assert bench.rows(b"k") == bench.rows(b"b") == []


def test_copy_of_blocked_message_is_removed_with_its_group() -> None:
    bench, _, _ = held_up("unique")
    settle(bench)
    bench.apply(AT, c.DropGroup("g"))
    bench.trim(AT)
    assert bench.rows(b"k") == bench.rows(b"b") == bench.rows(b"K") == []


def test_a_long_delay_with_attempts_without_end_keeps_nothing() -> None:
    bench = Bench(max_attempts=None)
    bench.open()
    bench.append("a", "b")
    lease = bench.one(limit=1)
    bench.nack(lease.token, delay=LONG_MS)
    bench.ack(bench.one().token)
    for at in range(0, 5 * PIN_MS, PIN_MS // 2):
        settle(bench, at)
    assert bench.status().messages == 0
