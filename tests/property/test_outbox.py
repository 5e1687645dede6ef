"""Dead letters go to two partitions of another topic, and each arrives once, under all faults.

Batches are resent, delayed, and delivered in any order and by old leaders. Answers are lost, partitions are loaded from
their rows, and letters are redriven and purged. A letter that does not arrive stays with its error until its retention
has passed, or was redriven or purged before it could be sent. Letters of one key keep their order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sandq.model.batch import Column
from sandq.model.errors import ProducerFenced, SandqError
from sandq.model.limits import FIXED, FixedLimits
from sandq.model.nack_ends import DEAD, RETRY
from sandq.model.outbox import Target
from sandq.model.partitioning import partition_for
from sandq.partition import commands as c
from sandq.partition import outbox
from sandq.partition.base import rows
from sandq.partition.sending import forwarding
from tests.support.examples import examples
from tests.support.partition.bench import T, batch_of
from tests.support.partition.outbox_bench import TO, OutboxBench, arrived, receiver, values

KEYS = ("a", "b", "c", "d")
BAD = "bad"
"""Prefix of values that the other topic rejects."""
STEP = "step"
"""Prefix of the value of a message whose ack or nack sends new messages."""
SMALL = FixedLimits(outbox_batch_messages=3, outbox_batch_bytes=FIXED.outbox_batch_bytes)
picks = st.integers(0, 1 << 16)


class Walk(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.sender, self.reloaded = (OutboxBench(partitions=2, dead_retention="1m") for _ in range(2))
        self.targets = [receiver(), receiver()]
        self.in_flight: list[tuple[Target, c.Append]] = []
        self.answers: list[c.OutboxSent | c.OutboxRefused] = []
        self.ids: dict[bytes, str] = {}
        """Values of all dead messages, by id."""
        self.died: dict[str, int] = {}
        """Time of the last death, by value."""
        self.taken_back: set[str] = set()
        """Values of redriven or purged messages."""
        self.removed: set[str] = set()
        """Values of dead messages that were removed because of `dead_retention`."""
        self.sent: list[str] = []
        """Values of messages that were sent by acks and nacks."""
        self.acks: list[c.AckThen] = []
        self.at = 0
        for bench in (self.sender, self.reloaded):
            bench.open("steps")

    def both(self, command: c.Command) -> object:
        """Apply a command to the sender and to a partition that is loaded from its rows each time. Compare the two."""
        self.at += 1
        self.reloaded.restart()
        result = self.sender.apply(self.at, command)[0]
        self.reloaded.apply(self.at, command)
        for tag in (rows.OUTBOX, rows.OUTBOX_BATCH, rows.DEAD, rows.DEATH, rows.GROUP):
            assert self.sender.rows(tag) == self.reloaded.rows(tag)
        assert self.sender.machine.outbox.state() == self.reloaded.machine.outbox.state()
        return result

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5), bad=st.sampled_from([False, False, True]))
    def die(self, keys: list[str], bad: bool) -> None:
        for number, key in enumerate(keys):
            value = f"{BAD if bad and number == 0 else ''}{key}{len(self.ids)}"
            batch = c.Append(_batch(value, key), split=True)
            stored = self.both(batch)
            self.ids[stored.offsets] = value  # type: ignore[attr-defined]
        leases = self.both(c.Lease("g", T + self.at + 1, (c.Grant("c", 100, 30_000),)))
        for lease in leases:  # type: ignore[attr-defined]
            for message in self.sender.messages(lease):
                value = message.fields[Column.VALUE].decode()
                if value.startswith(STEP):
                    self.both(c.Ack([(lease.token, [[message.offset, 1]])]))
                    continue
                self.taken_back.discard(value)  # a redriven message dies once more
                self.died[value] = self.at
            self.both(c.Nack([(lease.token, None, 0, "boom")]))

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        bad=st.sampled_from([False, False, True]),
        end=st.sampled_from([None, DEAD, RETRY]),
    )
    def settle(self, keys: list[str], bad: bool, end: int | None) -> None:
        """Ack or nack a message with new messages to send. The request may be repeated at any time (`settle_again`)."""
        step = f"{STEP}{len(self.acks)}"
        stored = self.both(c.Append(_batch(step, "s"), split=True))
        offset: bytes = stored.offsets  # type: ignore[attr-defined]
        messages = []
        for number, key in enumerate(keys):
            value = f"{BAD if bad and number == 0 else ''}{key}{len(self.ids) + len(self.sent)}s"
            self.sent.append(value)
            target = (TO, partition_for(key.encode(), 2))
            fields = {Column.VALUE.value: value.encode(), Column.KEY.value: key.encode()}
            messages.append([*target, None, False, fields])
            self.died[value] = self.at + 2
        leases = self.both(c.Lease("steps", T + self.at + 1, (c.Grant("c", 100, 30_000),)))
        (lease,) = leases  # type: ignore[misc]
        what = None if end is None else [[offset, 1]]
        if end is not None:
            self.sent.append(step)  # as a dead letter
            others = [[one.offset, 1] for one in self.sender.messages(lease) if one.offset != offset]
            if others:
                self.both(c.Ack([(lease.token, others)]))
        self.acks.append(c.AckThen(lease.token, what, messages, end))
        assert self.both(self.acks[-1]) == [None]

    @precondition(lambda self: self.acks)
    @rule(pick=picks)
    def settle_again(self, pick: int) -> None:
        assert self.both(self.acks[pick % len(self.acks)]) == [None]

    @precondition(lambda self: self.sender.batches)
    @rule(pick=picks)
    def send(self, pick: int) -> None:
        """Let a leader send a batch. Before the batch arrives, the leader may be deposed."""
        target = sorted(self.sender.batches)[pick % len(self.sender.batches)]
        self.in_flight.append((target, self.sender.batch(target)))

    @precondition(lambda self: self.in_flight)
    @rule(pick=picks, again=st.booleans(), lost=st.booleans())
    def deliver(self, pick: int, again: bool, lost: bool) -> None:
        """Deliver a copy of a batch. `again`: another copy stays in flight. `lost`: the answer is lost."""
        at = pick % len(self.in_flight)
        target, command = self.in_flight[at]
        if not again:
            del self.in_flight[at]
        answer = self.answer_of(target, command)
        if not lost:
            self.answers.append(answer)

    def answer_of(self, target: Target, command: c.Append) -> c.OutboxSent | c.OutboxRefused:
        if BAD.encode() in command.batch:
            return c.OutboxRefused(*target, command.epoch, "no")
        self.at += 1
        result = self.targets[target.partition].apply(self.at, command)[0]
        if isinstance(result, ProducerFenced):
            return c.OutboxRefused(*target, command.epoch, None)
        assert not isinstance(result, SandqError), result
        return c.OutboxSent(*target, command.epoch)

    @precondition(lambda self: self.answers)
    @rule(pick=picks, again=st.booleans())
    def hear(self, pick: int, again: bool) -> None:
        at = pick % len(self.answers)
        self.both(self.answers[at])
        if not again:
            del self.answers[at]

    @precondition(lambda self: self.ids)
    @rule(picks=st.lists(picks, min_size=1, max_size=3), purges=st.booleans())
    def take_back(self, picks: list[int], purges: bool) -> None:
        ids = list({list(self.ids)[pick % len(self.ids)]: None for pick in picks})
        outcomes = self.both((c.PurgeDead if purges else c.RedriveDead)("g", ids))
        for message_id, (outcome, _) in zip(ids, outcomes, strict=True):  # type: ignore[call-overload]
            if outcome in ("redriven", "purged"):
                self.taken_back.add(self.ids[message_id])

    @rule(wait=st.sampled_from([5000, 60_000]))
    def remove_old(self, wait: int) -> None:
        """Remove old dead messages. A message that has yet to be sent is never removed."""
        self.at += wait
        before = [*self.sender.dead(), *self.sender.dead("steps")]
        self.both(c.Upkeep())
        left = {message.offset for message in [*self.sender.dead(), *self.sender.dead("steps")]}
        for message in before:
            if message.offset not in left:
                assert not message.is_waiting_to_be_sent and message.dead_ms + 60_000 <= T + self.at + 1
                self.removed.add(message.fields[Column.VALUE].decode())

    @rule(pick=st.integers(0, 1))
    def restart_a_target(self, pick: int) -> None:
        self.targets[pick].restart()

    @rule()
    def restart_the_sender(self) -> None:
        self.sender.restart()

    def teardown(self) -> None:
        if not hasattr(self, "sender"):
            return
        for target, command in self.in_flight:  # deliver all copies in flight before the remaining batches
            self.answer_of(target, command)
        for _ in range(1000):
            for target in list(self.sender.batches):
                self.both(self.answer_of(target, self.sender.batch(target)))
            if not self.sender.batches:
                break
        for target, command in self.in_flight:  # and once more after them
            self.answer_of(target, command)
        self.check()

    def check(self) -> None:
        assert not self.sender.rows(rows.OUTBOX) and not self.sender.rows(rows.OUTBOX_BATCH)
        outbox = self.sender.machine.outbox
        assert outbox.messages == outbox.ack_messages == outbox.ack_bytes == 0
        found = [values(arrived(target)) for target in self.targets]
        sent = [value for each in found for value in each]
        assert len(sent) == len(set(sent)), "none came twice"
        assert all(message.forward == "no" for message in self.sender.dead())
        steps = self.sender.dead("steps")
        assert all(message.sent_to is not None and message.error == "no" for message in steps)
        dead = [*self.sender.dead(), *steps]
        stayed = {message.fields[Column.VALUE].decode() for message in dead}
        assert stayed | {*sent} | self.taken_back | self.removed == {*self.ids.values(), *self.sent}, "none was lost"
        assert not stayed & {*sent} and not (self.taken_back | self.removed) & {*sent}
        assert all(value.startswith(BAD) for value in stayed)
        for each in found:
            for key in KEYS:
                times = [self.died[value] for value in each if value[0] == key]
                assert times == sorted(times), "in their order"


def _batch(value: str, key: str) -> bytes:
    return batch_of([value], keys=[key])


def test_each_arrives_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIXED", SMALL)
    monkeypatch.setattr(forwarding, "FIXED", SMALL)
    run_state_machine_as_test(Walk, settings=settings(max_examples=examples(60), stateful_step_count=40, deadline=None))
