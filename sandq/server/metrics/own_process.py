"""Metrics of this process (`process_*`), even if /proc shows only processes (ProcSubset=pid of systemd)."""

from __future__ import annotations

import time

from prometheus_client import ProcessCollector


class OwnProcess(ProcessCollector):
    """A `ProcessCollector` that also works if the boot time is unreadable. The base class reports nothing then."""

    def _boot_time(self) -> float:
        try:
            found: float | None = super()._boot_time()  # type: ignore[no-untyped-call]
        except OSError:
            found = None
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if found is None else found
