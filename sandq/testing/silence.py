"""Measure how long the clients of a test have been silent, excluding the time in which they worked or could not run.

Linux counts for each thread the time that it ran and the time that it waited for a processor
(/proc/self/task/ID/schedstat, in nanoseconds). A wait counts only once it is over; until then, the state of the thread
is R (/proc/self/task/ID/stat). This distinguishes a handler that computes, or waits for a loaded machine, from a
handler that sleeps or keeps its message on purpose.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final, NamedTuple

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
        self._times: dict[int, _Times] = {}

    def begin(self, now_s: float) -> None:
        """Begin a silence at `now_s`, in real time."""
        self._updated_s, self._silent_s, self._times = now_s, 0.0, _times()

    def update(self, now_s: float, *, is_settled: bool) -> float:
        """Return how long the silence has lasted, in seconds.

        Time in which other threads worked is left out. If all messages are settled, it counts, because no thread is
        awaited.
        """
        passed_s, self._updated_s = now_s - self._updated_s, now_s
        works = self._others_work(passed_s)
        if works and not is_settled and self._busy_s < BUSY_MOST_S:
            self._busy_s += passed_s
        else:
            self._silent_s += min(passed_s, UPDATE_MOST_S)
        return self._silent_s

    def end(self) -> None:
        """Reset the silence, because there was traffic."""
        self._silent_s = 0.0

    def _others_work(self, passed_s: float) -> bool:
        """Return whether other threads worked in the time since the last update, `passed_s`. False if the kernel does
        not count it."""
        before, now = self._times, _times()
        self._times = now
        own, nothing = threading.get_native_id(), _Times(0, 0)
        others = {thread: times for thread, times in now.items() if thread != own}
        if any(times.is_ready for times in others.values()):
            return True
        worked_ns = sum(times.sum_ns - before.get(thread, nothing).sum_ns for thread, times in others.items())
        # While this thread waits for a processor, it may have the interpreter's lock, and other threads cannot run.
        waited_ns = now.get(own, nothing).waited_ns - before.get(own, nothing).waited_ns
        return bool(others) and worked_ns >= BUSY_SHARE * max(passed_s * 1e9 - waited_ns, 0)


class _Times(NamedTuple):
    """How long a thread ran, and how long it waited for a processor."""

    ran_ns: int
    waited_ns: int
    is_ready: bool = False
    """Whether it runs, or waits for a processor, now."""

    @property
    def sum_ns(self) -> int:
        return self.ran_ns + self.waited_ns


def _times() -> dict[int, _Times]:
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_TASKS):
            with contextlib.suppress(OSError), open(f"{_TASKS}/{name}/stat", "rb") as stat:
                is_ready = stat.read().rpartition(b") ")[2].startswith(b"R")
                with open(f"{_TASKS}/{name}/schedstat", "rb") as times:
                    ran, waited, _ = times.read().split()
                found[int(name)] = _Times(int(ran), int(waited), is_ready)
    return found
