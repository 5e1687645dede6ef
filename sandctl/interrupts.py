"""Handle Ctrl-C while the event loop runs: cancel the work, and let it clean up. A second Ctrl-C ends the process.

By default, Python raises KeyboardInterrupt at any place in the code. This would leave work unfinished, and a second
Ctrl-C would print tracebacks.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

EXIT_INTERRUPTED = 130
IMPATIENT_S = 0.5
"""Minimum time in s between the first signal and a second signal that ends the process at once.

An earlier second signal is ignored, because it probably has the same cause."""
CLEAN_UP_S = 10.0
"""Time limit for the work to end, in seconds: output that no process reads could block it forever."""
_SOON_S = 0.001  # 0 would stop the timer


class FirstOnly:
    """Handle SIGINT while no event loop runs, in a process that only runs sandctl.

    The first signal raises KeyboardInterrupt. A second signal within `IMPATIENT_S` is ignored; a later signal ends the
    process at once.

    A second KeyboardInterrupt would interrupt the code that handles the first.
    """

    def __init__(self) -> None:
        self.first_s: float | None = None
        """Time of the first signal, by the monotonic clock."""
        self.is_over = False
        """True if the command has ended: further signals are ignored."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.is_over:
            return
        if self.first_s is None:
            self.first_s = now_s
            raise KeyboardInterrupt
        if now_s - self.first_s > IMPATIENT_S:
            _end(number, frame)


class Interrupts:
    """Use `with Interrupts() as interrupts:` around the loop; `interrupts.cancel` is called to end the work."""

    def __init__(self) -> None:
        self.cancel: Callable[[], object] | None = None
        self._first_s: float | None = None
        self._outer: Any = None
        """The previous handler of SIGINT; None if this object does not handle it."""
        self._callers_timer: tuple[float, float] = (0.0, 0.0)
        self._callers_handler: Any = None

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        outer = signal.getsignal(signal.SIGINT)
        if is_main and (outer is signal.default_int_handler or isinstance(outer, FirstOnly)):
            self._outer = outer
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._outer is not None:
            if self._first_s is not None:
                self._restore_timer(time.monotonic() - self._first_s)
                if isinstance(self._outer, FirstOnly):
                    self._outer.first_s = self._first_s
            signal.signal(signal.SIGINT, self._outer)

    def _restore_timer(self, passed_s: float) -> None:
        """Restore the caller's timer, with the time that was left minus `passed_s`."""
        left_s, interval_s = self._callers_timer
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._callers_handler or signal.SIG_DFL)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(left_s - passed_s, _SOON_S), interval_s)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.cancel is None:
            if isinstance(self._outer, FirstOnly):
                self._outer(number, frame)
                return
            raise KeyboardInterrupt
        if self._first_s is None:
            self._first_s = now_s
            self._callers_handler = signal.signal(signal.SIGALRM, _end)
            self._callers_timer = signal.setitimer(signal.ITIMER_REAL, CLEAN_UP_S)
            self.cancel()
        elif now_s - self._first_s > IMPATIENT_S:
            _end(number, frame)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
