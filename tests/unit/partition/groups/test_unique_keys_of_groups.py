"""Tests that a unique key is taken until every group has passed its message, and that no replacement is silent."""

from __future__ import annotations

import pytest

from sandq.partition import commands as c
from sandq.partition.base.view import View
from sandq.partition.log.appends import Stored
from tests.support.partition.bench import Bench, batch_of

WINDOW_MS = 60_000
POLICIES = (c.REJECT, c.REPLACE, c.IGNORE)


@pytest.fixture
def bench() -> Bench:
    bench = Bench(dedup_window="1m")
    bench.open()
    return bench


def settle(bench: Bench, group: str, at: int) -> None:
    for lease in bench.lease(at=at, group=group):
        bench.ack(lease.token, at=at)


def send(bench: Bench, at: int, on_conflict: int = c.REJECT) -> Stored:
    return bench.send("again", unique=["k"], at=at, on_conflict=on_conflict)


@pytest.mark.parametrize("restart", [True, False])
class TestWindow:
    def test_window_starts_with_the_last_group(self, bench: Bench, restart: bool) -> None:
        bench.open("slow")
        first = bench.put("a", unique="k")
        settle(bench, "g", 5000)
        if restart:
            bench.restart()
        assert send(bench, 10 * WINDOW_MS) == Stored(first, [(0, "delivered")])
        assert send(bench, 10 * WINDOW_MS, c.IGNORE) == Stored(first, [], [(0, "ignored", "acked")])
        settle(bench, "slow", 10 * WINDOW_MS)
        if restart:
            bench.restart()
        assert send(bench, 11 * WINDOW_MS - 1).refused == [(0, "delivered")]
        assert send(bench, 11 * WINDOW_MS).refused == []

    def test_a_group_that_began_above_it_is_not_waited_for(self, bench: Bench, restart: bool) -> None:
        """It also does not free messages that other groups have not leased yet."""
        bench.put("a", unique="k")
        bench.open("audit", "latest", at=10)
        if restart:
            bench.restart()
        for on_conflict in (c.REJECT, c.IGNORE):
            assert send(bench, 11, on_conflict).refused == ([(0, "ready")] if on_conflict == c.REJECT else [])
        assert (bench.values(bench.lease(at=12)), bench.status().messages) == (["a"], 1)
        assert send(bench, 12).refused == [(0, "delivered")]
        assert send(bench, 12 + WINDOW_MS).refused == []

    @pytest.mark.parametrize("how", ["seek", "drop"])
    def test_last_group_skips_the_message_without_a_lease(self, bench: Bench, restart: bool, how: str) -> None:
        """The window begins with the next message of the key, or when the message leaves the log."""
        bench.open("slow")
        bench.put("a", unique="k")
        settle(bench, "g", 0)
        bench.apply(10, c.Seek("slow", "latest") if how == "seek" else c.DropGroup("slow"))
        if restart:
            bench.restart()
        assert send(bench, 20).refused == [(0, "delivered")]
        assert send(bench, 20 + WINDOW_MS - 1).refused == [(0, "delivered")]
        assert send(bench, 20 + WINDOW_MS).refused == []

    def test_window_ends_without_requests_before_the_trim(self, bench: Bench, restart: bool) -> None:
        bench.open("slow")
        bench.put("a", unique="k")
        settle(bench, "g", 0)
        bench.apply(10, c.Seek("slow", "latest"))
        bench.trim(30)
        assert bench.rows(b"m") == []
        if restart:
            bench.restart()
        assert send(bench, 30 + WINDOW_MS - 1).refused == [(0, "delivered")]
        bench.trim(30 + WINDOW_MS)
        assert bench.rows(b"u") == bench.rows(b"e") == []

    def test_message_skipped_by_every_group_frees_its_unique_key(self, bench: Bench, restart: bool) -> None:
        bench.put("a", unique="k")
        bench.apply(3, c.Seek("g", "latest"))
        if restart:
            bench.restart()
        assert send(bench, 4).refused == []
        assert send(bench, 5).refused == [(0, "ready")]

    def test_window_starts_when_the_message_dies_in_the_last_group(self, bench: Bench, restart: bool) -> None:
        bench.open("slow")
        bench.put("a", unique="k", ttl=1000)
        settle(bench, "g", 0)
        if restart:
            bench.restart()
        bench.expire(at=1000)
        assert [m.reason for m in bench.dead("slow")] == ["expired"]
        assert send(bench, 1000 + WINDOW_MS - 1).refused == [(0, "delivered")]
        assert send(bench, 1000 + WINDOW_MS).refused == []


def test_without_a_window_it_is_free_when_the_last_group_has_it() -> None:
    bench = Bench(dedup_window=0)
    bench.open()
    bench.open("slow")
    bench.put("a", unique="k")
    settle(bench, "g", 0)
    assert send(bench, 1).refused == [(0, "delivered")]
    settle(bench, "slow", 2)
    assert bench.rows(b"u") == []
    assert send(bench, 3).refused == []


def test_without_a_window_a_group_that_goes_frees_it() -> None:
    bench = Bench(dedup_window=0)
    bench.open()
    bench.open("slow")
    bench.put("a", unique="k")
    settle(bench, "g", 0)
    bench.apply(10, c.DropGroup("slow"))
    assert send(bench, 10).refused == []


class TestReplace:
    def test_waiting_message_is_replaced(self, bench: Bench) -> None:
        bench.put("a", unique="k")
        lease = bench.one()
        bench.nack(lease.token)
        assert send(bench, 1, c.REPLACE).refused == []
        assert bench.status().messages == 1
        assert bench.values(bench.lease(at=100_000)) == ["again"]

    def test_leased_message_is_not_replaced(self, bench: Bench) -> None:
        """The producer gets the conflict and may retry. So two messages never exist silently."""
        first = bench.put("a", unique="k")
        lease = bench.one()
        assert send(bench, 1, c.REPLACE) == Stored(first, [(0, "leased")], [])
        assert bench.status().messages == 1
        bench.ack(lease.token, at=2)
        assert send(bench, 2, c.REPLACE).refused == [], "the message is settled, so nothing is replaced"
        assert send(bench, 2).refused == [(0, "ready")]
        assert bench.values(bench.lease(at=3)) == ["again"]

    @pytest.mark.parametrize("state", ["acked", "dead", "waiting"])
    def test_message_done_in_one_of_two_groups_is_not_replaced(self, bench: Bench, state: str) -> None:
        bench.open("slow")
        first = bench.put("a", unique="k")
        bench.apply(0, c.ConfigureGroup("g", {"max_attempts": 1} if state == "dead" else {}))
        lease = bench.one()
        if state == "acked":
            bench.ack(lease.token)
        else:
            bench.nack(lease.token)
        made = send(bench, 1, c.REPLACE)
        if state == "waiting":
            assert made.refused == []
            for group in ("g", "slow"):
                assert bench.values(bench.lease(at=100_000, group=group)) == ["again"]
            return
        assert made == Stored(first, [(0, state)], [])
        settle(bench, "slow", 2)
        assert send(bench, 3, c.REPLACE).refused == []

    def test_message_skipped_by_a_group_is_replaced(self, bench: Bench) -> None:
        bench.put("a", unique="k")
        bench.open("audit", "latest", at=10)
        assert send(bench, 11, c.REPLACE).refused == []
        assert bench.status().messages == 1
        for group in ("g", "audit"):
            assert bench.values(bench.lease(at=12, group=group)) == ["again"]

    def test_message_dead_in_all_groups_frees_its_key(self, bench: Bench) -> None:
        bench.put("a", unique="k", ttl=1000)
        bench.expire(at=1000)
        assert send(bench, 1001, c.REPLACE).refused == []

    def test_leased_message_outside_the_log_is_not_replaced(self, bench: Bench) -> None:
        """The message was leased a minute ago and is no longer in the log."""
        bench = Bench(dedup_window="1h")
        bench.open()
        first = bench.put("a", unique="k")
        bench.lease(ms=3_600_000)
        bench.apply(61_000, c.Ack([]))
        bench.trim(61_000)
        assert bench.rows(b"m") == []
        assert send(bench, 61_001, c.REPLACE) == Stored(first, [(0, "leased")], [])
        bench.release(at=61_002)
        assert send(bench, 61_003, c.REPLACE).refused == []
        assert bench.values(bench.lease(at=61_004)) == ["again"]
        assert bench.rows(b"k") == []

    def test_resent_batch_gets_the_first_reply(self, bench: Bench) -> None:
        batch = c.Append(batch_of(["b"], unique=["k"]), 77, 1, 1, c.REPLACE, split=True)
        first = bench.put("a", unique="k")
        lease = bench.one()
        for at in (1, 2):
            assert bench.apply(at, batch) == [Stored(first, [(0, "leased")], [])]
            bench.restart()
        bench.ack(lease.token, at=3)
        assert bench.apply(4, batch) == [Stored(first, [(0, "leased")], [])], (
            "a repeated batch must get the same answer"
        )


def test_many_groups_cost_a_message_one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are not looked up one by one: a group that was behind at the last message is behind at the next."""
    bench = Bench()
    bench.checks_loading = False
    groups = [f"g{n}" for n in range(50)]
    for name in groups:
        bench.open(name)
    for n in range(100):
        bench.put(str(n), unique=f"k{n}")
    looks = 0
    first = type(bench.machine.groups.named("g0"))
    is_pending = first.is_pending

    def counted(group: object, offset: bytes, view: View) -> bool:
        nonlocal looks
        looks += 1
        return is_pending(group, offset, view)  # type: ignore[arg-type]

    monkeypatch.setattr(first, "is_pending", counted)
    for name in groups:
        assert len(bench.values(bench.lease(group=name))) == 100
    assert looks < 4 * 50 * 100, "all groups together"
