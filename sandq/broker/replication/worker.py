"""A thread that runs what is queued for it, in batches, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

BATCH_ITEMS = 4096


class Worker(Generic[T]):
    """Runs `handle(items)` for all that has gathered; a dedicated thread costs 3-4 us a hand-over, against the
    50-80 us of trio's thread pool.

    An exception out of `handle` ends the thread and goes to `on_crash`: what was queued behind it is never run, as
    the order of work is a promise.
    """

    def __init__(self, name: str, handle: Callable[[list[T]], None], on_crash: Callable[[BaseException], None]) -> None:
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

    def close(self, timeout_s: float | None = None) -> bool:
        """Run what is queued, then end. Blocks until the thread has ended; False when it has not in that time."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
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
        except BaseException as crash:  # whatever ends this thread must end the node
            self._turns = 0  # it stands still no more than it goes on
            self._on_crash(crash)

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
