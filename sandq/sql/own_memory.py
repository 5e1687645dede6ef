"""Ends an SQL process that has no memory left.

To plan some statements, DuckDB allocates gigabytes without counting them, and keeps this memory after the statement has
failed. A process at its memory limit then fails all statements of all clients, and Python's own state may be damaged.
So the process exits, and its node starts a new one.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

EXIT_NO_MEMORY: Final = 4
"""Exit code of a process that has no memory left."""
CHECK_INTERVAL_S: Final = 1.0
"""Interval between two checks, in seconds."""
FAILED_CHECKS: Final = 2
"""Number of consecutive checks that find too little memory before the process exits."""
FREE_SHARE: Final = 16
"""The process exits when less than 1/FREE_SHARE of its limit is free."""


def end_without_memory(most_bytes: int) -> None:
    """Start a thread that ends this process when nearly all of `most_bytes`, its limit (RLIMIT_DATA), is in use."""
    threading.Thread(target=_watch, args=(most_bytes,), name="memory", daemon=True).start()


def _watch(most_bytes: int) -> None:
    """Check the memory regularly. End the process after `FAILED_CHECKS` checks in a row that find too little."""
    failed = 0
    while True:
        time.sleep(CHECK_INTERVAL_S)
        try:
            failed = failed + 1 if most_bytes - data_bytes() < most_bytes // FREE_SHARE else 0
        except MemoryError:
            failed += 1
        if failed >= FAILED_CHECKS:
            with suppress(OSError):
                os.write(2, b"the SQL process exits: a statement has used all of its memory\n")
            os._exit(EXIT_NO_MEMORY)


def data_bytes() -> int:
    """Return the bytes that count for RLIMIT_DATA now; 0 if the system does not report them."""
    with suppress(OSError), Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0
