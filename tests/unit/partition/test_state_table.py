"""Tests of every cell of the table "A timer message, per group" (docs/architecture.md): consumers, time, and trimming.

Each test brings one message into a state, lets the event happen, and checks the state of the partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from sandq.model.batch import Column
from sandq.model.errors import Conflict
from sandq.partition import commands as c
from sandq.partition.base.rows import Range
from sandq.partition.leasing.lease_reclaim import RECLAIMS_MOST
from tests.support.partition.bench import Bench, T
from tests.support.partition.scenes import DEFAULT, STATES, Scene, scene


@pytest.fixture(autouse=True, params=[False, True], ids=["plain", "ranked"])
def is_ranked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether messages are ranked: the table is valid either way, except for the reported texts."""
    monkeypatch.setattr(DEFAULT, "is_ranked", request.param)
    return bool(request.param)


@pytest.mark.parametrize("state", STATES)
def test_scene_has_the_named_state(state: str) -> None:
    assert scene(state).state == state


def test_message_becomes_ready_at_its_time() -> None:
    delayed = scene("delayed")
    delayed.bench.expire(at=1000)
    assert delayed.state == "ready"
    assert delayed.bench.values(delayed.bench.lease(at=1000)) == ["m"]

    waiting = scene("waiting")
    assert waiting.bench.lease(at=1001) == []
    assert waiting.bench.values(waiting.bench.lease(at=1002)) == ["m"]


class TestLease:
    def test_delayed_is_refused(self) -> None:
        delayed = scene("delayed")
        assert delayed.bench.lease(at=10, ahead=50) == []
        assert delayed.state == "delayed"

    def test_delayed_within_lease_ahead(self, is_ranked: bool) -> None:
        delayed = scene("delayed")
        if is_ranked:  # a message that goes first may still arrive
            assert delayed.bench.lease(at=996, ahead=5) == []
            return
        lease = delayed.bench.one(at=996, ahead=5)
        assert (delayed.state, lease.attempt, lease.due_ms) == ("leased", 1, T + 1000)

    def test_lease_ahead_is_limited(self, is_ranked: bool) -> None:
        delayed = scene("delayed")
        first_ms = 1000 if is_ranked else 950
        assert delayed.bench.lease(at=first_ms - 1, ahead=500) == []
        assert delayed.bench.lease(at=first_ms, ahead=500) != []

    def test_ready(self) -> None:
        ready = scene("ready")
        lease = ready.bench.one(at=1)
        assert (ready.state, lease.attempt) == ("leased", 1)

    @pytest.mark.parametrize("state", ["leased", "waiting"])
    def test_leased_or_waiting_message_is_not_leased(self, state: str) -> None:
        held = scene(state)
        assert held.bench.lease(at=3, consumer="other") == []
        assert held.state == state

    @pytest.mark.parametrize("state", ["acked", "dead"])
    def test_finished_message_is_not_leased(self, state: str) -> None:
        gone = scene(state)
        assert gone.bench.lease(at=10_000_000, consumer="other") == []
        assert gone.state == state


class TestAck:
    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "dead"])
    @pytest.mark.parametrize("whole", [True, False])
    def test_lease_lost(self, state: str, whole: bool) -> None:
        lost = scene(state)
        answer = lost.bench.ack(lost.token, None if whole else lost.what, at=3)
        assert answer == ([] if lost.lease is None or whole else lost.what)
        assert lost.state == state

    def test_leased(self) -> None:
        leased = scene("leased")
        assert leased.bench.ack(leased.token, leased.what, at=3) is None
        assert leased.state == "acked"

    @pytest.mark.parametrize("whole", [True, False])
    def test_repeated_ack_changes_nothing(self, whole: bool) -> None:
        acked = scene("acked")
        assert acked.bench.ack(acked.token, None if whole else acked.what, at=4) is None
        assert acked.state == "acked"

    @pytest.mark.parametrize("whole", [True, False])
    def test_an_expired_lease_is_lost(self, whole: bool) -> None:
        leased = scene("leased")
        assert leased.bench.expire(at=30_001) == 1
        assert leased.bench.ack(leased.token, None if whole else leased.what, at=30_002) in ([], leased.what)
        assert leased.state == "waiting"

    def test_token_of_earlier_lease_is_lost(self) -> None:
        waiting = scene("waiting")
        second = waiting.bench.one(at=2000)
        assert second.token > waiting.token
        assert waiting.bench.ack(waiting.token, waiting.what, at=2001) == waiting.what
        assert waiting.state == "leased"


class TestAckThatSends:
    """One message goes to another topic, and one to the partition itself."""

    sends: ClassVar[list[Any]] = [[9, 0, None, False, {1: b"there"}], [None, None, 60_000, True, {1: b"here"}]]

    def stored(self, bench: Bench) -> tuple[int, int]:
        """Return the number of messages for another partition, and the number of later messages here."""
        status = bench.status()
        return 0 if status.outbox is None else status.outbox.messages, status.later

    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "dead"])
    @pytest.mark.parametrize("whole", [True, False])
    def test_lease_lost(self, state: str, whole: bool) -> None:
        lost = scene(state)
        before = self.stored(lost.bench)
        command = c.AckThen(lost.token, None if whole else lost.what, self.sends)
        assert lost.bench.apply(3, command)[0] == [[] if lost.lease is None or whole else lost.what]
        assert (lost.state, self.stored(lost.bench)) == (state, before)

    def test_leased(self) -> None:
        leased = scene("leased")
        outbox, later = self.stored(leased.bench)
        assert leased.bench.apply(3, c.AckThen(leased.token, leased.what, self.sends))[0] == [None]
        assert (leased.state, self.stored(leased.bench)) == ("acked", (outbox + 1, later + 1))

    @pytest.mark.parametrize("whole", [True, False])
    def test_repeated_ack_with_messages_changes_nothing(self, whole: bool) -> None:
        acked = scene("leased")
        command = c.AckThen(acked.token, None if whole else acked.what, self.sends)
        assert acked.bench.apply(3, command)[0] == [None]
        before = self.stored(acked.bench)
        assert acked.bench.apply(4, command)[0] == [None]
        assert (acked.state, self.stored(acked.bench)) == ("acked", before)

    def test_refused_behind_an_ack_that_sent_nothing(self) -> None:
        acked = scene("leased")
        assert acked.bench.ack(acked.token, acked.what, at=4) is None
        before = self.stored(acked.bench)
        (refused,) = acked.bench.apply(4, c.AckThen(acked.token, acked.what, self.sends))
        assert isinstance(refused, Conflict)
        assert (acked.state, self.stored(acked.bench)) == ("acked", before)


class TestNack:
    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "acked", "dead"])
    def test_lease_lost(self, state: str) -> None:
        lost = scene(state)
        assert lost.bench.nack(lost.token, lost.what, at=3) == ([] if lost.lease is None else lost.what)
        assert lost.state == state

    def test_leased_waits(self) -> None:
        leased = scene("leased")
        assert leased.bench.nack(leased.token, leased.what, at=3, delay=70) is None
        assert leased.state == "waiting"
        assert leased.bench.lease(at=72) == []
        again = leased.bench.one(at=73)
        assert again.attempt == 2

    def test_dead_at_max_attempts(self) -> None:
        dead = scene("dead")
        (message,) = dead.bench.dead()
        assert (message.attempts, message.reason, message.error, message.dead_ms) == (1, "nacked", "no", T + 2)
        assert message.history == ((1, "c", T + 1, T + 2, "nacked", "no"),)


class TestReject:
    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "acked", "dead"])
    def test_lease_lost(self, state: str) -> None:
        lost = scene(state)
        assert lost.bench.reject(lost.token, lost.what, at=3) == ([] if lost.lease is None else lost.what)
        assert lost.state == state

    def test_rejected_message_is_dead_with_attempts_left(self) -> None:
        leased = scene("leased")
        assert leased.bench.reject(leased.token, leased.what, at=3, error="410 gone") is None
        assert leased.state == "dead"
        (message,) = leased.bench.dead()
        assert (message.attempts, message.reason, message.error, message.dead_ms) == (1, "rejected", "410 gone", T + 3)
        assert message.history == ((1, "c", T + 1, T + 3, "rejected", "410 gone"),)


class TestSnooze:
    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "acked", "dead"])
    def test_lease_lost(self, state: str) -> None:
        lost = scene(state)
        assert lost.bench.snooze(lost.token, lost.what, at=3) == ([] if lost.lease is None else lost.what)
        assert lost.state == state

    def test_leased_waits_the_attempt_not_counted(self) -> None:
        leased = scene("leased")
        assert leased.bench.snooze(leased.token, leased.what, at=3, delay=70) is None
        assert leased.state == "waiting"
        assert leased.bench.lease(at=72) == []
        assert leased.bench.one(at=73).attempt == 1

    def test_as_a_nack_after_max_snoozes(self) -> None:
        leased = scene("leased", max_snoozes=0)
        assert leased.bench.snooze(leased.token, leased.what, at=3, delay=70) is None
        assert leased.state == "waiting"
        assert leased.bench.one(at=73).attempt == 2


class TestExtend:
    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "acked", "dead"])
    def test_lease_lost(self, state: str) -> None:
        lost = scene(state)
        assert lost.bench.extend(lost.token, at=3) is None
        assert lost.state == state

    def test_new_deadline(self) -> None:
        leased = scene("leased")
        assert leased.bench.extend(leased.token, ms=60_000, at=10) == T + 60_010
        assert leased.bench.expire(at=60_009) == 0
        assert leased.bench.expire(at=60_010) == 1


class TestExpire:
    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "acked", "dead"])
    def test_expire_changes_nothing_in_other_states(self, state: str) -> None:
        other = scene(state)
        assert other.bench.expire(at=500 if state == "delayed" else 100_000) == 0
        assert other.state == state

    def test_waits(self) -> None:
        leased = scene("leased")
        assert leased.bench.expire(at=30_000) == 0
        assert leased.bench.expire(at=30_001) == 1
        assert leased.state == "waiting"
        assert leased.bench.one(at=31_001).attempt == 2

    def test_dead_after_the_last_attempt(self) -> None:
        bench = Bench(max_attempts=1)
        bench.open()
        offset, _ = bench.append("m")
        bench.one(at=1)
        assert bench.expire(at=30_001) == 1
        assert bench.state_of(offset) == "dead"
        assert [(m.reason, m.error) for m in bench.dead()] == [("lease_expired", None)]

    def test_extended_since(self) -> None:
        leased = scene("leased")
        leased.bench.extend(leased.token, ms=30_000, at=1000)
        assert leased.bench.expire(at=30_001) == 0
        assert leased.state == "leased"


class TestConsumerLeaves:
    def test_ready_and_the_attempt_is_not_counted(self) -> None:
        leased = scene("leased")
        assert leased.bench.release(at=3) == 1
        again = leased.bench.one(at=3, consumer="other")
        assert (again.attempt, leased.state) == (1, "leased")

    def test_an_ack_after_it_is_lost(self) -> None:
        leased = scene("leased")
        leased.bench.release(at=3)
        assert leased.bench.ack(leased.token, at=4) == []

    def test_leased_ahead_and_given_back_is_not_early(self, is_ranked: bool) -> None:
        delayed = scene("delayed")
        assert (delayed.bench.lease(at=995, ahead=5) == []) == is_ranked
        delayed.bench.release(at=996)
        assert delayed.bench.lease(at=999) == []
        assert delayed.bench.one(at=1000).attempt == 1

    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "acked", "dead"])
    def test_release_changes_nothing_in_other_states(self, state: str) -> None:
        other = scene(state)
        assert other.bench.release(at=3) == 0
        assert other.state == state


class TestConsumerComesBack:
    """After a restart, with a later epoch."""

    def test_reclaim_gives_the_same_attempt_a_new_token(self) -> None:
        leased = scene("leased")
        assert leased.bench.reclaim(1, at=5000) == (1, 0)
        (again,) = leased.bench.held()
        assert (again.attempt, again.deadline_ms, leased.state) == (1, T + 35_000, "leased")
        assert again.token > leased.token
        assert leased.bench.ack(leased.token, at=5001) == []
        assert leased.bench.ack(again.token, at=5001) is None
        assert leased.state == "acked"

    def test_message_waits_after_too_many_reclaims(self) -> None:
        leased = scene("leased")
        for epoch in range(1, RECLAIMS_MOST + 1):
            assert leased.bench.reclaim(epoch, at=3) == (1, 0)
        assert leased.bench.reclaim(100, at=3) == (0, 0)
        assert leased.state == "waiting"

    @pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "acked", "dead"])
    def test_reclaim_changes_nothing_in_other_states(self, state: str) -> None:
        other = scene(state)
        assert other.bench.reclaim(1, at=3) == (0, 0)
        assert other.state == state


class TestNackOfUnbegunMessage:
    def give_back(self, found: Scene, at: int) -> object:
        item = (found.token, found.what, None, None, False)
        return found.bench.apply(at, c.Nack([item]))[0][0]

    def test_leased(self) -> None:
        leased = scene("leased")
        assert self.give_back(leased, 3) is None
        again = leased.bench.one(at=3, consumer="other")
        assert (again.attempt, leased.state) == (1, "leased")

    def test_leased_ahead_it_is_not_early(self, is_ranked: bool) -> None:
        delayed = scene("delayed")
        leases = delayed.bench.lease(at=995, ahead=5)
        assert (leases == []) == is_ranked
        token = leases[0].token if leases else delayed.token
        delayed.bench.apply(996, c.Nack([(token, None, None, None, False)]))
        assert delayed.bench.lease(at=999) == []
        assert delayed.bench.one(at=1000).attempt == 1

    @pytest.mark.parametrize("state", ["waiting", "acked", "dead"])
    def test_nack_of_unbegun_message_changes_nothing_in_other_states(self, state: str) -> None:
        other = scene(state)
        assert self.give_back(other, 3), "it is lost"
        assert other.state == state


class TestTrim:
    @pytest.mark.parametrize("state", ["delayed", "ready", "leased", "waiting"])
    def test_unfinished_message_is_never_trimmed(self, state: str) -> None:
        kept = scene(state)
        kept.bench.upkeep(at=3)
        kept.bench.trim(at=3)
        assert kept.bench.read([Range(kept.offset, 1)])[0].fields == {Column.VALUE: b"m"}
        assert kept.bench.status().messages == 1

    def test_acked_message_is_trimmed(self) -> None:
        acked = scene("acked")
        acked.bench.trim(at=3)
        assert acked.bench.rows(b"m") == []
        assert (acked.bench.status().messages, acked.bench.status().bytes) == (0, 0)
        assert acked.bench.cancel(acked.offset, at=4) == ("too_late", "gone")

    def test_trim_keeps_the_row_of_a_dead_message(self) -> None:
        dead = scene("dead")
        dead.bench.trim(at=3)
        assert dead.bench.rows(b"m") == []
        assert [m.fields for m in dead.bench.dead()] == [{Column.VALUE: b"m"}]

    @pytest.mark.parametrize("state", ["ready", "leased", "waiting"])
    def test_message_pending_in_one_group_is_not_trimmed(self, state: str) -> None:
        other = scene(state)
        other.bench.open("h", at=3)
        other.bench.ack(other.bench.one(group="h", at=3).token, at=3)
        other.bench.trim(at=3)
        assert other.bench.read([Range(other.offset, 1)])
        assert other.state == state


EVENTS: list[tuple[str, Callable[[Scene], object]]] = [
    ("ack", lambda s: s.bench.ack(s.token, s.what, at=3)),
    ("nack", lambda s: s.bench.nack(s.token, s.what, at=3)),
    ("extend", lambda s: s.bench.extend(s.token, at=3)),
    ("expire", lambda s: s.bench.expire(at=40_000)),
    ("release", lambda s: s.bench.release(at=3)),
    ("reclaim", lambda s: (s.bench.reclaim(1, at=3), [lease.row() for lease in s.bench.held()])),
    ("lease", lambda s: [lease.row() for lease in s.bench.lease(at=40_000)]),
    ("cancel", lambda s: s.bench.cancel(s.offset, at=3)),
    ("move", lambda s: s.bench.move(s.offset, 9000, at=3)),
    ("seek", lambda s: s.bench.seek("earliest", at=3)),
    ("redrive", lambda s: s.bench.job("redrive", at=3)),
    ("purge", lambda s: s.bench.job("purge_dead", at=3)),
    ("trim", lambda s: s.bench.trim(at=40_000)),
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS, ids=[name for name, _ in EVENTS])
def test_a_restart_changes_no_answer(state: str, event: tuple[str, Callable[[Scene], object]]) -> None:
    before, after = scene(state), scene(state)
    after.bench.restart()
    assert event[1](before) == event[1](after)
    assert before.bench.status() == after.bench.status()
    assert before.bench.everything() == after.bench.everything()


class TestPause:
    @pytest.mark.parametrize("state", STATES)
    def test_pause_changes_no_state_and_ends_by_itself(self, state: str) -> None:
        """The scenes of keys and tenants are in `leasing/test_pausing.py`."""
        paused, other = scene(state), scene(state)
        paused.bench.apply(2, c.PauseGroup("g", True, T + 2000))
        assert paused.state == state
        assert paused.bench.lease(at=1999) == []
        expected = other.bench.values(other.bench.lease(at=2000))
        assert paused.bench.values(paused.bench.lease(at=2000)) == expected
        assert bool(expected) == (state in ("delayed", "ready", "waiting"))
