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

LOOK_S: Final = 2.0
GROWN_BYTES: Final = 16 << 20
"""By so much more than it was left with by the last time, a process is worth another one."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = "/proc/self/statm"


class Heap:
    """Of this process. `resident()`: its bytes in memory; `trim()`: gives back what is free."""

    def __init__(self, resident: Callable[[], int], trim: Callable[[], object]) -> None:
        self._resident = resident
        self._trim = trim
        self._left_bytes = resident()

    def look(self) -> None:
        """Give back what is free, if the process has grown."""
        if self._resident() < self._left_bytes + GROWN_BYTES:
            return
        self._trim()
        self._left_bytes = self._resident()


def resident_bytes() -> int:
    """What this process has in memory."""
    with open(_STATM, encoding="ascii") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES


def trimming() -> Callable[[], object] | None:
    """What gives back free memory; None where the C library has nothing of the kind, or nobody tells what is used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None or not os.path.exists(_STATM) else lambda: trim(0)


def give_back_heap() -> None:
    """Look from now on every `LOOK_S`, in a thread of its own that ends with the process."""
    trim = trimming()
    if trim is not None:
        threading.Thread(target=_look, args=(Heap(resident_bytes, trim),), name="sandq-heap", daemon=True).start()


def _look(heap: Heap) -> None:
    while True:
        time.sleep(LOOK_S)
        heap.look()
