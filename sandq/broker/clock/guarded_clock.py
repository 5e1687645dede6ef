"""The guarded clock: it stamps commands, and decides whether a message is due.

The guarded clock is a monotonic clock plus an offset. The offset is slewed (slowly adjusted) towards the wall clock. If
the wall clock was set or is broken, and differs by more than `max_drift_ms`, the guarded clock stops following it and
sets `alarm`. Then the guarded clock continues at its own pace until the median of the peers' clocks confirms the wall
clock, or an operator accepts it. So a step of the wall clock makes no message early or late.

`alarm` is also set while the guarded clock differs from the peers' clocks (`peer_clocks.py`), for example because the
node started with a wrong wall clock.
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
"""Number of times that the wall clock and the monotonic clock are read together, to find the pair with the shortest
pause."""


def boot_seconds() -> float:
    """Return the monotonic time in s. If the system has such a clock, the time includes suspensions of the machine."""
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
        """True while the wall clock differs by more than `max_drift_ms`, and is not followed."""
        self._follow()

    def listen(
        self, *, on_alarm: Callable[[int], None] | None = None, on_step: Callable[[], None] | None = None
    ) -> None:
        """Register functions that this clock calls.

        `on_alarm(drift_ms)` is called when the guarded clock stops following the wall clock. `on_step()` is called when
        the guarded time jumps. Tasks that sleep until an instant must then check the time again."""
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
        """The reason of the alarm; None if there is no alarm.

        `OFF`: the peers' clocks differ too much from this clock. `UNCOMPARED`: there are peers, but their clocks are
        not known well enough for a verdict. `WALL`: the wall clock differs by more than `max_drift_ms`, and is not
        followed. `DISPUTED`: as many clocks contradict this clock as agree with it."""
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

        Until the clock has agreed with others, the reported state is DOUBTED or OFF. It is OFF if the clocks of a
        majority are unknown."""
        if self.peers.agreed:
            return self.standing
        return max(self.standing, Standing.DOUBTED) if self.peers.heard_majority else Standing.OFF

    @property
    def waits(self) -> bool:
        """True while the clock must not stamp entries yet. Meanwhile other clocks may confirm this clock, or nodes with
        better clocks may take over."""
        return self.peers.waits(self.monotonic_s())

    def compare(self) -> int | None:
        """Compare this clock with the peers' clocks, and update its state.

        If the peers' clocks confirm a step of the wall clock, follow the step, and return its size in ms. Otherwise
        return None."""
        drift_s = self._wall() - self.now_s()
        now_s = self.monotonic_s()
        followed = self._stepped and self.peers.confirm(drift_s, self._offset, now_s)
        if followed:
            self._follow()
        self.peers.judge(self._offset, now_s)
        return round(drift_s * 1000) if followed else None

    def better_peers(self, since_s: float) -> set[str]:
        """Return the peers whose clocks are in a better state than this clock.

        Only reports that this node requested after `since_s` (`monotonic_s`) count."""
        return self.peers.better(self.reported_standing, since_s, self._offset, self.monotonic_s())

    # -- time -----------------------------------------------------------------------------------------------------

    def monotonic_s(self) -> float:
        """Return the time of the monotonic clock, in seconds."""
        return self._monotonic()

    def now_s(self) -> float:
        """Return the seconds since 1970.

        The value decreases only if a backward step of the wall clock is confirmed or accepted."""
        wall_s = self._wall()
        now = self._monotonic()
        drift = wall_s - (now + self._offset)
        if abs(drift) > self._max_drift_s and not self._stepped:
            # A pause of the machine between the two readings looks like a step. So read both clocks again, and use the
            # pair of readings with the shortest pause.
            drift = max(drift, *(self._wall() - (self._monotonic() + self._offset) for _ in range(PAIRS)))
        if abs(drift) <= self._max_drift_s:
            self._stepped = False
            # Slew: in each second, the offset changes by at most `_slew`.
            most = (now - self._last) * self._slew
            self._offset += max(-most, min(most, drift))
        elif not self._stepped:
            self._stepped = True
            for on_alarm in self._on_alarm:
                on_alarm(round(drift * 1000))
        self._last = now
        return now + self._offset

    def now_ms(self) -> int:
        """Return the milliseconds since 1970. They are rounded down, so that no instant is reached too early."""
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
        is late, never early. The least late of `PAIRS` readings is used, because removing an error by slewing would
        take long."""
        self._offset = -math.inf
        for _ in range(PAIRS):
            wall_s = self._wall()
            self._last = self._monotonic()
            self._offset = max(self._offset, wall_s - self._last)
        self._stepped = False
        self.notify_step()
