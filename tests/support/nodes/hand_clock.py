"""Provide a clock that tests move forward or hold. A test can let minutes pass at once, or hold a moment for any time.

By default it runs with the clock of the test's event loop. The wall clock moves with it, so the guarded clock never
sees a jump of the wall clock. Timers of a node are checked again whenever the clock moves forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from sandq.broker.clock.guarded_clock import GuardedClock
from tests.support.stopped_time import time_of_this_test

REPEATS_PER_STEP: Final = 10


class HandClock:
    def __init__(self) -> None:
        self._time = time_of_this_test()
        self._ahead_s = 0.0
        self._held_s: float | None = None
        self._guarded: list[GuardedClock] = []

    def guarded(self, wall_off_s: Callable[[], float] = lambda: 0.0) -> GuardedClock:
        """Make a clock for `run_node`, whose wall clock is off by `wall_off_s()`."""
        self._guarded.append(GuardedClock(wall=lambda: self._now_s() + wall_off_s(), monotonic=self._now_s))
        return self._guarded[-1]

    def _now_s(self) -> float:
        return (self._time.wall() if self._held_s is None else self._held_s) + self._ahead_s

    def hold(self) -> None:
        """Stop the clock in the middle of a ms; `forward` still moves it.

        The clocks of nodes differ by some microseconds. If the clock stopped at the beginning of a ms, some nodes would
        still read the previous ms."""
        self._held_s = self._time.wall()
        self.forward_to(self.now_ms() + 1)

    def run(self) -> None:
        """Let the clock run again from its current time."""
        if self._held_s is not None:
            self._ahead_s -= self._time.wall() - self._held_s
            self._held_s = None
        self._notify()

    def forward(self, seconds: float) -> None:
        """Move the clock forward. Call it on the event loop of the nodes."""
        self._ahead_s += seconds
        self._notify()

    def forward_to(self, at_ms: int) -> None:
        """Move the held clock to exactly this time."""
        assert self._held_s is not None
        self.forward((at_ms + 0.5) / 1000 - self._now_s())

    def _notify(self) -> None:
        for clock in self._guarded:
            clock.notify_step()

    def now_ms(self) -> int:
        return int(self._now_s() * 1000)


class Onward:
    """Moves a held clock forward for a test that repeatedly observes the steps of a node.

    The clock moves when the test sees a new state, so that the node sets the pace. The clock also moves after every
    `REPEATS_PER_STEP` observations of the same state. Otherwise a timer that the node sets after a move would never
    fire, because the clock is held."""

    def __init__(self, hand: HandClock, seconds: float) -> None:
        self._hand = hand
        self._seconds = seconds
        self._observed: Counter[Hashable] = Counter()

    def saw(self, state: Hashable) -> None:
        """Record an observation."""
        self._observed[state] += 1
        if self._observed[state] % REPEATS_PER_STEP == 1:
            self._hand.forward(self._seconds)

    @property
    def different(self) -> int:
        """Number of different states that were seen."""
        return len(self._observed)
