"""Tests of dead letters that are sent to a different topic: the sent message, and the original dead letter."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import Conflict, ProducerFenced
from sandq.model.limits import FIXED
from sandq.model.outbox import Target, reserved_producer, route
from sandq.model.partitioning import partition_for
from sandq.model.sequence import sequence_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.queries.queries import PartitionQueries
from tests.support.partition.bench import Bench, T, batch_of
from tests.support.partition.outbox_bench import (
    GROUP,
    HERE,
    TO,
    OutboxBench,
    arrived,
    carry,
    headers,
    receiver,
    values,
)


def listed(bench: Bench) -> list[dict[str, Any]]:
    page, _ = PartitionQueries(bench.machine, bench.view).dead_page("g", None, 100, None, True)
    return page


def is_empty(bench: OutboxBench) -> bool:
    return not (bench.rows(rows.OUTBOX) or bench.rows(rows.OUTBOX_BATCH) or bench.batches)


class TestSending:
    def test_a_dead_letter_goes_once_it_is_stored_elsewhere(self) -> None:
        bench, to = OutboxBench(), receiver()
        (message_id,) = bench.kill("m", at=5, key="k", ttl=60_000)
        assert [dead.id for dead in bench.dead()] == [message_id], "the dead letter stays until the send is confirmed"
        command = bench.batch(HERE)
        to.apply(7, command)
        assert len(bench.dead()) == 1
        assert bench.sent(HERE, command.epoch, at=8) == "sent"
        assert bench.dead() == [] and is_empty(bench)
        (sent,) = arrived(to)
        assert (sent.fields[Column.VALUE], sent.fields[Column.KEY]) == (b"m", b"k")
        assert Column.TTL_MS not in sent.fields, "it is over"
        assert headers(sent) == {
            "sandq-dead-topic": "orders",
            "sandq-dead-partition": 0,
            "sandq-dead-id": offsets.to_text(message_id),
            "sandq-dead-group": "g",
            "sandq-dead-reason": "nacked",
            "sandq-dead-error": "boom",
            "sandq-dead-attempts": 1,
            "sandq-dead-at": T + 5,
            "sandq-dead-created": T + 5,
        }

    def test_resent_dead_letters_are_stored_once(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("a", "b")
        command = bench.batch(HERE)
        first = to.apply(1, command)[0]
        to.restart()
        assert to.apply(700 * 3_600_000, command)[0] == first, "however much later"
        assert values(arrived(to)) == ["a", "b"]
        assert bench.sent(HERE, command.epoch) == "sent"
        assert bench.sent(HERE, command.epoch) == "stale"

    def test_an_old_batch_is_refused_behind_a_newer_one(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("a")
        old = bench.batch(HERE)
        carry(bench, to)
        bench.kill("b", at=1)
        carry(bench, to)
        assert isinstance(to.apply(2, old)[0], ProducerFenced)
        assert values(arrived(to)) == ["a", "b"]

    def test_dead_letter_during_a_batch_goes_with_the_next(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("a")
        first = bench.batch(HERE)
        bench.kill("b", "c", at=1)
        assert bench.batch(HERE) == first, "the batch is unchanged to the byte"
        bench.restart()
        assert bench.batch(HERE) == first
        carry(bench, to)
        carry(bench, to)
        assert values(arrived(to)) == ["a", "b", "c"] and is_empty(bench)

    def test_a_batch_has_bounds(self) -> None:
        bench, to = OutboxBench(), receiver()
        many = FIXED.outbox_batch_messages + 1
        bench.apply(0, c.Append(batch_of([str(at) for at in range(many)])))
        for lease in bench.lease(many):
            bench.nack(lease.token)
        assert len(bench.dead()) == many
        _, row = bench.rows(rows.OUTBOX)[-1]
        assert len(row) < 32, "only the messages in the batch were copied"
        carry(bench, to)
        assert len(arrived(to)) == FIXED.outbox_batch_messages
        carry(bench, to)
        assert values(arrived(to)) == [str(at) for at in range(many)]
        large = "x" * (FIXED.outbox_batch_bytes // 2 + 1)
        bench.kill(large, large, large, at=1)
        carry(bench, to)
        assert len(arrived(to)) == many + 2
        carry(bench, to)
        assert len(arrived(to)) == many + 3 and is_empty(bench)

    def test_keys_go_to_their_partitions(self) -> None:
        bench = OutboxBench(partitions=4)
        bench.kill("a", key="ada")
        bench.kill("b", at=1)
        assert bench.batches.keys() == {Target(TO, partition_for(b"ada", 4)), Target(TO, 0)}
        assert route({}, "timer", 4, 6) == 2, "without a key the sending partition decides"
        assert route({Column.TENANT: b"acme"}, "fair", 4, 6) == partition_for(b"acme", 4)
        assert route({Column.KEY: b"ada"}, "fair", 4, 6) == partition_for(b"default", 4)

    @pytest.mark.parametrize("how", ["expired", "rejected", "lease_expired"])
    def test_dead_letter_is_sent_for_each_reason(self, how: str) -> None:
        bench, to = OutboxBench(), receiver()
        bench.put("m", ttl=100)
        if how == "expired":
            bench.expire(200)
        elif how == "rejected":
            bench.reject(bench.one().token)
        else:
            bench.one(ms=50)
            bench.expire(60)
        carry(bench, to)
        (sent,) = arrived(to)
        assert headers(sent)["sandq-dead-reason"] == how
        assert headers(sent)["sandq-dead-attempts"] == (0 if how == "expired" else 1)

    def test_own_headers_of_dead_letters_are_kept(self) -> None:
        bench, to = OutboxBench(), receiver()
        strange = (b"no map", b"\x81\xa1a\x91\x01", b"\x81\xa1a\x80", b"\x81\xa1a\xd4\x05x", b"\x81\xa1a\xa1\xff")
        for cell in (b"\x81\xa1a\x01", *strange):
            bench.put("m")
            lease = bench.one()
            bench.apply(0, c.Nack([(lease.token, None, 0, None, True, {Column.HEADERS: cell})]))
        while not is_empty(bench):
            carry(bench, to)
        first, *others = map(headers, arrived(to))
        assert first["a"] == 1 and [one["sandq-dead-headers"] for one in others] == [*strange]

    def test_very_many_that_were_withdrawn_are_passed_over_in_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sandq.partition.sending.forwarding.PASSED_MOST", 4)
        bench, to = OutboxBench(), receiver()
        many = 3000
        bench.apply(0, c.Append(batch_of([str(at) for at in range(many)])))
        for lease in bench.lease(many):
            bench.nack(lease.token)
        bench.apply(1, c.DropGroup("g"))
        carry(bench, to)
        steps = 0
        while bench.batches:
            epoch = bench.batches[HERE]
            assert PartitionQueries(bench.machine, bench.view).outbox_batch(HERE, epoch) == b""
            assert bench.sent(HERE, epoch, 1) == "sent"
            steps += 1
        assert steps > 1 and is_empty(bench) and len(arrived(to)) == FIXED.outbox_batch_messages

    def test_messages_that_die_without_the_setting_stay(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("a", "b")
        bench.kill("c", at=1)
        bench.forward_to(None)
        bench.kill("d", at=2)
        carry(bench, to)
        carry(bench, to)
        assert [headers(one)["sandq-dead-topic"] for one in arrived(to)] == ["orders"] * 3
        assert [dead.fields[Column.VALUE] for dead in bench.dead()] == [b"d"], (
            "messages that died without a dead letter topic stay"
        )


class TestRefused:
    def test_refused_dead_letter_stays_with_the_reason(self) -> None:
        bench = OutboxBench()
        (message_id,) = bench.kill("m")
        assert bench.refused(HERE, bench.batches[HERE], "it is too large") == "refused"
        assert is_empty(bench)
        (shown,) = listed(bench)
        assert (shown["id"], shown["not_forwarded"], shown["error"]) == (message_id, "it is too large", "boom")
        bench.restart()
        assert bench.apply(1, c.RedriveDead("g", [message_id]))[0] == [("redriven", message_id)]
        assert bench.state_of(message_id) == "waiting"

    def test_refused_letter_of_a_batch_is_isolated(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("a", "b", "bad", "c", "d", "e", "f")
        for _ in range(20):
            if not bench.batches:
                break
            command = bench.batch(HERE)
            if b"bad" in command.batch:
                bench.refused(HERE, command.epoch)
                bench.restart()
            else:
                carry(bench, to)
        assert is_empty(bench)
        assert sorted(values(arrived(to))) == ["a", "b", "c", "d", "e", "f"]
        assert [dead.fields[Column.VALUE] for dead in bench.dead()] == [b"bad"]

    def test_batch_of_new_epoch_has_the_same_messages(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("m")
        first = bench.batch(HERE)
        assert bench.refused(HERE, first.epoch, None) == "cut"
        second = bench.batch(HERE)
        assert second.batch == first.batch and second.epoch > first.epoch
        carry(bench, to)
        assert len(arrived(to)) == 1 and bench.dead() == []

    def test_epochs_rise_though_the_state_was_lost(self) -> None:
        old, new = OutboxBench(), OutboxBench()
        old.kill("a", at=0)
        new.kill("b", at=60_000)
        assert new.batches[HERE] > old.batches[HERE], "by the time"


class TestMeanwhile:
    @pytest.mark.parametrize("command", [c.RedriveDead, c.PurgeDead])
    def test_dead_letter_being_sent_is_not_redriven(self, command: Any) -> None:
        bench, to = OutboxBench(), receiver()
        (first,) = bench.kill("a")
        (second,) = bench.kill("b", at=1)
        outcomes = bench.apply(2, command("g", [first, second]))[0]
        assert outcomes[0] == ("not_dead", "forwarded") and outcomes[1][0] in ("redriven", "purged")
        bench.restart()
        carry(bench, to)
        assert values(arrived(to)) == ["a"] and is_empty(bench)
        assert bench.dead() == []

    @pytest.mark.parametrize("kind", ["redrive", "purge_dead"])
    def test_job_skips_dead_letter_being_sent(self, kind: str) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("a")
        bench.kill("b", "c", at=1)
        assert bench.job(kind, at=2)[:2] == (2, 2)
        carry(bench, to)
        assert values(arrived(to)) == ["a"] and is_empty(bench)

    def test_message_that_dies_again_is_sent_once(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("a")
        (again,) = bench.kill("b", at=1)
        bench.apply(2, c.RedriveDead("g", [again]))
        bench.nack(bench.one(at=3).token, at=3)
        carry(bench, to)
        carry(bench, to)
        assert values(arrived(to)) == ["a", "b"] and is_empty(bench)

    def test_a_group_that_is_deleted_takes_its_dead_letters_along(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.kill("a")
        bench.kill("b", at=1)
        bench.apply(2, c.DropGroup("g"))
        bench.trim(2)
        carry(bench, to)
        assert values(arrived(to)) == ["a"], "this one may have been sent" and is_empty(bench)

    def test_unused_group_is_kept_while_dead_letters_are_sent(self) -> None:
        bench, to = OutboxBench(group_ttl="1m"), receiver()
        bench.kill("a")
        bench.trim(61_000)
        assert "g" in bench.status().groups.names
        carry(bench, to, at=61_001)
        bench.trim(200_000)
        assert "g" not in bench.status().groups.names

    def test_seek_redelivers_dead_letters_that_were_not_sent(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.put("other")  # so that the log keeps the batch
        bench.one()
        bench.kill("a")
        bench.kill("b", at=1)
        bench.seek("earliest", at=2)
        carry(bench, to)
        assert values(arrived(to)) == ["a"] and is_empty(bench)

    def test_a_clock_that_is_set_back(self) -> None:
        bench, to = OutboxBench(), receiver()
        bench.open("h")
        year = 365 * 86_400_000
        bench.kill("a", at=year)
        bench.kill("b", at=year + 1)
        bench.apply(1000, c.ClockReset(T + 1000))
        bench.trim(1000)
        assert bench.status().reset is None
        bench.restart()
        carry(bench, to, at=1001)
        carry(bench, to, at=1002)
        assert values(arrived(to)) == ["a", "b"] and is_empty(bench) and bench.dead() == []


class TestProducers:
    def test_a_partition_is_never_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sandq.partition.producers.producers.PRODUCERS", 2)
        to, ours = receiver(), reserved_producer(GROUP)
        batch = batch_of(["m"])
        first = to.apply(0, c.Append(batch, ours, 5, sequence_of(1)))[0]
        for other in range(1, 6):
            to.apply(other, c.Append(batch_of([str(other)]), other, 1, 1))
        to.trim(10 * 86_400_000)
        to.restart()
        assert to.status().producers == 1, "clients are forgotten after a week"
        assert to.apply(10 * 86_400_000, c.Append(batch, ours, 5, sequence_of(1)))[0] == first
        assert isinstance(to.apply(1, c.Append(batch, ours, 4, sequence_of(1)))[0], ProducerFenced)

    def test_different_batch_with_the_same_number_is_a_conflict(self) -> None:
        to = receiver()
        to.apply(0, c.Append(batch_of(["m"]), reserved_producer(GROUP), 5, 1))
        answer = to.apply(0, c.Append(batch_of(["n"]), reserved_producer(GROUP), 5, 1))[0]
        assert isinstance(answer, Conflict)


def test_outbox_is_empty_without_dead_letter_topic() -> None:
    with_it, without = OutboxBench(), OutboxBench()
    without.forward_to(None)
    with_it.forward_to(None)
    without.kill("m")
    assert without.rows(rows.OUTBOX) == [] and without.status().outbox is None
    (row,) = [value for _, value in without.rows(rows.DEAD)]
    assert len(rows.unpack(row)) == 8
    assert not without.machine.outbox.was_used


def test_unique_key_of_dead_letter_becomes_a_header() -> None:
    bench, to = OutboxBench(), receiver()
    bench.kill("m", at=5, unique="order-7")
    to.apply(7, bench.batch(HERE))
    (sent,) = arrived(to)
    assert headers(sent).get("sandq-dead-unique-key") == "order-7"
    assert Column.UNIQUE_KEY not in sent.fields, "the unique key may be taken in the other topic"
