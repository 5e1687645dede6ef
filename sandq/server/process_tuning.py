"""What a process that serves asks of Python, of the C library and of the system: collector, heap, open files.

Heap: after a burst the C library keeps some tens of MB in pieces that are free, between others that are not: pieces
this small it gives back by itself only at the end of the heap. `malloc_trim` gives back every page that is free, and
takes some 5 ms for 50 MB, in which other threads may have to wait for memory: so only when there is something to give
back, most likely.

Open files: sockets and files come out of one number. `limits_within_files` bounds what connections may take of it, so
that the log can always be written.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from sandq.model.limits import Limits

YOUNG_OBJECTS: Final = 5_000
"""More objects made than freed, before the youngest are looked at, which takes some ms if all of them are in use: of
requests that wait they are. An answer of 1,000 messages is some thousands: by Python's own bound of 700 the collector
goes through all objects there are every few answers, and stops the process for a tenth of a second and more."""
YOUNG_ROUNDS: Final = 5
"""Of the youngest, before those that outlived one are looked at with them ..."""
ROUNDS: Final = 500
"""... and of those, before all are: for a tenth of a second where there are many."""


def collect_rarely() -> None:
    """Have the collector leave alone what there is now, the modules above all, and look less often at what comes.
    Nothing of a request is in a cycle but by the way of an error, so little waits for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, ROUNDS)


LOOK_S: Final = 1.0
MOVED_BYTES: Final = 16 << 20
"""A process that is by so much larger or smaller than the last time has left it is worth some tries: ..."""
TRIES: Final = 3
"""... what a burst has used is not free at once when it ends."""
STILL_BYTES: Final = 1 << 20
"""While a process grows by so much from one look to the next, what is free will be used again at once."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = "/proc/self/statm"


class Heap:
    """Of this process. `resident()`: its bytes in memory; `trim()`: gives back what is free."""

    def __init__(self, resident: Callable[[], int], trim: Callable[[], object]) -> None:
        self._resident = resident
        self._trim = trim
        self._left_bytes = self._seen_bytes = resident()
        self._tries = 0

    def look(self) -> None:
        """Give back what is free, if the process has grown or shrunk, and does not grow now."""
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
    """What this process has in memory. Reads a file that stays open: there may be no room for another one."""

    def __init__(self) -> None:
        self._statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> int:
        return int(os.pread(self._statm, 200, 0).split()[1]) * _PAGE_BYTES


def trimming() -> Callable[[], object] | None:
    """What gives back free memory; None where the C library has nothing of the kind, or nobody tells what is used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None or not os.path.exists(_STATM) else lambda: trim(0)


def give_back_heap() -> None:
    """Look from now on every `LOOK_S`, in a thread of its own that ends with the process."""
    trim = trimming()
    if trim is not None:
        threading.Thread(target=_look, args=(Heap(Resident(), trim),), name="sandq-heap", daemon=True).start()


def _look(heap: Heap) -> None:
    while True:
        time.sleep(LOOK_S)
        heap.look()


log = structlog.get_logger("sandq.server")

RESERVED = 192
"""Files that are for no such connections: the log, the lock, listeners, other nodes, spare places ..."""
STORE_PART = 5
"""... and a fifth of all, which LevelDB may hold open."""


def raise_file_limit() -> None:
    """Let this process open as many files as it may allow itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limits_within_files(limits: Limits) -> Limits:
    """The limits, with fewer connections where the process may not open so many files: three quarters of what there is
    are for clients, one for HTTP."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    room = max(files - RESERVED - files // STORE_PART, 8)
    if limits.connections + limits.http_connections <= room:
        return limits
    fitting = dataclasses.replace(
        limits,
        connections=min(limits.connections, max(room * 3 // 4, room - limits.http_connections)),
        http_connections=min(limits.http_connections, max(room // 4, room - limits.connections)),
    )
    log.warning(
        "so few files may be open here that connections are limited further",
        open_files=files,
        connections=fitting.connections,
        http_connections=fitting.http_connections,
        remedy="raise it (ulimit -n, LimitNOFILE= of systemd), or lower limits.connections and limits.http_connections",
    )
    return fitting
