"""The guarded clock: it stamps commands, and decides whether a message is due.

It is a monotonic clock plus an offset that is slewed towards the wall clock. A wall clock that is further away than
`max_drift_ms`, because it was set or is broken, is not followed until the median of the peers' clocks confirms it, or
an operator accepts it. Until then, the guarded clock continues at its own pace, and `alarm` is set. So a step of the
wall clock makes no message early or late.

`alarm` is also set while the guarded clock differs from the peers' clocks (`peer_clocks.py`), for example because it
started from a wrong wall clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sandq.broker.clock.peer_clocks import PeerClocks, Standing

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)

OFF: Final = "off"
UNCOMPARED: Final = "uncompared"
WALL: Final = "wall"
DISPUTED: Final = "disputed"
"""Reasons of an alarm, worst first."""


PAIRS: Final = 5
"""Number of times that both clocks are read when the wall clock is adopted."""


def boot_seconds() -> float:
    """Return monotonic seconds that include suspensions of the machine, if the system has such a clock."""
    return time.clock_gettime(_BOOT) if _BOOT is not None else time.monotonic()


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """The state of a guarded clock."""

    guarded_ms: int
    wall_ms: int
    drift_ms: int
    """Wall clock minus guarded clock, in ms."""
    alarm: bool
    reason: str | None = None
    """Reason of the alarm."""
    median_ms: int | None = None
    """Median of the peers' guarded clocks minus this clock, in ms. None if no peer's clock is known now."""
    peers: Mapping[str, int] = field(default_factory=dict)
    """By node id: the peer's guarded clock minus this clock, in ms."""


class GuardedClock:
    """The guarded clock of a node. `wall` and `monotonic` return seconds. Not thread-safe: the event loop owns it."""

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
        self._on_alarm = [on_alarm]
        self._on_step: list[Callable[[], None]] = []
        self.peers = PeerClocks(self._max_drift_s, monotonic())
        self._last = self._offset = 0.0
        self._stepped = False
        self._follow()

    def listen(
        self, *, on_alarm: Callable[[int], None] | None = None, on_step: Callable[[], None] | None = None
    ) -> None:
        """Call these functions from now on.

        `on_alarm(drift_ms)`: when the wall clock is no longer followed. `on_step`: when the time jumps, so that tasks
        that sleep until an instant must check it again."""
        if on_alarm is not None:
            self._on_alarm.append(on_alarm)
        if on_step is not None:
            self._on_step.append(on_step)

    def notify_step(self) -> None:
        """Notify the listeners that the time has jumped."""
        for on_step in self._on_step:
            on_step()

    # -- trust ----------------------------------------------------------------------------------------------------

    @property
    def reason(self) -> str | None:
        """The reason of the alarm; None if there is none.

        `OFF`: the peers' clocks differ. `UNCOMPARED`: there are peers, but nothing is certain about their clocks.
        `WALL`: the wall clock is further away than allowed, and is not followed. `DISPUTED`: the number of peers'
        clocks that differ equals the number that agree."""
        if self.peers.off:
            return OFF
        if self.peers.uncompared:
            return UNCOMPARED
        if self._stepped:
            return WALL
        return DISPUTED if self.peers.disputed else None

    @property
    def alarm(self) -> bool:
        return self.reason is not None

    @property
    def standing(self) -> Standing:
        """The state of this node's clock relative to the peers' clocks."""
        if self.peers.off:
            return Standing.OFF
        return Standing.DOUBTED if self.alarm else Standing.GOOD

    @property
    def reported_standing(self) -> Standing:
        """The state that this node reports to its peers.

        Until the clock has agreed with others, it is reported as at best DOUBTED, or as OFF if the clocks of a majority
        are not known."""
        if self.peers.agreed:
            return self.standing
        return max(self.standing, Standing.DOUBTED) if self.peers.heard_majority else Standing.OFF

    @property
    def waits(self) -> bool:
        """True while the clock must not stamp entries yet. Other clocks may still confirm this clock, or nodes with
        better clocks may take over."""
        return self.peers.waits(self.monotonic_s())

    def compare(self) -> int | None:
        """Compare this clock with the peers' clocks, and update its state.

        If the peers' clocks confirm a step of the wall clock, follow the step, and return it in ms. Otherwise return
        None."""
        drift_s = self._wall() - self.now_s()
        now_s = self.monotonic_s()
        followed = self._stepped and self.peers.confirm(drift_s, self._offset, now_s)
        if followed:
            self._follow()
        self.peers.judge(self._offset, now_s)
        return round(drift_s * 1000) if followed else None

    def better_peers(self, since_s: float) -> set[str]:
        """Return the peers whose clocks are in a better state, by reports requested after `since_s` (`monotonic_s`)."""
        return self.peers.better(self.reported_standing, since_s, self._offset, self.monotonic_s())

    # -- time -----------------------------------------------------------------------------------------------------

    def monotonic_s(self) -> float:
        """Return the time of the monotonic clock, in seconds."""
        return self._monotonic()

    def now_s(self) -> float:
        """Return epoch seconds.

        They never decrease, except when a step back of the wall clock is confirmed or accepted."""
        wall_s = self._wall()
        now = self._monotonic()
        drift = wall_s - (now + self._offset)
        if abs(drift) > self._max_drift_s and not self._stepped:
            # A pause of the machine between the two readings looks like a step. So read both clocks again, and use the
            # pair of readings with the shortest pause.
            drift = max(drift, *(self._wall() - (self._monotonic() + self._offset) for _ in range(PAIRS)))
        if abs(drift) <= self._max_drift_s:
            self._stepped = False
            most = (now - self._last) * self._slew
            self._offset += max(-most, min(most, drift))
        elif not self._stepped:
            self._stepped = True
            for on_alarm in self._on_alarm:
                on_alarm(round(drift * 1000))
        self._last = now
        return now + self._offset

    def now_ms(self) -> int:
        """Return epoch milliseconds, rounded down: a time is reached only when all of it has passed."""
        return int(self.now_s() * 1000)

    def seconds_until(self, at_ms: int) -> float:
        """Return the seconds until `now_ms()` reaches `at_ms`; 0 if it has reached `at_ms` already."""
        return max(0.0, at_ms / 1000 - self.now_s())

    def status(self) -> ClockStatus:
        """Return the state of the clock, for operators."""
        wall = self._wall()
        guarded = self.now_s()
        now_s = self.monotonic_s()
        median_s = self.peers.median(self._offset, now_s)
        return ClockStatus(
            int(guarded * 1000),
            int(wall * 1000),
            round((wall - guarded) * 1000),
            self.alarm,
            self.reason,
            round(median_s * 1000) if median_s is not None else None,
            {node: round(at.middle_s * 1000) for node, at in sorted(self.peers.offsets(self._offset, now_s).items())},
        )

    def accept(self) -> ClockStatus:
        """Follow the wall clock at once, because the operator says that it is right.

        The alarm ends, unless the peers' clocks disagree."""
        self._follow()
        self.peers.acquit()
        self.peers.judge(self._offset, self._last)
        return self.status()

    def _follow(self) -> None:
        """Adopt the time of the wall clock.

        Each reading takes the wall clock first. If the machine pauses before the monotonic clock is read, the new time
        is late, never early. The least late of `PAIRS` readings counts, because it takes long to slew an error away."""
        self._offset = -math.inf
        for _ in range(PAIRS):
            wall_s = self._wall()
            self._last = self._monotonic()
            self._offset = max(self._offset, wall_s - self._last)
        self._stepped = False
        self.notify_step()
