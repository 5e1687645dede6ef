"""Tests of retention by time and size, of copies before trimming, and of replays of a trimmed log."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import InvalidRequest, UnknownGroup
from sandq.partition import commands as c
from sandq.partition.log.trim import PIN_MS
from tests.support.partition.bench import FOREVER_MS, Bench, T

MINUTE = 60_000
HOUR = 60 * MINUTE


def _run_upkeep(bench: Bench, start: int, stop: int) -> None:
    """Propose an upkeep whenever one is due, as a leader does."""
    at = start
    for _ in range(10_000):
        due_ms = bench.status().upkeep_ms
        if due_ms is None or due_ms > T + stop:
            return
        at = max(at, due_ms - T)
        bench.upkeep(at=at)
    raise AssertionError("upkeep is due for ever")


class TestRetention:
    def test_acked_message_is_kept_for_the_retention_and_then_trimmed(self) -> None:
        bench = Bench(retention="1h")
        bench.open()
        bench.append("a")
        bench.ack(bench.one(at=1).token, at=1)
        _run_upkeep(bench, 1, HOUR)
        assert bench.status().messages == 1
        bench.restart()
        _run_upkeep(bench, HOUR, HOUR + HOUR // 4)
        assert bench.status().messages == 0
        assert (bench.status().upkeep_ms or FOREVER_MS) >= T + 100 * HOUR

    def test_message_acked_later_is_trimmed_later(self) -> None:
        bench = Bench(retention="1h")
        bench.open()
        for at in range(0, HOUR, 10 * MINUTE):
            bench.append(str(at), at=at)
            bench.ack(bench.one(at=at).token, at=at)
            _run_upkeep(bench, at, at + 10 * MINUTE - 1)
        for at in range(HOUR, 2 * HOUR, 10 * MINUTE):
            _run_upkeep(bench, at, at + 5 * MINUTE)
            assert 0 <= bench.status().messages - (11 - at // (10 * MINUTE)) <= 1

    @pytest.mark.parametrize("cancelled_first", [True, False])
    def test_cancelled_end_of_batch_does_not_keep_the_batch(self, cancelled_first: bool) -> None:
        """No cursor passes messages that are never leased. The batch must be trimmed anyway."""
        bench = Bench()
        bench.open()
        base, _ = bench.append("a", "b", "c", "d")
        ids = [offsets.shift(base, place) for place in range(4)]
        if cancelled_first:
            bench.cancel(ids[2])
            bench.cancel(ids[3])
        bench.ack(bench.one(at=1, limit=2).token, at=1)
        if not cancelled_first:
            _run_upkeep(bench, 1, 1)
            bench.cancel(ids[3], at=2)
            bench.cancel(ids[2], at=3)
        _run_upkeep(bench, 3, MINUTE)
        assert bench.status().messages == 0
        bench.append("e", at=5)
        assert bench.values(bench.lease(at=5)) == ["e"]

    def test_retained_messages_can_be_replayed(self) -> None:
        bench = Bench(retention="1h")
        bench.open()
        bench.append("a", "b")
        bench.ack(bench.one(at=1).token, at=1)
        _run_upkeep(bench, 1, 30 * MINUTE)
        bench.seek("earliest", at=30 * MINUTE)
        assert bench.values(bench.lease(at=30 * MINUTE)) == ["a", "b"]

    def test_old_messages_are_trimmed_by_age(self) -> None:
        bench = Bench(delete_on_ack=False, retain="10m")
        bench.append("old", due=[0])
        bench.append("new", due=[5 * MINUTE])
        _run_upkeep(bench, 0, 10 * MINUTE - 1)
        assert bench.status().messages == 2
        _run_upkeep(bench, 10 * MINUTE, 11 * MINUTE)
        assert bench.status().messages == 1
        _run_upkeep(bench, 11 * MINUTE, 17 * MINUTE)
        assert bench.status().messages == 0

    def test_delayed_messages_are_trimmed_by_age(self) -> None:
        """There is no group. The partition must request an upkeep when the message becomes due, and none before."""
        bench = Bench(delete_on_ack=False, retain="10m")
        bench.append("m", due=[10 * HOUR])
        _run_upkeep(bench, 0, 9 * HOUR)
        steps = bench.index
        assert steps < 10, "the log must not request upkeep all the time"
        _run_upkeep(bench, 9 * HOUR, 10 * HOUR + 12 * MINUTE)
        assert bench.status().messages == 0

    def test_pending_messages_of_a_group_are_never_trimmed(self) -> None:
        bench = Bench(delete_on_ack=False, retain="10m")
        bench.open()
        bench.append("m")
        _run_upkeep(bench, 0, HOUR)
        assert bench.values(bench.lease(at=HOUR)) == ["m"]

    def test_log_is_trimmed_by_size(self) -> None:
        bench = Bench(delete_on_ack=False, retain_bytes="1MiB")
        for n in range(20):
            bench.append("x" * 100_000, due=[n])
        _run_upkeep(bench, 0, MINUTE)
        assert bench.status().messages == 10
        assert 900_000 < bench.status().bytes <= 1 << 20

    def test_dead_by_a_lease_is_trimmed_too(self) -> None:
        """No message was acked. All messages died because a consumer came too late."""
        bench = Bench(ttl="1s")
        bench.open()
        bench.append("a", "b")
        _run_upkeep(bench, 0, 5000)
        assert bench.lease(at=5000) == []
        _run_upkeep(bench, 5000, 5000)
        assert (bench.status().messages, len(bench.dead())) == (0, 2)


class TestUnpin:
    @pytest.mark.parametrize("restart", [True, False])
    @pytest.mark.parametrize("held", ["leased", "waiting"])
    def test_long_leased_message_does_not_pin_the_log(self, bench: Bench, held: str, restart: bool) -> None:
        """The message keeps its content and attempt. The log after it is trimmed even without other events."""
        bench.open()
        base, _ = bench.append("long", "short")
        bench.append("more")
        first, rest = bench.one(limit=1, ms=HOUR), bench.lease(consumer="d")
        if held == "waiting":
            bench.nack(first.token, at=5, delay=HOUR, error="later")
        for lease in rest:
            bench.ack(lease.token, at=10)
        _run_upkeep(bench, 10, PIN_MS - 1)
        assert bench.status().messages == 3
        _run_upkeep(bench, PIN_MS, PIN_MS + 1)
        assert (bench.status().messages, bench.rows(b"m")) == (0, [])
        if restart:
            bench.restart()
        assert bench.state_of(base) == held
        if held == "leased":
            assert bench.values([bench.machine.leases.by_token[first.token]]) == ["long"]
            bench.expire(at=HOUR)
        again = bench.one(at=HOUR + 1000)
        assert (again.attempt, bench.values([again])) == (2, ["long"])
        assert bench.ack(again.token, at=HOUR + 1001) is None
        assert bench.rows(b"k") == bench.rows(b"w") == []

    def test_ttl_of_unpinned_message_continues(self, bench: Bench) -> None:
        bench.open()
        bench.put("m", ttl=HOUR)
        bench.nack(bench.one(at=0).token, at=0, delay=30 * MINUTE)
        _run_upkeep(bench, 0, 2 * MINUTE)
        assert bench.rows(b"m") == []
        lease = bench.one(at=31 * MINUTE)
        bench.nack(lease.token, at=32 * MINUTE, delay=2 * HOUR)
        assert bench.status().next_expiry_ms == T + HOUR
        assert bench.expire(at=HOUR) == 1
        assert [(m.reason, m.attempts) for m in bench.dead()] == [("expired", 2)]
        assert bench.rows(b"k") == []

    def test_part_of_a_lease(self, bench: Bench) -> None:
        bench.open()
        base, _ = bench.append(*"abcd")
        lease = bench.one(ms=HOUR)
        bench.ack(lease.token, [[base, 1], [offsets.shift(base, 2), 1]], at=1)
        _run_upkeep(bench, 1, 2 * MINUTE)
        assert (bench.rows(b"m"), len(bench.rows(b"k"))) == ([], 2)
        bench.nack(lease.token, [[offsets.shift(base, 3), 1]], at=3 * MINUTE, delay=0)
        assert bench.values(bench.lease(at=3 * MINUTE)) == ["d"]
        assert bench.ack(lease.token, at=4 * MINUTE) is None
        assert len(bench.rows(b"k")) == 1

    def test_each_group_has_its_own(self, bench: Bench) -> None:
        bench.open()
        bench.open("h")
        bench.append("m")
        mine, theirs = bench.one(ms=HOUR), bench.one(group="h", ms=HOUR)
        bench.expire(at=MINUTE)
        _run_upkeep(bench, MINUTE, 2 * MINUTE)
        assert (bench.rows(b"m"), len(bench.rows(b"k"))) == ([], 2)
        bench.ack(mine.token, at=3 * MINUTE)
        bench.release(group="h", at=3 * MINUTE)
        assert bench.values(bench.lease(group="h", at=3 * MINUTE)) == ["m"]
        assert theirs.attempt == 1


class TestSeek:
    @pytest.mark.parametrize("restart", [True, False])
    def test_dead_messages_with_trimmed_rows_are_redelivered_after_seek(self, restart: bool) -> None:
        bench = Bench(max_attempts=1)
        bench.open()
        bench.append(*[str(n) for n in range(2500)])
        while leases := bench.lease(1000):
            for lease in leases:
                bench.nack(lease.token)
        bench.append("new")
        bench.trim(at=1)
        assert (len(bench.rows(b"m")), len(bench.dead())) == (1, 2500)
        bench.apply(2, c.Seek("g", "earliest"))
        assert bench.lease(at=2) == []
        assert "seek" in str(bench.status().groups[0].paused)
        if restart:
            bench.upkeep(at=2)
            bench.restart()
            assert "seek" in str(bench.status().groups[0].paused)
        bench.trim(at=2)
        assert (bench.dead(), bench.status().groups[0].paused) == ([], None)
        values: list[str] = []
        while leases := bench.lease(1000, at=3):
            values += bench.values(leases)
            for lease in leases:
                assert lease.attempt == 1
                bench.ack(lease.token, at=3)
        assert sorted(values) == sorted(["new", *[str(n) for n in range(2500)]])
        bench.trim(at=4)
        assert bench.rows(b"k") == bench.rows(b"m") == bench.rows(b"d") == []

    def test_seek_revives_only_dead_letters_after_the_position(self) -> None:
        bench = Bench(max_attempts=1)
        bench.open()
        for at in (0, 1000, 2000):
            bench.append(str(at), at=at)
            bench.nack(bench.one(at=at).token, at=at)
        bench.trim(at=2000)
        bench.seek(1000, at=3000)
        assert [m.fields[Column.VALUE] for m in bench.dead()] == [b"0"]
        assert sorted(bench.values(bench.lease(at=3000))) == ["1000", "2000"]

    def test_a_second_one_has_to_wait(self) -> None:
        bench = Bench(max_attempts=1)
        bench.open()
        bench.append("m")
        bench.nack(bench.one().token)
        bench.apply(1, c.Seek("g", "earliest"))
        (refused,) = bench.apply(1, c.Seek("g", "earliest"))
        assert isinstance(refused, InvalidRequest)
        bench.trim(at=1)
        bench.seek("latest", at=2)

    def test_refused_positions(self, bench: Bench) -> None:
        bench.open()
        (refused,) = bench.apply(1, c.Seek("g", offsets.pack(T, 1, 0, 7)))
        assert isinstance(refused, InvalidRequest)
        (refused,) = bench.apply(1, c.Seek("g", "somewhere"))
        assert isinstance(refused, InvalidRequest)
        (refused,) = bench.apply(1, c.Seek("nobody", "latest"))
        assert isinstance(refused, UnknownGroup)

    def test_ack_after_seek_is_lost(self) -> None:
        bench = Bench(retention="1h")
        bench.open()
        base, _ = bench.append(*"abc")
        lease = bench.one()
        bench.ack(lease.token, [[base, 1]])
        bench.seek("earliest", at=1)
        assert bench.ack(lease.token, at=2) == [[offsets.shift(base, 1), 2]]
        assert bench.ack(lease.token, [[base, 1]], at=2) is None
        assert bench.values(bench.lease(at=3)) == ["a", "b", "c"]

    def test_into_a_batch(self) -> None:
        bench = Bench(retention="1h")
        bench.open()
        base, _ = bench.append(*"abcde")
        bench.ack(bench.one().token)
        bench.seek(offsets.shift(base, 3), at=1)
        bench.restart()
        assert bench.values(bench.lease(at=1)) == ["d", "e"]

    def test_cancelled_message_stays_cancelled(self) -> None:
        bench = Bench(retention="1h")
        bench.open()
        base, _ = bench.append(*"abc")
        bench.cancel(offsets.shift(base, 1))
        bench.ack(bench.one().token)
        bench.seek("earliest", at=1)
        assert bench.values(bench.lease(at=1)) == ["a", "c"]


class TestHistory:
    def test_history_has_each_attempt(self) -> None:
        bench = Bench(max_attempts=3)
        bench.open()
        bench.append("m")
        bench.nack(bench.one(at=0, consumer="a").token, at=10, delay=0, error="one " + "x" * 300)
        second = bench.one(at=20, consumer="b", ms=1000)
        assert [history for _, history in second.past] == [((1, "a", T, T + 10, "nacked", "one " + "x" * 196),)]
        bench.restart()
        bench.expire(at=1020)
        third = bench.one(at=3000, consumer="c")
        bench.release("c", at=3001)
        third = bench.one(at=3002, consumer="d")
        assert third.attempt == 3
        bench.nack(third.token, at=3003, error="last")
        (message,) = bench.dead()
        assert message.history == (
            (1, "a", T, T + 10, "nacked", "one " + "x" * 196),
            (2, "b", T + 20, T + 1020, "lease_expired", None),
            (3, "d", T + 3002, T + 3003, "nacked", "last"),
        )

    def test_history_keeps_the_last_attempts(self) -> None:
        bench = Bench(max_attempts=9)
        bench.open()
        bench.append("m")
        for n in range(9):
            bench.nack(bench.one(at=n).token, at=n, delay=0, error=str(n))
        (message,) = bench.dead()
        assert [(attempt[0], attempt[-1]) for attempt in message.history] == [(n + 1, str(n)) for n in range(4, 9)]

    def test_messages_of_one_lease_have_each_their_own(self) -> None:
        bench = Bench(max_attempts=3)
        bench.open()
        base, _ = bench.append(*"abc")
        first = bench.one()
        bench.nack(first.token, [[base, 1]], delay=0, error="a")
        bench.nack(first.token, [[offsets.shift(base, 1), 2]], delay=0, error="bc")
        second = bench.one(at=1)
        assert bench.values([second]) == ["a", "b", "c"]
        bench.restart()
        bench.nack(second.token, at=2, delay=0, error="all")
        third = bench.lease(at=3)
        for lease in third:
            bench.nack(lease.token, at=4)
        errors = {m.fields[Column.VALUE]: [attempt[-1] for attempt in m.history] for m in bench.dead()}
        assert errors == {b"a": ["a", "all", None], b"b": ["bc", "all", None], b"c": ["bc", "all", None]}


class TestGroupsGo:
    def test_unused_group_is_deleted(self) -> None:
        bench = Bench(group_ttl="10m")
        bench.open()
        bench.open("used")
        bench.append("m")
        bench.ack(bench.one(group="g").token)
        bench.apply(5 * MINUTE, c.Touch(["used", "nobody"]))
        _run_upkeep(bench, 5 * MINUTE, 10 * MINUTE - 1)
        assert len(bench.status().groups) == 2
        _run_upkeep(bench, 10 * MINUTE, 10 * MINUTE)
        assert [group.name for group in bench.status().groups] == ["used"]
        bench.restart()
        bench.ack(bench.one(group="used", at=11 * MINUTE).token, at=11 * MINUTE)
        bench.trim(at=11 * MINUTE)
        assert bench.status().messages == 0

    def test_rows_of_dropped_group_are_deleted_in_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sandq.partition.jobs import jobs

        monkeypatch.setattr(jobs, "STEP_MESSAGES", 2)
        bench = Bench(ordering="key", max_attempts=2)
        bench.open()
        for n in range(5):
            bench.put(str(n), key="k")
            bench.put(f"x{n}")
        lease = bench.one(at=0)
        bench.nack(lease.token, at=0, delay=HOUR)
        assert bench.rows(b"b") and bench.rows(b"w")
        bench.apply(1, c.DropGroup("g"))
        bench.upkeep(at=1)
        bench.restart()
        bench.trim(at=1)
        assert bench.rows(b"b") == bench.rows(b"w") == bench.rows(b"d") == bench.rows(b"k") == []
        assert bench.ack(lease.token, at=2) == []
        assert bench.open(at=2) == 2, "a new group of the same name is a different group"
        assert len(bench.values(bench.lease(at=2))) == 6

    def test_dropped_group_removes_its_rows_of_a_moved_message(self) -> None:
        bench = Bench(max_attempts=1)
        bench.open()
        message_id = bench.put("m", due=1000)
        bench.move(message_id, 0)
        bench.nack(bench.one(at=0).token, at=0)
        bench.trim(at=1)
        assert bench.cancel(message_id, at=1) == ("too_late", "dead")
        bench.apply(2, c.DropGroup("g"))
        bench.trim(at=2)
        assert bench.cancel(message_id, at=2) == ("too_late", "gone")
        bench.trim(at=HOUR)
        assert bench.rows(b"i") == bench.rows(b"d") == bench.rows(b"e") == []

    def test_lease_during_a_seek_counts_as_use(self) -> None:
        """The use is also stored in rows. Otherwise a restarted replica would drop the group."""
        benches = [Bench(group_ttl="10m", max_attempts=1), Bench(group_ttl="10m", max_attempts=1)]
        for bench in benches:
            bench.open()
            bench.append("m")
            bench.nack(bench.one().token)
            bench.apply(1, c.Seek("g", "earliest"))
            bench.lease(at=9 * MINUTE)
        benches[1].restart()
        for bench in benches:
            bench.trim(at=12 * MINUTE)
        assert benches[0].everything() == benches[1].everything()


def test_settings_of_a_group(bench: Bench) -> None:
    bench.open()
    bench.open("h")
    own: dict[str, Any] = {"max_attempts": 1}
    bench.apply(0, c.ConfigureGroup("h", own))
    bench.append("m")
    bench.restart()
    for group in ("g", "h"):
        bench.nack(bench.one(group=group).token)
    assert ([len(bench.dead("g")), len(bench.dead("h"))]) == [0, 1]
    bench.apply(1, c.ConfigureGroup("h", {}))
    bench.job("redrive", at=1, group="h")
    bench.nack(bench.one(group="h", at=1).token, at=1)
    assert bench.dead("h") == []
