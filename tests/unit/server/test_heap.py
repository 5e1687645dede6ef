"""Tests that free memory is returned to the system after the process has grown."""

from __future__ import annotations

import subprocess
import sys

from sandq.server.process_tuning import MOVED_BYTES, TRIES, Heap, trimming

MB = 1 << 20


class Process:
    """A process that uses a number of bytes, some of which are free."""

    def __init__(self) -> None:
        self.used, self.free = 100 * MB, 0
        self.trims = 0

    def resident(self) -> int:
        return self.used + self.free

    def trim(self) -> None:
        self.free = 0
        self.trims += 1


def heap_of(process: Process) -> Heap:
    return Heap(process.resident, process.trim)


def test_free_memory_is_returned_when_the_process_has_grown() -> None:
    process = Process()
    heap = heap_of(process)
    process.free = MOVED_BYTES - 1
    for _ in range(5):
        heap.check()
    assert process.trims == 0, "too little memory is free"
    process.free += 1
    heap.check()
    assert (process.trims, process.free) == (1, 0)


def test_a_burst_is_given_back_once_it_is_over() -> None:
    """During the burst the memory is in use. Some of it becomes free only some time later."""
    process = Process()
    heap = heap_of(process)
    for _ in range(5):
        process.used += 10 * MOVED_BYTES
        heap.check()
    assert process.trims == 0
    for _ in range(TRIES):
        left = (process.used - 100 * MB) // 2
        process.used, process.free = process.used - left, left
        heap.check()
        assert process.free == 0
    assert process.trims == TRIES


def test_number_of_fruitless_trims_is_limited() -> None:
    process = Process()
    heap = heap_of(process)
    process.used += 10 * MOVED_BYTES
    for _ in range(20):
        heap.check()
    assert process.trims == TRIES


PIECES = """
import ctypes
from sandq.server.process_tuning import Heap, Resident, trimming
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
trim = trimming()
resident = Resident()
heap = Heap(resident, trim)
before, pieces = resident(), []
for _ in range(4000):
    piece = libc.malloc(16_000)
    ctypes.memset(piece, 1, 16_000)
    pieces.append(piece)
last = libc.malloc(16_000)
for piece in pieces:
    libc.free(ctypes.c_void_p(piece))
kept = resident() - before
heap.check()
heap.check()
print(kept, resident() - before)
"""


def test_pieces_between_others_are_given_back() -> None:
    """Run in a separate process, because the heap is shared."""
    assert trimming() is not None
    said = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=True).stdout
    kept, left = map(int, said.split())
    assert kept > 50 * MB, "the C library alone keeps the free pages"
    assert left < 10 * MB
