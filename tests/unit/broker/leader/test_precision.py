"""Tests of the topic setting `precision`: when messages are leased, and how late they are."""

from __future__ import annotations

import pytest

from sandq.broker.leader.lease_window import MOST_MS, STORE_MS
from sandq.model.names import FAIR, PRIORITY, TIMER
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from tests.support.partition.leader_bed import LeaderBed

AHEAD_MS = 5


@pytest.mark.parametrize("precision_ms", [1, 10, 100])
@pytest.mark.parametrize("in_ms", [0, 20])
def test_messages_of_a_precision_are_leased_together(precision_ms: int, in_ms: int) -> None:
    """`in_ms`: how long before its time each message is produced."""
    bed, span_ms = LeaderBed(AHEAD_MS, precision=precision_ms / 1000), 1000
    subscription = bed.subscription("first", acks=True)
    subscription.credit = 10_000
    bed.delivery.attach(subscription)
    bed.clock.ms += 2 * precision_ms
    begun_ms = bed.clock.ms
    for now_ms in range(begun_ms, begun_ms + in_ms + span_ms + precision_ms):
        bed.clock.ms = now_ms
        if now_ms < begun_ms + span_ms:
            bed.produce(in_ms, 2)
        bed.settle()
        passed_ms = now_ms - begun_ms - in_ms
        assert min(passed_ms - precision_ms + 1, span_ms) * 2 <= sum(bed.counts), "a message is too late"
        assert sum(bed.counts) <= max(passed_ms + 1, 0) * 2, "a message is early"
    assert sum(bed.counts) == 2 * span_ms
    assert len(bed.counts) <= 1.5 * span_ms / max(precision_ms - STORE_MS, 1) + 1


def test_changed_precision_applies_from_the_next_lease_on() -> None:
    bed = LeaderBed(AHEAD_MS, precision="1s")
    bed.delivery.attach(bed.subscription("first"))
    for in_ms in (0, 0):
        bed.produce(in_ms)
    assert bed.counts == [1], "the second message waits for others"
    bed.call(c.Configure(parse_settings({}).record()))
    bed.clock.ms += 1000
    bed.settle()
    assert bed.counts == [1, 1]
    bed.produce(0)
    assert bed.counts == [1, 1, 1]


def late_ms(bed: LeaderBed, due_ms: int) -> int:
    """Move the time until a lease is sent. Return how late it is."""
    bed.clock.ms = max(bed.clock.ms, due_ms - 2 * AHEAD_MS)
    before = len(bed.counts)
    while len(bed.counts) == before:
        assert bed.clock.ms < due_ms + 2000
        bed.clock.ms += 1
        bed.settle()
    return bed.clock.ms - due_ms


@pytest.mark.parametrize("kind", [TIMER, PRIORITY, FAIR])
@pytest.mark.parametrize("precision", ["auto", "2ms", "100ms", "1s"])
def test_lone_scheduled_message_comes_at_its_time(kind: str, precision: str) -> None:
    bed = LeaderBed(AHEAD_MS, kind, precision=precision)
    bed.clock.ms += 2000
    bed.delivery.attach(bed.subscription("first", acks=True))
    due_ms = bed.clock.ms + 2000
    bed.produce(2000)
    assert late_ms(bed, due_ms) == 0


@pytest.mark.parametrize("kind", [TIMER, PRIORITY])
@pytest.mark.parametrize("precision_ms", [1, 4, 5, 10])
def test_lateness_is_at_most_the_precision(kind: str, precision_ms: int) -> None:
    bed = LeaderBed(AHEAD_MS, kind, precision=precision_ms / 1000)
    subscription = bed.subscription("first", acks=True)
    subscription.credit = 10_000
    bed.delivery.attach(subscription)
    bed.clock.ms += 100
    begun_ms = bed.clock.ms
    for _ in range(100):
        bed.produce(20)
        bed.clock.ms += 1
        bed.settle()
        assert sum(bed.counts) >= bed.clock.ms - begun_ms - 20 - precision_ms


def test_requests_of_other_topics_do_not_delay_messages() -> None:
    bed = LeaderBed(AHEAD_MS, precision="1s")
    bed.clock.ms += 2000
    bed.delivery.attach(bed.subscription("first", acks=True))
    due_ms = bed.clock.ms + 20
    bed.produce(20)
    for at_ms in (AHEAD_MS, 0):
        bed.clock.ms = due_ms - at_ms
        bed.window.asked(bed.clock.ms)
        bed.settle()
    assert bed.counts == [1]


def test_rest_of_a_burst_without_credit_does_not_wait() -> None:
    bed = LeaderBed(AHEAD_MS, precision="1s")
    bed.clock.ms += 2000
    subscription = bed.subscription("first", acks=True)
    subscription.credit = 10
    bed.produce(0, 100)
    bed.delivery.attach(subscription)
    bed.settle()
    assert bed.counts == [10] * 10


@pytest.mark.parametrize("precision_ms, counted", [(MOST_MS, 2), (MOST_MS + 1, 0)])
def test_topic_that_waits_for_others_does_not_count_for_the_objective(precision_ms: int, counted: int) -> None:
    bed = LeaderBed(AHEAD_MS, precision=precision_ms / 1000)
    bed.delivery.attach(bed.subscription("first", acks=True))
    for _ in range(2):
        bed.clock.ms += 2000
        bed.produce(0)
    assert (bed.counts, bed.delivery.stats.slo_deliveries) == ([1, 1], counted)
