"""Tests of how a producer divides its messages into batches while the broker is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from sandq.client.options import Options
from sandq.client.producer.batch_accumulator import BatchAccumulator
from sandq.client.producer.batches import Batch
from sandq.client.producer.validation import TTL_BIT
from sandq.model.batch import Batch as Encoded
from sandq.model.limits import FIXED
from sandq.model.offsets import pack
from sandq.protocol.frames import Type
from sandq.protocol.replies import Partition, TopicRecord
from tests.support.client.partition_producer_bed import OneNode, Wire

LINGER_S = 0.002
IN_FLIGHT = FIXED.producer_answers


class Bed:
    """A producer's batches, with a clock and a connection that the test controls."""

    def __init__(self, clock: trio.testing.MockClock, partitions: int, **options: Any) -> None:
        self.clock = clock
        self.node = OneNode()
        members = [Partition(number, None, ["node1"]) for number in range(partitions)]
        self.node.topic = TopicRecord("t", 7, "timer", members, partitions, 1, {})
        self.done: list[Batch] = []
        given: Any = (self.node, Options(linger_s=LINGER_S, **options), "t", 1 << 20, lambda: None, self.done.append)
        self.accumulator = BatchAccumulator(*given)
        self.accumulator.update_topic()

    @property
    def wire(self) -> Wire:
        assert self.node.wire is not None
        return self.node.wire

    def add(self, count: int = 1, ttl_ms: int | None = None) -> None:
        """Add messages, let the linger time pass, and let the producer do what is due."""
        for _ in range(count):
            self.accumulator.add(b"x", None, None, TTL_BIT if ttl_ms else 0, 0, None, ttl_ms, None)
        self.advance(LINGER_S)

    def advance(self, seconds: float) -> float:
        """Let time pass. Return the time until the producer must be called again."""
        self.clock.jump(seconds)
        return self.accumulator.tick(trio.current_time()) - trio.current_time()

    def sent(self) -> list[tuple[int, int]]:
        """Return (partition, number of messages) of each request in flight."""
        return [(request.partition, Encoded.parse(request.batch).count) for _, request in self.wire.requests]

    def answer(self, partition: int = 0) -> None:
        """Answer the first request of a partition: its batch is stored."""
        request_id, request = next(one for one in self.wire.requests if one[1].partition == partition)
        self.wire.requests.remove((request_id, request))
        offsets = [pack(1, 1, 0, 0), Encoded.parse(request.batch).count]
        self.wire.answers.append((request_id, [Type.REPLY, request_id, offsets, None]))
        self.wire.hand_over()


def with_bed(body: Callable[[Bed], None], partitions: int = 1, **options: Any) -> None:
    async def run() -> None:
        body(Bed(clock, partitions, **options))

    clock = trio.testing.MockClock()
    trio.run(run, clock=clock)


def test_batch_grows_while_the_requests_in_flight_are_not_answered() -> None:
    def body(bed: Bed) -> None:
        for _ in range(IN_FLIGHT + 7):
            bed.add()
        assert bed.sent() == [(0, 1)] * IN_FLIGHT
        bed.answer()
        assert bed.sent() == [(0, 1)] * (IN_FLIGHT - 1) + [(0, 7)], "it is sent with the first answer"
        assert bed.accumulator.outstanding == IN_FLIGHT

    with_bed(body)


def test_batch_that_grows_is_sealed_when_it_is_full() -> None:
    def body(bed: Bed) -> None:
        for _ in range(IN_FLIGHT):
            bed.add()
        bed.add(25)
        bed.answer()
        bed.answer()
        bed.answer()
        assert bed.sent()[-3:] == [(0, 10), (0, 10), (0, 5)]

    with_bed(body, batch_messages=10)


def test_batch_that_grows_does_not_wake_the_producer() -> None:
    def body(bed: Bed) -> None:
        for _ in range(IN_FLIGHT + 1):
            bed.add()
        assert bed.advance(0.0) > LINGER_S

    with_bed(body)


def test_batch_that_grows_fails_at_the_end_of_its_delivery_time() -> None:
    def body(bed: Bed) -> None:
        for _ in range(IN_FLIGHT + 1):
            bed.add()
        for _ in range(20):
            if not bed.accumulator.outstanding:
                break
            bed.advance(1.0)
        assert len(bed.done) == IN_FLIGHT + 1 and all(batch.error is not None for batch in bed.done)

    with_bed(body, delivery_timeout_s=10.0)


def test_messages_without_a_key_go_to_another_partition_while_one_is_slow() -> None:
    def body(bed: Bed) -> None:
        for _ in range(40):
            bed.add()
            while any(partition == 1 for partition, _ in bed.sent()):
                bed.answer(1)
        assert bed.sent() == [(0, 1)] * IN_FLIGHT, "partition 0 never answers"
        assert sum(len(batch) for batch in bed.done) >= 40 - IN_FLIGHT - 1

    with_bed(body, partitions=2)


def test_messages_without_a_key_avoid_a_partition_without_a_leader() -> None:
    def body(bed: Bed) -> None:
        wire = bed.wire
        bed.node.leader = lambda topic, partition: None if partition == 0 else wire  # type: ignore[method-assign]
        for _ in range(40):
            bed.add()
            while bed.wire.requests:
                bed.answer(1)
        assert sum(len(batch) for batch in bed.done) >= 38

    with_bed(body, partitions=2)


def test_batch_that_grows_is_sent_in_a_new_epoch_after_a_failure() -> None:
    def body(bed: Bed) -> None:
        for _ in range(IN_FLIGHT + 3):
            bed.add()
        bed.wire.requests.clear()
        bed.wire.cut()
        for _ in range(100):
            bed.advance(0.1)
            while bed.wire.requests:
                bed.answer()
        assert sum(len(batch) for batch in bed.done if batch.offsets is not None) == IN_FLIGHT + 3

    with_bed(body)


def test_batch_grows_for_a_second() -> None:
    """The delivery time of its last message must not be over soon after its `send`."""

    def body(bed: Bed) -> None:
        for _ in range(IN_FLIGHT):
            bed.add()
        for _ in range(30):
            bed.add()
            bed.advance(0.1)
        bed.answer()
        bed.answer()
        bed.answer()
        assert [count for _, count in bed.sent()] == [1, 1, *[count for _, count in bed.sent()[2:]]]
        assert all(5 <= count <= 11 for _, count in bed.sent()[2:])

    with_bed(body)


def test_messages_of_another_kind_do_not_overtake_a_batch_that_grows() -> None:
    def body(bed: Bed) -> None:
        for _ in range(IN_FLIGHT):
            bed.add()
        bed.add(2)
        bed.add(3, ttl_ms=60_000)
        bed.add(4)
        for _ in range(IN_FLIGHT + 1):
            bed.answer()
        assert [count for _, count in bed.sent()] == [3, 4]

    with_bed(body, batch_messages=4)


def test_recovered_broker_gets_all_messages_once() -> None:
    def body(bed: Bed) -> None:
        for _ in range(30):
            bed.add(3)
        stored = 0
        while bed.wire.requests:
            stored += bed.sent()[0][1]
            bed.answer()
        assert stored == 90 and bed.accumulator.outstanding == 0

    with_bed(body)
