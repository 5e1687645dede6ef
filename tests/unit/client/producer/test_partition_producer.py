"""Tests of a producer's lane during failures, against a real partition: the batches that are resent, their numbers and
the errors. `tests/property/test_idempotent_producer.py` tests random sequences of these steps."""

from __future__ import annotations

import re

import pytest

from sandq.client.options import Options
from sandq.client.producer import partition_producer
from sandq.model.errors import (
    ConnectionLost,
    InvalidRequest,
    NotLeader,
    Overloaded,
    StorageFailed,
    TimedOut,
    UnknownPartition,
)
from sandq.model.limits import FIXED
from sandq.model.sequence import is_resent, number_of
from sandq.partition.producers import producers
from sandq.protocol.replies import Partition, TopicRecord
from tests.support.client.partition_producer_bed import LOSE_ENTRY, LOSE_LEADER, STORE, LaneBed, Wire

GONE_S = 10.0
"""The delivery timeout of the bed."""


@pytest.fixture
def bed() -> LaneBed:
    return LaneBed()


def heal(bed: LaneBed) -> list[int]:
    """Repair all faults and check every receipt. Return the stored batches."""
    bed.heal()
    bed.check()
    return list(bed.stored())


@pytest.mark.parametrize("fate", [LOSE_LEADER, LOSE_ENTRY])
def test_a_lost_answer(bed: LaneBed, fate: str) -> None:
    one, two = bed.send(), bed.send()
    bed.read(fate, STORE)
    bed.answer(2)
    assert heal(bed) == [0, 1]
    assert one.offsets and two.offsets
    first = (1, 1, False) if fate == LOSE_LEADER else (1, 2, False)
    assert bed.numbers[0] == first and (1, 1, True) in bed.numbers, (
        "the batch is resent with the same number and marked as resent"
    )


def test_recreated_topic_with_fewer_partitions_is_unknown_partition(bed: LaneBed) -> None:
    topic = TopicRecord("t", 7, "compacted", [Partition(0, None, ["node1"])], 1, 1, {})
    bed.node.topic = topic
    bed.send()
    bed.read(STORE)
    bed.answer()
    bed.node.topic = topic._replace(partitions=[])  # the node with the old metadata is behind: the partition exists
    one = bed.send()
    bed.read(STORE)
    bed.answer()
    assert one.offsets
    bed.node.topic = topic._replace(number=8, partitions=[])
    two = bed.send()
    assert isinstance(two.error, UnknownPartition) and two.error.message == (
        "topic 't', partition 0: the topic was recreated with 0 partitions"
    )


def test_new_partition_unknown_to_a_node_is_not_an_error(bed: LaneBed) -> None:
    """The partition was just added, and the node that described the topic is behind: the topic was not recreated."""
    bed.node.topic = TopicRecord("t", 7, "timer", [], 1, 1, {})
    one = bed.send()
    bed.read(STORE)
    bed.answer()
    assert one.offsets


@pytest.mark.parametrize("read", [0, 1, 2, 3])
def test_a_lost_connection(bed: LaneBed, read: int) -> None:
    batches = [bed.send() for _ in range(3)]
    bed.read(*[STORE] * read)
    bed.cut()
    assert heal(bed) == [0, 1, 2]
    assert all(batch.offsets for batch in batches)
    assert {(epoch, number) for epoch, number, _ in bed.numbers} == {(1, 1), (1, 2), (1, 3)}


@pytest.mark.parametrize("error", [Overloaded("full"), NotLeader("moved")])
def test_batches_behind_a_retriable_refusal_are_resent_in_order(bed: LaneBed, error: Overloaded) -> None:
    for _ in range(3):
        bed.send()
    bed.read(error, STORE, STORE)
    bed.answer(3)
    assert heal(bed) == [0, 1, 2]
    refused, stored = bed.numbers[:2], bed.numbers[2:]
    assert refused == [(1, 2, False), (1, 3, False)], "out of sequence"
    assert stored == [(1, 1, False), (1, 2, False), (1, 3, False)], (
        "the batches are in order and not marked as resent, because nothing was lost"
    )


def test_five_numbers_fly_at_once(bed: LaneBed) -> None:
    assert Options().in_flight_batches <= FIXED.producer_answers
    for _ in range(8):
        bed.send()
    assert len(bed.wire.requests) == 5
    bed.read(*[STORE] * 5)
    bed.wire.answers.rotate(-1)  # later batches first: the oldest batch must stay within the memory of the broker
    bed.answer(4)
    assert len(bed.wire.requests) == 0
    bed.answer()
    assert len(bed.wire.requests) == 3
    assert heal(bed) == [*range(8)]


# -- errors of timed out batches --------------------------------------------------------------------------------------


def test_batch_without_reply_has_unknown_outcome(bed: LaneBed) -> None:
    batch = bed.send()
    bed.advance(GONE_S)
    assert isinstance(batch.error, TimedOut)
    assert re.search("not confirmed in 10 s; the outcome is unknown: .*; last: no answer", batch.error.message)


def test_batch_refused_last_is_reported_as_not_stored(bed: LaneBed) -> None:
    batch = bed.send()
    bed.read(Overloaded("full"))
    bed.answer()
    bed.advance(GONE_S)
    assert isinstance(batch.error, Overloaded)
    assert re.search("not stored in 10 s .*last: full", batch.error.message)


def test_refused_and_resent_batch_has_unknown_outcome(bed: LaneBed) -> None:
    batch = bed.send()
    bed.read(Overloaded("full"))
    bed.answer()
    bed.advance(1)
    assert len(bed.wire.requests) == 1
    bed.advance(GONE_S)
    assert isinstance(batch.error, TimedOut)
    assert re.search("outcome is unknown: .*last: full", batch.error.message)


def test_a_lost_connection_leaves_the_outcome_unknown(bed: LaneBed) -> None:
    batch = bed.send()
    bed.cut(connect=False)
    bed.advance(GONE_S)
    assert isinstance(batch.error, ConnectionLost)
    assert "outcome is unknown" in batch.error.message


# -- silent node ------------------------------------------------------------------------------------------------------


def test_batches_of_silent_node_are_resent_to_new_leader_with_same_numbers(bed: LaneBed) -> None:
    one, two = bed.send(), bed.send()
    bed.stand_still()
    assert [number_of(produce.sequence) for _, produce in bed.wire.requests] == [one.sequence, two.sequence] == [1, 2]
    assert all(is_resent(produce.sequence) for _, produce in bed.wire.requests)
    assert heal(bed) == [0, 1], "each batch is stored once, by the silent node or by the new leader"


def test_batch_of_silent_node_waits_without_another_leader(bed: LaneBed) -> None:
    batch = bed.send()
    bed.advance(9)
    assert len(bed.wire.requests) == 1 and not batch.done
    bed.read(STORE)
    bed.answer()
    assert batch.offsets


def test_a_node_that_answers_is_not_silent(bed: LaneBed) -> None:
    """The slow node may still answer the requests that it has, although a different node is reported as leader."""
    bed.send()
    bed.send()
    slow = bed.wire
    bed.advance(1.5)
    bed.read(STORE)
    bed.answer()
    bed.node.elect()
    bed.advance(1.0)
    assert not bed.wire.requests, "the node has just answered"
    bed.read(STORE, wire=slow)
    slow.hand_over()
    bed.advance()
    assert bed.partition_producer.idle


# -- abandoned batches ------------------------------------------------------------------------------------------------


def test_abandoned_batch_keeps_its_position_before_others(bed: LaneBed) -> None:
    """The leader hangs and then disappears. The first batch has timed out, the second has not."""
    one = bed.send()
    bed.advance(6)
    two = bed.send()
    bed.advance(4)
    assert one.error and one.unknown and not two.done
    bed.read(LOSE_ENTRY, LOSE_ENTRY)
    bed.answer(2)
    assert heal(bed) == [0, 1], "the error says that the batch may be stored"
    assert two.offsets
    assert isinstance(one.error, TimedOut) and "may have been stored" in one.error.message


def test_timed_out_batches_are_given_up_together(bed: LaneBed) -> None:
    one, two = bed.send(), bed.send()
    bed.advance(GONE_S)
    assert one.error and two.error and bed.partition_producer.idle
    three = bed.send()
    bed.cut()
    assert [produce.epoch for _, produce in bed.wire.requests] == [2]
    assert heal(bed) in ([2], [0, 1, 2])
    assert three.offsets


def test_batch_after_given_up_batch_survives_a_lost_connection(bed: LaneBed) -> None:
    bed.send()
    bed.advance(GONE_S)
    bed.wire.requests.clear()
    bed.send()
    bed.wire.requests.clear()
    bed.cut()
    assert heal(bed) == [1]
    assert bed.sent[1].offsets


def test_copy_of_given_up_batch_is_not_stored_later(bed: LaneBed) -> None:
    bed.send()
    bed.cut()
    bed.wire.requests.clear()
    bed.advance(GONE_S)
    bed.send()
    bed.read(STORE)
    bed.answer()
    (old,) = bed.old
    assert len(old.requests) == 1
    assert heal(bed) == [1]


def test_batch_that_was_never_sent_is_given_up_without_a_gap(bed: LaneBed) -> None:
    bed.cut(connect=False)
    one = bed.send()
    bed.advance(6)
    two = bed.send()
    bed.advance(4)
    assert one.error and not one.unknown
    bed.connect()
    assert heal(bed) == [1]
    assert two.offsets and bed.numbers == [(1, 1, False)]


def test_batch_that_was_always_refused_is_not_stored_later(bed: LaneBed) -> None:
    one = bed.send()
    bed.advance(6)
    two, three = bed.send(), bed.send()
    bed.read(Overloaded("full"), STORE, STORE)
    bed.answer(3)
    bed.advance(4)
    assert one.error and not one.unknown
    assert heal(bed) == [1, 2]
    assert two.offsets and three.offsets
    assert bed.numbers[-2:] == [(2, 1, False), (2, 2, False)]


# -- permanent errors -------------------------------------------------------------------------------------------------


def test_batches_behind_a_failed_batch_are_resent_in_a_new_epoch(bed: LaneBed) -> None:
    """A batch without an answer fails too, because it cannot have been stored."""
    one, two, three = bed.send(), bed.send(), bed.send()
    bed.read(InvalidRequest("no"), STORE, STORE)
    bed.answer(2)
    bed.cut()
    assert heal(bed) == [1, 2]
    assert isinstance(one.error, InvalidRequest) and two.offsets and three.offsets
    assert bed.numbers[-2:] == [(2, 1, False), (2, 2, False)]


def test_batch_after_failed_batch_survives_a_lost_connection(bed: LaneBed) -> None:
    bed.send()
    bed.read(InvalidRequest("no"))
    bed.answer()
    two = bed.send()
    bed.cut()
    assert heal(bed) == [1]
    assert two.offsets


def test_given_up_batch_is_not_resent_after_a_failed_batch(bed: LaneBed) -> None:
    bed.send()
    two = bed.send()
    bed.advance(6)
    three = bed.send()
    bed.read(InvalidRequest("no"))
    bed.answer()
    bed.advance(4)
    assert two.error and two.unknown and not three.done
    bed.cut()
    assert heal(bed) == [2]


def test_new_epoch_waits_for_batches_in_flight(bed: LaneBed) -> None:
    """Otherwise the new epoch would fence the batch that will be resent."""
    one, two = bed.send(), bed.send()
    bed.read(STORE, STORE)
    bed.cut()
    bed.read(StorageFailed("full"))
    bed.answer()
    three = bed.send()
    assert len(bed.wire.requests) == 1, "the second one's"
    bed.cut()
    assert heal(bed) == [0, 1, 2]
    assert isinstance(one.error, StorageFailed) and one.unknown
    assert two.offsets and three.offsets


# -- forgotten numbers ------------------------------------------------------------------------------------------------


def test_a_forgotten_producer_goes_on_in_a_new_epoch(bed: LaneBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS", 1)
    bed.send()
    bed.read(STORE)
    bed.answer()
    bed.others(1)
    two, three = bed.send(), bed.send()
    assert heal(bed) == [0, 1, 2]
    assert two.offsets and three.offsets
    assert bed.numbers[-2:] == [(2, 1, False), (2, 2, False)]


@pytest.mark.parametrize("number", [1, 2])
def test_last_batch_of_forgotten_producer_has_unknown_outcome(
    bed: LaneBed, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS", 1)
    for _ in range(number - 1):
        bed.send()
        bed.read(STORE)
        bed.answer()
    last = bed.send()
    bed.read(LOSE_LEADER)
    bed.others(1)
    bed.answer()
    following = bed.send()
    assert heal(bed) == [*range(number + 1)]
    assert isinstance(last.error, TimedOut) and "the outcome is unknown" in last.error.message
    assert following.offsets


def test_batch_is_resent_only_within_the_retry_time_of_the_broker(
    bed: LaneBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert partition_producer.RETRY_S == producers.PRODUCER_RETRY_MS / 1000
    monkeypatch.setattr(partition_producer, "RETRY_S", 2.0)
    one, two = bed.send(), bed.send()
    bed.read(Overloaded("full"))
    bed.answer()
    bed.advance(2)
    assert not one.done and not two.done, "the batches are in flight or were refused"
    bed.cut(connect=False)
    bed.node.wire = Wire("node1")
    bed.partition_producer.pump(bed.now + 0.05)
    assert two.error and two.unknown
    assert not one.done and not one.unknown
    assert [produce.sequence for _, produce in bed.wire.requests] == [1]


def test_nor_for_the_sake_of_those_behind_it(bed: LaneBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_producer, "RETRY_S", 2.0)
    bed.send()
    bed.advance(1.5)
    bed.send()
    bed.cut(connect=False)
    bed.advance(1.0)
    one, two = bed.sent
    assert one.error and not two.done
    bed.connect()
    assert [number_of(produce.sequence) for _, produce in bed.wire.requests] == [2]
