"""Virtual time: it changes only when the test moves it forward."""

from __future__ import annotations

import trio

from sandq.broker.clock.guarded_clock import ClockStatus, GuardedClock
from sandq.broker.clock.timers import Timers


class VirtualClock(GuardedClock):
    """A clock with whole milliseconds, so that it reaches an awaited time exactly."""

    def __init__(self, start_ms: int) -> None:
        self.ms = start_ms
        super().__init__(wall=self.now_s, monotonic=self.now_s)

    def now_s(self) -> float:
        return self.ms / 1000

    def now_ms(self) -> int:
        return self.ms

    def seconds_until(self, at_ms: int) -> float:
        return max(0, at_ms - self.ms) / 1000

    def status(self) -> ClockStatus:
        return ClockStatus(self.ms, self.ms, 0, False)

    def accept(self) -> ClockStatus:
        return self.status()


class VirtualTimers(Timers):
    """Timers that fire only in `run`, after the clock was moved forward and `wake` was called."""

    def next_ms(self) -> int | None:
        """Return the due time of the next timer, or None."""
        return self._heap[0][0] if self._heap else None

    def is_due(self) -> bool:
        next_ms = self.next_ms()
        return next_ms is not None and next_ms <= self._clock.now_ms()

    def _wakes(self, at_ms: int) -> bool:
        return at_ms <= self._clock.now_ms()

    def wake(self) -> None:
        """Check the timers, because the clock was moved forward."""
        self._wake.set()

    def pause_ms(self, ms: int) -> int:
        """Return 0: jobs must not pause, because virtual time does not advance while a test waits for a job."""
        return 0

    async def run(self) -> None:
        while True:
            while self.is_due():
                self._fire_next()
            self._wake = trio.Event()
            await self._wake.wait()
