"""Measure stolen CPU time: the share that a virtual machine's host gave to other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_STAT = Path("/proc/stat")
_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; later fields are already in user and nice."""


def cpu_ticks() -> tuple[int, int]:
    """Return two numbers of clock ticks of all cores since the machine's start: the total, and the stolen ticks."""
    fields = [int(field) for field in _STAT.read_text().partition("\n")[0].split()[1 : 1 + _FIELDS]]
    return sum(fields), fields[-1]


def stolen(ticks: Callable[[], tuple[int, int]] = cpu_ticks) -> Callable[[], float]:
    """Begin a measurement; the result returns the share (0 to 1) of the CPU time since then that was stolen."""
    before = ticks()

    def result() -> float:
        all_, stolen_ = (now - then for now, then in zip(ticks(), before, strict=True))
        return stolen_ / all_ if all_ else 0.0

    return result
