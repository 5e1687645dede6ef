"""Tests of a node's delivery counts: each message is in its bucket, for any split into deliveries."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from sandq.broker.replication.replica import Delivery
from sandq.broker.stats.histogram import LATENESS, Histogram
from sandq.broker.stats.node_stats import NodeStats, TopicStats
from sandq.model import offsets
from sandq.model.config_slo import LATENESS_MS
from sandq.model.piece import Piece

NOW_MS = 1_800_000_000_000


def run(due_ms: int, count: int) -> Piece:
    """Messages of one due time, as in a batch."""
    return Piece(offsets.pack(due_ms, 7, 0, 0), None, 0, [(0, count)], b"x" * 10)


def column(times_ms: list[int]) -> Piece:
    """Messages with one due time each."""
    packed = [offsets.pack(at, 7, place, 0) for place, at in enumerate(times_ms)]
    return Piece(b"".join(packed), None, 0, [(0, len(times_ms))], b"x" * 10)


def delivery(*pieces: Piece, attempt: int = 1, returning: bool = False, repeated: bool = False) -> Delivery:
    count = sum(piece.count for piece in pieces)
    return Delivery(7, 0, 1, attempt, 0, pieces, "c", count, 0, 0, returning, repeated)


def counts(found: Histogram) -> dict[float, int]:
    return {bound: count for bound, count in zip((*found.bounds, float("inf")), found.counts, strict=True) if count}


@pytest.fixture
def node() -> NodeStats:
    return NodeStats()


@pytest.fixture
def topic(node: NodeStats) -> TopicStats:
    return TopicStats(node)


def test_ten_thousand_messages_of_one_instant_are_one_observation_each(node: NodeStats, topic: TopicStats) -> None:
    topic.delivered(delivery(run(NOW_MS - 2, 10_000)), NOW_MS / 1000)
    assert counts(topic.lateness) == {0.0025: 10_000}
    assert (topic.sent, topic.sent_bytes, topic.redelivered) == (10_000, 10, 0)
    assert counts(node.attempts) == {1: 10_000}
    assert node.early == 0


def test_lateness_is_signed_and_early_deliveries_are_counted(node: NodeStats, topic: TopicStats) -> None:
    for ahead_ms in (2000, 500, 50, 5, 1):
        topic.delivered(delivery(run(NOW_MS + ahead_ms, 3)), NOW_MS / 1000)
    topic.delivered(delivery(column([NOW_MS - 1, NOW_MS, NOW_MS + 1, NOW_MS + 1])), NOW_MS / 1000)
    assert node.early == 17
    assert counts(topic.lateness) == {-1: 3, -0.1: 3, -0.01: 3, -0.001: 8, 0: 1, 0.001: 1}


def test_on_time_is_neither_early_nor_late(node: NodeStats, topic: TopicStats) -> None:
    topic.delivered(delivery(run(NOW_MS, 1)), NOW_MS / 1000)
    topic.delivered(delivery(run(NOW_MS, 1)), NOW_MS / 1000 + 0.0004)
    assert node.early == 0
    assert counts(topic.lateness) == {0: 1, 0.001: 1}


@pytest.mark.parametrize("seed", range(50))
def test_every_message_of_a_column_is_in_its_bucket(node: NodeStats, topic: TopicStats, seed: int) -> None:
    rng = random.Random(seed)
    spread_ms = rng.choice((0, 1, 5, 100, 70_000, 10_000_000))
    times = sorted(NOW_MS - rng.randint(-20, spread_ms) for _ in range(rng.choice((2, 3, 100, 1000))))
    topic.delivered(delivery(column(times)), NOW_MS / 1000)
    wanted = [0] * (len(LATENESS) + 1)
    for at in times:
        wanted[bisect_left(LATENESS, (NOW_MS - at) / 1000)] += 1
    assert topic.lateness.counts == wanted
    assert node.early == sum(at > NOW_MS for at in times)


def test_only_first_deliveries_count_for_lateness(node: NodeStats, topic: TopicStats) -> None:
    topic.delivered(delivery(run(NOW_MS - 60_000, 4), attempt=2, returning=True), NOW_MS / 1000)
    topic.delivered(delivery(run(NOW_MS - 60_000, 5), attempt=1, returning=True), NOW_MS / 1000)
    assert counts(topic.lateness) == {}
    assert topic.redelivered == 9
    assert counts(node.attempts) == {1: 5, 2: 4}


def test_a_lease_that_is_pushed_again_is_sent_again_and_nothing_else(node: NodeStats, topic: TopicStats) -> None:
    topic.delivered(delivery(run(NOW_MS - 5, 4), repeated=True), NOW_MS / 1000)
    assert (topic.sent, topic.redelivered) == (4, 0)
    assert counts(topic.lateness) == counts(node.attempts) == {}


@pytest.mark.parametrize("seed", range(20))
def test_objective_counts_messages_due_while_there_was_credit(seed: int) -> None:
    rng = random.Random(seed)
    node = NodeStats(slo_lateness_s=0.1)
    topic = TopicStats(node)
    times = sorted(NOW_MS - rng.choice((0, 50, 99, 100, 101, 500, 10_000)) - rng.randint(0, 2) for _ in range(200))
    free_since_ms = NOW_MS - rng.choice((0, 100, 1000, 100_000))
    topic.delivered(delivery(column(times)), NOW_MS / 1000, free_since_ms)
    counted = [at for at in times if at >= free_since_ms]
    assert topic.slo_deliveries == sum(node.slo.counts) == len(counted)
    assert topic.slo_late == sum(NOW_MS - at > 100 for at in counted)
    assert sum(node.slo.counts[bisect_left(LATENESS, 0.1) + 1 :]) == topic.slo_late, "the value in the histogram"
    assert sum(topic.lateness.counts) == 200, "the other messages are still late"


def test_batch_of_one_instant_counts_completely_or_not_at_all(node: NodeStats, topic: TopicStats) -> None:
    for due_ms, free_since_ms in (
        (NOW_MS - 100, NOW_MS - 100),
        (NOW_MS - 101, 0),
        (NOW_MS - 5, NOW_MS),
        (NOW_MS, None),
    ):
        topic.delivered(delivery(run(due_ms, 1000)), NOW_MS / 1000, free_since_ms)
    assert (topic.slo_deliveries, topic.slo_late) == (2000, 1000)
    topic.delivered(delivery(run(NOW_MS - 200, 7), attempt=2, returning=True), NOW_MS / 1000, 0)
    topic.delivered(delivery(run(NOW_MS - 200, 7), repeated=True), NOW_MS / 1000, 0)
    assert topic.slo_deliveries == sum(node.slo.counts) == 2000, "only first deliveries count"


def test_every_objective_is_a_bound_of_the_histogram() -> None:
    assert {ms / 1000 for ms in LATENESS_MS} <= set(LATENESS)
