"""What the C library's heap keeps of memory that nobody uses any more, given back to the system.

After a burst it keeps some tens of MB in pieces that are free, between others that are not: pieces this small it gives
back by itself only at the end of the heap. `malloc_trim` gives back every page that is free, and takes some 5 ms for
50 MB, in which other threads may have to wait for memory: so only when the process has grown.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 1.0
GROWN_BYTES: Final = 16 << 20
"""By so much more than it was left with by the last time, a process is worth another one, ..."""
STILL_BYTES: Final = 1 << 20
"""... once it has grown by less since the last look: in the midst of a burst it would be in use again at once."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = "/proc/self/statm"


class Heap:
    """Of this process. `resident()`: its bytes in memory; `trim()`: gives back what is free."""

    def __init__(self, resident: Callable[[], int], trim: Callable[[], object]) -> None:
        self._resident = resident
        self._trim = trim
        self._left_bytes = self._seen_bytes = resident()

    def look(self) -> None:
        """Give back what is free, if the process has grown, and does so no more."""
        resident = self._resident()
        is_still = resident < self._seen_bytes + STILL_BYTES
        self._left_bytes, self._seen_bytes = min(self._left_bytes, resident), resident
        if is_still and resident >= self._left_bytes + GROWN_BYTES:
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
