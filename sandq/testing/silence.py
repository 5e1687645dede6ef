"""How long the clients of a test have been silent, without the time in which they worked or could not run.

Linux counts for each thread the time that it ran and the time that it waited for a processor
(/proc/self/task/ID/schedstat, in nanoseconds). A handler that computes, or that a loaded machine keeps waiting, shows
there; one that sleeps, or that keeps its message on purpose, does not.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

LOOK_MOST_S: Final = 0.005
"""At most this much of the time between two looks counts: on a machine that stood still, clients did, too."""
BUSY_SHARE: Final = 0.5
"""Other threads that ran or waited for a processor for this share of the time between two looks were at work."""
BUSY_MOST_S: Final = 5.0
"""Time, in real seconds, for which one advance of the clock waits for threads that work, at most."""
_TASKS: Final = "/proc/self/task"


class Silence:
    """Silences within one advance of the clock: they share the time in which working threads are waited for."""

    def __init__(self) -> None:
        self._busy_s = self._silent_s = self._looked_s = 0.0
        self._times_ns: dict[int, int] = {}

    def begin(self, now_s: float) -> None:
        """Begin a silence at `now_s`, in real time."""
        self._looked_s, self._silent_s, self._times_ns = now_s, 0.0, _times_ns()

    def look(self, now_s: float, *, is_settled: bool) -> float:
        """Return how long the silence has lasted, in seconds.

        Time in which other threads worked is left out, unless everything was settled: then nobody is waited for.
        """
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        works = self._others_ns() >= BUSY_SHARE * passed_s * 1e9
        if works and not is_settled and self._busy_s < BUSY_MOST_S:
            self._busy_s += passed_s
        else:
            self._silent_s += min(passed_s, LOOK_MOST_S)
        return self._silent_s

    def end(self) -> None:
        """Something was said: another silence begins now."""
        self._silent_s = 0.0

    def _others_ns(self) -> int:
        """Return for how long other threads worked since the last look; 0 where the kernel does not count."""
        before, now = self._times_ns, _times_ns()
        self._times_ns = now
        own = threading.get_native_id()
        return sum(now[thread] - before.get(thread, 0) for thread in now if thread != own)


def _times_ns() -> dict[int, int]:
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_TASKS):
            with contextlib.suppress(OSError), open(f"{_TASKS}/{name}/schedstat", "rb") as file:
                ran, waited, _ = file.read().split()
                found[int(name)] = int(ran) + int(waited)
    return found
