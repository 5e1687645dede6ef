"""Run queued items on a dedicated thread: in their order (`Worker`), or fairly over groups (`FairWorker`)."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from sandq.broker.replication.lanes import Lanes

T = TypeVar("T")
R = TypeVar("R")

BATCH_ITEMS = 4096
SLICE_ITEMS = 128
"""Maximum number of items in a time slice of a `FairWorker`. The event loop gets the results of a slice all at once."""
REST_S = 0.02
"""Seconds without new items after which a `FairWorker` calls `rest`, which does the deferred work."""
SLICE_S = 0.004
"""Maximum duration of a time slice in s. Before each slice, new items are sorted into the queues of their groups.

The results of the items do not depend on this value."""


class Worker(Generic[T]):
    """Call `handle(items)` with batches of the queued items, on a thread of its own.

    A hand-over to a dedicated thread costs 3 to 4 us; trio's thread pool takes 50 to 80 us.

    If `handle` raises, the thread ends and `on_crash` gets the exception. Items that are still queued are never run,
    because they must follow the failed item.
    """

    def __init__(
        self, name: str, handle: Callable[[Iterable[T]], None], on_crash: Callable[[BaseException], None]
    ) -> None:
        self._handle = handle
        self._on_crash = on_crash
        self._transitions = 0
        """Number of starts and ends of batches so far. The number is odd while a batch is handled."""
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> None:
        """Queue an item."""
        self._queue.put(item)

    @property
    def progress(self) -> int | None:
        """A number that differs for every batch; None if no batch is being handled. Any thread may read this."""
        transitions = self._transitions
        return transitions if transitions % 2 else None

    def cpu_s(self) -> float:
        """Return the CPU time that the thread has used, in seconds; 0 once it has ended. Any thread may ask."""
        ident = self._thread.ident
        if ident is None or not self._thread.is_alive():
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(ident))

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an exception in the thread, at the Python statement that the thread executes now.

        Use this function to stop work that would never end."""
        ident = self._thread.ident
        assert ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))

    def close(self, timeout_s: float | None = None) -> bool:
        """Run the queued items, then end the thread.

        Blocks. Return False if the thread has not ended after `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Run the thread. If an exception ends the thread, report the exception."""
        try:
            self._run_all()
        except BaseException as crash:  # any exception that ends this thread must stop the node
            self._transitions = 0  # a thread that has ended is not stalled
            self._on_crash(crash)

    def _run_all(self) -> None:
        """Handle batches of queued items until the end marker (None) is taken from the queue."""
        more = True
        while more:
            first = self._queue.get()
            if first is None:
                return
            items = [first]
            more = self._gather(items)
            self._transitions += 1
            self._handle(items)
            self._transitions += 1

    def _gather(self, items: list[T]) -> bool:
        """Move queued items to `items`, up to `BATCH_ITEMS`. Return False if the end marker was found."""
        get_nowait = self._queue.get_nowait
        while len(items) < BATCH_ITEMS:
            try:
                item = get_nowait()
            except Empty:
                break
            if item is None:
                return False
            items.append(item)
        return True


class FairWorker(Worker[T]):
    """Run items fairly over their groups, in order within each group (`Lanes`).

    If no item has come for `REST_S` seconds, the worker's thread calls `rest` to do the deferred work.

    The submitter is a single thread. While the worker's thread is idle, the submitter may run items itself
    (`run_here`). A lock is held while an item or `rest` runs. The worker's thread waits for the lock; the submitter
    never waits. `run_here` runs items only if the worker's thread is going to call `rest` later. So `rest` also does
    the work that these items defer.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Iterable[T]], None],
        on_crash: Callable[[BaseException], None],
        lane_of: Callable[[T], int | None],
        rest: Callable[[], None],
        handle_here: Callable[[Sequence[T]], int],
    ) -> None:
        """Create the worker.

        `lane_of(item)`: the group of an item; None: see `Lanes.add`. `handle_here(items)`: handle as many of the first
        items as is possible without waiting, and return their number."""
        self._lanes: Lanes[T] = Lanes()
        self._lane_of = lane_of
        self._rest = rest
        self._handle_here = handle_here
        self._owned = threading.Lock()
        self._is_broken = False
        """True while an item or `rest` runs. If one of them raises, it stays True, and nothing else may run."""
        self._is_rested = True
        """True if the worker's thread has called `rest` after its last time slice."""
        self._submitted = 0
        """Number of items that were queued. Only the submitter writes this number."""
        self._taken = self._done = 0
        """Number of items taken from the queue, and number of items done. Only the worker's thread writes these
        numbers."""
        self._ran_here = 0
        """Number of items that the submitter ran itself."""
        self._is_ended = False
        """True once the end marker was taken from the queue."""
        super().__init__(name, handle, on_crash)

    def submit(self, item: T) -> None:
        """Queue an item. Only the submitter may call this function."""
        self._submitted += 1
        super().submit(item)

    def run_here(self, items: Sequence[T]) -> int:
        """Run the first of these items on the calling thread, which must be the submitter. Return their number.

        If queued items are not done, or `rest` was already called, run no items. The caller submits the remaining
        items. If an item raises, stop the worker, and return the number of all items."""
        # If all items are done now, no other item can come in the meantime: only the caller submits items.
        if self._is_rested or self._done != self._submitted or not self._owned.acquire(blocking=False):
            return 0
        try:
            if self._is_rested or self._is_broken:
                return 0
            count = self._do(partial(self._handle_here, items))
            self._ran_here += count
            return count
        except BaseException as crash:  # stop the worker, as after an exception on its own thread
            self._queue.put(None)
            self._on_crash(crash)
            return len(items)
        finally:
            self._owned.release()

    def others(self) -> Iterator[T]:
        """Yield items of other groups for one time slice, because the current item yields.

        Runs on the worker's thread."""
        self._collect()
        return self._lanes.others(_time_slice())

    def _run_all(self) -> None:
        """Run time slices until the end marker was taken and all items are done."""
        while not self._is_ended or self._lanes:
            if not self._lanes:
                first = self._next()
                if first is None:
                    return
                self._lanes.add(first, self._lane_of(first))
            with self._owned:
                if self._is_broken:
                    return
                self._do(self._run_slice)

    def _do(self, work: Callable[[], R]) -> R:
        """Call `work`. After an exception of `work`, no other work may run. The caller holds the lock."""
        self._is_broken = True
        result = work()
        self._is_broken = False
        return result

    def _run_slice(self) -> None:
        """Run one time slice. The caller holds the lock."""
        self._collect()
        self._transitions += 1
        self._handle(self._lanes.slice(_time_slice()))
        self._transitions += 1
        self._is_rested = False
        if not self._lanes:
            self._done = self._taken

    def _run_rest(self) -> None:
        """Do the deferred work. The caller holds the lock."""
        self._transitions += 1
        self._rest()
        self._transitions += 1
        self._is_rested = True

    def _collect(self) -> None:
        """Move queued items into the queues of their groups."""
        if not self._is_ended:
            gathered: list[T] = []
            self._is_ended = not self._gather(gathered)
            self._taken += len(gathered)
            for item in gathered:
                self._lanes.add(item, self._lane_of(item))

    def _next(self) -> T | None:
        """Wait for the next item and return it; None if the end marker was taken. If no item comes for a while, call
        `rest`."""
        item: T | None
        while not self._is_rested:
            ran_here = self._ran_here
            try:
                item = self._queue.get(timeout=REST_S)
                break
            except Empty:
                with self._owned:
                    # If `run_here` has run items meanwhile, there was no pause of `REST_S`: wait again.
                    if ran_here == self._ran_here and not self._is_broken:
                        self._do(self._run_rest)
        else:
            item = self._queue.get()
        self._taken += item is not None
        return item


def _time_slice() -> Callable[[], bool]:
    """Begin a time slice. Return a function that returns whether the slice has time left."""
    until_s, left = time.perf_counter() + SLICE_S, SLICE_ITEMS

    def goes_on() -> bool:
        nonlocal left
        left -= 1
        return left > 0 and time.perf_counter() < until_s

    return goes_on
