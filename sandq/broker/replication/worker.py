"""Threads that run what is queued for them, in batches: in order, or fairly over groups."""

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
TURN_ITEMS = 128
"""Of a batch that is made fairly: the loop hears of them in one turn."""
REST_S = 0.02
"""Without anything to do, before what was put off is done."""
TURN_S = 0.004
"""After so long it ends, and what has come meanwhile is looked at. What is applied does not depend on it."""


class Worker(Generic[T]):
    """Runs `handle(items)` for all that has gathered; a dedicated thread costs 3-4 us a hand-over, against the
    50-80 us of trio's thread pool.

    An exception out of `handle` ends the thread and goes to `on_crash`: what was queued behind it is never run, as
    the order of work is a promise.
    """

    def __init__(
        self, name: str, handle: Callable[[Iterable[T]], None], on_crash: Callable[[BaseException], None]
    ) -> None:
        self._handle = handle
        self._on_crash = on_crash
        self._turns = 0
        """Odd while something is being handled."""
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> None:
        self._queue.put(item)

    @property
    def progress(self) -> int | None:
        """What is another number with every batch; None while nothing is being handled. For any thread."""
        turns = self._turns
        return turns if turns % 2 else None

    def cpu_s(self) -> float:
        """Return the CPU time that the thread has used, in seconds; 0 once it has ended. For any thread."""
        ident = self._thread.ident
        if ident is None or not self._thread.is_alive():
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(ident))

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an exception in the thread, at whatever line of Python it is. For work that would never end."""
        ident = self._thread.ident
        assert ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))

    def close(self, timeout_s: float | None = None) -> bool:
        """Run what is queued, then end. Blocks until the thread has ended; False when it has not in that time."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._run_all()
        except BaseException as crash:  # whatever ends this thread must end the node
            self._turns = 0  # it stands still no more than it goes on
            self._on_crash(crash)

    def _run_all(self) -> None:
        more = True
        while more:
            first = self._queue.get()
            if first is None:
                return
            items = [first]
            more = self._gather(items)
            self._turns += 1
            self._handle(items)
            self._turns += 1

    def _gather(self, items: list[T]) -> bool:
        """Add what is queued already, up to a batch. False: the end was queued."""
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
    """One whose items are of groups, see `Lanes`: those of a group are run in order. Once nothing has come for `REST_S`
    after some, it calls `rest`.

    Who submits, which must be one thread, may run items itself while this one has nothing to do: `run_here`. Whoever
    runs something, or rests, has the lock; this thread waits for it, the other never does. What that puts off is done
    by this thread as well: nothing is run elsewhere but between a turn of this one and its rest.
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
        """`handle_here(items)`: `handle` for a thread that must not wait; of so many of the first."""
        self._lanes: Lanes[T] = Lanes()
        self._lane_of = lane_of
        self._rest = rest
        self._handle_here = handle_here
        self._owned = threading.Lock()
        self._is_broken = False
        """What is being run has not come to its end; or never will, as it raised: nothing is run after it."""
        self._is_rested = True
        self._submitted = 0
        """Items, by who submits, ..."""
        self._taken = self._done = 0
        """... and of them, by this thread."""
        self._ran_here = 0
        """Items that were run by who submits."""
        self._is_ended = False
        """Its end was queued."""
        super().__init__(name, handle, on_crash)

    def submit(self, item: T) -> None:
        self._submitted += 1
        super().submit(item)

    def run_here(self, items: Sequence[T]) -> int:
        """Run the first of these on the calling thread, the one that submits, if all that was submitted is done and
        this thread will rest yet. How many; the others are to be submitted."""
        # What is done by now stays done: nobody else submits.
        if self._is_rested or self._done != self._submitted or not self._owned.acquire(blocking=False):
            return 0
        try:
            if self._is_rested or self._is_broken:
                return 0
            count = self._do(partial(self._handle_here, items))
            self._ran_here += count
            return count
        except BaseException as crash:  # as on the thread itself
            self._queue.put(None)
            self._on_crash(crash)
            return len(items)
        finally:
            self._owned.release()

    def beside(self) -> Iterator[T]:
        """Take what other groups have to do, while an item of one gives way: as much as in a turn. On its thread."""
        self._look()
        return self._lanes.beside(_turn())

    def _run_all(self) -> None:
        while not self._is_ended or self._lanes:
            if not self._lanes:
                first = self._next()
                if first is None:
                    return
                self._lanes.add(first, self._lane_of(first))
            with self._owned:
                if self._is_broken:
                    return
                self._do(self._run_turn)

    def _do(self, work: Callable[[], R]) -> R:
        """Run something; nothing follows if it raises. For who has the lock."""
        self._is_broken = True
        result = work()
        self._is_broken = False
        return result

    def _run_turn(self) -> None:
        self._look()
        self._turns += 1
        self._handle(self._lanes.turn(_turn()))
        self._turns += 1
        self._is_rested = False
        if not self._lanes:
            self._done = self._taken

    def _run_rest(self) -> None:
        self._turns += 1
        self._rest()
        self._turns += 1
        self._is_rested = True

    def _look(self) -> None:
        """Put what has come into its lanes."""
        if not self._is_ended:
            gathered: list[T] = []
            self._is_ended = not self._gather(gathered)
            self._taken += len(gathered)
            for item in gathered:
                self._lanes.add(item, self._lane_of(item))

    def _next(self) -> T | None:
        """What comes next; None: the end."""
        item: T | None
        while not self._is_rested:
            ran_here = self._ran_here
            try:
                item = self._queue.get(timeout=REST_S)
                break
            except Empty:
                with self._owned:
                    if ran_here == self._ran_here and not self._is_broken:
                        self._do(self._run_rest)
        else:
            item = self._queue.get()
        self._taken += item is not None
        return item


def _turn() -> Callable[[], bool]:
    """Whether a turn that begins now goes on."""
    until_s, left = time.perf_counter() + TURN_S, TURN_ITEMS

    def goes_on() -> bool:
        nonlocal left
        left -= 1
        return left > 0 and time.perf_counter() < until_s

    return goes_on
