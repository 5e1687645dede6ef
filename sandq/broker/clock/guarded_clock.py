"""The guarded clock: what stamps commands and says whether a message is due.

It runs on a monotonic clock plus an offset that is slewed towards the wall clock. A wall clock that is further away
than `max_drift_ms` (somebody set it, or it broke) is not followed until the median of the peers' clocks confirms it, or
an operator accepts it; until then the clock goes on at its own pace and `alarm` is set. So a step of the wall clock
makes no message early or late. `alarm` is also set while the clock itself is not where the peers' clocks are
(`peer_clocks.py`): it was started with a wrong wall clock, say.
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
"""Reasons of an alarm, the worst first."""


PAIRS: Final = 5
"""Looks at both clocks when the wall clock's time is taken over."""


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
    reason: str | None = None
    """Of the alarm."""
    median_ms: int | None = None
    """The median of the peers' guarded clocks - guarded; None: none is known at present."""
    peers: Mapping[str, int] = field(default_factory=dict)
    """Node id -> its guarded clock - guarded, in ms."""


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
        self._on_alarm = [on_alarm]
        self._on_step: list[Callable[[], None]] = []
        self.peers = PeerClocks(self._max_drift_s, monotonic())
        self._last = self._offset = 0.0
        self._stepped = False
        self._follow()

    def listen(
        self, *, on_alarm: Callable[[int], None] | None = None, on_step: Callable[[], None] | None = None
    ) -> None:
        """Call these from now on: `on_alarm(drift_ms)` when the wall clock is not followed any more; `on_step` when the
        time is another one at once, so that whoever sleeps until an instant has to look again."""
        if on_alarm is not None:
            self._on_alarm.append(on_alarm)
        if on_step is not None:
            self._on_step.append(on_step)

    def notify_step(self) -> None:
        """Tell all listeners that the time is another one at once."""
        for on_step in self._on_step:
            on_step()

    # -- whether it can be trusted --------------------------------------------------------------------------------

    @property
    def reason(self) -> str | None:
        """Why there is an alarm: `OFF`, the peers' clocks are elsewhere; `UNCOMPARED`, there are peers, and nothing is
        certain of where their clocks are; `WALL`, the wall clock is further away than allowed and is not followed;
        `DISPUTED`, as many peers' clocks are elsewhere as are here. None: there is none."""
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
        if self.peers.off:
            return Standing.OFF
        return Standing.DOUBTED if self.alarm else Standing.GOOD

    @property
    def told_standing(self) -> Standing:
        """What a node with peers says of itself: a clock that was not compared yet is not one to rely on, and less on
        one of which nothing is certain than on one that has agreed."""
        if self.peers.agreed:
            return self.standing
        return max(self.standing, Standing.DOUBTED) if self.peers.heard_majority else Standing.OFF

    @property
    def waits(self) -> bool:
        """Whether it is to stamp nothing yet, because others may yet be compared with it, or take over."""
        return self.peers.waits(self.monotonic_s())

    def compare(self) -> int | None:
        """Hold it against the peers' clocks, and judge it anew. When they confirm a step of the wall clock it is
        followed; returns by how much (ms)."""
        drift_s = self._wall() - self.now_s()
        now_s = self.monotonic_s()
        followed = self._stepped and self.peers.confirm(drift_s, self._offset, now_s)
        if followed:
            self._follow()
        self.peers.judge(self._offset, now_s)
        return round(drift_s * 1000) if followed else None

    def better_peers(self, since_s: float) -> set[str]:
        """Peers whose clocks stand better than this one, as they said when asked after `since_s` (`monotonic_s`)."""
        return self.peers.better(self.told_standing, since_s, self._offset, self.monotonic_s())

    # -- time -----------------------------------------------------------------------------------------------------

    def monotonic_s(self) -> float:
        return self._monotonic()

    def now_s(self) -> float:
        """Epoch seconds. Never goes back, except when a step back of the wall clock is confirmed or accepted."""
        wall_s = self._wall()
        now = self._monotonic()
        drift = wall_s - (now + self._offset)
        if abs(drift) > self._max_drift_s and not self._stepped:
            # Not yet a step: the machine may have stood still between the two looks. The least late of several tells.
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
        """Epoch milliseconds, rounded down: a time is reached only when all of it has passed."""
        return int(self.now_s() * 1000)

    def seconds_until(self, at_ms: int) -> float:
        """Seconds until `now_ms() >= at_ms`; 0 when it is."""
        return max(0.0, at_ms / 1000 - self.now_s())

    def status(self) -> ClockStatus:
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
        """The operator says that the wall clock is right: follow it at once. The alarm ends, unless the peers' clocks
        say otherwise."""
        self._follow()
        self.peers.acquit()
        self.peers.judge(self._offset, self._last)
        return self.status()

    def _follow(self) -> None:
        """Take the wall clock's time as it is. It is read before the monotonic clock, here and above: when the machine
        does something else in between, the error is on the late side. Of `PAIRS` looks the least late one counts, as
        what is wrong here takes a long time to be slewed away."""
        self._offset = -math.inf
        for _ in range(PAIRS):
            wall_s = self._wall()
            self._last = self._monotonic()
            self._offset = max(self._offset, wall_s - self._last)
        self._stepped = False
        self.notify_step()
