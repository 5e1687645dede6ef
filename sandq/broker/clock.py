"""The guarded clock: what stamps commands and says whether a message is due.

It runs on a monotonic clock plus an offset that is slewed towards the wall clock. A wall clock that is further away
than `max_drift_ms` (somebody set it, or it broke) is not followed until an operator accepts it; until then the clock
goes on at its own pace and `alarm` is set. So a step of the wall clock makes no message early or late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def boot_seconds() -> float:
    """Monotonic seconds that go on while the machine is suspended, where the system has such a clock."""
    return time.clock_gettime(_BOOT) if _BOOT is not None else time.monotonic()


@dataclass(frozen=True, slots=True)
class ClockStatus:
    guarded_ms: int
    wall_ms: int
    drift_ms: int
    """wall - guarded."""
    alarm: bool


class GuardedClock:
    """`wall` and `monotonic` are in seconds. Not thread-safe: the event loop owns it."""

    def __init__(
        self,
        *,
        max_drift_ms: int = 500,
        slew_ppm: int = 500,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = boot_seconds,
        on_alarm: Callable[[int], None] = lambda drift_ms: None,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._max_drift_s = max_drift_ms / 1000
        self._slew = slew_ppm / 1_000_000
        self._on_alarm = on_alarm
        # The wall clock is read first, here and below: if we are held up in between, the error is on the late side.
        wall_s = wall()
        self._last = monotonic()
        self._offset = wall_s - self._last
        self._alarm = False

    @property
    def alarm(self) -> bool:
        """The wall clock is further away than allowed, and is not followed."""
        return self._alarm

    def now_s(self) -> float:
        """Epoch seconds. Never goes back, except by `accept`."""
        wall_s = self._wall()
        now = self._monotonic()
        drift = wall_s - (now + self._offset)
        if abs(drift) <= self._max_drift_s:
            self._alarm = False
            most = (now - self._last) * self._slew
            self._offset += max(-most, min(most, drift))
        elif not self._alarm:
            self._alarm = True
            self._on_alarm(round(drift * 1000))
        self._last = now
        return now + self._offset

    def now_ms(self) -> int:
        """Epoch milliseconds, rounded down: a time is reached only when all of it has passed."""
        return int(self.now_s() * 1000)

    def seconds_until(self, at_ms: int) -> float:
        """Seconds until `now_ms() >= at_ms`; 0 when it is."""
        return max(0.0, at_ms / 1000 - self.now_s())

    def status(self) -> ClockStatus:
        wall = self._wall()
        guarded = self.now_s()
        return ClockStatus(int(guarded * 1000), int(wall * 1000), round((wall - guarded) * 1000), self._alarm)

    def accept(self) -> ClockStatus:
        """The operator says that the wall clock is right: follow it at once."""
        wall_s = self._wall()
        self._last = self._monotonic()
        self._offset = wall_s - self._last
        self._alarm = False
        return self.status()
