"""Replace the clock and the random numbers of the Raft library, for simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pysyncobj import syncobj


class Random(Protocol):
    def random(self) -> float: ...


def replace_time(clock: Callable[[], float], random: Random) -> Callable[[], None]:
    """Let the library use this clock (in seconds), and draw its timeouts from `random`.

    Return a function that restores the original clock and random numbers."""
    before = syncobj.monotonicTime, syncobj.random

    def undo() -> None:
        syncobj.monotonicTime, syncobj.random = before

    syncobj.monotonicTime, syncobj.random = clock, random
    return undo
