"""Metrics of this process (`process_*`), also if it sees nothing of /proc but processes (systemd's ProcSubset=pid)."""

from __future__ import annotations

import time

from prometheus_client import ProcessCollector


class OwnProcess(ProcessCollector):
    """`ProcessCollector`, which tells nothing at all if it cannot read when the machine started."""

    def _boot_time(self) -> float:
        try:
            found: float | None = super()._boot_time()  # type: ignore[no-untyped-call]
        except OSError:
            found = None
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if found is None else found
