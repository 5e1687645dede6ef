"""Tests of acks that send messages: all effects or none, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import Conflict, Overloaded
from sandq.model.limits import FIXED, FixedLimits
from sandq.model.outbox import Target
from sandq.partition import commands as c
from sandq.partition import outbox
from sandq.partition.base import rows
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import T
from tests.support.partition.outbox_bench import HERE, TO, OutboxBench, arrived, carry, receiver, values


def to_be_sent(value: str, to: Target | None = HERE, at_ms: int | None = None, *, is_delay: bool = False) -> list[Any]:
    """Return a message of the command. `to` None: the message stays in the partition."""
    return [*(to or (None, None)), at_ms, is_delay, {Column.VALUE.value: value.encode()}]


def ack(bench: OutboxBench, lease: Lease, *messages: list[Any], at: int = 1, what: c.What = None) -> Any:
    result = bench.apply(at, c.AckThen(lease.token, what, messages))[0]
    return result if isinstance(result, Exception) else result[0]


def leased(bench: OutboxBench, value: str = "m") -> Lease:
    at = max(bench.machine.now_ms - T, 0)
    bench.put(value, at=at)
    return bench.one(at=at)


def held(*sent: str) -> tuple[OutboxBench, Lease]:
    """Return a partition and a lease of new messages."""
    bench = OutboxBench()
    bench.append(*(sent or ("m",)))
    return bench, bench.one()


class TestAtOnce:
    def test_ack_settles_and_sends(self) -> None:
        bench, to = OutboxBench(), receiver()
        lease = leased(bench)
        assert ack(bench, lease, to_be_sent("there"), to_be_sent("here", None)) is None
        assert bench.values(bench.lease(at=2)) == ["here"]
        bench.restart()
        carry(bench, to)
        assert values(arrived(to)) == ["there"]
        assert bench.status().outbox is None and bench.dead() == []

    def test_repeated_it_is_answered_as_the_first_time(self) -> None:
        bench, to = OutboxBench(), receiver()
        lease = leased(bench)
        for _ in range(3):
            assert ack(bench, lease, to_be_sent("there"), to_be_sent("here", None)) is None
            bench.restart()
        carry(bench, to)
        assert ack(bench, lease, to_be_sent("there"), to_be_sent("here", None), at=5) is None
        assert bench.status().outbox is None
        assert bench.values(bench.lease(at=6)) == ["here"] and values(arrived(to)) == ["there"]

    def test_ack_with_messages_after_plain_ack_is_refused(self) -> None:
        bench, lease = held()
        bench.ack(lease.token)
        for _ in range(2):
            refused = ack(bench, lease, to_be_sent("x"), to_be_sent("y", None))
            assert isinstance(refused, Conflict) and "nothing is sent now" in refused.message
            bench.restart()
        assert bench.status().outbox is None and bench.lease(at=2) == []
        assert bench.ack(lease.token) is None, "a repeated ack without messages gets the same answer"

    @pytest.mark.parametrize("whole", [True, False])
    def test_repeated_ack_with_messages_sends_nothing_again(self, whole: bool) -> None:
        bench, lease = held("m", "n")
        what = None if whole else [[lease.ranges[0].base, 1]]
        assert ack(bench, lease, to_be_sent("x"), what=what) is None
        bench.restart()
        bench.ack(lease.token)
        assert ack(bench, lease, to_be_sent("x"), what=what) is None
        assert bench.status().outbox.messages == 1  # type: ignore[union-attr]
        other = [[lease.ranges[-1].base if len(lease.ranges) > 1 else offsets.shift(lease.ranges[0].base, 1), 1]]
        assert isinstance(ack(bench, lease, to_be_sent("x"), what=other), Conflict) is not whole

    @pytest.mark.parametrize("how", ["nack", "expire", "release", "seek", "unknown"])
    def test_a_lease_that_is_lost_sends_nothing(self, how: str) -> None:
        bench = OutboxBench(max_attempts=5)
        lease = leased(bench)
        if how == "nack":
            bench.nack(lease.token)
        elif how == "expire":
            bench.expire(40_000)
        elif how == "release":
            bench.release()
        elif how == "seek":
            bench.seek("earliest")
        token = 77 if how == "unknown" else lease.token
        assert bench.apply(40_001, c.AckThen(token, None, [to_be_sent("x"), to_be_sent("y", None)]))[0] == [[]]
        assert not bench.rows(rows.OUTBOX) and len(bench.rows(rows.LOG)) == 1

    def test_part_of_a_lease(self) -> None:
        bench = OutboxBench(max_attempts=5)
        bench.append("a", "b", "c")
        lease = bench.one()
        first, second, third = offsets.run(lease.first, 3)
        bench.nack(lease.token, [[second, 1]])
        assert ack(bench, lease, to_be_sent("x"), what=[[first, 2]]) == [[second, 1]], "one of the messages was lost"
        assert not bench.rows(rows.OUTBOX) and bench.state_of(first) == "leased"
        assert ack(bench, lease, to_be_sent("x"), what=[[first, 1]]) is None
        assert bench.state_of(first) == "acked" and bench.state_of(third) == "leased"

    def test_times_count_from_the_ack(self) -> None:
        bench, to = OutboxBench(), receiver()
        lease = leased(bench)
        later = to_be_sent("later", None, 60_000, is_delay=True)
        far = to_be_sent("far", HERE, 60_000, is_delay=True)
        assert ack(bench, lease, later, far, to_be_sent("at", HERE, T + 500), at=1000) is None
        assert bench.lease(at=60_999) == [] and bench.values(bench.lease(at=61_000)) == ["later"]
        carry(bench, to, at=30_000)
        times = {one.fields[Column.VALUE]: offsets.deliver_ms(one.offset) for one in arrived(to)}
        assert times == {b"far": T + 61_000, b"at": T + 30_000}

    def test_a_full_outbox_refuses_all_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "FIXED", FixedLimits(outbox_messages=2))
        bench, to = OutboxBench(), receiver()
        first = leased(bench)
        assert ack(bench, first, to_be_sent("a"), to_be_sent("b")) is None
        second = leased(bench)
        answer = ack(bench, second, to_be_sent("c"), to_be_sent("own", None))
        assert isinstance(answer, Overloaded) and answer.retriable
        assert len(second.ranges) == 1 and bench.state_of(second.first) == "leased"
        assert ack(bench, second, to_be_sent("own", None), at=2) is None, (
            "messages that stay here need no room in the outbox"
        )
        carry(bench, to)
        third = leased(bench)
        assert ack(bench, third, to_be_sent("d"), at=3) is None
        monkeypatch.setattr(outbox, "FIXED", FixedLimits(outbox_bytes=1))
        assert isinstance(ack(bench, leased(bench), to_be_sent("e"), at=4), Overloaded)

    def test_dead_letters_in_flight_do_not_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "FIXED", FixedLimits(outbox_messages=1))
        bench = OutboxBench()
        bench.kill("a", "b", "c")
        assert ack(bench, leased(bench), to_be_sent("x")) is None
        bench.restart()
        assert isinstance(ack(bench, leased(bench), to_be_sent("y")), Overloaded)


class TestUndeliverable:
    def refused(self, **settings: Any) -> tuple[OutboxBench, bytes]:
        bench = OutboxBench(**settings)
        lease = leased(bench)
        ack(bench, lease, to_be_sent("x", HERE, 7000, is_delay=True))
        assert bench.refused(HERE, bench.batches[HERE], "it is no more", at=5) == "refused"
        (letter,) = bench.dead()
        return bench, letter.id

    def test_undeliverable_message_is_a_dead_letter_of_the_group(self) -> None:
        bench, _ = self.refused()
        (letter,) = bench.dead()
        assert (letter.reason, letter.error, letter.attempts) == ("undeliverable", "it is no more", 0)
        assert (letter.fields, letter.dead_ms) == ({Column.VALUE: b"x"}, T + 5)
        assert letter.sent_to == (HERE, T + 7001)

    @pytest.mark.parametrize("by_job", [False, True])
    def test_redriven_it_is_sent_again(self, by_job: bool) -> None:
        bench, letter_id = self.refused()
        bench.restart()
        if by_job:
            assert bench.job("redrive", at=6)[1] == 1
        else:
            assert bench.apply(6, c.RedriveDead("g", [letter_id]))[0] == [("redriven", letter_id)]
        assert bench.dead() == [] and bench.lease(at=7) == [], "the group never had the message"
        to = receiver()
        carry(bench, to)
        (sent,) = arrived(to)
        assert offsets.deliver_ms(sent.offset) == T + 7001

    def many(self) -> OutboxBench:
        """Return a bench with four undeliverable messages."""
        bench = OutboxBench()
        ack(bench, leased(bench), *[to_be_sent(value) for value in "abcd"])
        while bench.batches:
            bench.refused(HERE, bench.batches[HERE], "it is no more", at=5)
        assert len(bench.dead()) == 4
        return bench

    def test_redriven_they_keep_the_bounds_of_the_outbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = self.many()
        monkeypatch.setattr(outbox, "FIXED", FixedLimits(outbox_messages=3))
        ids = [letter.id for letter in bench.dead()]
        told = bench.apply(6, c.RedriveDead("g", ids))[0]
        assert [verdict for verdict, _ in told] == ["redriven"] * 3 + ["not_yet"]
        bench.restart()
        (refused,) = bench.apply(6, c.RedriveDead("g", ids[3:]))
        assert isinstance(refused, Overloaded) and refused.retriable and "is full" in refused.message
        assert [letter.id for letter in bench.dead()] == ids[3:]
        to = receiver()
        carry(bench, to, at=7)
        assert bench.apply(8, c.RedriveDead("g", ids[3:]))[0] == [("redriven", ids[3])]
        carry(bench, to, at=9)
        assert sorted(one.fields[Column.VALUE] for one in arrived(to)) == [b"a", b"b", b"c", b"d"]

    def test_job_waits_for_capacity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = self.many()
        monkeypatch.setattr(outbox, "FIXED", FixedLimits(outbox_messages=3))
        job_id = bench.start_job("redrive", 6)
        bench.trim(6)
        bench.restart()
        assert bench.machine.jobs.find(job_id).shown()["done"] == 3
        assert (bench.machine.outbox.ack_messages, len(bench.dead())) == (3, 1)
        bench.trim(1006)
        assert bench.machine.jobs.find(job_id).shown()["done"] == 3, "the partition checks once a second"
        to = receiver()
        carry(bench, to, at=1007)
        bench.trim(2006)
        shown = bench.machine.jobs.find(job_id).shown()
        assert (shown["state"], shown["matched"], shown["done"]) == ("done", 4, 4)
        carry(bench, to, at=2007)
        assert len(arrived(to)) == 4 and bench.dead() == []

    def test_bytes_are_bounded_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = self.many()
        monkeypatch.setattr(outbox, "FIXED", FixedLimits(outbox_bytes=1))
        ids = [letter.id for letter in bench.dead()]
        assert isinstance(bench.apply(6, c.RedriveDead("g", ids))[0], Overloaded)
        assert bench.apply(6, c.PurgeDead("g", ids[:1]))[0] == [("purged", ids[0])], "a purge sends nothing"

    def test_purged_undeliverable_message_is_gone(self) -> None:
        bench, letter_id = self.refused()
        assert bench.apply(6, c.PurgeDead("g", [letter_id]))[0] == [("purged", letter_id)]
        assert bench.dead() == [] and bench.status().outbox is None

    def test_a_seek_leaves_it(self) -> None:
        bench, letter_id = self.refused()
        bench.seek("earliest", at=6)
        assert [letter.id for letter in bench.dead()] == [letter_id]

    def test_a_clock_that_is_set_back_leaves_it(self) -> None:
        bench = OutboxBench()
        year = 365 * 86_400_000
        bench.put("m", at=year)
        (lease,) = bench.lease(at=year)
        bench.apply(year, c.AckThen(lease.token, None, [to_be_sent("x")]))
        bench.refused(HERE, bench.batches[HERE], at=year)
        bench.apply(1000, c.ClockReset(T + 1000))
        bench.trim(1000)
        (letter,) = bench.dead()
        assert bench.apply(1001, c.RedriveDead("g", [letter.id]))[0] == [("redriven", letter.id)]
        assert bench.batches.keys() == {HERE}

    def test_dropped_group_leaves_no_refused_messages(self) -> None:
        bench = OutboxBench()
        ack(bench, leased(bench), to_be_sent("x"))
        bench.apply(2, c.DropGroup("g"))
        bench.trim(2)
        assert bench.refused(HERE, bench.batches[HERE], at=5) == "refused"
        assert not bench.rows(rows.DEAD) and bench.status().outbox is None


def test_ack_messages_and_dead_letters_are_sent_in_order() -> None:
    bench, to = OutboxBench(), receiver()
    for at in range(3):
        ack(bench, leased(bench), to_be_sent(f"ack{at}"), at=2 * at)
        bench.kill(f"dead{at}", at=2 * at + 1)
    while bench.batches:
        carry(bench, to)
    assert values(arrived(to)) == [f"{what}{at}" for at in range(3) for what in ("ack", "dead")]


def test_bounds() -> None:
    assert c.AckThen(1, None, []).takes_space
    assert (FIXED.then_messages, FIXED.then_bytes) == (100, 1 << 20)
    assert Target(TO, 0) == HERE
