"""Metrics of this process (`process_*`).

These metrics also work if the boot time cannot be read, because /proc contains only processes (ProcSubset=pid of
systemd).
"""

from __future__ import annotations

import time

from prometheus_client import ProcessCollector


class OwnProcess(ProcessCollector):
    """A `ProcessCollector` that also works if the boot time is unreadable: the base class would report nothing."""

    def _boot_time(self) -> float:
        """Return when the machine was started, in s since 1970, also where /proc/stat cannot be read."""
        try:
            found: float | None = super()._boot_time()  # type: ignore[no-untyped-call]
        except OSError:
            found = None
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if found is None else found
