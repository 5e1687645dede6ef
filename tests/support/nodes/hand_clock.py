"""A clock that tests put forward, or hold: minutes pass in a moment, and 5 ms take as long as is wanted.

Left alone, it goes with the clock of the test's event loop. The wall clock goes with it, so that the guarded clock sees
time pass, not somebody setting it. A node's timers look again whenever it is put forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from sandq.broker.clock.guarded_clock import GuardedClock
from tests.support.stopped_time import time_of_this_test

LOOKS: Final = 10


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
        """It stands still, in the middle of a ms; `forward` still moves it. Nodes are some microseconds off: at the
        beginning of one, what is exactly so many ms later would be a ms less to them now and then."""
        self._held_s = self._time.wall()
        self.forward_to(self.now_ms() + 1)

    def run(self) -> None:
        """It goes on from where it stood."""
        if self._held_s is not None:
            self._ahead_s -= self._time.wall() - self._held_s
            self._held_s = None
        self._tell()

    def forward(self, seconds: float) -> None:
        """To be called on the nodes' event loop."""
        self._ahead_s += seconds
        self._tell()

    def forward_to(self, at_ms: int) -> None:
        """Until this instant, exactly; it is to be held."""
        assert self._held_s is not None
        self.forward((at_ms + 0.5) / 1000 - self._now_s())

    def _tell(self) -> None:
        for clock in self._guarded:
            clock.notify_step()

    def now_ms(self) -> int:
        return int(self._now_s() * 1000)


class Onward:
    """Puts a held clock forward for who looks again and again at what a node does bit by bit: when it sees something
    new, so that the node sets the pace, and after every `LOOKS` looks that saw nothing new. For a node may set a timer
    for so many ms from now after the clock was put forward, and on a clock that stands that never comes."""

    def __init__(self, hand: HandClock, seconds: float) -> None:
        self._hand = hand
        self._seconds = seconds
        self._looks: Counter[Hashable] = Counter()

    def saw(self, what: Hashable) -> None:
        """This was seen."""
        self._looks[what] += 1
        if self._looks[what] % LOOKS == 1:
            self._hand.forward(self._seconds)

    @property
    def different(self) -> int:
        """How many different things were seen."""
        return len(self._looks)
