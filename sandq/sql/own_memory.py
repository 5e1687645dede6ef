"""End a process of SQL that a statement has left without memory.

DuckDB plans some statements in gigabytes that nothing counts, and keeps them after it has failed. A process at its
bound of memory then fails all statements of everybody, and Python's own state may be damaged. So it ends, and its node
starts another one.
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
LOOK_S: Final = 1.0
LOOKS: Final = 2
"""Number of looks in a row that find too little memory before the process ends."""
FREE_SHARE: Final = 16
"""The process needs one part in so many of its bound to be free."""


def end_without_memory(most_bytes: int) -> None:
    """Start a thread that ends this process once nearly all of `most_bytes`, its bound (RLIMIT_DATA), is in use."""
    threading.Thread(target=_watch, args=(most_bytes,), name="memory", daemon=True).start()


def _watch(most_bytes: int) -> None:
    found = 0
    while True:
        time.sleep(LOOK_S)
        try:
            found = found + 1 if most_bytes - data_bytes() < most_bytes // FREE_SHARE else 0
        except MemoryError:
            found += 1
        if found >= LOOKS:
            with suppress(OSError):
                os.write(2, b"the process of SQL ends: a statement has left it without memory\n")
            os._exit(EXIT_NO_MEMORY)


def data_bytes() -> int:
    """Return what counts for RLIMIT_DATA now; 0 if the system does not tell."""
    with suppress(OSError), Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0
