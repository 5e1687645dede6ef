"""What threads tell the event loop: calls, in the order in which they came, whoever makes them.

Trio's own way (`run_sync_soon`) is for signal handlers as well, and so dearer: a lock that may be taken twice, a socket
that is read until it is empty. And what the loop does itself in the place of a thread (`during`) is told in its order.
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
    """Runs on the loop what any thread `put`s here."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._is_woken = False
        """Who runs the calls will look at them: nobody need wake it."""
        self._is_running = False
        self._left = 0
        """Calls that are yet to be run in this turn of the loop."""
        self._lock = threading.Lock()
        """Without it a thread might write to what has the number of a closed descriptor by then."""
        self._fd: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, call: Callable[..., Any], *args: Any) -> None:
        """Have `call(*args)` run on the loop, after all that was put before. It must not raise, or ends who runs this
        inbox; once that is closed nothing happens."""
        if self._fd is None:
            return
        self._calls.append((call, args))
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)

    async def run(self) -> None:
        """Run what comes, until cancelled."""
        while self._fd is not None:
            await trio.lowlevel.wait_readable(self._fd)
            os.eventfd_read(self._fd)
            self._run_calls()

    def during(self, work: Callable[[], T]) -> T:
        """Do some work on the loop, and run in this turn what it, or a thread meanwhile, puts here: at once, or when
        what runs from here, and calls this, has ended. What the work returns."""
        self._is_woken = True
        try:
            return work()
        finally:
            self._left = len(self._calls)
            if not self._is_running:
                self._run_calls()

    def _run_calls(self) -> None:
        """Run what is there, and what `during` adds. What comes later is for another turn of the loop."""
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
        # In this order: what is put from here on wakes the loop itself.
        self._is_woken = False
        if calls:
            self._is_woken = True
            self._wake()

    def close(self) -> None:
        """Run what is left, and nothing any more from here on."""
        while self._calls:
            self._run_calls()
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
