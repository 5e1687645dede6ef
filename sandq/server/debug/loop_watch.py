"""When the event loop of a node stood still, for how long, and what held it."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import structlog
import trio

from sandq.server.debug.stacks import stack_of

log = structlog.get_logger("sandq.node")

BEAT_S: Final = 0.2
"""How often the loop says that it runs, and how often that is looked at."""
STALL_S: Final = 0.5
"""Without a word for so long it stands still."""
KEPT: Final = 32
"""Stalls that are remembered, the latest ones."""


class LoopWatch:
    """A thread that looks at the loop's thread when nothing is heard of it. `run` it on the loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._wall_s = wall_s
        self._beat_s = now_s()
        self._thread = 0
        self._seen: tuple[float, list[str]] | None = None
        """The beat since which the loop was found standing still, and what its thread did then."""
        self._stalls: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.count = 0
        """Stalls since the start."""

    def stalls(self) -> list[dict[str, Any]]:
        """The latest ones: `at_ms` when it was over, `seconds` that it lasted, `stack` of the loop's thread in it, the
        innermost frame first (empty: the whole process stood still)."""
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
            thread.join()  # it does nothing that takes long

    def beat(self) -> None:
        """The loop runs."""
        now_s = self._now_s()
        seconds, before_s, self._beat_s = now_s - self._beat_s, self._beat_s, now_s
        seen, self._seen = self._seen, None
        if seconds < STALL_S:
            return
        self.count += 1
        # One that was looked at while it went on says nothing of a later time.
        held = seen[1] if seen is not None and seen[0] == before_s else []
        self._stalls.append({"at_ms": round(self._wall_s() * 1000), "seconds": round(seconds, 3), "stack": held})
        log.warning("the event loop stood still", seconds=round(seconds, 3), at=held[0] if held else None)

    def look(self) -> None:
        """From another thread: see what the loop's thread does, if nothing is heard of it."""
        seen, beat_s = self._seen, self._beat_s
        if (seen is None or seen[0] != beat_s) and self._now_s() - beat_s >= STALL_S:
            self._seen = beat_s, stack_of(sys._current_frames().get(self._thread))

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(BEAT_S):
            self.look()
