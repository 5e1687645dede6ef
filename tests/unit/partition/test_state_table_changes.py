"""Tests of the table "A timer message, per group" (docs/architecture.md): cancel, move, ttl, redrive, purge and
seek."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS
from sandq.partition.log.trim import PIN_MS
from tests.support.partition.bench import Bench, T, by_key
from tests.support.partition.scenes import DEFAULT, NOBODY, Scene, scene

SETTLED = ("leased", "acked", "dead")
"""A cancel or a move of the message is too late then."""


@pytest.fixture(autouse=True, params=[False, True], ids=["plain", "ranked"])
def is_ranked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether messages are ranked: the table is valid either way, except for the reported texts."""
    monkeypatch.setattr(DEFAULT, "is_ranked", request.param)
    return bool(request.param)


class TestCancel:
    @pytest.mark.parametrize("state", ["delayed", "ready"])
    def test_pending_message_is_cancelled(self, state: str) -> None:
        pending = scene(state)
        bench = pending.bench
        assert bench.cancel(pending.offset, at=3) == ("cancelled", pending.offset)
        assert pending.state == "gone"
        assert bench.status().messages == 0
        assert bench.lease(at=10_000_000) == []
        assert bench.cancel(pending.offset, at=4) == ("cancelled", pending.offset), "repeated: answered likewise"

    def test_a_ready_one_leaves_a_tombstone(self) -> None:
        """A message in a separate row leaves a tombstone too. Below the closed time no message vanishes without a
        trace."""
        alone = scene("delayed")
        alone.bench.cancel(alone.offset, at=1000)
        whole = scene("ready")
        whole.bench.cancel(whole.offset, at=3)
        for cancelled in (alone, whole):
            (row,) = cancelled.bench.rows(b"t")
            assert (row[0][1:], rows.unpack(row[1])[0]) == (cancelled.offset, "cancelled")
            assert rows.unpack(row[1])[-1] is None, "the tombstone does not expire"

    def test_cancel_of_delayed_message_is_forgotten_after_a_while(self) -> None:
        delayed = scene("delayed")
        delayed.bench.cancel(delayed.offset, at=3)
        delayed.bench.trim(at=3 + CANCEL_MEMORY_MS - 1)
        assert delayed.bench.cancel(delayed.offset, at=3 + CANCEL_MEMORY_MS - 1) == ("cancelled", delayed.offset)
        delayed.bench.trim(at=3 + CANCEL_MEMORY_MS)
        assert delayed.bench.rows(b"t") == delayed.bench.rows(b"e") == delayed.bench.rows(b"m") == []

    @pytest.mark.parametrize("state", SETTLED)
    def test_too_late(self, state: str) -> None:
        held = scene(state)
        assert held.bench.cancel(held.offset, at=3) == ("too_late", state)
        assert held.state == state

    @pytest.mark.parametrize("state", SETTLED)
    @pytest.mark.parametrize("first", [True, False])
    def test_too_late_in_any_group(self, state: str, first: bool) -> None:
        """For any order of groups: a group that has not leased the message yet changes nothing."""
        held = scene(state, before=() if first else ("h",))
        if first:
            held.bench.open("h", at=3)
        assert held.bench.state_of(held.offset, "h") == "ready"
        assert held.bench.cancel(held.offset, at=3) == ("too_late", state)
        assert held.bench.move(held.offset, 5000, at=3) == ("too_late", state)
        assert held.state == state
        assert held.bench.values(held.bench.lease(group="h", at=4)) == ["m"]

    def test_waiting_message_is_cancelled(self) -> None:
        waiting = scene("waiting")
        bench = waiting.bench
        assert bench.cancel(waiting.offset, at=3) == ("cancelled", waiting.offset)
        assert (bench.status().messages, bench.rows(b"w"), bench.status().groups[0].waiting) == (0, [], 0)
        assert bench.lease(at=10_000_000) == []
        assert bench.cancel(waiting.offset, at=4) == ("cancelled", waiting.offset), "repeated: answered likewise"
        assert bench.ack(waiting.token, waiting.what, at=5) == waiting.what, "the consumer has lost the message"

    def test_message_that_no_group_tried_is_cancelled_in_all(self) -> None:
        ready = scene("ready", before=("h",))
        assert ready.bench.cancel(ready.offset, at=3) == ("cancelled", ready.offset)
        assert ready.bench.lease(at=4) == ready.bench.lease(at=4, group="h") == []

    def test_unknown_message_is_not_found(self) -> None:
        bench = scene("ready").bench
        unknown = offsets.pack(T + 5000, 99, 0, 0)
        assert bench.cancel(unknown, at=3) == bench.move(unknown, 9, at=3) == ("not_found", None)
        assert bench.cancel(by_key("nobody"), at=3) == ("not_found", None)


class TestMove:
    @pytest.mark.parametrize("state", ["delayed", "ready"])
    @pytest.mark.parametrize("relative", [True, False])
    def test_delayed(self, state: str, relative: bool) -> None:
        pending = scene(state)
        bench = pending.bench
        word, offset = bench.move(pending.offset, 4997 if relative else 5000, at=3, relative=relative)
        assert (word, offsets.deliver_ms(offset)) == ("moved", T + 5000)
        assert (pending.state, bench.state_of(offset)) == ("gone", "delayed")
        assert bench.lease(at=4999) == []
        (message,) = bench.messages(bench.one(at=5000))
        assert (message.id, message.offset, message.fields) == (pending.offset, offset, {Column.VALUE: b"m"})

    @pytest.mark.parametrize("state", ["delayed", "ready"])
    def test_move_to_the_past_delivers_immediately(self, state: str) -> None:
        pending = scene(state)
        _, offset = pending.bench.move(pending.offset, -1000, at=3)
        assert offsets.deliver_ms(offset) == T + 3
        assert pending.bench.values(pending.bench.lease(at=3)) == ["m"]

    def test_a_ready_one_leaves_a_tombstone(self) -> None:
        alone = scene("delayed")
        alone.bench.move(alone.offset, 9000, at=1000)
        whole = scene("ready")
        whole.bench.move(whole.offset, 9000, at=3)
        for moved in (alone, whole):
            (row,) = moved.bench.rows(b"t")
            assert (row[0][1:], rows.unpack(row[1])[0]) == (moved.offset, "moved")

    def test_a_delayed_one_leaves_none(self) -> None:
        delayed = scene("delayed")
        delayed.bench.move(delayed.offset, 9000, at=3)
        assert delayed.bench.rows(b"t") == []

    @pytest.mark.parametrize("state", SETTLED)
    def test_too_late(self, state: str) -> None:
        held = scene(state)
        assert held.bench.move(held.offset, 9000, at=3) == ("too_late", state)
        assert held.state == state

    def test_waiting_message_is_moved(self) -> None:
        waiting = scene("waiting")
        bench = waiting.bench
        assert bench.move(waiting.offset, 9000, at=3) == ("moved", waiting.offset), "the message keeps its offset"
        assert bench.lease(at=8999) == []
        again = bench.one(at=9000)
        assert (again.attempt, bench.values([again]), waiting.state) == (2, ["m"], "leased")

    def test_cancelled_message_cannot_be_moved(self) -> None:
        ready = scene("ready")
        ready.bench.cancel(ready.offset, at=3)
        assert ready.bench.move(ready.offset, 9000, at=4) == ("too_late", "gone")

    def test_repeated_moves_use_the_first_id(self) -> None:
        delayed = scene("delayed")
        for to in (9000, 500, 7000):
            assert delayed.bench.move(delayed.offset, to, at=3)[0] == "moved"
        found = delayed.bench.machine.log.find(delayed.offset, delayed.bench.view)
        assert found is not None and (found.moves, found.moved_ms) == (3, T + 3)
        assert delayed.bench.lease(at=6999) == []
        assert delayed.bench.cancel(delayed.offset, at=6999) == ("cancelled", delayed.offset)
        assert delayed.bench.cancel(delayed.offset, at=6999) == ("cancelled", delayed.offset)
        assert delayed.bench.lease(at=10_000) == []

    def test_moved_message_is_found_by_its_offset(self) -> None:
        delayed = scene("delayed")
        _, offset = delayed.bench.move(delayed.offset, 9000, at=3)
        assert delayed.bench.cancel(offset, at=4) == ("cancelled", delayed.offset)


class TestTtlExpires:
    """The ttl is 100 ms, of the topic or of the message."""

    @pytest.fixture(params=["topic", "own"])
    def make(self, request: pytest.FixtureRequest) -> Callable[[str], Scene]:
        ttl = {"ttl": "100ms"} if request.param == "topic" else {"own_ttl": 100}
        return lambda state: scene(state, **ttl)

    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting"])
    def test_dead(self, make: Callable[[str], Scene], state: str) -> None:
        lasting = make(state)
        at = 1100 if state == "delayed" else 100
        assert lasting.bench.status().next_expiry_ms == T + at
        assert lasting.bench.expire(at=at - 1) == 0
        assert lasting.state in (state, "ready")
        assert lasting.bench.expire(at=at) == 1
        assert lasting.state == "dead"
        ((message),) = lasting.bench.dead()
        assert (message.reason, message.dead_ms) == ("expired", T + at)
        assert message.attempts == len(message.history) == (1 if state == "waiting" else 0)
        assert lasting.bench.lease(at=at) == []

    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting"])
    def test_a_lease_that_comes_first_finds_nothing(self, make: Callable[[str], Scene], state: str) -> None:
        lasting = make(state)
        assert lasting.bench.lease(at=1100) == []
        assert [m.reason for m in lasting.bench.dead()] == ["expired"]

    def test_leased_is_unaffected_until_it_comes_back(self, make: Callable[[str], Scene]) -> None:
        leased = make("leased")
        assert leased.bench.expire(at=200) == 0
        assert leased.state == "leased"
        assert leased.bench.nack(leased.token, leased.what, at=300, delay=0, error="late") is None
        assert leased.bench.expire(at=300) == 1
        (message,) = leased.bench.dead()
        assert (message.reason, message.error, message.attempts) == ("expired", "late", 1)

    def test_leased_may_still_be_acked(self, make: Callable[[str], Scene]) -> None:
        leased = make("leased")
        leased.bench.expire(at=200)
        assert leased.bench.ack(leased.token, at=300) is None
        assert leased.bench.dead() == []

    def test_given_back_too_late_is_dead(self, make: Callable[[str], Scene]) -> None:
        leased = make("leased")
        leased.bench.release(at=300)
        assert leased.bench.lease(at=300) == []
        assert [(m.reason, m.attempts) for m in leased.bench.dead()] == [("expired", 0)]

    @pytest.mark.parametrize("state", ["acked", "dead"])
    def test_finished_message_does_not_expire(self, make: Callable[[str], Scene], state: str) -> None:
        done = make(state)
        dead = done.bench.dead()
        assert done.bench.expire(at=10_000) == 0
        assert done.bench.dead() == dead

    def test_waiting_for_longer_than_it_lives(self, make: Callable[[str], Scene]) -> None:
        leased = make("leased")
        leased.bench.nack(leased.token, leased.what, at=3, delay=5000)
        assert leased.bench.status().next_expiry_ms == T + 100
        assert leased.bench.lease(at=60, ahead=50) == [], "not one millisecond earlier"
        assert leased.bench.dead() == []
        leased.bench.restart()
        assert leased.bench.expire(at=100) == 1

    def test_in_each_group_by_itself(self, make: Callable[[str], Scene]) -> None:
        leased = make("leased")
        leased.bench.open("h", at=3)
        assert leased.bench.expire(at=100) == 1
        assert (leased.state, leased.bench.state_of(leased.offset, "h")) == ("leased", "dead")
        assert leased.bench.cancel(leased.offset, at=101) == ("too_late", "leased")

    def test_ttl_counts_from_the_moved_time(self, make: Callable[[str], Scene]) -> None:
        delayed = make("delayed")
        delayed.bench.move(delayed.offset, 3000, at=3)
        assert delayed.bench.expire(at=3099) == 0
        assert delayed.bench.values(delayed.bench.lease(at=3099)) == ["m"]

    def test_expired_message_frees_its_unique_key(self) -> None:
        bench = Bench(ttl="100ms", dedup_window=0)
        bench.open()
        bench.put("a", unique="k")
        bench.expire(at=100)
        assert bench.send("b", unique=["k"], at=101).refused == []


class TestTtlExpiresAndDrops:
    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting"])
    def test_acked_and_counted(self, state: str) -> None:
        lasting = scene(state, ttl="100ms", on_expiry="drop")
        assert lasting.bench.expire(at=1100) == 1
        assert (lasting.state, lasting.bench.dead()) == ("acked", [])
        assert lasting.bench.status().groups[0].dropped == 1

    @pytest.mark.parametrize("state", ["leased", "acked", "dead"])
    def test_unaffected(self, state: str) -> None:
        done = scene(state, ttl="100ms", on_expiry="drop")
        assert done.bench.expire(at=1100) == 0
        assert done.state == state and done.bench.status().groups[0].dropped == 0


class TestDeadRetention:
    @pytest.mark.parametrize("limit", [{"dead_retention": "1m"}, {"max_dead_letters": 1}])
    def test_dead_is_gone(self, limit: dict[str, Any]) -> None:
        dead = scene("dead", **limit)
        dead.bench.append("later", at=50)
        dead.bench.nack(dead.bench.one(at=50).token, at=50)
        dead.bench.trim(at=60_030)
        assert [message.dead_ms for message in dead.bench.dead()] == [T + 50]
        assert dead.bench.cancel(dead.offset, at=60_030) == ("too_late", "gone")

    @pytest.mark.parametrize("state", ["delayed", "ready", "leased", "waiting", "acked"])
    def test_others_stay(self, state: str) -> None:
        other = scene(state, dead_retention="30s", retention="1d")
        other.bench.trim(at=29_000)
        assert other.state in (state, "ready")


class TestRedriveAndPurge:
    @pytest.mark.parametrize("trimmed", [True, False])
    def test_redrive(self, trimmed: bool) -> None:
        dead = scene("dead")
        if trimmed:
            dead.bench.trim(at=3)
        assert dead.bench.job("redrive", at=3) == (1, 1, 0)
        assert (dead.state, dead.bench.dead()) == ("waiting", [])
        lease = dead.bench.one(at=3)
        assert (lease.attempt, dead.bench.values([lease])) == (1, ["m"])
        assert dead.bench.ack(lease.token, at=4) is None
        dead.bench.trim(at=4)
        assert dead.state == "acked"
        assert dead.bench.rows(b"k") == dead.bench.rows(b"m") == []

    def test_redriven_message_may_die_again(self) -> None:
        dead = scene("dead")
        dead.bench.job("redrive", at=3)
        dead.bench.nack(dead.bench.one(at=3).token, at=4, error="again")
        (message,) = dead.bench.dead()
        assert (message.attempts, message.error, len(message.history)) == (1, "again", 1)
        assert dead.bench.rows(b"k") == []

    def test_redriven_message_has_no_ttl(self) -> None:
        bench = Bench(ttl="100ms")
        bench.open()
        bench.append("m")
        bench.expire(at=100)
        bench.job("redrive", at=5000, reason="expired")
        assert bench.expire(at=6000) == 0
        assert bench.values(bench.lease(at=6000)) == ["m"]

    def test_purge(self) -> None:
        dead = scene("dead")
        assert dead.bench.job("purge_dead", at=3) == (1, 1, 0)
        dead.bench.trim(at=3)
        assert dead.bench.dead() == []
        assert dead.bench.rows(b"d") == dead.bench.rows(b"m") == []
        assert dead.bench.lease(at=10_000) == []
        assert dead.bench.cancel(dead.offset, at=3) == ("too_late", "gone")

    @pytest.mark.parametrize("kind", ["redrive", "purge_dead"])
    @pytest.mark.parametrize("state", ["delayed", "ready", "leased", "waiting", "acked"])
    def test_jobs_change_nothing_in_other_states(self, kind: str, state: str) -> None:
        other = scene(state)
        assert other.bench.job(kind, at=3) == (0, 0, 0)
        if state != "acked":
            assert other.state == state

    @pytest.mark.parametrize(
        ("arguments", "matched"),
        [
            ({"reason": "nacked"}, 1),
            ({"reason": "expired"}, 0),
            ({"from_ms": T + 2, "until_ms": T + 3}, 1),
            ({"from_ms": T + 3}, 0),
            ({"until_ms": T + 2}, 0),
        ],
    )
    def test_jobs_affect_only_selected_letters(self, arguments: dict[str, Any], matched: int) -> None:
        dead = scene("dead")
        assert dead.bench.job("redrive", at=3, dry_run=True, **arguments) == (matched, 0, 0)
        assert dead.state == "dead"
        assert dead.bench.job("purge_dead", at=3, **arguments) == (matched, matched, 0)

    def test_dead_letters_of_another_group_stay(self) -> None:
        dead = scene("dead", before=("h",))
        dead.bench.nack(dead.bench.one(at=3, group="h").token, at=3)
        dead.bench.job("redrive", at=4)
        assert (dead.state, dead.bench.state_of(dead.offset, "h")) == ("waiting", "dead")
        dead.bench.job("purge_dead", at=4, group="h")
        assert (dead.state, dead.bench.dead("h")) == ("waiting", [])


class TestSeekToAnEarlierPoint:
    @pytest.mark.parametrize("state", ["delayed", "ready"])
    @pytest.mark.parametrize("to", ["earliest", -1000])
    def test_seek_changes_no_pending_message(self, state: str, to: c.Position) -> None:
        pending = scene(state)
        pending.bench.seek(to, at=3)
        assert pending.state == state

    @pytest.mark.parametrize("state", ["leased", "waiting", "acked", "dead"])
    @pytest.mark.parametrize("to", ["earliest", 0, "itself"])
    @pytest.mark.parametrize("restart", [True, False])
    def test_ready(self, state: str, to: c.Position, restart: bool) -> None:
        done = scene(state, retention="1h")
        done.bench.seek(done.offset if to == "itself" else to, at=3)
        if restart:
            done.bench.restart()
        assert done.state == "ready"
        assert done.bench.dead() == []
        assert done.bench.rows(b"w") == []
        if done.lease is not None:
            assert done.bench.ack(done.token, done.what, at=3) == ([] if state == "acked" else done.what) or (
                state == "acked"
            )
        assert done.state == "ready"
        again = done.bench.one(at=4)
        assert (again.attempt, done.bench.values([again])) == (1, ["m"])

    @pytest.mark.parametrize("state", ["leased", "waiting", "dead"])
    def test_ready_also_when_its_log_row_is_trimmed(self, state: str) -> None:
        done = scene(state)
        done.bench.expire(at=20_000)
        done.bench.extend(done.token, ms=3_600_000, at=20_000)
        done.bench.apply(PIN_MS + 10, c.Ack([(NOBODY, None)]))
        done.bench.trim(at=PIN_MS + 10)
        assert done.bench.rows(b"m") == []
        done.bench.seek("earliest", at=PIN_MS + 20)
        again = done.bench.one(at=PIN_MS + 20)
        assert (again.attempt, done.bench.values([again])) == (1, ["m"])
        assert done.bench.dead() == []
        assert done.bench.ack(again.token, at=PIN_MS + 21) is None
        assert done.bench.rows(b"k") == []

    @pytest.mark.parametrize("state", ["leased", "waiting", "acked", "dead"])
    def test_seek_does_not_affect_other_groups(self, state: str) -> None:
        done = scene(state)
        done.bench.open("h", at=3)
        done.bench.seek("earliest", at=3, group="h")
        assert done.state == state


class TestSeekForward:
    @pytest.mark.parametrize("state", ["ready", "leased", "waiting", "acked"])
    @pytest.mark.parametrize("to", ["latest", 3])
    def test_skipped_messages_are_acked(self, state: str, to: c.Position) -> None:
        passed = scene(state)
        passed.bench.seek(to, at=3)
        assert passed.state == "acked"
        assert passed.bench.lease(at=100_000) == []
        passed.bench.trim(at=100_000)
        assert passed.bench.rows(b"m") == passed.bench.rows(b"w") == []

    def test_delayed_is_never_passed(self) -> None:
        delayed = scene("delayed")
        delayed.bench.seek(5000, at=3)
        assert delayed.state == "delayed"

    def test_dead_message_stays_dead_after_seek(self) -> None:
        dead = scene("dead")
        dead.bench.seek("latest", at=3)
        assert dead.state == "dead"

    def test_too_late_to_cancel_and_the_unique_key_is_free(self) -> None:
        bench = Bench()
        bench.open()
        offset = bench.put("a", unique="k")
        bench.apply(3, c.Seek("g", "latest"))
        assert bench.cancel(by_key("k"), at=3) == ("too_late", "acked")
        other = bench.send("b", unique=["k"], at=4)
        assert other.refused == [] and other.offsets != offset
        bench.trim(at=5)
        assert bench.send("c", unique=["k"], at=5).refused == [(0, "ready")]
