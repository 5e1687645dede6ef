"""What threads tell the event loop: calls, in the order in which they came, whoever makes them.

Trio's own way (`run_sync_soon`) is for signal handlers as well, and so dearer: a lock that may be taken twice, a socket
that is read until it is empty. And what the loop does itself in the place of a thread (`during`) is told in its order.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

import trio

T = TypeVar("T")

AT_ONCE: Final = 256
"""Calls in one turn of the loop."""


class Inbox:
    """Runs on the loop what any thread `put`s here."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._is_woken = False
        """Who runs the calls will look at them: nobody need wake it."""
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
        """Do some work on the loop, and run at once what it, or a thread meanwhile, puts here. What it returns."""
        self._is_woken = True
        try:
            return work()
        finally:
            self._run_calls()

    def _run_calls(self) -> None:
        # In this order: what comes from here on wakes again, what came before is among the calls.
        self._is_woken = False
        calls = self._calls
        for _ in range(AT_ONCE):
            if not calls:
                return
            call, args = calls.popleft()
            call(*args)
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
