"""Tune a server process: Python's garbage collector, the heap of the C library, and the limit of open files.

Heap: after a burst, the C library keeps some tens of MB of free memory in small pieces between used ones. By itself,
the C library returns free memory to the system only at the end of the heap. `malloc_trim` returns every free page, but
takes some 5 ms for 50 MB, and other threads that need memory may have to wait. So this module calls `malloc_trim` only
when much memory is likely to be free.

Open files: sockets and files share one limit. `limits_within_files` bounds the number of connections, so that the log
can always be written.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sandq.model.limits import Limits
from sandq.model.logger import get_logger

YOUNG_OBJECTS: Final = 5_000
"""Net number of new objects after which the youngest generation is collected.

A collection takes some ms if all new objects are in use, such as the objects of waiting requests. A reply of 1,000
messages consists of some thousands of objects. With Python's default of 700, every few replies would cause a collection
of all objects, which stops the process for a tenth of a second and more."""
YOUNG_ROUNDS: Final = 0 if sys.version_info < (3, 14) else 5
"""Number of collections of the youngest generation before each collection of the middle one, which includes the young
objects of all of them: more rounds make it longer (25 ms after 5 rounds). From Python 3.14 on, another collector uses
the number for the speed at which it examines old objects."""
ROUNDS: Final = 500
"""Number of collections of the middle generation for each full one, which may take a tenth of a second."""


def collect_rarely() -> None:
    """Exclude existing objects, most of all modules, from garbage collection, and collect new objects less often.

    Only errors put objects of a request into reference cycles, so little memory waits for the collector."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, ROUNDS)


CHECK_S: Final = 1.0
"""Interval between two checks of the heap, in seconds."""
MOVED_BYTES: Final = 16 << 20
"""Change of the process's size since the last trim, in bytes, that makes a new trim worthwhile."""
TRIES: Final = 3
"""Number of trims after such a change, because the memory of a burst becomes free only gradually."""
STILL_BYTES: Final = 1 << 20
"""Growth between two checks, in bytes, at which the heap is not trimmed: free memory will be used again at once."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = "/proc/self/statm"


class Heap:
    """The heap of this process.

    `resident()`: return its bytes in memory. `trim()`: return its free memory to the system."""

    def __init__(self, resident: Callable[[], int], trim: Callable[[], object]) -> None:
        self._resident = resident
        self._trim = trim
        self._left_bytes = self._seen_bytes = resident()
        self._tries = 0

    def check(self) -> None:
        """Trim the heap if the process has grown or shrunk much, and does not grow now."""
        resident = self._resident()
        grows = resident >= self._seen_bytes + STILL_BYTES
        self._seen_bytes = resident
        if abs(resident - self._left_bytes) >= MOVED_BYTES:
            self._tries = TRIES
        if self._tries and not grows:
            self._tries -= 1
            self._trim()
            self._left_bytes = self._seen_bytes = self._resident()


class Resident:
    """Reads the resident memory of this process, in bytes.

    Keeps the file open, because later the process may have reached its limit of open files."""

    def __init__(self) -> None:
        self._statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> int:
        return int(os.pread(self._statm, 200, 0).split()[1]) * _PAGE_BYTES


def trimming() -> Callable[[], object] | None:
    """Return a function that trims the heap; None if the C library or the system does not support that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None or not os.path.exists(_STATM) else lambda: trim(0)


def give_back_heap() -> None:
    """Start a daemon thread that checks the heap every `CHECK_S`."""
    trim = trimming()
    if trim is not None:
        threading.Thread(target=_check_often, args=(Heap(Resident(), trim),), name="sandq-heap", daemon=True).start()


def _check_often(heap: Heap) -> None:
    """Check the heap every `CHECK_S`, in a thread."""
    while True:
        time.sleep(CHECK_S)
        heap.check()


log = get_logger("sandq.server")

RESERVED = 192
"""Files reserved for other purposes than client and HTTP connections: log, lock, listeners, peers, spare slots."""
STORE_PART = 5
"""One in this many files is reserved for LevelDB."""


def raise_file_limit() -> None:
    """Raise the limit of open files of this process to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limits_within_files(limits: Limits) -> Limits:
    """Return the limits, with fewer connections if the process may not open enough files.

    If both limits must shrink, three quarters of the available files are for clients, and one quarter for HTTP."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    available = max(files - RESERVED - files // STORE_PART, 8)
    if limits.connections + limits.http_connections <= available:
        return limits
    fitting = dataclasses.replace(
        limits,
        connections=min(limits.connections, max(available * 3 // 4, available - limits.http_connections)),
        http_connections=min(limits.http_connections, max(available // 4, available - limits.connections)),
    )
    log.warning(
        "so few files may be open here that connections are limited further",
        open_files=files,
        connections=fitting.connections,
        http_connections=fitting.http_connections,
        remedy="raise it (ulimit -n, LimitNOFILE= of systemd), or lower limits.connections and limits.http_connections",
    )
    return fitting
