"""Run every timer of a node in one task: a heap of instants on the guarded clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio

from sandq.broker.clock.guarded_clock import GuardedClock

LONGEST_SLEEP_S = 1.0
"""Maximum sleep in s. Sleeps must be short, because the guarded clock may be slewed and the machine suspended
meanwhile."""
STALE_LEAST = 64
"""Number of cancelled timers that may always stay in the heap.

If there are more, they are removed as soon as they are more than half of the heap."""


class Timer:
    """A scheduled call."""

    __slots__ = ("_timers", "call")

    def __init__(self, timers: Timers, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call
        self._timers = timers

    def cancel(self) -> None:
        """Cancel and release the call. Do nothing if the call was made already."""
        if self.call is not None:
            self.call = None
            self._timers.note_cancelled()

    def fire(self) -> None:
        """Make the call, unless it was cancelled."""
        call, self.call = self.call, None
        if call is not None:
            call()


class Timers:
    """The timers of a node."""

    def __init__(self, clock: GuardedClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._stale = 0
        """Upper bound for the number of cancelled timers in the heap."""
        self._order = count()
        self._wake = trio.Event()
        self._sleeping_until_ms: float = math.inf
        clock.listen(on_step=self._wake_up)

    def at(self, at_ms: int, call: Callable[[], None]) -> Timer:
        """Call `call` when the guarded clock has reached `at_ms`. If the timer is cancelled before, there is no
        call."""
        timer = Timer(self, call)
        heapq.heappush(self._heap, (at_ms, next(self._order), timer))
        if self._wakes(at_ms):
            self._wake.set()
        return timer

    def _wakes(self, at_ms: int) -> bool:
        """Return whether a new timer is due before `run` next wakes up."""
        return at_ms < self._sleeping_until_ms

    def __len__(self) -> int:
        """Return the number of timers in the heap, including cancelled ones that are not removed yet."""
        return len(self._heap)

    def note_cancelled(self) -> None:
        """Count a timer in the heap that was cancelled. If too many are counted, remove them from the heap."""
        self._stale += 1
        if self._stale > max(STALE_LEAST, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._stale = 0

    def _fire_next(self) -> None:
        """Remove the next timer from the heap, and make its call."""
        timer = heapq.heappop(self._heap)[2]
        if timer.call is None:
            self._stale -= 1
        timer.fire()

    def _wake_up(self) -> None:
        self._wake.set()

    def pause_ms(self, ms: int) -> int:
        """Return the length in ms of a pause of `ms`. In tests with virtual time, a subclass returns 0."""
        return ms

    async def run(self) -> None:
        """Run the timers until cancelled."""
        while True:
            now_ms = self._clock.now_ms()
            while self._heap and self._heap[0][0] <= now_ms:
                self._fire_next()
            self._wake = trio.Event()
            self._sleeping_until_ms = self._heap[0][0] if self._heap else math.inf
            seconds = LONGEST_SLEEP_S
            if self._heap:
                seconds = min(seconds, self._clock.seconds_until(self._heap[0][0]))
            with trio.move_on_after(seconds):
                await self._wake.wait()
            self._sleeping_until_ms = 0  # awake: a new timer needs no wake-up
