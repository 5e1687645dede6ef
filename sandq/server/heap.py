"""What the C library's heap keeps of memory that nobody uses any more, given back to the system.

After a burst it keeps some tens of MB in pieces that are free, between others that are not: pieces this small it gives
back by itself only at the end of the heap. `malloc_trim` gives back every page that is free, and takes some 5 ms for
50 MB, in which other threads may have to wait for memory: so only when there is something to give back, most likely.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Final

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
