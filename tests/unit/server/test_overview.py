"""Tests of the recent activity of a topic: differences of counts, by poll and by time slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgpack

from sandq.broker.stats.histogram import LATENESS, Histogram
from sandq.partition.records.metrics import Counted
from sandq.server.overview import MINUTE_SAMPLES, RATE_SAMPLES, SLOT_S, SLOTS, TopicTrack

SLOT_MS = SLOT_S * 1000


class Topic:
    """A node that leads partitions, and its sent reports."""

    def __init__(self) -> None:
        self.counted: dict[int, Counted] = {1: Counted(), 2: Counted()}
        self.stats = SimpleNamespace(sent=0, lateness=Histogram(LATENESS))

    def led(self) -> dict[int, Any]:
        return {
            number: SimpleNamespace(raft_group=SimpleNamespace(number=number, status=SimpleNamespace(counted=counted)))
            for number, counted in self.counted.items()
        }

    def send(self, count: int, late_s: float) -> None:
        self.stats.sent += count
        self.stats.lateness.observe(late_s, count)


def sampled(track: TopicTrack, topic: Any, now_ms: int = 0) -> Any:
    track.sample(topic, now_ms)
    return track.within(RATE_SAMPLES)


def test_changes_between_polls_are_counted() -> None:
    track, topic = TopicTrack(), Topic()
    topic.counted[1] = Counted(stored=100, acked=50)
    topic.send(40, 0.001)
    assert sampled(track, topic)[:4] == (0, 0, 0, 0)  # messages from before the first poll
    topic.counted = {1: Counted(stored=103, acked=51, dead_nacked=1), 2: Counted(stored=2, dead_rejected=1)}
    topic.send(5, 0.02)
    done = sampled(track, topic)
    assert done[:4] == (5, 5, 1, 2)
    assert sum(done.lateness) == 5
    assert sampled(track, topic)[:4] == (5, 5, 1, 2)
    assert sampled(track, topic)[:4] == (0, 0, 0, 0)
    assert track.within(MINUTE_SAMPLES).sent == 5


def test_new_or_reloaded_partition_adds_no_old_counts() -> None:
    track, topic = TopicTrack(), Topic()
    sampled(track, topic)
    topic.counted = {3: Counted(stored=1000)}
    assert sampled(track, topic).stored == 0
    topic.counted = {3: Counted(stored=1)}
    assert sampled(track, topic).stored == 0
    topic.counted = {3: Counted(stored=4)}
    assert sampled(track, topic).stored == 3


def test_reopened_topic_counts_from_zero() -> None:
    track, topic = TopicTrack(), Topic()
    topic.send(1000, 0.5)
    sampled(track, topic)
    topic.stats = Topic().stats
    topic.send(3, 0.001)
    assert sampled(track, topic).sent == 0
    topic.send(4, 0.001)
    done = sampled(track, topic)
    assert (done.sent, sum(done.lateness), min(done.lateness)) == (4, 4, 0)


def test_history_has_a_row_for_each_slot_with_activity() -> None:
    track, topic = TopicTrack(), Topic()
    sampled(track, topic, SLOT_MS)
    for at_ms, sent in ((SLOT_MS + 5000, 2), (SLOT_MS + 10_000, 3), (4 * SLOT_MS, 0), (5 * SLOT_MS, 7)):
        topic.send(sent, 0.5)
        sampled(track, topic, at_ms)
    rows = [msgpack.unpackb(row) for row in track.history(6 * SLOT_MS)]
    bucket = LATENESS.index(0.5)
    assert rows == [[SLOT_MS, 0, 5, 0, 0, [bucket, 5]], [5 * SLOT_MS, 0, 7, 0, 0, [bucket, 7]]]


def test_history_covers_at_most_one_hour() -> None:
    track, topic = TopicTrack(), Topic()
    sampled(track, topic)
    for slot in range(1, 3 * SLOTS):
        topic.send(1, 0.0)
        sampled(track, topic, slot * SLOT_MS)
    assert len(track.history(3 * SLOTS * SLOT_MS)) <= SLOTS + 1
    assert track.history(10 * SLOTS * SLOT_MS)[:-1] == []
