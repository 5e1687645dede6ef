"""Record stalls of the event loop, with their durations and the code that caused them."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import trio

from sandq.model.logger import get_logger
from sandq.server.debug.stacks import stack_of

log = get_logger("sandq.node")

BEAT_S: Final = 0.2
"""Interval between two signs of life of the loop, and between two checks, in seconds."""
STALL_S: Final = 0.5
"""Time without a sign of life after which the loop counts as stalled, in seconds."""
KEPT: Final = 32
"""Number of recent stalls that are kept."""


class LoopWatch:
    """A thread that reads the stack of the loop's thread when the loop is stalled. Call `run` on the loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._wall_s = wall_s
        self._beat_s = now_s()
        self._thread = 0
        self._seen: tuple[float, list[str]] | None = None
        """The last sign of life before a stall, and the stack of the loop's thread during that stall."""
        self._stalls: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.count = 0
        """Number of stalls since the start."""

    def stalls(self) -> list[dict[str, Any]]:
        """Return the recent stalls: `at_ms` is the end, `seconds` the duration, and `stack` that of the loop's thread.

        The innermost frame comes first. If the whole process was stopped, there is no stack: the watching thread was
        stopped, too."""
        return list(self._stalls)

    async def run(self) -> None:
        """Watch this loop until cancelled."""
        self._thread, self._beat_s = threading.get_ident(), self._now_s()
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over,), name="loop watch", daemon=True)
        thread.start()
        try:
            while True:
                await trio.sleep(BEAT_S)
                self.beat()
        finally:
            over.set()
            thread.join()  # waits only briefly: `over` wakes the thread

    def beat(self) -> None:
        """Note a sign of life of the loop, and record the stall that it ends, if any."""
        now_s = self._now_s()
        seconds, before_s, self._beat_s = now_s - self._beat_s, self._beat_s, now_s
        seen, self._seen = self._seen, None
        if seconds < STALL_S:
            return
        self.count += 1
        # A stack that was read after the loop went on does not belong to this stall.
        held = seen[1] if seen is not None and seen[0] == before_s else []
        self._stalls.append({"at_ms": round(self._wall_s() * 1000), "seconds": round(seconds, 3), "stack": held})
        log.warning("the event loop stood still", seconds=round(seconds, 3), at=held[0] if held else None)

    def check(self) -> None:
        """Read the stack of the loop's thread if the loop is stalled. Called in the watching thread."""
        seen, beat_s = self._seen, self._beat_s
        if (seen is None or seen[0] != beat_s) and self._now_s() - beat_s >= STALL_S:
            self._seen = beat_s, stack_of(sys._current_frames().get(self._thread))

    def _watch(self, over: threading.Event) -> None:
        """Check the loop regularly until `over` is set. Runs in the watching thread."""
        while not over.wait(BEAT_S):
            self.check()
