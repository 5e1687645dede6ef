"""The client's lane against the partition: answers are lost, connections break, copies lie about in old connections,
deadlines pass, the partition is loaded anew or forgets the producer. Each message is stored once, in its order, and
every receipt tells the truth."""

from __future__ import annotations

import random
from collections import deque
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sandq.client.batching import Batch
from sandq.client.connection import Build, OnReply
from sandq.client.lanes import Lane
from sandq.client.options import Options
from sandq.model.errors import ConnectionLost, InvalidRequest, Overloaded, SandqError, TimedOut
from sandq.partition import commands as c
from sandq.partition import producers, rows
from sandq.protocol.frames import FrameReader, Type
from sandq.protocol.requests import Produce
from tests.unit.partition.bench import Bench, batch_of

OPTIONS = Options(delivery_timeout_s=10.0, in_flight_batches=5, back_off_first_s=0.05, back_off_max_s=0.05)
DEADLINE = "in 10 s"
"""What the error of a batch says whose time is over."""


class Wire:
    """A connection: requests on their way to the broker, answers on their way back. Like `client.Connection` to a
    lane."""

    def __init__(self) -> None:
        self.requests: deque[tuple[int, Produce]] = deque()
        self.answers: deque[tuple[int, Any]] = deque()
        self.waiting: dict[int, OnReply] = {}
        self._last_id = 0

    def request(self, build: Build, on_reply: OnReply) -> int:
        self._last_id += 1
        (frame,) = FrameReader().feed(build(self._last_id))
        self.requests.append((self._last_id, Produce.parse(frame)))
        self.waiting[self._last_id] = on_reply
        return self._last_id

    def forget(self, request_id: int) -> None:
        self.waiting.pop(request_id, None)

    def hand_over(self) -> None:
        """The next answer reaches the client."""
        request_id, answer = self.answers.popleft()
        if request_id in self.waiting:
            self.waiting.pop(request_id)(answer)

    def cut(self) -> None:
        """The client loses the connection; what it sent may still be read."""
        waiting, self.waiting = self.waiting, {}
        self.answers.clear()
        for on_reply in waiting.values():
            on_reply(ConnectionLost("cut"))


class OneNode:
    """Like `client.Cluster` to a lane."""

    def __init__(self) -> None:
        self.wire: Wire | None = Wire()

    def missing(self, topic: str) -> None:
        return None

    def leader(self, topic: str, partition: int) -> Wire | None:
        return self.wire

    def refresh(self, topic: str) -> None:
        pass


class Walk(RuleBasedStateMachine):
    @initialize(room=st.sampled_from([2, 100]), restarts=st.booleans())
    def begin(self, room: int, restarts: bool) -> None:
        random.seed(0)  # of back-offs
        self.patches = ExitStack()
        self.patches.enter_context(patch.object(producers, "PRODUCERS", room))
        self.bench, self.restarts = Bench(), restarts
        self.now = 100.0
        self.cluster = OneNode()
        self.old: list[Wire] = []
        self.sent: list[Batch] = []
        self.done: list[Batch] = []
        self.others = 0
        arguments: Any = (self.cluster, OPTIONS, "t", 0, 77, self._on_done, lambda: None, lambda: self.now)
        self.lane = Lane(*arguments)

    def teardown(self) -> None:
        if hasattr(self, "lane"):
            self.patches.close()
            self.heal()

    def _on_done(self, lane: Lane, batch: Batch) -> None:
        assert batch.done and batch not in self.done, "told once"
        self.done.append(batch)
        lane.pump(self.now)

    def look(self) -> None:
        """As the producer does whenever something happens."""
        self.lane.expire(self.now)
        self.lane.pump(self.now)

    # -- what a producer does -------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 7))
    def send(self, count: int) -> None:
        for _ in range(count):
            batch = Batch(0, 0, self.now)
            batch.values = [b"%d.a" % len(self.sent), b"%d.b" % len(self.sent)]
            batch.keys = batch.headers = [None, None]
            self.sent.append(batch)
            self.lane.open[0] = batch
            self.lane.seal(0)
            self.look()

    @rule(seconds=st.sampled_from([0.001, 0.06, 0.06, 3.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    # -- what the broker does -------------------------------------------------------------------------------------

    @property
    def wires(self) -> list[Wire]:
        return [*self.old, *([self.cluster.wire] if self.cluster.wire else [])]

    @precondition(lambda self: any(wire.requests for wire in self.wires))
    @rule(
        which=st.integers(0, 5),
        count=st.integers(1, 5),
        how=st.sampled_from(["store", "store", "store", "lose leader", "lose entry", "overloaded", "invalid"]),
    )
    def serve(self, which: int, count: int, how: str) -> None:
        """Some requests of a connection are read, and answered."""
        wires = [wire for wire in self.wires if wire.requests]
        wire = wires[which % len(wires)]
        for _ in range(min(count, len(wire.requests))):
            request_id, produce = wire.requests.popleft()
            wire.answers.append((request_id, self._answer(request_id, produce, how)))
            # The others are read after the mishap.
            how = "store"

    def _answer(self, request_id: int, produce: Produce, how: str) -> Any:
        if how == "overloaded":
            return Overloaded("full")
        if how == "invalid":
            return InvalidRequest("no")
        if how == "lose entry":
            return TimedOut("leadership was lost")
        assert self.bench.machine.partition == produce.partition
        if self.restarts:
            self.bench.restart()
        numbers = (produce.producer_id, produce.epoch, produce.sequence)
        result = self.bench.apply(0, c.Append(produce.batch, *numbers))[0]
        note(f"{numbers} -> {result!r}")
        if how == "lose leader":
            return TimedOut("leadership was lost")
        return result if isinstance(result, SandqError) else [Type.REPLY, request_id, list(result), None]

    @precondition(lambda self: self.cluster.wire is not None and self.cluster.wire.answers)
    @rule(count=st.integers(1, 5))
    def answers_arrive(self, count: int) -> None:
        wire = self.cluster.wire
        assert wire is not None
        for _ in range(min(count, len(wire.answers))):
            wire.hand_over()
        self.look()

    @precondition(lambda self: self.cluster.wire is not None)
    @rule(again=st.booleans())
    def cut(self, again: bool) -> None:
        wire = self.cluster.wire
        assert wire is not None
        self.cluster.wire = Wire() if again else None
        wire.cut()
        self.old.append(wire)
        self.look()

    @precondition(lambda self: self.cluster.wire is None)
    @rule()
    def connect(self) -> None:
        self.cluster.wire = Wire()
        self.look()

    @precondition(lambda self: producers.PRODUCERS < 10)
    @rule()
    def forget(self) -> None:
        """Others come and go. What lay in old connections meanwhile is read before, or never."""
        for wire in self.old:
            wire.requests.clear()
        for _ in range(2):
            self.others += 1
            self.bench.apply(0, c.Append(batch_of(["other"]), 1000 + self.others, 1, 1))

    # -- what must be so ------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """The network is well: all is answered before its time is over, and every receipt is true."""
        self.cluster.wire = self.cluster.wire or Wire()
        wire = self.cluster.wire
        for wired in self.old:  # old copies first, then what is new
            while wired.requests:
                self._answer(*wired.requests.popleft(), "store")
        for _ in range(40 + 10 * len(self.sent)):
            if self.lane.idle:
                break
            while wire.requests:
                request_id, produce = wire.requests.popleft()
                wire.answers.append((request_id, self._answer(request_id, produce, "store")))
            while wire.answers:
                wire.hand_over()
            self.now += 0.05
            self.lane.pump(self.now)
        assert self.lane.idle, "it never comes to an end"
        assert len(self.done) == len(self.sent)
        self._check()

    def _check(self) -> None:
        stored = self._stored()
        assert len(stored) == len(set(stored)), "stored twice"
        assert stored == [place for place in range(len(self.sent)) if place in stored], "out of order"
        for place, batch in enumerate(self.sent):
            if batch.offsets is not None:
                assert stored.get(place) == batch.offsets.base, f"batch {place} is not where its receipt says"
            elif not batch.unknown:
                assert place not in stored, f"batch {place} is said not to be stored, and is"
            if batch.error is not None:
                known = DEADLINE in batch.error.message or isinstance(batch.error, InvalidRequest)
                assert known or self.others, f"given up before its time: {batch.error}"

    def _stored(self) -> Stored:
        found = Stored()
        for key, value in self.bench.rows(rows.LOG):
            entry = rows.log_entry(key, value)
            for message in self.bench.read([rows.Range(entry.first, entry.length)]):
                name = message.fields[1].decode()
                if name.endswith(".a"):
                    found.append(int(name[:-2]))
                    found.at[int(name[:-2])] = message.offset
        return found


class Stored(list[int]):
    """Places of stored batches in the order of the log, and where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, bytes] = {}

    def get(self, place: int) -> bytes | None:
        return self.at.get(place)


def walk(examples: int, steps: int) -> None:
    run_state_machine_as_test(Walk, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None))


def test_each_message_is_stored_once_and_in_order() -> None:
    walk(150, 30)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_message_is_stored_once_and_in_order_for_long() -> None:
    walk(5000, 60)
