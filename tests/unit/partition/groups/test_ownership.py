"""Tests that a producer owns its message again after a nack: cancels, moves, and several groups at once."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS
from sandq.partition.log.trim import PIN_MS
from sandq.partition.queries.queries import PartitionQueries
from tests.support.partition.bench import Bench, T, by_id, by_key
from tests.support.partition.scenes import scene

HOUR_MS = 3_600_000


def made(*groups: str, **settings: Any) -> Bench:
    bench = Bench(**settings)
    for group in groups or ("g",):
        bench.open(group)
    return bench


def give_back(bench: Bench, at: int, *, group: str = "g", delay: int | None = None) -> None:
    """Lease and nack the due messages of a group, so that they wait."""
    for lease in bench.lease(at=at, group=group):
        assert bench.nack(lease.token, at=at, delay=delay, error="no") is None


def why(bench: Bench, offset: bytes) -> dict[str, dict[str, Any]]:
    told = PartitionQueries(bench.machine, bench.view).why(by_id(offset))
    assert told is not None
    return {row["group"]: row for row in told["groups"]}


class TestSeveralGroups:
    def settle(self, bench: Bench, group: str, state: str) -> None:
        """Bring a message into this state in a group."""
        if state == "ready":
            return
        lease = bench.one(at=1, group=group)
        if state == "acked":
            bench.ack(lease.token, at=1)
        elif state in ("waiting", "dead"):
            bench.nack(lease.token, at=1)

    @pytest.mark.parametrize("first", ["g", "h"])
    @pytest.mark.parametrize("state", ["leased", "acked", "dead"])
    def test_message_owned_by_another_group_cannot_be_cancelled(self, first: str, state: str) -> None:
        second = "h" if first == "g" else "g"
        bench = made("g", "h")
        offset, _ = bench.append("m")
        self.settle(bench, first, "waiting")
        if state == "dead":
            bench.apply(1, c.ConfigureGroup(second, {"max_attempts": 1}))
        self.settle(bench, second, state)
        assert bench.cancel(offset, at=2) == bench.move(offset, 9000, at=2) == ("too_late", state)
        assert (bench.state_of(offset, first), bench.state_of(offset, second)) == ("waiting", state)

    def test_message_waiting_in_both_groups_is_cancelled_and_moved(self) -> None:
        bench = made("g", "h")
        offset, _ = bench.append("m", "n")
        for group in ("g", "h"):
            give_back(bench, 1, group=group)
        assert bench.cancel(offset, at=2) == ("cancelled", offset)
        assert bench.move(offsets.shift(offset, 1), 7000, at=2) == ("moved", offsets.shift(offset, 1))
        for group in ("g", "h"):
            assert bench.lease(at=6999, group=group) == []
            assert bench.values(bench.lease(at=7000, group=group)) == ["n"]

    def test_message_waiting_in_one_group_is_cancelled_but_not_moved(self) -> None:
        """After a cancel, no group gets it.

        It cannot move: at a new offset the first group would lose its attempts, and at the old one the second group
        would get it too early.
        """
        bench = made("g", "h")
        offset, _ = bench.append("m", "n")
        give_back(bench, 1)
        assert bench.move(offset, 9000, at=2) == ("too_late", "waiting")
        assert bench.cancel(offset, at=2) == ("cancelled", offset)
        assert bench.move(offset, 9000, at=2) == ("too_late", "gone")
        for group in ("g", "h"):
            assert bench.values(bench.lease(at=5000, group=group)) == ["n"]

    def test_released_message_can_be_cancelled(self) -> None:
        """A consumer left. Its message is ready at once and belongs to the producer again."""
        bench = made()
        offset, _ = bench.append("m")
        bench.lease(at=1)
        assert bench.cancel(offset, at=2) == ("too_late", "leased")
        bench.release(at=2)
        assert bench.cancel(offset, at=2) == ("cancelled", offset)
        assert bench.lease(at=3) == []


class TestMove:
    def test_attempts_and_history_stay(self) -> None:
        bench = made()
        offset, _ = bench.append("m")
        give_back(bench, 1)
        assert bench.move(by_id(offset), 5000, at=2) == ("moved", offset)
        told = why(bench, offset)["g"]
        assert (told["state"], told["due_ms"], told["attempt"], told["error"]) == ("waiting", T + 5000, 1, "no")
        assert told["history"] == [[1, "c", T + 1, T + 1, "nacked", "no"]]
        give_back(bench, 5000)
        lease = bench.one(at=6000)
        assert lease.attempt == 3
        bench.nack(lease.token, at=6000)
        assert [(m.attempts, len(m.history)) for m in bench.dead()] == [(3, 3)]

    @pytest.mark.parametrize(("to", "due"), [(-9000, 2), (500, 500), (900_000, 900_000), (None, offsets.U48_MAX - T)])
    def test_move_time_is_clamped_to_now_and_the_last_instant(self, to: int | None, due: int) -> None:
        bench = made()
        offset, _ = bench.append("m")
        give_back(bench, 1, delay=700_000)
        assert bench.move(offset, offsets.U48_MAX - T if to is None else to, at=2) == ("moved", offset)
        assert bench.status().groups[0].next_ms == T + due
        assert bench.lease(at=due - 1) == []
        assert bench.values(bench.lease(at=due)) == ["m"]

    def test_move_keeps_the_message_until_its_own_time(self) -> None:
        """The message was leased ahead and returned before its due time."""
        bench = made()
        offset = bench.put("m", due=1000)
        lease = bench.one(at=995, ahead=5)
        bench.nack(lease.token, at=996, delay=50_000)
        assert bench.move(offset, 0, at=997)[0] == "moved"
        assert bench.lease(at=999) == []
        assert bench.values(bench.lease(at=1000)) == ["m"]

    @pytest.mark.parametrize("restart", [True, False])
    def test_out_of_the_midst_of_a_range(self, restart: bool) -> None:
        bench = made()
        base, _ = bench.append(*"abcde")
        give_back(bench, 1)
        if restart:
            bench.restart()
        bench.move(offsets.shift(base, 2), 9000, at=2)
        bench.cancel(offsets.shift(base, 4), at=2)
        bench.move(offsets.shift(base, 2), 8000, at=2)
        (row, moved) = bench.rows(b"w")
        assert len(rows.unpack(row[1])[2]) == len(rows.unpack(moved[1])[2]) * 2, "a, b and d"
        assert bench.machine.groups.named("g").waiting_ranges == 3
        assert (bench.status().groups[0].waiting, bench.status().messages) == (4, 4)
        if restart:
            bench.restart()
        assert bench.values(bench.lease(at=1001)) == ["a", "b", "d"]
        assert bench.lease(at=7999) == []
        assert bench.values(bench.lease(at=8000)) == ["c"]

    def test_ttl_continues_after_a_move(self) -> None:
        bench = made(ttl="10s")
        offset, _ = bench.append("m", "n")
        give_back(bench, 1)
        assert bench.move(offset, 60_000, at=2) == ("moved", offset)
        assert "dies then" in why(bench, offset)["g"]["reason"]
        assert bench.values(bench.lease(at=1001)) == ["n"]
        assert bench.expire(at=10_000) == 1
        assert [m.offset for m in bench.dead()] == [offset]

    @pytest.mark.parametrize("restart", [True, False])
    def test_next_expiry_is_known_after_the_first_is_cancelled(self, restart: bool) -> None:
        bench = made()
        made_of = bench.send("a", "b", ttls=[5000, 8000])
        give_back(bench, 1, delay=60_000)
        assert bench.status().next_expiry_ms == T + 5000
        bench.cancel(made_of.offsets[:16], at=2)
        if restart:
            bench.restart()
        assert bench.status().next_expiry_ms == T + 8000


class TestCopiedAside:
    """Tests of messages that are no longer in the log: the group has a copy in its own row."""

    def waiting(self, *, moved: bool = False) -> tuple[Bench, bytes, bytes]:
        """Return the bench, the id of the message, and its offset."""
        bench = made(max_attempts=None)
        message_id = bench.put("m", due=1000, unique="k") if moved else bench.put("m", unique="k")
        offset = bench.move(message_id, 0)[1] if moved else message_id
        give_back(bench, 1, delay=HOUR_MS)
        bench.expire(at=PIN_MS + 10)
        bench.trim(at=PIN_MS + 10)
        assert (len(bench.rows(b"m")), len(bench.rows(b"k"))) == (0, 1)
        return bench, message_id, offset

    @pytest.mark.parametrize("moved", [True, False])
    @pytest.mark.parametrize("name", ["id", "offset", "key"])
    def test_cancel(self, moved: bool, name: str) -> None:
        bench, message_id, offset = self.waiting(moved=moved)
        target = {"id": by_id(message_id), "offset": by_id(offset), "key": by_key("k")}[name]
        at = PIN_MS + 20
        assert bench.cancel(target, at=at) == ("cancelled", message_id)
        assert bench.rows(b"k") == bench.rows(b"w") == []
        assert bench.cancel(by_id(message_id), at=at) == bench.cancel(by_key("k"), at=at) == ("cancelled", message_id)
        assert bench.move(by_id(message_id), 9000, at=at) == ("too_late", "gone")
        assert bench.send("n", unique=["k"], at=at).refused == [], "the unique key is free"
        bench.ack(bench.one(at=at).token, at=at)
        assert bench.lease(at=HOUR_MS * 3) == []
        bench.trim(at=at + CANCEL_MEMORY_MS)
        assert {key[:1] for key, _ in bench.everything()} <= {b"s", b"g", b"l", b"a", b"n", b"u", b"e"}
        bench.trim(at=at + 2 * CANCEL_MEMORY_MS)
        assert bench.rows(b"u") == bench.rows(b"e") == bench.rows(b"t") == bench.rows(b"i") == []

    @pytest.mark.parametrize("moved", [True, False])
    def test_move(self, moved: bool) -> None:
        bench, message_id, offset = self.waiting(moved=moved)
        assert bench.move(by_id(message_id), 90_000, at=PIN_MS + 20) == ("moved", offset)
        bench.restart()
        assert bench.lease(at=89_999) == []
        lease = bench.one(at=90_000)
        ((message),) = bench.messages(lease)
        assert (lease.attempt, message.id, message.fields[Column.VALUE]) == (2, message_id, b"m")
        bench.ack(lease.token, at=90_001)
        assert bench.rows(b"k") == []

    def test_redriven_message_can_be_cancelled(self) -> None:
        dead = scene("dead")
        dead.bench.trim(at=3)
        dead.bench.job("redrive", at=3)
        assert dead.bench.cancel(dead.offset, at=4) == ("cancelled", dead.offset)
        assert dead.bench.lease(at=HOUR_MS) == dead.bench.rows(b"k") == []


class TestKeyOrder:
    def test_a_cancel_lets_the_next_of_the_key_go(self) -> None:
        bench = made(ordering="key")
        first, _ = bench.put("a", key="k"), bench.put("b", key="k")
        give_back(bench, 1, delay=HOUR_MS)
        assert bench.lease(at=2) == []
        assert bench.cancel(first, at=3) == ("cancelled", first)
        assert bench.values(bench.lease(at=4)) == ["b"]

    def test_a_move_holds_its_key_up(self) -> None:
        bench = made(ordering="key")
        first, _ = bench.put("a", key="k"), bench.put("b", key="k")
        give_back(bench, 1)
        assert bench.move(first, 9000, at=2) == ("moved", first)
        assert bench.lease(at=8999) == []
        lease = bench.one(at=9000)
        assert bench.values([lease]) == ["a"]
        bench.ack(lease.token, at=9001)
        assert bench.values(bench.lease(at=9002)) == ["b"]


class TestUniqueKey:
    def test_a_cancelled_one_is_free_at_once(self) -> None:
        bench = made()
        first = bench.put("a", unique="k")
        give_back(bench, 1)
        assert bench.send("b", unique=["k"], at=2).refused == [(0, "delivered")]
        assert bench.cancel(by_key("k"), at=3) == ("cancelled", first)
        second = bench.put("b", unique="k", at=4)
        assert bench.values(bench.lease(at=5000)) == ["b"]
        assert bench.cancel(by_key("k"), at=5000) == ("too_late", "leased")
        assert bench.send("c", unique=["k"], at=5000).offsets == second


def test_jobs_skip_waiting_messages() -> None:
    """Jobs choose by the time in the log, which differs from that of waiting messages."""
    bench = made()
    offset, _ = bench.append("a", "b")
    lease = bench.one(at=1, limit=1)
    bench.nack(lease.token, at=1)
    assert bench.job("move", at=2, to_ms=T + 9000) == (1, 1, 1)
    assert bench.job("cancel", at=2, until_ms=T + 8000) == (0, 0, 1)
    assert bench.state_of(offset) == "waiting"
    assert bench.values(bench.lease(at=1001)) == ["a"]


def test_counts_come_out_even() -> None:
    """Some waiting messages are cancelled, and one is moved. The counts must match the remaining messages."""
    bench = made()
    base, _ = bench.append(*"abcdef")
    lease = bench.one(at=1, limit=4)
    bench.nack(lease.token, at=1, delay=HOUR_MS)
    for at in (0, 2):
        bench.cancel(offsets.shift(base, at), at=2)
    bench.move(offsets.shift(base, 1), 500, at=2)
    for _ in range(2):
        bench.apply(500)
        (told,) = PartitionQueries(bench.machine, bench.view).group_rows()
        assert (told["ready"], told["waiting"], bench.status().messages) == (3, 1, 4)
        assert (bench.status().groups[0].ready, bench.status().groups[0].waiting) == (3, 1)
        bench.restart()
