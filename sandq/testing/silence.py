"""Measure how long the clients of a test have been silent, excluding the time in which they worked or could not run.

Linux counts for each thread the time that it ran and the time that it waited for a processor
(/proc/self/task/ID/schedstat, in nanoseconds). These times distinguish a handler that computes, or waits for a loaded
machine, from a handler that sleeps or keeps its message on purpose.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

UPDATE_MOST_S: Final = 0.005
"""Maximum time between two updates that counts as silence, in seconds, because the machine may stall between them."""
BUSY_SHARE: Final = 0.5
"""Other threads count as working if they ran or waited for a processor for at least this share of the time between two
updates."""
BUSY_MOST_S: Final = 5.0
"""Maximum time for which one advance of the clock waits for working threads, in real seconds."""
_TASKS: Final = "/proc/self/task"


class Silence:
    """The silences within one advance of the clock. They share one limit for waiting for working threads."""

    def __init__(self) -> None:
        self._busy_s = self._silent_s = self._updated_s = 0.0
        self._times_ns: dict[int, int] = {}

    def begin(self, now_s: float) -> None:
        """Begin a silence at `now_s`, in real time."""
        self._updated_s, self._silent_s, self._times_ns = now_s, 0.0, _times_ns()

    def update(self, now_s: float, *, is_settled: bool) -> float:
        """Return how long the silence has lasted, in seconds.

        Time in which other threads worked is left out. If all messages are settled, it counts, because no thread is
        awaited.
        """
        passed_s, self._updated_s = now_s - self._updated_s, now_s
        works = self._others_ns() >= BUSY_SHARE * passed_s * 1e9
        if works and not is_settled and self._busy_s < BUSY_MOST_S:
            self._busy_s += passed_s
        else:
            self._silent_s += min(passed_s, UPDATE_MOST_S)
        return self._silent_s

    def end(self) -> None:
        """Reset the silence, because there was traffic."""
        self._silent_s = 0.0

    def _others_ns(self) -> int:
        """Return how long other threads worked since the last update, in ns. 0 if the kernel does not count it."""
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
