"""Replaces the clock and the randomness of the Raft library, for simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pysyncobj import syncobj


class Random(Protocol):
    def random(self) -> float: ...


def replace_time(clock: Callable[[], float], random: Random) -> Callable[[], None]:
    """Make the library use this clock (in seconds), and draw its time-outs here. Returns what undoes it."""
    before = syncobj.monotonicTime, syncobj.random

    def undo() -> None:
        syncobj.monotonicTime, syncobj.random = before

    syncobj.monotonicTime, syncobj.random = clock, random
    return undo
