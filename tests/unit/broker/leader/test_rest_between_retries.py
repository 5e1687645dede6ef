"""After a lease with retries, spilled retries wait as long as that lease took, and new messages do not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from sandq.broker.leader.group_pump import MOST_REST_MS, GroupPump
from sandq.model.names import FAIR, TIMER
from sandq.partition import commands as c
from tests.support.partition.leader_bed import LeaderBed
from tests.support.partition.spilling import spilling_all

TOOK_MS = 20
WRONG_MS = 40 * 86_400_000
"""How far a wrong clock is ahead."""


class SlowLeases(LeaderBed):
    """A partition whose leases take `took_ms`."""

    def __init__(self, kind: str) -> None:
        super().__init__(0, kind, max_attempts="none")
        self.took_ms = 0
        self.recalls: list[bool] = []
        """`recalls` of each lease command."""
        self._submit = self.host.submit
        self.host.submit = self._submit_slowly  # type: ignore[method-assign]
        self.delivery.attach(self.subscription("first"))

    def _submit_slowly(self, command: Any, done: Any, **options: Any) -> None:
        if isinstance(command, c.Lease):
            self.recalls.append(command.recalls)
            done = partial(self._done_late, done)
        self._submit(command, done, **options)

    def _done_late(self, done: Any, result: Any) -> None:
        self.clock.ms += self.took_ms
        done(result)

    def fail(self, messages: int, *, delays_ms: list[int]) -> None:
        """Produce messages, and nack each lease of them with its own delay."""
        for delay_ms in delays_ms:
            del self.pushed[:], self.counts[:]
            self.produce(0, messages)
            ((_, token),) = self.pushed
            self.call(c.Nack([(token, None, delay_ms, "x")]))
        del self.pushed[:], self.counts[:], self.recalls[:]

    def advance(self, ms: int) -> None:
        """Let time pass, millisecond by millisecond."""
        for _ in range(ms):
            self.clock.ms += 1
            self.settle()


@pytest.fixture(params=[TIMER, FAIR])
def bed(request: pytest.FixtureRequest) -> Iterator[SlowLeases]:
    with spilling_all():
        yield SlowLeases(request.param)


def test_retries_wait_as_long_as_the_last_lease_with_retries_took(bed: SlowLeases) -> None:
    bed.fail(2, delays_ms=[1000, 1010])
    bed.took_ms = TOOK_MS
    bed.advance(1000)
    assert bed.counts == [2]
    bed.advance(TOOK_MS - 1)
    assert bed.counts == [2], "the second retry became due while the first was leased"
    bed.advance(1)
    assert bed.counts == [2, 2]


def test_new_message_is_leased_without_retries_meanwhile(bed: SlowLeases) -> None:
    bed.fail(2, delays_ms=[1000, 1010])
    bed.took_ms = TOOK_MS
    bed.advance(1000)
    bed.took_ms = 0
    bed.produce(0)
    assert (bed.counts, bed.recalls[-1]) == ([2, 1], False)
    bed.advance(TOOK_MS)
    assert (bed.counts, bed.recalls[-1]) == ([2, 1, 2], True)


def test_scheduled_message_is_leased_at_its_time_meanwhile(bed: SlowLeases) -> None:
    bed.produce(1025)
    bed.fail(2, delays_ms=[1000, 1010])
    bed.took_ms = TOOK_MS
    bed.advance(1000)
    bed.took_ms = 0
    bed.advance(5)
    assert bed.counts == [2, 1], "20 ms of the lease and 5 ms have passed"
    bed.advance(TOOK_MS)
    assert bed.counts == [2, 1, 2]


def test_leases_without_retries_delay_no_retry(bed: SlowLeases) -> None:
    bed.fail(2, delays_ms=[1000])
    bed.took_ms = TOOK_MS
    bed.advance(1000 - TOOK_MS)
    bed.produce(0)
    bed.took_ms = 0
    bed.settle()
    assert bed.counts == [1, 2] and all(bed.recalls)


def test_rest_has_a_maximum(bed: SlowLeases) -> None:
    bed.fail(2, delays_ms=[1000, 1010])
    bed.took_ms = 60_000
    bed.advance(1000)
    bed.took_ms = 0
    bed.advance(MOST_REST_MS - 1)
    assert bed.counts == [2]
    bed.advance(1)
    assert bed.counts == [2, 2]


def test_clock_that_was_set_back_causes_no_rest() -> None:
    pump = GroupPump()
    pump.asked_ms = 1000
    pump.rest(995)
    assert pump.rest_ms < 995


def test_rest_is_over_if_the_clock_is_set_back(bed: SlowLeases) -> None:
    bed.clock.ms += WRONG_MS
    bed.fail(2, delays_ms=[1000])
    bed.took_ms = TOOK_MS
    bed.advance(1000)
    assert bed.counts == [2]
    bed.took_ms = 0
    bed.clock.ms -= WRONG_MS
    bed.call(c.ClockReset(bed.clock.ms))
    for _ in range(20):
        bed.call(c.Upkeep())
    bed.advance(10)
    bed.fail(2, delays_ms=[1000])
    bed.advance(1000)
    assert bed.counts == [2]
