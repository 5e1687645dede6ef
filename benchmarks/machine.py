"""What a virtual machine is not told of by a clock: how much of its CPU time others were given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_STAT = Path("/proc/stat")
_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; what follows is in user and nice already."""


def cpu_ticks() -> tuple[int, int]:
    """Of all cores since the machine's start: ticks in all, and those in which a core that had work was not run."""
    fields = [int(field) for field in _STAT.read_text().partition("\n")[0].split()[1 : 1 + _FIELDS]]
    return sum(fields), fields[-1]


def stolen(ticks: Callable[[], tuple[int, int]] = cpu_ticks) -> Callable[[], float]:
    """Begin to look; the result tells the share (0 to 1) of the CPU time since then that was stolen."""
    before = ticks()

    def told() -> float:
        all_, stolen_ = (now - then for now, then in zip(ticks(), before, strict=True))
        return stolen_ / all_ if all_ else 0.0

    return told
