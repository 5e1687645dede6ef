"""The window in which leases of scheduled messages share commit batches."""

from __future__ import annotations

from functools import partial

import pytest

from sandq.broker.leader.lease_window import (
    LEAST_MS,
    MESSAGES_PER_S,
    MOST_MS,
    SAMPLE_MS,
    STORE_MS,
    LeaseWindow,
    push_ms,
    wake_ms,
)
from sandq.broker.stats.node_stats import NodeStats
from sandq.partition import commands as c
from tests.support.partition.leader_bed import LeaderBed
from tests.support.simulation.stepped import START_MS, VirtualClock, VirtualTimers

AHEAD_MS = 5


class Bed:
    def __init__(self, most_ms: int = MOST_MS) -> None:
        self.stats = NodeStats()
        timers = VirtualTimers(VirtualClock())
        self.window = LeaseWindow(timers, ahead_ms=AHEAD_MS, stats=self.stats, most_ms=most_ms)  # type: ignore[arg-type]
        self.now_ms = START_MS

    def wake_ms(self, next_ms: int) -> int:
        """Return when to request a lease, in ms from now, or before now if negative.

        `next_ms`: time of the first message, in ms from now."""
        span_ms = self.window.span_ms
        asked_ms = self.window.asked_ms
        at_ms = wake_ms(self.now_ms + next_ms, self.now_ms, asked_ms=asked_ms, ahead_ms=AHEAD_MS, span_ms=span_ms)
        return at_ms - self.now_ms

    def lease(self, per_s: int, seconds: float) -> None:
        """Lease messages for a while, at a steady rate."""
        for _ in range(int(seconds * 100)):
            self.now_ms += 10
            self.window.leased(per_s // 100, self.now_ms)


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_message_after_a_pause_does_not_wait(bed: Bed) -> None:
    assert [bed.wake_ms(next_ms) for next_ms in (0, 1, 5, 6, 1000)] == [-5, -4, 0, 1, 995]


def test_message_within_a_window_waits_for_its_end(bed: Bed) -> None:
    bed.window.asked(bed.now_ms)
    assert bed.wake_ms(AHEAD_MS + 1) == LEAST_MS
    assert bed.wake_ms(1) == LEAST_MS + 1 - STORE_MS, "it would be late by more than the window"
    assert bed.wake_ms(AHEAD_MS + LEAST_MS + 1) == LEAST_MS + 1, "it may not be leased earlier"


def test_window_is_ignored_while_the_clock_is_behind_the_last_request(bed: Bed) -> None:
    bed.window.asked(bed.now_ms + 1000)
    assert bed.wake_ms(6) == 1


@pytest.mark.parametrize(
    "per_s, span_ms", [(100, LEAST_MS), (600, 600 // MESSAGES_PER_S), (10 * MOST_MS * MESSAGES_PER_S, MOST_MS)]
)
def test_window_follows_the_number_of_messages(bed: Bed, per_s: int, span_ms: int) -> None:
    bed.lease(per_s, 10)
    assert bed.window.span_ms == span_ms and bed.stats.lease_window_s == span_ms / 1000
    bed.lease(100, 10)
    assert bed.window.span_ms == LEAST_MS


def test_window_is_short_after_a_pause(bed: Bed) -> None:
    bed.lease(10_000, 10)
    bed.now_ms += 60_000
    bed.window.leased(1, bed.now_ms)
    assert bed.window.span_ms == LEAST_MS


def test_window_after_the_clock_was_set_back(bed: Bed) -> None:
    bed.lease(10_000, 10)
    bed.now_ms -= 3_600_000
    bed.lease(100, 10)
    assert bed.window.span_ms == LEAST_MS


@pytest.mark.parametrize("most_ms, span_ms", [(10, 10), (1, LEAST_MS), (1000, MOST_MS)])
def test_window_has_bounds(most_ms: int, span_ms: int) -> None:
    bed = Bed(most_ms)
    bed.lease(1_000_000, 2 * SAMPLE_MS / 1000)
    assert bed.window.span_ms == span_ms


def test_request_makes_waiting_requests(bed: Bed) -> None:
    made: list[str] = []
    for group, along_ms in (("now", 0), ("soon", 1), ("earlier", -7)):
        bed.window.wait(bed.now_ms + along_ms, partial(made.append, group))
    bed.window.asked(bed.now_ms)
    assert made == ["earlier", "now"]
    bed.window.asked(bed.now_ms + 1)
    assert made == ["earlier", "now", "soon"]


def test_request_that_waits_again_is_made_by_a_later_request(bed: Bed) -> None:
    made: list[int] = []

    def again() -> None:
        made.append(bed.now_ms)
        bed.window.wait(bed.now_ms, again)

    again()
    bed.window.asked(bed.now_ms)
    assert len(made) == 2


def test_other_requests_make_waiting_requests_late_in_a_window(bed: Bed) -> None:
    made: list[str] = []
    bed.lease(10_000, 10)
    bed.window.asked(bed.now_ms)
    bed.window.wait(bed.now_ms, partial(made.append, "g"))
    bed.window.before_proposals(bed.now_ms + MOST_MS // 2)
    assert made == []
    bed.window.before_proposals(bed.now_ms + MOST_MS - 1)
    assert made == ["g"]


@pytest.mark.parametrize("ahead_ms", [0, 1, 50])
def test_leases_of_a_long_window_are_sent_together(ahead_ms: int) -> None:
    assert push_ms(asked_ms=1000, ahead_ms=ahead_ms, span_ms=LEAST_MS) == 0
    assert push_ms(asked_ms=1000, ahead_ms=ahead_ms, span_ms=LEAST_MS + 1) == 1000 + min(ahead_ms, STORE_MS)


def test_new_message_does_not_wait_for_the_window_of_retries() -> None:
    bed = LeaderBed(AHEAD_MS)
    bed.delivery.attach(bed.subscription("first"))
    for _ in range(2):
        bed.produce(0)
    for (_, token), delay_ms in zip(list(bed.pushed), (3, 10), strict=True):
        bed.call(c.Nack([(token, None, delay_ms, "x")]))
    bed.window.span_ms = MOST_MS
    bed.clock.ms += 3
    bed.settle()
    assert bed.counts == [1, 1, 1], "no lease was requested in the last window"
    bed.clock.ms += 8
    bed.settle()
    assert bed.counts == [1, 1, 1], "the other retry waits for the window"
    bed.produce(0)
    assert bed.counts in ([1, 1, 1, 1, 1], [1, 1, 1, 2])


def test_new_message_waits_for_the_precision_of_its_topic() -> None:
    bed = LeaderBed(AHEAD_MS, precision="100ms")
    bed.delivery.attach(bed.subscription("first"))
    bed.produce(0)
    bed.clock.ms += 10
    bed.produce(0)
    assert bed.counts == [1]
