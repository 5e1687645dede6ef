"""Pass calls from worker threads to the event loop, in the order in which they were made.

Trio's `run_sync_soon` does the same at a higher cost. Trio's function also supports signal handlers, so it needs a
re-entrant lock, and a socket that is read until it is empty. The event loop may also do the work of a worker thread
itself (`during`): then the calls that this work queues keep their order, too.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import trio

T = TypeVar("T")


class Inbox:
    """Runs calls on the event loop. Any thread may queue a call with `put`."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._is_woken = False
        """True if the task in `run` will run the queued calls without another wake-up."""
        self._is_running = False
        self._left = 0
        """Number of calls that are still to be run in this iteration of the event loop."""
        self._lock = threading.Lock()
        """Protects `_fd`: a thread must not write to a descriptor that was closed and whose number was reused."""
        self._fd: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, call: Callable[..., Any], *args: Any) -> None:
        """Queue `call(*args)` to run on the loop, after all calls that were queued before.

        The call must not raise: an exception would end the task that runs the inbox. After `close`, `put` does nothing.
        """
        if self._fd is None:
            return
        self._calls.append((call, args))
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def _wake(self) -> None:
        """Wake the task in `run`, unless the inbox is closed."""
        with self._lock:
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)

    async def run(self) -> None:
        """Run queued calls until cancelled."""
        while self._fd is not None:
            await trio.lowlevel.wait_readable(self._fd)
            os.eventfd_read(self._fd)
            self._run_calls()

    def during(self, work: Callable[[], T]) -> T:
        """Run `work` on the loop and return its result.

        All queued calls, also those that `work` queues, run after `work`, in the same iteration of the event loop. If a
        call of this inbox called `during`, the queued calls run after that call has returned."""
        self._is_woken = True
        try:
            return work()
        finally:
            self._left = len(self._calls)
            if not self._is_running:
                self._run_calls()

    def _run_calls(self) -> None:
        """Run the queued calls and the calls that `during` adds. Calls that are queued later run in the next iteration
        of the event loop."""
        calls = self._calls
        self._is_woken = self._is_running = True
        self._left = len(calls)
        try:
            while self._left:
                self._left -= 1
                call, args = calls.popleft()
                call(*args)
        finally:
            self._is_running = False
        # Reset the flag before checking the queue: `put` wakes the event loop itself after this line.
        self._is_woken = False
        if calls:
            self._is_woken = True
            self._wake()

    def close(self) -> None:
        """Run the calls that are queued. `put` ignores all later calls."""
        while self._calls:
            self._run_calls()
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
