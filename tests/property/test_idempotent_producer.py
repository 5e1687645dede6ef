"""The client's partition producer stores each message once and in order, and every receipt is true.

Answers are lost, connections break, copies stay in old connections, and deadlines pass. The partition is loaded again,
or forgets the producer."""

from __future__ import annotations

import random
from contextlib import ExitStack
from unittest.mock import patch

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sandq.model.errors import InvalidRequest, Overloaded, StorageFailed
from sandq.model.sequence import is_resent
from sandq.partition.producers import producers
from tests.support.client.partition_producer_bed import LOSE_ENTRY, LOSE_LEADER, STORE, Fate, LaneBed
from tests.support.examples import examples

FATES: tuple[Fate, ...] = (LOSE_LEADER, LOSE_ENTRY, Overloaded("full"), InvalidRequest("no"), StorageFailed("full"))
NO_BLAME = "in 10 s"
"""Part of the error message of a batch whose deadline has passed."""


class Walk(RuleBasedStateMachine):
    @initialize(capacity=st.sampled_from([2, 100]), restarts=st.booleans())
    def begin(self, capacity: int, restarts: bool) -> None:
        random.seed(0)  # back-offs use this generator
        self.patches = ExitStack()
        self.patches.enter_context(patch.object(producers, "PRODUCERS", capacity))
        self.bed = LaneBed(restarts=restarts, note=note)
        self.mishaps = 0
        """Number of faults after which a batch may fail before its deadline."""

    def teardown(self) -> None:
        if not hasattr(self, "bed"):
            return
        with self.patches:
            self.bed.heal()
        self.bed.check()
        for batch in self.bed.sent:
            excused = self.mishaps or isinstance(batch.error, InvalidRequest)
            assert batch.error is None or excused or NO_BLAME in batch.error.message, batch.error

    @rule(count=st.integers(1, 7))
    def send(self, count: int) -> None:
        for _ in range(count):
            self.bed.send()

    @rule(seconds=st.sampled_from([0.001, 0.06, 3.0, 6.0, 6.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.bed.advance(seconds)

    @precondition(lambda self: any(wire.requests for wire in self.bed.wires))
    @rule(which=st.integers(0, 5), count=st.integers(1, 5), fate=st.sampled_from((STORE, STORE, STORE, *FATES)))
    def read(self, which: int, count: int, fate: Fate) -> None:
        """Let the broker read some requests of a connection. The first has the outcome `fate`."""
        wires = [wire for wire in self.bed.wires if wire.requests]
        wire = wires[which % len(wires)]
        resent = is_resent(wire.requests[0][1].sequence)
        self.mishaps += isinstance(fate, StorageFailed) or (isinstance(fate, InvalidRequest) and resent)
        self.bed.read(fate, *[STORE] * min(count - 1, len(wire.requests) - 1), wire=wire)

    @precondition(lambda self: self.bed.node.wire is not None and self.bed.wire.answers)
    @rule(count=st.integers(1, 5))
    def answer(self, count: int) -> None:
        self.bed.answer(min(count, len(self.bed.wire.answers)))

    @precondition(lambda self: self.bed.node.wire is not None)
    @rule(connect=st.booleans())
    def cut(self, connect: bool) -> None:
        self.bed.cut(connect=connect)

    @precondition(lambda self: self.bed.node.wire is not None)
    @rule()
    def stand_still(self) -> None:
        self.bed.stand_still()

    @precondition(lambda self: self.bed.node.wire is None)
    @rule()
    def connect(self) -> None:
        self.bed.connect()

    @precondition(lambda self: producers.PRODUCERS < 10)
    @rule()
    def forget(self) -> None:
        """Let other producers append, so that the partition forgets this producer."""
        self.mishaps += 1
        self.bed.others(2)


def walk(tries: int, steps: int) -> None:
    run_state_machine_as_test(Walk, settings=settings(max_examples=tries, stateful_step_count=steps, deadline=None))


def test_each_message_is_stored_once_and_in_order() -> None:
    walk(examples(150), 30)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_message_is_stored_once_and_in_order_for_long() -> None:
    walk(5000, 60)
